"""The states of a worker, as the numbers that are stored for them."""

from __future__ import annotations

LIVE, DRAINING, STOPPED, DEAD = range(4)
WORKER_STATES = ("live", "draining", "stopped", "dead")
