"""A clock that only a test moves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from scheduler.model.times import instant_us, span_us
from scheduler.ports import SECOND

_START = datetime(2026, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock that stands still until :meth:`advance`. ``start``: an aware datetime."""

    steps = True

    def __init__(self, start: datetime = _START) -> None:
        self._now = instant_us(start, "start")
        self._mono = 0.0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._mono

    def advance(self, by: float | timedelta) -> None:
        """Move the clock forward by seconds or a timedelta."""
        span = span_us(by, "advance")
        self._now += span
        self._mono += span / SECOND

    def jump(self, by: float | timedelta) -> None:
        """Move the wall clock forward, or back for a negative value; monotonic time stays as it is."""
        seconds = by.total_seconds() if isinstance(by, timedelta) else by
        self._now += round(seconds * SECOND)

    @property
    def datetime(self) -> datetime:
        """The wall time, UTC."""
        return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=self._now)
