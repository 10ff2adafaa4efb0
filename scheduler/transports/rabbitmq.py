"""RabbitMQ: a source that consumes from a quorum queue, and a sink that publishes to a queue or an exchange.

RabbitMQ has no delay, and its own dead-lettering may lose a message. So both are a copy that the server has confirmed,
and an acknowledgement afterwards: to a queue whose messages expire back into the source's, and to that of dead ones.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from scheduler.config.sources import Duration
from scheduler.errors import ConfigError
from scheduler.model.secrets import Secret
from scheduler.transports.amqp import NOT_FOUND, PRECONDITION, REFUSED, AmqpLine, AmqpLink, Copy, Give, LinkEnded, short
from scheduler.transports.ports import (
    Ack,
    Dead,
    Delivery,
    Finding,
    Limits,
    Outgoing,
    Published,
    Refused,
    Retry,
    Settled,
    TransportError,
    Verdict,
)

MAX_SIZE = 16 * 1024 * 1024  # bytes of a message: the server's own limit from 4.0 on
MAX_BATCH = 500
OLDEST = (3, 10)  # the first version whose quorum queues know messages that expire
REDRIVE_WAIT = 1.0  # seconds that a redrive waits for dead messages that the queue counts
RETURN_S = 30.0  # seconds after which a message whose verdict was refused is given back
MAX_ARGUMENTS = 12  # of a queue, that are looked at
PERSISTENT = 2
MAX_TABLE = 120_000  # bytes of headers: with the other properties they have to fit into a frame of 131,072
REASON, DELIVERIES = "x-schedd-reason", "x-schedd-deliveries"  # headers of copies
URL = "amqp://guest:guest@127.0.0.1:5672/%2F"
# What the server has put there, or would read as an order to it; with its traces of an earlier dead-lettering it would
# take a copy that comes back for one that goes round in circles, and drop it.
_OF_SERVER = re.compile(r"x-(first-|last-)?death.*|x-(delivery|acquired)-count|cc|bcc", re.IGNORECASE)
_DIFFERS = re.compile(
    r"inequivalent arg '([^']+)'.* current is (?:(none)|(?:the value )?'(.*?)'(?: of type '(\w+)')?)$"
)


class RabbitSourceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``url``: ``amqp://`` or ``amqps://``, with the virtual host as its path. ``queue``: a quorum queue that is there.

    ``dead``: the queue of dead messages. ``retry_queue``: where messages wait to come again, made if it is not there;
    ``queue`` with ``.retry`` if None. ``max_delay``: how long one waits there at most, in seconds. ``prefetch``: how
    many messages are delivered and not acknowledged at most.
    """

    queue: str
    url: Annotated[str, Secret] = URL
    dead: str | None = None
    retry_queue: str | None = None
    max_delay: Duration = 60.0
    prefetch: Annotated[int, msgspec.Meta(ge=1, le=2000)] = 1000
    ack: Literal["stored", "end"] = "stored"


class RabbitSource:
    """Messages of a queue. A receipt is worth something for as long as its connection lasts."""

    Settings: ClassVar[type[msgspec.Struct]] = RabbitSourceSettings

    def __init__(self, name: str, settings: RabbitSourceSettings, /) -> None:
        self._settings = settings
        self._retry_queue = settings.retry_queue or f"{settings.queue}.retry"
        if len({settings.queue, self._retry_queue, settings.dead}) < 3:
            raise ConfigError(f"source {name}: queue, retry_queue and dead are three different queues")
        self.limits = Limits(
            max_size=MAX_SIZE, max_batch=MAX_BATCH, max_delay=settings.max_delay,
            has_dlq=settings.dead is not None, counts=True,
        )  # fmt: skip
        self._line = AmqpLine(settings.url, f"the source {name}")
        self._link: AmqpLink | None = None
        self._epoch = ""
        self._open: dict[str, tuple[Any, bytes]] = {}  # receipt -> properties and body

    def receive(self, most: int, wait: float) -> Sequence[Delivery]:
        """Raises TransportError."""
        link = self._line.link(self._prepare)
        if link is not self._link:
            self._link, self._epoch, self._open = link, secrets.token_hex(4), {}
        room = min(most, self._settings.prefetch - len(self._open))
        if room <= 0:
            link.pause(wait)
            return []
        return [self._delivery(*one) for one in link.fetch(self._settings.queue, room, wait)]

    def _prepare(self, link: AmqpLink) -> None:
        """Make the queue of those that wait; its messages expire into the source's queue, or stay."""
        version = tuple(int(part) for part in re.findall(r"\d+", str(link.server.get("version", "")))[:2])
        if link.server.get("product") == "RabbitMQ" and version < OLDEST:
            raise TransportError(f"rabbitmq: version {link.server['version']}: quorum queues of 3.10 are needed")
        _ask_for(link, self._settings.queue)  # nothing is made for one that is not there
        arguments = {
            "x-queue-type": "quorum", "x-dead-letter-exchange": "", "x-dead-letter-routing-key": self._settings.queue,
            "x-dead-letter-strategy": "at-least-once", "x-overflow": "reject-publish",
        }  # fmt: skip
        link.ask(
            lambda channel, give: channel.queue_declare(
                self._retry_queue, durable=True, arguments=arguments, callback=give
            )
        )

    def _delivery(self, method: Any, properties: Any, body: bytes) -> Delivery:
        receipt = f"{self._epoch} {method.delivery_tag}"
        self._open[receipt] = properties, body
        headers = {name.lower(): str(value) for name, value in _plain(properties.headers)}
        for name, value in (("message_type", properties.type), ("correlation_id", properties.correlation_id)):
            if value:
                headers.setdefault(name, _text(value))
        return Delivery(
            message_id=_text(properties.message_id or ""), body=body, receipt=receipt,
            attempts=_deliveries(properties.headers, method.redelivered), headers=headers,
            content_type=None if properties.content_type is None else _text(properties.content_type),
        )  # fmt: skip

    def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Settled]:
        """Raises TransportError."""
        link = self._link
        held = {one.receipt: self._open.get(one.receipt) for one in verdicts}
        moved = [(one, found) for one in verdicts if not isinstance(one, Ack) and (found := held[one.receipt])]
        if link is None or link.is_ended or not any(held.values()):
            return [_gone(one.receipt) for one in verdicts]
        answers = link.publish([self._copy(one, *found) for one, found in moved])
        refused = {one.receipt: why for (one, _), why in zip(moved, answers, strict=True) if why is not None}
        done = [receipt for receipt, found in held.items() if found and receipt not in refused]
        if done:
            link.ask(lambda channel, give: self._acknowledge(channel, done, give))
        for receipt in refused:  # not now: it would come now, and be refused again
            link.give_back(_tag(receipt), RETURN_S, partial(self._forget, receipt))
        return [
            Settled(one.receipt, refused.get(one.receipt)) if held[one.receipt] else _gone(one.receipt)
            for one in verdicts
        ]

    def _acknowledge(self, channel: Any, receipts: Sequence[str], give: Give) -> None:
        _acknowledge([_tag(receipt) for receipt in receipts if self._forget(receipt)], channel, give)

    def _forget(self, receipt: str) -> bool:
        """Whether a delivery was open until now. In the link's thread, so that each is settled once."""
        return self._open.pop(receipt, None) is not None

    def _copy(self, verdict: Verdict, properties: Any, body: bytes) -> Copy:
        if isinstance(verdict, Dead):
            assert self._settings.dead is not None
            return Copy("", self._settings.dead, body, _copied(properties, {REASON: verdict.reason or "dead"}))
        assert isinstance(verdict, Retry)
        expiration = str(round(verdict.after * 1000))
        count = {DELIVERIES: _deliveries(properties.headers, False)}
        return Copy("", self._retry_queue, body, _copied(properties, count, expiration=expiration))

    def extend(self, receipts: Sequence[str], seconds: float) -> Sequence[Settled]:
        """Deliveries last as long as the connection does, whose heartbeats go on by themselves."""
        alive = self._link is not None and not self._link.is_ended
        return [Settled(one) if alive and one in self._open else _gone(one) for one in receipts]

    def redrive(self, most: int) -> int:
        """Raises TransportError."""
        link, dead, moved = self._line.link(), self._settings.dead or "", 0
        most = min(most, _ask_for(link, dead))  # what dies again meanwhile is left
        while moved < most and (found := link.fetch(dead, min(MAX_BATCH, most - moved), REDRIVE_WAIT)):
            copies = [Copy("", self._settings.queue, body, _copied(properties, {})) for _, properties, body in found]
            answers = link.publish(copies)
            tags = [method.delivery_tag for (method, _, _), why in zip(found, answers, strict=True) if why is None]
            link.ask(partial(_acknowledge, tags))
            moved += len(tags)
            if len(tags) < len(found):
                raise TransportError(f"rabbitmq: {next(why for why in answers if why is not None)}; {moved} have moved")
        return moved

    def check(self) -> Sequence[Finding]:
        """Raises TransportError."""
        settings = self._settings
        found = [_find_queue(self._line, settings.queue)]
        if found[0].ok:
            self._prepare(self._line.link())
            found += _look_at(self._line, settings.queue)
        if settings.dead is None:
            found.append(Finding(True, "dead messages are kept as dead tasks"))
        else:
            found.append(_find_queue(self._line, settings.dead))
        if settings.ack == "end":
            found.append(Finding(
                True, "a message is delivered again when its task lasts longer than the server's consumer_timeout, "
                "30 minutes if nothing else was set",
            ))  # fmt: skip
        return found

    def close(self) -> None:
        """What was not acknowledged comes again."""
        self._line.close()


class RabbitSinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``url``: as for a source. ``queue``: where messages go; or ``exchange``, with a ``routing_key``, which is the
    message's type if None."""

    url: Annotated[str, Secret] = URL
    queue: str | None = None
    exchange: str | None = None
    routing_key: str | None = None


class RabbitSink:
    """Publishes persistent messages as mandatory: one that no queue takes is refused."""

    Settings: ClassVar[type[msgspec.Struct]] = RabbitSinkSettings
    limits = Limits(
        max_size=MAX_SIZE, max_batch=MAX_BATCH, max_batch_size=MAX_SIZE, overhead=256, max_delay=0.0, orders=True
    )

    def __init__(self, name: str, settings: RabbitSinkSettings, /) -> None:
        if (settings.queue is None) == (settings.exchange is None):
            raise ConfigError(f"sink {name}: name a queue or an exchange")
        if settings.queue is not None and settings.routing_key is not None:
            raise ConfigError(f"sink {name}: the routing_key of a queue is its name: leave it out")
        self._settings = settings
        self._line = AmqpLine(settings.url, f"the sink {name}")

    def publish(self, batch: Sequence[Outgoing]) -> Sequence[Published | Refused]:
        """Raises TransportError."""
        answers = self._line.link().publish([self._copy(one) for one in batch])
        return [
            Published(one.key, one.key) if why is None else Refused(one.key, why)
            for one, why in zip(batch, answers, strict=True)
        ]

    def _copy(self, one: Outgoing) -> Copy:
        import pika

        settings, message = self._settings, one.message
        kind = message.message_type
        properties = pika.BasicProperties(
            message_id=short(one.key), delivery_mode=PERSISTENT, content_type="application/json",
            type=None if kind is None else short(kind),
            correlation_id=None if message.correlation_id is None else short(message.correlation_id),
        )  # fmt: skip
        if settings.queue is not None:
            return Copy("", settings.queue, one.body, properties)
        key = settings.routing_key if settings.routing_key is not None else short(kind or "")
        return Copy(settings.exchange or "", key, one.body, properties)

    def check(self) -> Sequence[Finding]:
        """Raises TransportError."""
        settings = self._settings
        if settings.queue is not None:
            return [_find_queue(self._line, settings.queue)]
        return [_find_exchange(self._line, settings.exchange or "")]

    def close(self) -> None:
        """Harmless when repeated."""
        self._line.close()


def _plain(headers: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """The headers that are texts or numbers, without those of the server."""
    found = []
    for name, value in (headers or {}).items():
        plain = _text(value) if isinstance(value, bytes) else value
        if isinstance(plain, str | int | float) and not _OF_SERVER.fullmatch(_text(name)):
            found.append((_text(name), plain))
    return found


def _text(value: str | bytes) -> str:
    """pika leaves as bytes what is no UTF-8."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _deliveries(headers: Mapping[str, Any] | None, redelivered: bool) -> int:
    """The number of this delivery: the queue's count, and that of the copies before it."""
    given = headers or {}
    now, before = given.get("x-delivery-count", int(redelivered)), given.get(DELIVERIES, 0)
    return 1 + sum(one for one in (now, before) if isinstance(one, int))


def _copied(properties: Any, more: Mapping[str, Any], **changed: Any) -> Any:
    """Properties of a copy. The user's id is left out, since only that user may say it."""
    import pika
    from pika.data import encode_table

    kept = ("content_type", "content_encoding", "priority", "correlation_id", "reply_to", "message_id", "timestamp")
    given = {name: getattr(properties, name) for name in (*kept, "type", "app_id")}
    headers = {
        name: value
        for name, value in (properties.headers or {}).items()
        if not _OF_SERVER.fullmatch(_text(name)) and name not in (REASON, DELIVERIES)
    }
    if encode_table([], headers) < MAX_TABLE:  # else the server ended the connection, and all would come again
        headers |= more
    return pika.BasicProperties(**{**given, "delivery_mode": PERSISTENT, "headers": headers, **changed})


def _tag(receipt: str) -> int:
    return int(receipt.partition(" ")[2])


def _acknowledge(tags: Sequence[int], channel: Any, give: Give) -> None:
    for tag in tags:
        channel.basic_ack(tag)
    # Acknowledgements have no answer. That to a later request says that they have arrived.
    channel.basic_qos(prefetch_count=1, callback=give)


def _gone(receipt: str) -> Settled:
    return Settled(receipt, "its connection has ended: it comes again", gone=True)


def _ask_for(link: AmqpLink, queue: str) -> int:
    """How many messages of a queue wait. Raises LinkEnded, with NOT_FOUND if there is none."""
    frame = link.ask(lambda channel, give: channel.queue_declare(queue, passive=True, callback=give))
    return int(frame.method.message_count)


def _find_queue(line: AmqpLine, queue: str) -> Finding:
    try:
        waiting = _ask_for(line.link(), queue)
    except LinkEnded as error:
        return _found(error, f"there is no queue {queue}")
    return Finding(True, f"the queue {queue} is there; messages that wait: {waiting:,}")


def _find_exchange(line: AmqpLine, exchange: str) -> Finding:
    try:
        line.link().ask(lambda channel, give: channel.exchange_declare(exchange, passive=True, callback=give))
    except LinkEnded as error:
        return _found(error, f"there is no exchange {exchange}")
    return Finding(True, f"the exchange {exchange} is there")


def _found(error: LinkEnded, missing: str) -> Finding:
    """The answer of the server about one thing; raises the error if it is away altogether."""
    if error.code == NOT_FOUND:
        return Finding(False, missing)
    if error.code in (REFUSED, PRECONDITION):
        return Finding(False, str(error))
    raise error


def _look_at(line: AmqpLine, queue: str) -> list[Finding]:
    """Whether a queue is a durable quorum queue, and where it sends dead messages itself.

    The server only says in what a declaration differs from the queue: it is declared until it differs in nothing.
    """
    arguments: dict[str, Any] = {"x-queue-type": "quorum"}
    for _ in range(MAX_ARGUMENTS):
        try:
            line.link().ask(
                lambda channel, give: channel.queue_declare(
                    queue, durable=True, arguments=dict(arguments), callback=give
                )
            )
            break
        except LinkEnded as error:
            if error.code not in (REFUSED, PRECONDITION):
                raise
            differs = _DIFFERS.search(str(error))
            if differs is None:
                return [Finding(True, f"whether {queue} is a quorum queue cannot be seen: {error}")]
            name, none, value, kind = differs.groups()
            if name in ("durable", "x-queue-type"):
                return [Finding(False, f"{queue} is no quorum queue: its messages have no copies and are not counted")]
            if none:
                arguments.pop(name, None)
            else:
                arguments[name] = int(value) if kind not in (None, "longstr") and value.isdecimal() else value
    found = [Finding(True, f"{queue} is a quorum queue")]
    limit, exchange = arguments.get("x-delivery-limit"), arguments.get("x-dead-letter-exchange")
    if exchange is None:
        found.append(Finding(
            True, f"{queue} has no dead-letter exchange among its arguments: unless a policy gives it one, a message "
            "that comes more often than its delivery limit is dropped by the server"
            + ("" if limit is None else f" (x-delivery-limit is {limit})"),
        ))  # fmt: skip
    return found
