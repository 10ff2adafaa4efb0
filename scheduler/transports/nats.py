"""NATS JetStream: a durable pull consumer's messages come in, and go out with the server's confirmation.

JetStream has no dead-letter queue, and a consumer with ``max_deliver`` gives a message up without a word. Dead messages
therefore go to a subject of their own first, and a consumer that gives up is refused.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from scheduler.config.sources import Duration
from scheduler.model.secrets import Secret
from scheduler.transports.nats_connection import ANSWER_S, NatsConnection, check_names, text_of
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
    dedupe_id,
)

MAX_BATCH = 500
MAX_DELAY = 86_400.0  # seconds: the longest that a message is given back for at once
REASON_SIZE = 256  # characters of a reason that go with a dead message
OVERHEAD = 1024  # bytes of headers that a published message has at most
REASON, SUBJECT = "reason", "Schedd-Subject"  # headers of dead messages; the second is where they came from
_OF_DEAD = frozenset({"Nats-Msg-Id", REASON, SUBJECT})
_FROM = "nats-subject"  # among a delivery's headers: the subject that it came by
REDRIVE_S = 300.0  # seconds that a redrive may take
TOO_LARGE = 10054  # the server's code for a message above the stream's max_msg_size


class _Address(msgspec.Struct, frozen=True, kw_only=True):
    url: Annotated[str, Secret] = "nats://127.0.0.1:4222"


class NatsSourceSettings(_Address, frozen=True, kw_only=True):
    """``url``: ``nats://`` or ``tls://``, several with commas between them; with the user and password, or a token.
    ``stream``: it has to be there. ``subject``: of the messages that are taken; None: all of the stream. ``consumer``:
    the name of the durable consumer, which is made if it is not there. ``dead``: the subject of dead messages, in
    another stream. ``visibility``: the consumer's ``ack_wait``, 1 s or more."""

    stream: str
    subject: str | None = None
    consumer: str = "schedd"
    dead: str | None = None
    visibility: Annotated[Duration, msgspec.Meta(ge=1)] = 30.0


class NatsSinkSettings(_Address, frozen=True, kw_only=True):
    """``url``: as of a source. ``subject``: a stream has to take it."""

    subject: str


class NatsSource:
    """One of the receivers that share a durable consumer. A receipt is the subject of its acknowledgement."""

    Settings: ClassVar[type[msgspec.Struct]] = NatsSourceSettings

    def __init__(self, name: str, settings: NatsSourceSettings, /) -> None:
        self._settings = settings
        self._server = NatsConnection(settings.url, f"source {name}")
        check_names(f"source {name}", stream=settings.stream, consumer=settings.consumer, dead=settings.dead)
        self.limits = Limits(
            max_batch=MAX_BATCH, max_delay=MAX_DELAY, visibility=settings.visibility,
            has_dlq=settings.dead is not None, counts=True,
        )  # fmt: skip
        self._subscribed: tuple[Any, Any] | None = None  # the connection, and its subscription

    def receive(self, most: int, wait: float) -> Sequence[Delivery]:
        """Raises TransportError, also for a consumer that would lose messages."""
        return self._server.ask(lambda client: self._receive(client, most, max(wait, 0.01)), wait)

    async def _receive(self, client: Any, most: int, wait: float) -> list[Delivery]:
        if self._subscribed is None or self._subscribed[0] is not client:
            self._subscribed = None
            wrong = [one.text for one in await self._look(client) if not one.ok]
            if wrong:
                raise TransportError("; ".join(wrong))
            settings = self._settings
            made = await client.jetstream().pull_subscribe_bind(settings.consumer, stream=settings.stream)
            self._subscribed = client, made
        try:
            found = await self._subscribed[1].fetch(min(most, MAX_BATCH), timeout=wait)
        except TimeoutError:
            return []
        except Exception:
            self._subscribed = None  # the consumer may have been deleted
            raise
        return [_delivery(one) for one in found]

    def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Settled]:
        """Raises TransportError."""
        return self._server.ask(lambda client: _each(self._settle(client, one) for one in verdicts))

    async def _settle(self, client: Any, verdict: Verdict) -> Settled:
        if isinstance(verdict, Retry):
            return await _answered(client, verdict.receipt, _nak(verdict.after))
        if isinstance(verdict, Ack):
            return await _answered(client, verdict.receipt, b"+ACK")
        error = await self._bury(client, verdict)
        return await _answered(client, verdict.receipt, b"+TERM") if error is None else Settled(verdict.receipt, error)

    async def _bury(self, client: Any, verdict: Dead) -> str | None:
        """Send a dead message to its subject; why not, if it could not be. A repetition is dropped there."""
        delivery, dead = verdict.delivery, self._settings.dead
        assert dead is not None
        own = {name: text for name, text in delivery.headers.items() if not name.startswith("nats-")}
        own |= {"Nats-Msg-Id": f"dead {delivery.message_id}", REASON: _line(verdict.reason) or "dead"}
        own[SUBJECT] = delivery.headers.get(_FROM, "")
        if len(delivery.body) + _size(own) > client.max_payload:
            own = {}
        answer = await _publish(client, dead, delivery.body, own, delivery.message_id)
        return None if isinstance(answer, Published) else f"it was not sent to {dead}: {answer.reason}"

    def redrive(self, most: int) -> int:
        """To the subject that each had. Raises TransportError."""
        usual, dead = self._settings.subject, self._settings.dead or ""

        async def move(client: Any) -> int:
            from nats.js.errors import NotFoundError

            stream = client.jetstream()
            name = await stream.find_stream_name_by_subject(dead)
            last, number, moved = (await stream.stream_info(name)).state.last_seq, 0, 0
            while moved < most and number < last:  # what dies again meanwhile is left
                try:
                    found = await stream.get_msg(name, number + 1, subject=dead, next=True)
                except NotFoundError:
                    break
                number = int(found.seq)
                own = {key: text for key, text in (found.headers or {}).items() if key not in _OF_DEAD}
                own["Nats-Msg-Id"] = f"redrive {name}:{number}"
                subject = (found.headers or {}).get(SUBJECT) or usual or ""
                answer = await _publish(client, subject, found.data or b"", own, "")
                if not isinstance(answer, Published):
                    raise TransportError(f"nats: {answer.reason}; {moved} have moved")
                await stream.delete_msg(name, number)
                moved += 1
            return moved

        return self._server.ask(move, REDRIVE_S)

    def extend(self, receipts: Sequence[str], seconds: float) -> Sequence[Settled]:
        """By the consumer's ``ack_wait``, whatever ``seconds`` says. Raises TransportError."""
        return self._server.ask(lambda client: _each(_answered(client, one, b"+WPI") for one in receipts))

    def check(self) -> Sequence[Finding]:
        """Raises TransportError."""
        return self._server.ask(self._look)

    async def _look(self, client: Any) -> list[Finding]:
        """What is found of the stream and the consumer, which is made if it is not there."""
        from nats.js.errors import NotFoundError

        settings, stream = self._settings, client.jetstream()
        try:
            info = await stream.stream_info(settings.stream)
        except NotFoundError:
            return [Finding(False, f"there is no stream {settings.stream}")]
        found = [Finding(True, f"stream {settings.stream} is there; messages: {info.state.messages:,}")]
        try:
            consumer = (await stream.consumer_info(settings.stream, settings.consumer)).config
        except NotFoundError:
            consumer = (await stream.add_consumer(settings.stream, self._consumer())).config
        found += [Finding(False, text) for text in self._unfit(consumer)]
        return [*found, await self._look_at_dead(stream, consumer)]

    def _consumer(self) -> Any:
        from nats.js.api import AckPolicy, ConsumerConfig

        settings = self._settings
        return ConsumerConfig(
            durable_name=settings.consumer, filter_subject=settings.subject, ack_policy=AckPolicy.EXPLICIT,
            ack_wait=settings.visibility, max_deliver=-1, max_ack_pending=-1,
        )  # fmt: skip

    def _unfit(self, consumer: Any) -> list[str]:
        settings = self._settings
        wrong = []
        if (consumer.max_deliver or -1) > 0:
            wrong.append(
                f"gives a message up after {consumer.max_deliver} deliveries, without a word: set its max_deliver to -1"
            )
        if consumer.deliver_subject:
            wrong.append("pushes its messages: name another one, which will be made")
        if consumer.ack_policy not in ("explicit", None):
            wrong.append(f"has the ack policy {consumer.ack_policy}: it has to be explicit")
        waits = [*(consumer.backoff or ()), consumer.ack_wait or 0.0]
        if min(waits) < settings.visibility:
            wrong.append(
                f"waits {min(waits):g} s for an acknowledgement: set visibility to that, or its ack_wait higher"
            )
        if settings.subject is not None and settings.subject not in _filters(consumer):
            wrong.append(f"takes {', '.join(_filters(consumer)) or 'all subjects'}, not {settings.subject}")
        return [f"consumer {settings.consumer} of stream {settings.stream} {text}" for text in wrong]

    async def _look_at_dead(self, stream: Any, consumer: Any) -> Finding:
        from nats.js.errors import NotFoundError

        dead = self._settings.dead
        if dead is None:
            return Finding(True, "dead messages are kept as dead tasks")
        try:
            name = await stream.find_stream_name_by_subject(dead)
        except NotFoundError:
            return Finding(False, f"no stream takes the subject {dead} of dead messages")
        filters = _filters(consumer) or [">"]
        if name == self._settings.stream and any(_covers(one, dead) for one in filters):
            return Finding(False, f"dead messages on {dead} would come to this consumer again: name another subject")
        return Finding(True, f"dead messages go to {dead} in stream {name}")

    def close(self) -> None:
        """Close the connection."""
        self._server.close()


class NatsSink:
    """Publishes to a subject. ``limits`` have the server's ``max_payload`` once it has been reached."""

    Settings: ClassVar[type[msgspec.Struct]] = NatsSinkSettings

    def __init__(self, name: str, settings: NatsSinkSettings, /) -> None:
        self._subject = settings.subject
        self._server = NatsConnection(settings.url, f"sink {name}")
        check_names(f"sink {name}", subject=settings.subject)
        self.limits = Limits(max_batch=MAX_BATCH, overhead=OVERHEAD, dedupes=True, orders=True)

    def publish(self, batch: Sequence[Outgoing]) -> Sequence[Published | Refused]:
        """One of the same key within the stream's ``duplicate_window`` is confirmed as a duplicate.

        Raises TransportError.
        """

        async def work(client: Any) -> list[Published | Refused]:
            self.limits = dataclasses.replace(self.limits, max_size=client.max_payload)
            return await _each(self._one(client, one) for one in batch)

        return self._server.ask(work)

    async def _one(self, client: Any, one: Outgoing) -> Published | Refused:
        # A stream drops repeated ids, whatever their subjects are: without the subject another sink's message would be.
        own = {"Nats-Msg-Id": f"{self._subject} {dedupe_id(one.key)}"}
        if one.size + OVERHEAD > client.max_payload:  # the next try knows the limit, and may send a pointer
            return Refused(one.key, f"the message has {one.size:,} bytes; the server takes {client.max_payload:,}")
        return await _publish(client, self._subject, one.body, own, one.key)

    def check(self) -> Sequence[Finding]:
        """Raises TransportError."""

        async def look(client: Any) -> list[Finding]:
            from nats.js.errors import NotFoundError

            try:
                name = await client.jetstream().find_stream_name_by_subject(self._subject)
            except NotFoundError:
                return [Finding(False, f"no stream takes the subject {self._subject}")]
            return [Finding(True, f"{self._subject} goes to stream {name}; {client.max_payload:,} bytes at most")]

        return self._server.ask(look)

    def close(self) -> None:
        """Close the connection."""
        self._server.close()


async def _each(works: Any) -> list[Any]:
    return list(await asyncio.gather(*works))


async def _answered(client: Any, receipt: str, what: bytes) -> Settled:
    """Tell the consumer, and wait until it has confirmed that."""
    from nats.errors import NoRespondersError

    try:
        await client.request(receipt, what, timeout=ANSWER_S)
    except NoRespondersError:
        return Settled(receipt, "its consumer is gone", gone=True)
    except TimeoutError:
        return Settled(receipt, f"no answer within {ANSWER_S:g} s")
    return Settled(receipt)


async def _publish(client: Any, subject: str, body: bytes, headers: Mapping[str, str], key: str) -> Published | Refused:
    from nats.errors import MaxPayloadError
    from nats.js.errors import APIError, NoStreamResponseError

    try:
        sent = await client.jetstream().publish(subject, body, timeout=ANSWER_S, headers=dict(headers) or None)
    except NoStreamResponseError:
        return Refused(key, f"no stream takes the subject {subject}")
    except APIError as error:
        return Refused(key, text_of(error), final=error.err_code == TOO_LARGE)
    except MaxPayloadError:
        return Refused(key, "it is larger than the server takes", final=True)
    except TimeoutError:
        return Refused(key, f"no answer within {ANSWER_S:g} s")
    return Published(key, f"{sent.stream}:{sent.seq}", duplicate=bool(sent.duplicate))


def _delivery(message: Any) -> Delivery:
    about = message.metadata
    return Delivery(
        message_id=f"{about.stream}:{about.sequence.stream}",
        body=message.data,
        receipt=message.reply,
        attempts=about.num_delivered,
        sent_at=round(about.timestamp.timestamp() * 1_000_000),
        headers={**{name.lower(): text for name, text in (message.headers or {}).items()}, _FROM: message.subject},
    )


def _nak(after: float) -> bytes:
    return b"-NAK" if after <= 0 else b"-NAK " + json.dumps({"delay": round(after * 1_000_000_000)}).encode()


def _filters(consumer: Any) -> list[str]:
    return list(consumer.filter_subjects or ([consumer.filter_subject] if consumer.filter_subject else []))


def _covers(pattern: str, subject: str) -> bool:
    """Whether a subject with wildcards takes another one."""
    wanted, given = pattern.split("."), subject.split(".")
    for number, part in enumerate(wanted):
        if part == ">":
            return len(given) > number
        if number >= len(given) or part not in ("*", given[number]):
            return False
    return len(wanted) == len(given)


def _size(headers: Mapping[str, str]) -> int:
    """Bytes of headers, with some room."""
    return 16 + sum(len(name.encode()) + len(text.encode()) + 4 for name, text in headers.items())


def _line(text: str) -> str:
    return " ".join(text[:REASON_SIZE].split())
