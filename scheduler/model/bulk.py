"""A change of many tasks whose scope is frozen: its verbs, its states, what became of each task. Pure."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from scheduler.errors import ConfigError
from scheduler.model.state import StoredEnum

BulkVerb = Literal["cancel", "retry", "rerun", "replay", "purge", "uncancel"]
VERBS: tuple[str, ...] = get_args(BulkVerb)
MAX_TASKS = 1_000_000  # in the scope of one bulk
SLOWEST, FASTEST = 0.1, 100_000  # tasks a second
BATCH = 100  # tasks changed in one transaction
WITH_CANARY = frozenset({"retry", "rerun", "replay"})  # the verbs after which a task runs


class BulkState(StoredEnum):
    """``planned``: its scope is frozen, and nothing is done yet. ``undone``: it was taken back, so that it never goes
    on. ``interrupted``: its process has died, and it waits for a person who goes on with it.

    Stored by position: append, never reorder. What is stored of an interrupted one is ``running``.
    """

    PLANNED = "planned"
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"
    UNDONE = "undone"
    INTERRUPTED = "interrupted"


class ItemResult(StoredEnum):
    """What became of a task. Stored by position: append, never reorder."""

    DONE = "done"
    PASSED = "passed over"
    FAILED = "failed"


class BulkOptions(NamedTuple):
    """``cascade``, ``force``: of cancel; ``downstream``: of retry and rerun.

    ``fields``: of replay, fields that each payload gets. ``canary``: one task runs first, and the rest follows if it
    succeeds. ``rate``: tasks a second at most. ``began_at``, ``began_from``: when it was last started or gone on with
    (microseconds), and how many tasks had been looked at by then.
    """

    cascade: bool = False
    force: bool = False
    downstream: bool = True
    fields: dict[str, Any] | None = None
    canary: bool = False
    rate: float | None = None
    began_at: int | None = None
    began_from: int = 0


def check_rate(rate: float | None) -> float | None:
    """Tasks a second. Raises ConfigError."""
    if rate is None:
        return None
    if not isinstance(rate, (int, float)) or isinstance(rate, bool) or not SLOWEST <= rate <= FASTEST:
        raise ConfigError(f"rate is a number of tasks a second, from {SLOWEST} to {FASTEST:,}, not {rate!r:.80}")
    return float(rate)
