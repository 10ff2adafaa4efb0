"""Traffic: what this process's sources and sinks have done, as plain numbers, and what is wrong with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec

from scheduler.model.problem import Side, TransportProblem
from scheduler.telemetry.metrics import (
    MESSAGES_DEAD,
    MESSAGES_PUBLISHED,
    MESSAGES_RECEIVED,
    MESSAGES_REFUSED,
    MESSAGES_SETTLED,
    TRANSPORT_UNREACHABLE,
    Family,
    Metric,
    Sample,
)

VERDICTS = ("ack", "retry", "dead")
REPEAT_S = 60.0  # seconds between two texts of one trouble: each is written to the worker's row
MAX_TROUBLE = 300  # characters of a text
COUNTERS = (MESSAGES_RECEIVED, MESSAGES_SETTLED, MESSAGES_DEAD, MESSAGES_PUBLISHED, MESSAGES_REFUSED)
Counts = dict[tuple[str, ...], int]


class _Told(NamedTuple):
    trouble: TransportProblem
    at: float  # when its text was new
    until: float  # it is over unless it is reported again


class Traffic:
    """Counters by source or sink. Any thread may change and read them."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._counts: dict[Metric, Counts] = {metric: {} for metric in COUNTERS}
        self._troubles: dict[tuple[Side, str, bool], _Told] = {}

    def know(self, sources: Iterable[str], sinks: Iterable[str]) -> None:
        """Begin at 0 for these: a counter that begins at 1 hides its first step from a rate."""
        for source in sources:
            for counter in (MESSAGES_RECEIVED, MESSAGES_DEAD):
                self.count(counter, source, number=0)
            for verdict in VERDICTS:
                self.count(MESSAGES_SETTLED, source, verdict, number=0)
        for sink in sinks:
            for counter in (MESSAGES_PUBLISHED, MESSAGES_REFUSED):
                self.count(counter, sink, number=0)

    def count(self, counter: Metric, *labels: str, number: int = 1) -> None:
        """Add to a counter; ``labels``: as it has them."""
        with self._lock:
            counts = self._counts[counter]
            counts[labels] = counts.get(labels, 0) + number

    def families(self) -> list[Family]:
        """All of them with their present values."""
        away = {(one.side, one.name) for one in self.troubles if not one.old}
        with self._lock:
            counts = {metric: sorted(counts.items()) for metric, counts in self._counts.items()}
        known = [("source", *labels) for labels, _ in counts[MESSAGES_RECEIVED]]
        known += [("sink", *labels) for labels, _ in counts[MESSAGES_PUBLISHED]]
        found = [Family(metric, [Sample(labels, n) for labels, n in several]) for metric, several in counts.items()]
        return [*found, Family(TRANSPORT_UNREACHABLE, [Sample(labels, int(labels in away)) for labels in known])]

    def tell(self, trouble: TransportProblem, lasts: float) -> None:
        """Something is wrong; it is over in ``lasts`` seconds unless it is reported again, or at :meth:`is_well`.

        The first ``since`` stays, and a text for a minute.
        """
        key: tuple[Side, str, bool] = trouble.side, trouble.name, trouble.old
        now = self._monotonic()
        with self._lock:
            last = self._reported(key, now)
            at, until = now, now + lasts
            if last is not None and not trouble.old:
                if now - last.at < REPEAT_S:
                    trouble, at = last.trouble, last.at
                else:
                    trouble = msgspec.structs.replace(trouble, since=last.trouble.since)
            text = trouble.text[:MAX_TROUBLE]
            self._troubles[key] = _Told(msgspec.structs.replace(trouble, text=text), at, until)

    def is_well(self, side: Side, name: str, *, old: bool = False) -> None:
        """A trouble is over."""
        with self._lock:
            self._troubles.pop((side, name, old), None)

    @property
    def troubles(self) -> tuple[TransportProblem, ...]:
        """What is wrong now, always in the same order."""
        if not self._troubles:
            return ()
        with self._lock:
            now = self._monotonic()
            found = [last.trouble for key in sorted(self._troubles) if (last := self._reported(key, now)) is not None]
        return tuple(found)

    def _reported(self, key: tuple[Side, str, bool], now: float) -> _Told | None:
        last = self._troubles.get(key)
        return last if last is not None and now < last.until else None
