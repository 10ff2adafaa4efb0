"""The options of an engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

POOL_NAMES = ("high", "medium", "low")
DEFAULT_POOLS: Mapping[str, tuple[int, int]] = {"high": (2, 20), "medium": (8, 100), "low": (4, 50)}
RETENTION: Mapping[str, float] = {
    "success": 86400.0,
    "failed": 30 * 86400.0,
    "outcomes": 90 * 86400.0,
    "events": 30 * 86400.0,
    "results": 86400.0,
    "keys": 86400.0,
}


class ProcessOptions(NamedTuple):
    """``children``: processes; ``grace``: seconds from SIGTERM to SIGKILL; ``recycle_tasks``, ``recycle_memory``:
    after so many attempts, or over so many bytes of memory, a child is replaced (0: never); ``state``:
    ``module:function``, called once in each for its ``ctx.state``."""

    children: int = 0
    grace: float = 5.0
    recycle_tasks: int = 0
    recycle_memory: int = 0
    state: str | None = None


class EngineOptions(NamedTuple):
    """Pools are (thread slots, async slots) by name; times are seconds.

    ``ahead``: how far ahead of the slots to claim; ``give_back``: attempts not started by then are released;
    ``default_timeout``: microseconds, of tasks that have none; 0: none either.
    """

    queues: tuple[str, ...] = ("*",)
    pools: Mapping[str, tuple[int, int]] = DEFAULT_POOLS
    max_concurrent: int = 0
    lease: float = 30.0
    ahead: float = 0.1
    give_back: float = 1.0
    poll: float = 1.0
    default_timeout: int = 0
    misfire_grace: float = 60.0
    retention: Mapping[str, float] = RETENTION
    log_attempts: str = "notable"
    capture_root: bool = False
    processes: ProcessOptions = ProcessOptions()
