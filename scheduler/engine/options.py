"""The options of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from scheduler.model.defaults import LEASE, MISFIRE_GRACE, POOL_SLOTS, PROCESS_GRACE, RETENTION, UNMOVED_AFTER


class ProcessOptions(NamedTuple):
    """``children``: processes; ``grace``: seconds from SIGTERM to SIGKILL; ``recycle_tasks``, ``recycle_memory``:
    after so many attempts, or over so many bytes of memory, a child is replaced (0: never); ``state``:
    ``module:function``, called once in each for its ``ctx.state``."""

    children: int = 0
    grace: float = PROCESS_GRACE
    recycle_tasks: int = 0
    recycle_memory: int = 0
    state: str | None = None


class Adjustable(NamedTuple):
    """What may be configured anew while an engine runs: the pools, and the bound on what it holds (0: none)."""

    pools: Mapping[str, tuple[int, int]]
    max_concurrent: int


class EngineOptions(NamedTuple):
    """Pools are (thread slots, async slots) by name; times are seconds.

    ``ahead``: how far ahead of the slots to claim; ``give_back``: attempts not started by then are released;
    ``default_timeout``: microseconds, of tasks that have none; 0: none either. ``unmoved_after``:
    after so long an attempt that does not move is published; 0: never. ``rollups``: keep numbers of attempts.
    ``any_executor``: run tasks that name an executor, too.
    ``executor``: run tasks that name this one, too; ``job``: its job that this worker is.
    ``short_first``: the queues of which to start short graphs first.
    ``metrics``: keep this worker's own metrics, see ``telemetry/registry.py``.
    """

    queues: tuple[str, ...] = ("*",)
    pools: Mapping[str, tuple[int, int]] = POOL_SLOTS
    max_concurrent: int = 0
    lease: float = LEASE
    ahead: float = 0.1
    give_back: float = 1.0
    poll: float = 1.0
    default_timeout: int = 0
    unmoved_after: float = UNMOVED_AFTER
    misfire_grace: float = MISFIRE_GRACE
    retention: Mapping[str, float] = RETENTION
    log_attempts: str = "notable"
    capture_root: bool = False
    processes: ProcessOptions = ProcessOptions()
    rollups: bool = True
    metrics: bool = False
    any_executor: bool = False
    executor: str | None = None
    job: str = ""
    short_first: tuple[str, ...] = ()

    @property
    def renew_every(self) -> float:
        """Seconds between renewals of the lease: two of them may fail."""
        return self.lease / 3

    @property
    def clock_drift(self) -> float:
        """Seconds by which a clock may jump before expired leases are left alone for a while."""
        return self.lease / 3

    @property
    def cut_before(self) -> float:
        """Seconds before the end of the lease in which a connection without an answer is cut."""
        return self.lease / 3

    def starts_short_first(self, queue: str) -> bool:
        """Whether short graphs of this queue go first."""
        return "*" in self.short_first or queue in self.short_first
