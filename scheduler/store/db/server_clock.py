"""The server's clock, as far as this machine's own is from it."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from scheduler.ports import SECOND, Clock
from scheduler.store.db.dialect import prepared

if TYPE_CHECKING:
    import sqlalchemy as sa

SERVER_TIME = "CAST(extract(epoch FROM clock_timestamp()) * 1000000 AS bigint)"  # in microseconds

_CALIBRATED = 60.0  # seconds for which a calibration is good
_JUMP = 0.5  # seconds by which wall and monotonic time may disagree since then
_NEAR = 100_000  # microseconds: a calibration that took longer gives only bounds of the offset


class ServerClock:
    """Measures ``offset``: microseconds that this machine's clock is behind the server's. 0 until then."""

    def __init__(self) -> None:
        self.offset = 0
        self._calibrated: tuple[int, float] | None = None  # wall and monotonic time of the last calibration
        self._trips: deque[float] = deque(maxlen=3)

    def now(self, clock: Clock) -> int:
        """The server's time in microseconds, as far as this machine's clock and its offset tell."""
        return clock.now() + self.offset

    @property
    def round_trip(self) -> float:
        """Seconds that a question and its answer take to and from the server: the least of the last measurements."""
        return min(self._trips, default=0.0)

    def calibrate(self, connection: sa.Connection, clock: Clock, *, if_due: bool = False) -> None:
        """Ask the server for its time. ``if_due``: only after a while, or when the wall clock was set."""
        if if_due and not self.is_due(clock):
            return
        before = clock.now()
        self.measured(clock, before, connection.execute(prepared(f"SELECT {SERVER_TIME}")).scalar_one())

    def measured(self, clock: Clock, before: int, server: int) -> None:
        """Keep to a time that has just come in an answer to a question of ``before``."""
        after = clock.now()
        low, high = server - after, server - before
        self._trips.append((high - low) / SECOND)
        if not (self._calibrated and high - low > _NEAR and low <= self.offset <= high):
            # An answer that took its time says little: what was known before may be nearer to the truth.
            self.offset = (low + high) // 2
        self._calibrated = (after, clock.monotonic())

    def agree(self, clock: Clock, server: int, took: float) -> None:
        """Keep to a time that came in an answer, ``took`` seconds after the question; unless they agree as it is."""
        after = clock.now()
        low, high = server - after, server - after + round(took * SECOND)
        if not (self._calibrated and low <= self.offset <= high):
            self.offset = (low + high) // 2
            self._calibrated = (after, clock.monotonic())

    def is_due(self, clock: Clock) -> bool:
        """Whether to ask again."""
        if self._calibrated is None:
            return True
        wall, mono = self._calibrated
        passed = clock.monotonic() - mono
        return passed > _CALIBRATED or abs((clock.now() - wall) / SECOND - passed) > _JUMP
