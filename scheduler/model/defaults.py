"""Defaults that programs and the daemon share. Times are seconds. Imports nothing that costs time."""

from __future__ import annotations

from collections.abc import Mapping

POOLS = ("high", "medium", "low")  # by priority: POOLS[Priority.HIGH] is "high"
POOL_SLOTS: Mapping[str, tuple[int, int]] = {"high": (2, 20), "medium": (8, 100), "low": (4, 50)}  # (threads, async)
NO_SLOT = "no pool has a slot, so nothing would ever run"
RETENTION: Mapping[str, float] = {
    "success": 86400.0,
    "failed": 30 * 86400.0,
    "outcomes": 90 * 86400.0,
    "events": 30 * 86400.0,
    "results": 86400.0,
    "keys": 86400.0,
    "audit": 365 * 86400.0,
    "stats": 365 * 86400.0,
}
LEASE = 30.0
UNMOVED_AFTER = 600.0  # seconds
IN_TURN, SHORT_FIRST = "in-turn", "short-first"  # the order of graphs
DRAIN = 30.0
PROCESS_GRACE = 5.0
MISFIRE_GRACE = 60.0
SUSPECT_ALONE_S = 10.0  # how long a suspect runs alone; younger attempts do not run beside it
