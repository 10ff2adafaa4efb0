"""A change of many tasks whose scope is frozen: its verbs, its states, what became of each task. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal, NamedTuple, get_args

Verb = Literal["cancel", "retry", "rerun", "replay", "purge", "uncancel"]
VERBS: tuple[str, ...] = get_args(Verb)
MAX_TASKS = 10_000  # in the scope of one bulk
BATCH = 100  # tasks changed in one transaction
WITH_CANARY = frozenset({"retry", "rerun", "replay"})  # the verbs after which a task runs


class BulkState(StrEnum):
    """``planned``: its scope is frozen, and nothing is done yet. Stored by position: append, never reorder."""

    PLANNED = "planned"
    RUNNING = "running"
    STOPPED = "stopped"
    DONE = "done"

    @property
    def code(self) -> int:
        return tuple(BulkState).index(self)


class ItemResult(StrEnum):
    """What became of a task. Stored by position: append, never reorder."""

    DONE = "done"
    PASSED = "passed over"
    FAILED = "failed"

    @property
    def code(self) -> int:
        return tuple(ItemResult).index(self)


class BulkOptions(NamedTuple):
    """``cascade``, ``force``: of cancel; ``downstream``: of retry and rerun.

    ``fields``: of replay, fields that each payload gets. ``canary``: one task runs first, and the rest follows if it
    succeeds.
    """

    cascade: bool = False
    force: bool = False
    downstream: bool = True
    fields: dict[str, Any] | None = None
    canary: bool = False
