"""A queue in memory with all that a transport can have: visibility, delays, a dead-letter queue, duplicates."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec

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


@dataclass
class Stored:
    message_id: str
    body: bytes
    headers: Mapping[str, str]
    visible_at: float = 0.0
    attempts: int = 0
    receipt: str | None = None
    sent_at: int | None = None


@dataclass
class MemoryQueue:
    """``now``: its clock, in seconds. ``down``: it refuses everything. ``verdicts``: all that were taken."""

    now: Callable[[], float]
    limits: Limits = field(
        default_factory=lambda: Limits(
            max_size=128_000, max_batch=10, max_delay=3600.0, visibility=30.0, has_dlq=True,
            counts=True, retention=4 * 86_400.0,
        )
    )  # fmt: skip
    messages: list[Stored] = field(default_factory=list)
    dead: list[tuple[bytes, str]] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    receives: int = 0
    down: bool = False
    lose_settles: bool = False
    numbers: Any = field(default_factory=lambda: itertools.count(1))
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def send(self, body: bytes | Mapping[str, Any], **headers: str) -> str:
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        with self.arrived:
            stored = Stored(f"m{next(self.numbers)}", data, headers)
            self.messages.append(stored)
            self.arrived.notify_all()
        return stored.message_id


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    queue: str = "q"
    dlq: str | None = None


class MemorySource:
    Settings: ClassVar[type[msgspec.Struct]] = Settings

    def __init__(self, queue: MemoryQueue) -> None:
        self.queue = queue
        self.limits = queue.limits
        self.closed = False

    def receive(self, most: int, wait: float) -> Sequence[Delivery]:
        queue = self.queue
        with queue.arrived:
            queue.receives += 1
            self._check()
            found = []
            for one in queue.messages:
                if one.visible_at <= queue.now() and len(found) < most:
                    one.attempts += 1
                    one.receipt = f"r{next(queue.numbers)}"
                    one.visible_at = queue.now() + (queue.limits.visibility or 1e9)
                    found.append(Delivery(
                        message_id=one.message_id, body=one.body, receipt=one.receipt, attempts=one.attempts,
                        headers=one.headers, sent_at=one.sent_at,
                    ))  # fmt: skip
            return found

    def _check(self) -> None:
        if self.queue.down:
            raise TransportError("the queue is away")

    def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Settled]:
        queue = self.queue
        with queue.arrived:
            self._check()
            found = []
            for verdict in verdicts:
                queue.verdicts.append(verdict)
                if queue.lose_settles:
                    found.append(Settled(verdict.receipt, "lost"))
                    continue
                stored = next((one for one in queue.messages if one.receipt == verdict.receipt), None)
                if stored is None:
                    found.append(Settled(verdict.receipt, "unknown receipt", gone=True))
                    continue
                if isinstance(verdict, Retry):
                    assert verdict.after <= (queue.limits.max_delay or 0)
                    stored.visible_at, stored.receipt = queue.now() + verdict.after, None
                else:
                    assert isinstance(verdict, Ack | Dead)
                    queue.messages.remove(stored)
                    if isinstance(verdict, Dead):
                        assert queue.limits.has_dlq
                        queue.dead.append((verdict.delivery.body, verdict.reason))
                found.append(Settled(verdict.receipt))
            return found

    def extend(self, receipts: Sequence[str], seconds: float) -> Sequence[Settled]:
        self._check()
        found = []
        for receipt in receipts:
            stored = next((one for one in self.queue.messages if one.receipt == receipt), None)
            if stored is not None:
                stored.visible_at = self.queue.now() + seconds
            found.append(Settled(receipt, None if stored else "unknown receipt", gone=stored is None))
        return found

    def check(self) -> Sequence[Finding]:
        self._check()
        return [Finding(True, "there")]

    def close(self) -> None:
        self.closed = True


class MemorySink:
    Settings: ClassVar[type[msgspec.Struct]] = Settings

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits(max_size=1000, max_batch=10, max_batch_size=2500, overhead=100)
        self.batches: list[list[Outgoing]] = []
        self.refuse: dict[str, Refused] = {}
        self.down = False
        self.closed = False

    @property
    def published(self) -> list[Outgoing]:
        return [one for batch in self.batches for one in batch if one.key not in self.refuse]

    def publish(self, batch: Sequence[Outgoing]) -> Sequence[Published | Refused]:
        if self.down:
            raise TransportError("the queue is away", after=1.0)
        self.batches.append(list(batch))
        return [self.refuse.get(one.key) or Published(one.key) for one in batch]

    def check(self) -> Sequence[Finding]:
        return [Finding(True, "there")]

    def close(self) -> None:
        self.closed = True
