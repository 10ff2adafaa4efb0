"""Rates: how many attempts of a kind may start in any period of a given length. Pure.

A start is counted when it is claimed, and may happen until a moment that is counted with it: the end of a sub-window.
So however the claims and the starts lie, no period holds more starts than the rate says:
a start at ``s`` is counted at some ``until >= s``, and a claim at ``now`` is refused while those with
``until > now - period`` fill the rate.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.retry import MAX_COUNT
from scheduler.model.times import LONGEST
from scheduler.ports import SECOND

_PERIODS = {"s": 1, "min": 60, "h": 3600, "day": 86400}
_NAMES = {"sec": "s", "second": "s", "minute": "min", "m": "min", "hour": "h"}
_SUB_WINDOWS = 64  # of a period; counting in sub-windows costs up to one of them
_START_WINDOW = (50_000, SECOND)  # microseconds that a start may take from its claim on: least, most


class Rate(msgspec.Struct, frozen=True):
    """At most ``count`` attempt starts in any period of ``period`` microseconds."""

    count: int
    period: int

    def __str__(self) -> str:
        seconds = self.period // SECOND
        for name, unit in reversed(_PERIODS.items()):
            if seconds % unit == 0:
                return f"{self.count}/{name}" if seconds == unit else f"{self.count}/{seconds // unit}{name}"
        return f"{self.count}/{seconds}s"

    @property
    def start_window(self) -> int:
        """The first estimate of how long after its claim an attempt may start, in microseconds."""
        return min(_START_WINDOW[1], max(_START_WINDOW[0], self.period // _SUB_WINDOWS))

    @property
    def max_start_window(self) -> int:
        """The longest such window, for starts that turn out to be slow."""
        return max(self.start_window, self.period // 2)

    def until(self, now: int, start_window: int) -> int:
        """The last moment at which a task that is claimed ``now`` may start: the end of a sub-window."""
        width = max(1, self.period // _SUB_WINDOWS)
        return -(-(now + min(start_window, self.max_start_window)) // width) * width

    def left(self, counted: Iterable[tuple[int, int]], now: int) -> int:
        """How many may be claimed ``now``, of starts counted as (until, number)."""
        return max(0, self.count - sum(n for until, n in counted if until > now - self.period))

    def again(self, counted: Iterable[tuple[int, int]], now: int) -> int:
        """When the next task may be claimed: ``now``, or the time at which enough counted starts are too old."""
        found = sorted((until, n) for until, n in counted if until > now - self.period)
        over = sum(n for _, n in found) - self.count
        at = now
        for until, n in found:
            if over < 0:
                break
            over -= n
            at = until + self.period
        return at


def parse_rate(text: str) -> Rate:
    """``"100/min"`` -> Rate. Raises ConfigError."""
    match = re.fullmatch(r"(\d{1,18})\s*/\s*(\d{,18})\s*([a-z]+)", text.strip()) if isinstance(text, str) else None
    unit = None if match is None else _PERIODS.get(_NAMES.get(match[3], match[3]))
    if match is None or unit is None or int(match[1]) < 1 or int(match[2] or 1) < 1:
        raise ConfigError(f'rate_limit must look like "100/min" (per s, min, h or day), not {text!r}')
    rate = Rate(int(match[1]), int(match[2] or 1) * unit * SECOND)
    if rate.count > MAX_COUNT or rate.period > LONGEST:  # what the database's columns can hold
        raise ConfigError(f"rate_limit is over {MAX_COUNT} starts, or its period over a thousand years: {text!r}")
    return rate
