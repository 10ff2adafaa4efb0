"""AMQP 0.9.1: a connection with one channel, which a thread of its own serves.

So heartbeats go on while their caller stores a batch, or is paused; and a batch is published without waiting for each
confirmation. A link that has ended stays ended, whatever ended it: :class:`AmqpLine` makes the next one.
"""

from __future__ import annotations

import logging
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any, NamedTuple, TypeAlias

from scheduler.errors import ConfigError
from scheduler.transports.ports import TransportError, require

CONNECT_S = 10.0  # seconds for the socket, and the same again for the handshake
ANSWER_S = 30.0  # seconds within which the server answers, or confirms a batch
BLOCKED_S = 20.0  # seconds that a server short of memory or disk may hold publishers up
CLOSE_S = 5.0  # seconds that a closing may take
NOT_FOUND, REFUSED, PRECONDITION = 404, 403, 406  # codes of a channel's end
SHORT = 255  # bytes of a short string
# Numbers in a header that pika may not be able to make an object of: a time, and what has no end or is none.
_NUMBERS = {b"T": struct.Struct(">Q"), b"d": struct.Struct(">d"), b"f": struct.Struct(">f")}
_thread = threading.local()  # .tolerant: it reads for a link

Give: TypeAlias = Callable[[Any], None]


class LinkEnded(TransportError):
    """``code``: the server's, where it has ended the channel or the connection."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class Copy(NamedTuple):
    """One message to be published. ``properties``: pika's."""

    exchange: str
    routing_key: str
    body: bytes
    properties: Any


class _Sent:
    """A message that the server has not confirmed yet."""

    __slots__ = ("batch", "copy", "number", "returned")

    def __init__(self, copy: Copy, batch: _PublishBatch, number: int) -> None:
        self.copy, self.batch, self.number = copy, batch, number
        self.returned: str | None = None


class _PublishBatch:
    def __init__(self, size: int, give: Give) -> None:
        self.answers: list[str | None] = [None] * size
        self._left, self._give = size, give

    def answer(self, number: int, refused: str | None) -> None:
        self.answers[number] = refused
        self._left -= 1
        if self._left == 0:
            self._give(self.answers)


class AmqpLink:
    """One connection, from its first to its last moment. Raises LinkEnded if there is none to be had."""

    def __init__(self, parameters: Any) -> None:
        import pika

        self.server: dict[str, Any] = {}  # properties of the server
        self._ended: LinkEnded | None = None
        self._lock = threading.Lock()
        self._pending: set[Future[Any]] = set()
        self._unconfirmed: dict[int, _Sent] = {}
        self._published = 0
        self._arrived = threading.Event()
        self._channel: Any = None
        opened = self._answer()
        self._give_opened = _giver(opened)
        self._connection = pika.SelectConnection(
            parameters,
            on_open_callback=self._on_open,
            on_open_error_callback=lambda _, error: self._end(error),
            on_close_callback=lambda _, error: self._end(error),
        )
        self._thread = threading.Thread(target=self._run, name="schedd-amqp", daemon=True)
        self._thread.start()
        self._wait(opened, 3 * CONNECT_S)

    @property
    def is_ended(self) -> bool:
        """Whether nothing goes over it any more."""
        return self._ended is not None

    def ask(self, work: Callable[[Any, Give], None]) -> Any:
        """What ``work(channel, give)`` gives; it runs in the link's thread. Raises LinkEnded."""
        answer = self._answer()

        def begin() -> None:
            try:
                if not answer.done():
                    work(self._channel, _giver(answer))
            except Exception as error:
                self._close(error)

        self._soon(begin)
        return self._wait(answer, ANSWER_S)

    def give_back(self, tag: int, seconds: float, still: Callable[[], bool]) -> None:
        """Have a delivery delivered again in so many seconds, if it is ``still`` open then."""

        def give() -> None:
            if self._ended is None and still():
                self._channel.basic_nack(tag, requeue=True)

        try:
            self._soon(lambda: self._connection.ioloop.call_later(seconds, give))
        except LinkEnded:  # so it comes again
            pass

    def pause(self, seconds: float) -> None:
        """Wait; less long if the link ends."""
        self._arrived.clear()
        if not self.is_ended:
            self._arrived.wait(seconds)

    def fetch(self, queue: str, most: int, wait: float) -> list[tuple[Any, Any, bytes]]:
        """Consume until something has come, or for ``wait`` seconds: (method, properties, body). Raises LinkEnded.

        Nothing comes between two calls: the consumer ends with each of them, so that a paused source holds none.
        """
        found: list[tuple[Any, Any, bytes]] = []
        self._arrived.clear()

        def take(_channel: Any, method: Any, properties: Any, body: bytes) -> None:
            found.append((method, properties, body))
            self._arrived.set()

        def consume(channel: Any, give: Give) -> None:
            def ready(_frame: Any) -> None:
                channel.basic_consume(queue, take, callback=lambda frame: give(frame.method.consumer_tag))

            channel.basic_qos(prefetch_count=most, callback=ready)

        tag = self.ask(consume)
        self._arrived.wait(wait)
        self.ask(lambda channel, give: channel.basic_cancel(tag, callback=give))
        return found

    def publish(self, copies: Sequence[Copy]) -> list[str | None]:
        """Publish as mandatory, and wait for the confirmations: why one was refused, else None. Raises LinkEnded."""
        if not copies:
            return []

        def work(channel: Any, give: Give) -> None:
            batch = _PublishBatch(len(copies), give)
            for number, copy in enumerate(copies):
                try:
                    channel.basic_publish(*copy, mandatory=True)
                except (ValueError, TypeError, OverflowError) as error:  # nothing of it was sent
                    batch.answer(number, f"its properties cannot be sent: {error}")
                    continue
                self._published += 1
                self._unconfirmed[self._published] = _Sent(copy, batch, number)

        answers: list[str | None] = self.ask(work)
        return answers

    def close(self) -> None:
        """Harmless when repeated. What was not acknowledged comes again."""
        try:
            self._soon(lambda: self._close(None))
        except LinkEnded:
            pass
        self._thread.join(CLOSE_S)

    def _answer(self) -> Future[Any]:
        answer: Future[Any] = Future()
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._pending.add(answer)
        return answer

    def _soon(self, work: Callable[[], Any]) -> None:
        """Run ``work`` in the link's thread. Raises LinkEnded."""
        with self._lock:
            if self._ended is not None:
                raise self._ended
            self._connection.ioloop.add_callback_threadsafe(work)

    def _wait(self, answer: Future[Any], seconds: float) -> Any:
        try:
            return answer.result(seconds)
        except NoAnswer:
            self.close()
            raise LinkEnded(f"rabbitmq: no answer within {seconds:g} s") from None
        finally:
            with self._lock:
                self._pending.discard(answer)

    def _run(self) -> None:
        _thread.tolerant = True
        try:
            self._connection.ioloop.start()
            self._connection.ioloop.close()
        except Exception as error:
            log = logging.getLogger("scheduler.messages")
            log.exception("unexpected error of an AMQP connection")
            self._end(error)

    def _on_open(self, connection: Any) -> None:
        self.server = dict(connection.server_properties or {})
        connection.channel(on_open_callback=self._on_channel)

    def _on_channel(self, channel: Any) -> None:
        self._channel = channel
        channel.add_on_close_callback(lambda _, error: self._close(error))
        channel.add_on_cancel_callback(lambda _: self._close(LinkEnded("the server has ended the consumer")))
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirmation, callback=self._give_opened)

    def _on_return(self, _channel: Any, method: Any, properties: Any, body: bytes) -> None:
        """A message that no queue takes; its confirmation follows."""
        for sent in self._unconfirmed.values():
            copy = sent.copy
            if sent.returned is None and (copy.exchange, copy.routing_key, copy.body, copy.properties.message_id) == (
                *(method.exchange, method.routing_key, body, properties.message_id),
            ):
                sent.returned = f"{method.reply_text}: no queue takes messages for {copy.routing_key!r:.80}"
                return

    def _on_confirmation(self, frame: Any) -> None:
        import pika

        method = frame.method
        refused = "the server has not taken it" if isinstance(method, pika.spec.Basic.Nack) else None
        tag = method.delivery_tag
        for one in [n for n in self._unconfirmed if n <= tag] if method.multiple else [tag]:
            sent = self._unconfirmed.pop(one, None)
            if sent is not None:
                sent.batch.answer(sent.number, refused or sent.returned)

    def _close(self, why: Exception | None) -> None:
        """End the link, in its own thread."""
        self._fail(_ended(why))
        if not (self._connection.is_closed or self._connection.is_closing):
            self._connection.close()

    def _end(self, why: Exception) -> None:
        """The connection is closed."""
        self._fail(_ended(why))
        self._connection.ioloop.stop()

    def _fail(self, ended: LinkEnded) -> None:
        with self._lock:
            self._ended = self._ended or ended
            pending = list(self._pending)
        for answer in pending:
            if not answer.done():
                answer.set_exception(self._ended)
        self._arrived.set()


class AmqpLine:
    """The links of a source or a sink, one after the other; each is made when it is needed. Raises ConfigError."""

    def __init__(self, url: str, what: str) -> None:
        require("pika", "rabbitmq", what)
        import pika

        logger = logging.getLogger("pika")
        if logger.level == logging.NOTSET:  # it tells of each error that is raised here as well
            logger.setLevel(logging.CRITICAL)
        _tolerate_odd_numbers()
        try:
            if not url.startswith(("amqp://", "amqps://")):
                raise ValueError
            self._parameters: Any = pika.URLParameters(url)
        except (ValueError, TypeError):  # whose text may have a part of the password
            raise ConfigError(f"{what}: url is no address like amqp://user:password@host:5672/vhost") from None
        self._parameters.socket_timeout = self._parameters.stack_timeout = CONNECT_S
        self._parameters.blocked_connection_timeout = BLOCKED_S
        self._link: AmqpLink | None = None

    def link(self, prepare: Callable[[AmqpLink], None] = lambda _: None) -> AmqpLink:
        """A link that lasts, as far as is known; ``prepare`` has seen it. Raises LinkEnded."""
        link = self._link
        if link is None or link.is_ended:
            link = self._link = AmqpLink(self._parameters)
            try:
                prepare(link)
            except TransportError:
                link.close()
                raise
        return link

    def close(self) -> None:
        """Harmless when repeated."""
        link, self._link = self._link, None
        if link is not None:
            link.close()


def _tolerate_odd_numbers() -> None:
    """Have pika read a header such as a time in milliseconds, or NaN, as a text, in the threads of links.

    It raises for them, which ends the connection: then the message, and all others with it, would come again for ever.
    """
    from pika import data

    strict: Any = data.decode_value
    if hasattr(strict, "strict"):
        return

    def decode_value(encoded: bytes, offset: int) -> tuple[Any, int]:
        try:
            found: tuple[Any, int] = strict(encoded, offset)
        except (ValueError, OverflowError, OSError):
            number = _NUMBERS.get(encoded[offset : offset + 1])
            if number is None or not getattr(_thread, "tolerant", False):
                raise
            return str(*number.unpack_from(encoded, offset + 1)), offset + 1 + number.size
        return found

    decode_value.strict = strict  # type: ignore[attr-defined]
    data.decode_value = decode_value


def _giver(answer: Future[Any]) -> Give:
    """Sets the result, unless the link has ended meanwhile."""

    def give(value: Any) -> None:
        if not answer.done():
            answer.set_result(value)

    return give


def short(text: str) -> str:
    """A short string: the text itself, or its digest if it is too long."""
    import hashlib

    encoded = text.encode()
    return text if len(encoded) <= SHORT else hashlib.sha256(encoded).hexdigest()


def _ended(why: Exception | None) -> LinkEnded:
    """The error as its reader wants it. pika wraps one error into another."""
    if why is None:
        return LinkEnded("rabbitmq: the connection was closed")
    if isinstance(why, LinkEnded):
        return why
    while True:
        inner = getattr(why, "exception", None) or next(iter(getattr(why, "exceptions", ())), None)
        inner = inner or next((one for one in why.args if isinstance(one, Exception)), None)
        if not isinstance(inner, Exception):
            break
        why = inner
    code = getattr(why, "reply_code", None)
    text = getattr(why, "reply_text", None) or getattr(why, "strerror", None) or str(why) or type(why).__name__
    return LinkEnded(f"rabbitmq: {text}", code)
