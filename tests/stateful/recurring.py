"""The model's recurring schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass
class Recurring:
    """A schedule with slots at anchor + k * every (k from 1); a cron of every minute has its anchor at the epoch."""

    name: str
    kind: str
    every: int
    anchor: int
    catchup: str
    overlap: str
    next_at: int
    level: int
    options: dict[str, Any]
    paused: bool = False
    last_task: int | None = None

    def after(self, instant: int) -> int:
        return self.anchor + (max(0, (instant - self.anchor) // self.every) + 1) * self.every

    def resume(self, now: int) -> None:
        """Go on with the next slot, also where a clock that was ahead has found a later one."""
        if self.paused:
            self.anchor = min(self.anchor, now) if self.next_at > now else self.anchor
            later = self.after(now)
            self.next_at = later if self.next_at <= now else min(self.next_at, later)
        self.paused = False

    def fires(self, now: int, grace: int) -> list[int]:
        """The slots to run now; moves on to the next one."""
        due = list(range(self.next_at, now + 1, self.every))
        on_time = [slot for slot in due if slot > now - grace]
        self.next_at = self.after(now)
        if self.catchup == "all":
            return due
        if on_time or self.catchup == "none":
            return on_time
        return due[-1:]
