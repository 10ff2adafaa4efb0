"""What schedd needs of a transport: sources, which deliver messages, and sinks, which take them.

A transport is a class for each direction, found by the ``type`` of ``[sources.NAME]`` or ``[sinks.NAME]``: one of
schedd's own, or an entry point of the group ``schedd.sources`` or ``schedd.sinks``. The class has the attribute
``Settings``, and is called as ``SqsSource(name, settings)``: see :class:`SourceFactory`. Constructing one does no I/O;
the first :meth:`Source.receive` connects. Import the client's library in the constructor, not at the top of a module,
and raise ConfigError with the extra to install if it is missing: see :func:`require`.

Spans are seconds, instants are integers: microseconds since 1970-01-01 UTC. Sizes are bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import msgspec

from scheduler.backoff import bounded_wait
from scheduler.errors import ConfigError, SchedulerError
from scheduler.model.times import LAST


class TransportError(SchedulerError):
    """The transport cannot be reached, or refuses everything; the text says why, without secrets.

    The caller tries again after a pause that grows. ``after``: seconds that the transport asked to be left alone.
    """

    def __init__(self, text: str, after: float | None = None) -> None:
        super().__init__(text)
        self.after = bounded_wait(after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a transport can do. None: no limit, or unknown.

    ``max_size``: bytes of one message's body. ``max_batch``: messages of one publish, and of one receive.
    ``max_batch_size``: bytes of all bodies of one publish. ``overhead``: bytes that the transport counts for each
    message beside its body. ``max_delay``: the longest ``Retry.after`` and ``Outgoing.delay``, in seconds; 0.0: it
    delays nothing. ``visibility``: for how many seconds a delivery is this consumer's before it comes again; None: for
    as long as the connection lasts.
    ``retention``: for how long the transport may deliver a message again, in seconds. ``has_dlq``: ``Dead`` moves a
    message to a dead-letter queue of the transport. ``counts``: ``Delivery.attempts`` is real. ``dedupes``: a sink
    drops a second message of one key, at least within some minutes. ``orders``: a sink keeps the order within a group.
    """

    max_size: int | None = None
    max_batch: int = 1
    max_batch_size: int | None = None
    overhead: int = 0
    max_delay: float | None = None
    visibility: float | None = None
    retention: float | None = None
    has_dlq: bool = False
    counts: bool = False
    dedupes: bool = False
    orders: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message, as a transport delivered it.

    ``message_id``: the transport's own id, which is no idempotency key; empty if it has none. ``receipt``: the text
    that settles or extends this delivery, also after a restart if the transport can; another delivery of the message
    has another one.
    ``attempts``: the number of this delivery, from 1; None where ``Limits.counts`` is false. ``sent_at``: when the
    transport took the message. ``headers``: attributes beside the body, their names in small letters; an envelope's
    fields are taken from them where the body is none. ``content_type``: of the body, if the transport says it.
    ``unreadable``: why the transport's own encoding of the body cannot be read; such a message is dead.
    ``former_key``: the key that an older version of the transport gave this message: under it, with the same
    ``message_id``, it may have come before.
    """

    message_id: str
    body: bytes
    receipt: str
    attempts: int | None = None
    sent_at: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None
    unreadable: str | None = None
    former_key: str | None = None


@dataclass(frozen=True, slots=True)
class Ack:
    """The message is done: the transport forgets it."""

    receipt: str


@dataclass(frozen=True, slots=True)
class Retry:
    """Deliver it again, ``after`` seconds at the earliest. The caller keeps ``after`` within ``Limits.max_delay``."""

    receipt: str
    after: float = 0.0
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Dead:
    """The message can never be taken: to the transport's dead-letter queue. Only where ``Limits.has_dlq``.

    ``delivery`` is the whole message: a transport without such a verdict sends it to its dead-letter queue itself, and
    acknowledges it once that has been confirmed. ``reason`` goes with it where the transport has room for it.
    """

    receipt: str
    reason: str
    delivery: Delivery


Verdict: TypeAlias = Ack | Retry | Dead


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of one verdict. ``error`` None: the transport took it.

    ``gone``: the transport no longer knows the receipt, so that the message comes again, or never did not.
    """

    receipt: str
    error: str | None = None
    gone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """One message to be published.

    ``key``: the idempotency key, for the transport's own deduplication. ``body``: the envelope as JSON. ``message``:
    the envelope's fields by name, for transports with attributes of their own, such as CloudEvents: see
    :class:`scheduler.transports.envelope.Message`. ``group``: messages of one group keep their order. ``delay``:
    seconds, within ``Limits.max_delay``.
    """

    key: str
    body: bytes
    message: Any
    group: str | None = None
    delay: float = 0.0

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body)


@dataclass(frozen=True, slots=True)
class Published:
    """The transport has confirmed a message. ``duplicate``: it had one of this key already, where it says so."""

    key: str
    message_id: str | None = None
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Refused:
    """The transport has not taken a message. ``final``: it never will (too large, malformed); else try again.

    ``after``: seconds that it asked to wait.
    """

    key: str
    reason: str
    final: bool = False
    after: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "after", bounded_wait(self.after))


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``schedctl sources check`` and ``sinks check``: ``ok``, and what was found or what to do."""

    ok: bool
    text: str


@runtime_checkable
class Source(Protocol):
    """Delivers messages that are fetched. All methods but :meth:`close` are called by one thread."""

    limits: Limits

    def receive(self, most: int, wait: float) -> Sequence[Delivery]:
        """Up to ``most`` messages; none if there are none within ``wait`` seconds. Connects when it has to.

        Returns what is there at once, instead of waiting for ``most``. Raises TransportError.
        """
        ...

    def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Settled]:
        """Tell the transport, in as few requests as it can; one for each verdict, in their order.

        Never raises for one of them: its ``Settled`` has the error. Raises TransportError if the transport took none.
        """
        ...

    def extend(self, receipts: Sequence[str], seconds: float) -> Sequence[Settled]:
        """Keep these deliveries for ``seconds`` from now; heartbeats for a transport without a span. As `settle`."""
        ...

    def check(self) -> Sequence[Finding]:
        """Connect and look: does the queue exist, may we read it, where do dead messages go? Raises TransportError."""
        ...

    def close(self) -> None:
        """Give the connection up; a :meth:`receive` under way in another thread ends soon. Harmless when repeated."""
        ...


@runtime_checkable
class Redrives(Protocol):
    """A source that can send dead messages to its queue again, which operators ask for."""

    def redrive(self, most: int) -> int:
        """Move up to ``most`` messages from the dead-letter queue to the queue, and return how many have moved.

        Those that lie there longest come first. One is taken away only once the queue has confirmed it, so a crash may
        leave it in both. Raises TransportError; what has moved until then stays moved.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An HTTP request that the door has authenticated. ``headers``: their names in small letters."""

    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the door answers: a status, and a JSON body."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """Who may post to a push source: the bearer of ``token``, or the signer of Standard Webhooks with ``secret``.

    One of the two is needed; the door refuses a source that has neither. If both are set, either is enough.
    """

    token: str | None = None
    secret: str | None = None


class Unreadable(SchedulerError):
    """A request of a push source that holds no messages. ``status``: of the answer, 400 to 499."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status


@runtime_checkable
class PushSource(Protocol):
    """Takes messages that are posted to the door at ``/v1/sources/NAME``. Called by several threads."""

    limits: Limits
    auth: Auth

    def accept(self, request: Request) -> Sequence[Delivery]:
        """The messages of a request. ``receipt`` need only be unique within it. Raises Unreadable."""
        ...

    def answer(self, verdicts: Sequence[Verdict]) -> Answer:
        """What the sender is answered, after the commit: one verdict for each delivery, in their order."""
        ...

    def check(self) -> Sequence[Finding]:
        """What is known without the sender."""
        ...

    def close(self) -> None:
        """Harmless when repeated."""
        ...


@runtime_checkable
class Sink(Protocol):
    """Takes messages. Called by several threads, one at a time."""

    limits: Limits

    def publish(self, batch: Sequence[Outgoing]) -> Sequence[Published | Refused]:
        """Publish, and wait until the transport has confirmed each; one answer for each, in their order.

        The batch is within ``limits``. A message may come again after a crash, with the same key. Never raises for one
        of them. Raises TransportError if the transport is away: then none or some have arrived.
        """
        ...

    def check(self) -> Sequence[Finding]:
        """Connect and look: does the queue exist, may we write to it? Publishes nothing. Raises TransportError."""
        ...

    def close(self) -> None:
        """Give the connection up. Harmless when repeated."""
        ...


class SourceFactory(Protocol):
    """The class that an entry point of ``schedd.sources`` names.

    ``Settings`` is a frozen, keyword-only ``msgspec.Struct``: the settings of ``[sources.NAME]`` beside the common
    ones (:class:`scheduler.config.messages.Source`), with annotated types as in ``scheduler/config/model.py``:
    ``str | None``, ``int``, ``bool``, ``float``, ``Duration``, ``Literal``, ``tuple[str, ...]``. One without a default
    is required. ``Annotated[str | None, Secret]`` (``scheduler.model.secrets``) is never shown, and may come from a
    file: ``token_file = "/run/secrets/token"`` in place of ``token``.
    """

    Settings: ClassVar[type[msgspec.Struct]]

    def __call__(self, name: str, settings: Any, /) -> Source | PushSource:
        """Raises ConfigError for settings that do not fit together, or a library that is missing."""
        ...


class SinkFactory(Protocol):
    """The class that an entry point of ``schedd.sinks`` names; its ``Settings`` as :class:`SourceFactory` has them."""

    Settings: ClassVar[type[msgspec.Struct]]

    def __call__(self, name: str, settings: Any, /) -> Sink:
        """Raises ConfigError."""
        ...


def require(module: str, extra: str, what: str) -> None:
    """Raises ConfigError if a library is not installed: ``require("nats", "nats", "a source of type nats")``."""
    from importlib.util import find_spec

    if find_spec(module) is None:
        raise ConfigError(f"{what} needs {module}: pip install 'schedd[{extra}]'")


def instant_of_ms(stamp: object) -> int | None:
    """Milliseconds since 1970, as a message says them, in microseconds; None if that is no time there can be."""
    if not isinstance(stamp, int | float) or isinstance(stamp, bool) or not 0 <= stamp <= LAST // 1000:
        return None
    return round(stamp * 1000)


def dedupe_id(key: str) -> str:
    """A key as an id of at most 128 printable characters without spaces: the key itself, or its digest."""
    import hashlib

    if len(key) <= 128 and key.isascii() and key.isprintable() and " " not in key:
        return key
    return hashlib.sha256(key.encode()).hexdigest()
