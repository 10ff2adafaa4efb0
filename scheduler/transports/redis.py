"""Redis Streams: a consumer group's messages come in by XREADGROUP and XAUTOCLAIM, and go out by XADD.

A stream has neither delays nor a dead-letter queue: a retry waits as a pending entry, and dead messages go to a stream
of their own. What a server that crashes keeps is up to its ``appendfsync``.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar

import msgspec

from scheduler.config.sources import Duration
from scheduler.model.secrets import Secret
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
    require,
)

T = TypeVar("T")
BODY = b"body"  # the field of an entry that has the message's body; all others are headers
MAX_SIZE = 16 * 1024 * 1024
MAX_BATCH = 500
MAX_BLOCK_S = 20.0  # seconds that one XREADGROUP waits at most
ANSWER_S = 30.0  # seconds within which the server answers
# KEYS: the stream, that of dead messages. ARGV: group, entry, consumer, deliveries, and the body and reason of a dead
# one. An entry that another consumer has by now is left alone, whatever the receipt says. A dead entry has its
# message's fields, and two more at its end; of one with more fields than Lua can unpack, its body alone.
_HELD = """
local held = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[2], ARGV[2], 1)
if #held == 0 or held[1][2] ~= ARGV[3] or held[1][4] ~= tonumber(ARGV[4]) then return 0 end
"""
_ACK = f"{_HELD} redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) redis.call('XDEL', KEYS[1], ARGV[2]) return 1"
_DEAD = (
    f"{_HELD} local entry = redis.call('XRANGE', KEYS[1], ARGV[2], ARGV[2])[1] "
    "local fields = entry and #entry[2] < 7900 and entry[2] or {'body', ARGV[5]} "
    "for _, more in ipairs({'reason', ARGV[6], 'id', ARGV[2]}) do table.insert(fields, more) end "
    "redis.call('XADD', KEYS[2], '*', unpack(fields)) "
    "redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) redis.call('XDEL', KEYS[1], ARGV[2]) return 1"
)
_WAIT = (
    f"{_HELD} redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[3], 0, ARGV[2], 'IDLE', ARGV[5], 'RETRYCOUNT', ARGV[4], "
    "'JUSTID') return 1"
)
# ARGV: how many at most.
_REDRIVE = """
local found = redis.call('XRANGE', KEYS[2], '-', '+', 'COUNT', ARGV[1])
for _, entry in ipairs(found) do
  for _ = 1, 4 do table.remove(entry[2]) end
  redis.call('XADD', KEYS[1], '*', unpack(entry[2]))
  redis.call('XDEL', KEYS[2], entry[1])
end
return #found
"""


class RedisSourceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``url``: ``redis://`` or ``rediss://``. ``visibility``: seconds after which an entry that was not acknowledged
    comes to another consumer. ``dead``: the stream of dead messages. An acknowledged entry is deleted."""

    stream: str
    url: Annotated[str, Secret] = "redis://127.0.0.1:6379/0"
    group: str = "schedd"
    visibility: Duration = 60.0
    dead: str | None = None


class RedisSource:
    """A consumer of a group, which is made with the stream if it is not there."""

    Settings: ClassVar[type[msgspec.Struct]] = RedisSourceSettings

    def __init__(self, name: str, settings: RedisSourceSettings, /) -> None:
        require("redis", "redis", "a source of type redis")
        self.name = name
        self.limits = Limits(
            max_size=MAX_SIZE,
            max_batch=MAX_BATCH,
            max_delay=settings.visibility,
            visibility=settings.visibility,
            has_dlq=settings.dead is not None,
            counts=True,
        )
        self._settings = settings
        self._consumer = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._server = _Server(settings.url)
        self._ready = False
        self._cursor: bytes | str = "0-0"  # of what other consumers have let lie

    def receive(self, most: int, wait: float) -> Sequence[Delivery]:
        """Raises TransportError."""
        return self._server.ask(lambda client: self._receive(client, most, wait), self._forget)

    def _forget(self) -> None:
        self._ready = False  # the server may have lost the group with its memory

    def _receive(self, client: Any, most: int, wait: float) -> list[Delivery]:
        settings = self._settings
        if not self._ready:
            _make_group(client, settings.stream, settings.group)
            self._ready = True
        idle = round(settings.visibility * 1000)
        self._cursor, again, *_ = client.xautoclaim(
            settings.stream, settings.group, self._consumer, idle, start_id=self._cursor, count=most
        )
        found = [self._delivery(entry, fields, self._deliveries(client, entry)) for entry, fields in again if fields]
        if found:
            return found
        # It has to wake for what was let lie, which no notification tells of.
        block = max(1, round(min(wait, MAX_BLOCK_S, settings.visibility) * 1000))
        fresh = client.xreadgroup(settings.group, self._consumer, {settings.stream: ">"}, count=most, block=block)
        return [self._delivery(entry, fields, 1) for entry, fields in _entries(fresh)]

    def _deliveries(self, client: Any, entry: bytes) -> int:
        held = client.xpending_range(self._settings.stream, self._settings.group, entry, entry, 1)
        return int(held[0]["times_delivered"]) if held else 1

    def _delivery(self, entry: bytes, fields: dict[bytes, bytes], number: int) -> Delivery:
        name = entry.decode()
        headers = {
            k.decode("utf-8", "replace").lower(): v.decode("utf-8", "replace") for k, v in fields.items() if k != BODY
        }
        return Delivery(
            message_id=name,
            body=fields.get(BODY, b""),
            receipt=f"{name} {self._consumer} {number}",
            attempts=number,
            sent_at=int(name.partition("-")[0]) * 1000,
            headers=headers,
            unreadable=None if BODY in fields else "the entry has no field body",
        )

    def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Settled]:
        """Raises TransportError."""
        return self._server.ask(lambda client: self._each(client, [self._of(one) for one in verdicts]), self._forget)

    def extend(self, receipts: Sequence[str], seconds: float) -> Sequence[Settled]:
        """Raises TransportError."""
        wanted = [(receipt, _WAIT, (self._idle(seconds),)) for receipt in receipts]
        return self._server.ask(lambda client: self._each(client, wanted), self._forget)

    def _of(self, verdict: Verdict) -> tuple[str, str, tuple[Any, ...]]:
        if isinstance(verdict, Ack):
            return verdict.receipt, _ACK, ()
        if isinstance(verdict, Dead):
            return verdict.receipt, _DEAD, (verdict.delivery.body, verdict.reason)
        assert isinstance(verdict, Retry)
        return verdict.receipt, _WAIT, (self._idle(verdict.after),)

    def _idle(self, seconds: float) -> int:
        """For how many milliseconds an entry that is to come again in so many seconds counts as let lie."""
        return max(0, round((self._settings.visibility - seconds) * 1000))

    def _each(self, client: Any, wanted: Sequence[tuple[str, str, tuple[Any, ...]]]) -> list[Settled]:
        settings = self._settings
        keys = (settings.stream, settings.dead or settings.stream)
        with client.pipeline(transaction=False) as pipe:
            for receipt, script, more in wanted:
                entry, _, rest = receipt.partition(" ")
                consumer, _, number = rest.rpartition(" ")
                pipe.eval(script, 2, *keys, settings.group, entry, consumer, number, *more)
            answers = pipe.execute(raise_on_error=False)
        return [_settled(receipt, answer) for (receipt, _, _), answer in zip(wanted, answers, strict=True)]

    def redrive(self, most: int) -> int:
        """Raises TransportError."""
        keys = self._settings.stream, self._settings.dead or self._settings.stream

        def move(client: Any) -> int:
            left, moved = min(most, int(client.xlen(keys[1]))), 0  # what dies again meanwhile is left
            while left > 0 and (some := int(client.eval(_REDRIVE, 2, *keys, min(left, MAX_BATCH)))):
                left, moved = left - some, moved + some
            return moved

        return self._server.ask(move)

    def check(self) -> Sequence[Finding]:
        """Raises TransportError."""

        def look(client: Any) -> list[Finding]:
            settings = self._settings
            _make_group(client, settings.stream, settings.group)
            found = [Finding(True, f"stream {settings.stream} is there; entries: {client.xlen(settings.stream):,}")]
            if settings.dead is None:
                found.append(Finding(True, "dead messages are kept as dead tasks"))
            return [*found, _durability(client)]

        return self._server.ask(look)

    def close(self) -> None:
        """Close the connections."""
        self._server.close()


class RedisSinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``url``: ``redis://`` or ``rediss://``. ``keep``: about how many entries the stream keeps; 0: all."""

    stream: str
    url: Annotated[str, Secret] = "redis://127.0.0.1:6379/0"
    keep: int = 0


class RedisSink:
    """Appends entries with the fields ``body`` and ``key``."""

    Settings: ClassVar[type[msgspec.Struct]] = RedisSinkSettings
    limits = Limits(max_size=MAX_SIZE, max_batch=MAX_BATCH, max_batch_size=MAX_SIZE, overhead=64, orders=True)

    def __init__(self, name: str, settings: RedisSinkSettings, /) -> None:
        require("redis", "redis", "a sink of type redis")
        self.name = name
        self._settings = settings
        self._server = _Server(settings.url)

    def publish(self, batch: Sequence[Outgoing]) -> Sequence[Published | Refused]:
        """Raises TransportError."""
        keep = {"maxlen": self._settings.keep, "approximate": True} if self._settings.keep else {}

        def append(client: Any) -> list[Published | Refused]:
            with client.pipeline(transaction=False) as pipe:
                for one in batch:
                    pipe.xadd(self._settings.stream, {BODY: one.body, "key": one.key}, **keep)
                answers = pipe.execute(raise_on_error=False)
            return [_published(one.key, answer) for one, answer in zip(batch, answers, strict=True)]

        return self._server.ask(append)

    def check(self) -> Sequence[Finding]:
        """Raises TransportError."""

        def look(client: Any) -> list[Finding]:
            kind = client.type(self._settings.stream).decode()
            right = kind in ("none", "stream")
            return [
                Finding(right, f"{self._settings.stream} is {'no stream yet' if kind == 'none' else 'a ' + kind}"),
                _durability(client),
            ]

        return self._server.ask(look)

    def close(self) -> None:
        """Close the connections."""
        self._server.close()


class _Server:
    """A client, made when it is needed; what it raises comes out as TransportError, without the URL's password."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: Any = None

    def ask(self, work: Callable[[Any], T], forget: Callable[[], None] = lambda: None) -> T:
        import redis

        if self._client is None:
            try:
                self._client = redis.Redis.from_url(
                    self._url, socket_connect_timeout=ANSWER_S, socket_timeout=ANSWER_S + MAX_BLOCK_S
                )
            except ValueError as error:
                raise TransportError(f"redis: {error}") from None
        try:
            return work(self._client)
        except redis.RedisError as error:
            forget()
            raise TransportError(f"redis: {str(error) or type(error).__name__}") from None

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.connection_pool.disconnect()  # also under a receive in another thread
            client.close()


def _make_group(client: Any, stream: str, group: str) -> None:
    import redis

    try:
        client.xgroup_create(stream, group, id="0", mkstream=True)
    except redis.ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise


def _entries(answer: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """The entries in XREADGROUP's answer about one stream, which is a list or a mapping by the version of RESP."""
    if not answer:
        return []
    if isinstance(answer, dict):
        ((entries,),) = answer.values()
    else:
        ((_, entries),) = answer
    return list(entries)


def _settled(receipt: str, answer: Any) -> Settled:
    if isinstance(answer, Exception):
        return Settled(receipt, f"redis: {answer}")
    return Settled(receipt) if answer == 1 else Settled(receipt, "another consumer has it by now", gone=True)


def _published(key: str, answer: Any) -> Published | Refused:
    if isinstance(answer, Exception):
        return Refused(key, f"redis: {answer}")
    return Published(key, answer.decode())


def _durability(client: Any) -> Finding:
    info = client.info("persistence")
    if int(info.get("aof_enabled", 0)):
        return Finding(True, "appendonly is on")
    return Finding(True, "appendonly is off: a server that crashes loses messages")
