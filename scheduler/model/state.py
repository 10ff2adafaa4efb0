"""The states of a task, the legal steps between them, and the truth table of edges.

This is the one table; ``docs/reference/states.md`` draws it and ``tests/model/test_state.py`` walks every edge and
non-edge.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any, Literal, Self

from scheduler.errors import ConfigError

_BY_CODE: defaultdict[type, list[Any]] = defaultdict(list)


class StoredEnum(StrEnum):
    """Values that are stored by position, ``code``: append, never reorder."""

    code: int

    def __init__(self, _: str) -> None:
        values = _BY_CODE[type(self)]
        self.code = len(values)
        values.append(self)

    @classmethod
    def from_code(cls, code: int) -> Self:
        """The value at this position. Raises IndexError."""
        found: Self = _BY_CODE[cls][code]
        return found


class TaskState(StoredEnum):
    """The state of a task. ``code`` is the number stored for it, ``simple`` the short name."""

    WAITING = "waiting"
    SCHEDULED = "scheduled"
    RETRY = "retry"
    SUSPENDED = "suspended"
    CLAIMED = "claimed"
    RUNNING = "running"
    SUCCESS = "success"
    FAILED = "failed"
    DEAD = "dead"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def simple(self) -> str:
        return _SIMPLE[self]

    @property
    def terminal(self) -> bool:
        return self in TERMINAL


S = TaskState  # short in the tables below
_SIMPLE = {
    S.WAITING: "WaitingDeps",
    S.SCHEDULED: "Pending",
    S.RETRY: "Retrying",
    S.SUSPENDED: "Pending",
    S.CLAIMED: "Pending",
    S.RUNNING: "Running",
    S.SUCCESS: "Completed",
    S.FAILED: "Failed",
    S.DEAD: "Failed",
    S.CANCELLED: "Failed",
    S.SKIPPED: "Failed",
}
TERMINAL = frozenset({S.SUCCESS, S.FAILED, S.DEAD, S.CANCELLED, S.SKIPPED})
CLAIMABLE = frozenset({S.SCHEDULED, S.RETRY, S.SUSPENDED})
HELD = frozenset({S.CLAIMED, S.RUNNING})
LIVE = frozenset(S) - TERMINAL
# What programs may write for an enum's value, as a type checker knows it; a test compares the two.
LiveName = Literal["waiting", "scheduled", "retry", "suspended", "claimed", "running"]
EndedName = Literal["success", "failed", "dead", "cancelled", "skipped"]
SimpleName = Literal["WaitingDeps", "Pending", "Retrying", "Running", "Completed", "Failed"]
StateName = LiveName | EndedName | SimpleName
SIMPLE_NAMES = tuple(dict.fromkeys(_SIMPLE.values()))

# Codes are stored, and partial indexes name them: append, never renumber.
WAITING, SCHEDULED, RETRY, SUSPENDED, CLAIMED, RUNNING, SUCCESS, FAILED, DEAD, CANCELLED, SKIPPED = range(11)
FIRST_TERMINAL = SUCCESS

_REOPENED = frozenset({S.SCHEDULED, S.WAITING})
_ENDS = frozenset({S.SUCCESS, S.FAILED, S.DEAD, S.RETRY, S.SUSPENDED, S.CANCELLED})
TRANSITIONS: dict[TaskState, frozenset[TaskState]] = {
    # to skipped and failed: by an edge that can no longer be satisfied
    S.WAITING: frozenset({S.SCHEDULED, S.FAILED, S.SKIPPED, S.CANCELLED}),
    # waiting: add_dependency
    S.SCHEDULED: frozenset({S.CLAIMED, S.WAITING, S.CANCELLED}),
    # scheduled: replaced by a call with the same key
    S.RETRY: frozenset({S.CLAIMED, S.SCHEDULED, S.CANCELLED}),
    S.SUSPENDED: frozenset({S.CLAIMED, S.SCHEDULED, S.CANCELLED}),
    # a handler that ends before the next dispatch cycle goes from claimed to its end in one write
    S.CLAIMED: frozenset({S.RUNNING, S.SCHEDULED}) | _ENDS,
    S.RUNNING: frozenset({S.SCHEDULED}) | _ENDS,
    S.SUCCESS: _REOPENED,  # run again by hand
    S.FAILED: _REOPENED,
    S.DEAD: _REOPENED,
    S.CANCELLED: _REOPENED,
    S.SKIPPED: _REOPENED,
}


def may_follow(old: TaskState, new: TaskState) -> bool:
    """Whether the table allows the step from ``old`` to ``new``."""
    return new in TRANSITIONS[old]


WhenName = Literal["success", "failure", "finished"]
OtherwiseName = Literal["fail", "skip", "run", "wait"]


class When(StrEnum):
    """Which end of the parent an edge waits for."""

    SUCCESS = "success"
    FAILURE = "failure"
    FINISHED = "finished"


class Otherwise(StrEnum):
    """What happens to the child when its edge can no longer be satisfied."""

    FAIL = "fail"
    SKIP = "skip"
    RUN = "run"
    WAIT = "wait"


class EdgeVerdict(IntEnum):
    """What a parent's end means for one edge."""

    SATISFIED = 0
    FAIL = 1
    SKIP = 2
    WAIT = 3


DEFAULT_OTHERWISE = {
    When.SUCCESS: Otherwise.FAIL,
    When.FAILURE: Otherwise.SKIP,
    When.FINISHED: Otherwise.FAIL,
}
_BY_OTHERWISE = {
    Otherwise.FAIL: EdgeVerdict.FAIL,
    Otherwise.SKIP: EdgeVerdict.SKIP,
    Otherwise.RUN: EdgeVerdict.SATISFIED,
    Otherwise.WAIT: EdgeVerdict.WAIT,
}


def edge_verdict(parent: TaskState, when: When, otherwise: Otherwise) -> EdgeVerdict:
    """What a terminal parent means for an edge: the truth table of edges."""
    if when is When.FINISHED:
        return EdgeVerdict.SATISFIED
    if parent is S.SKIPPED:
        if otherwise in (Otherwise.RUN, Otherwise.WAIT):
            return _BY_OTHERWISE[otherwise]
        return EdgeVerdict.SKIP
    succeeded = parent is S.SUCCESS
    if succeeded == (when is When.SUCCESS):
        return EdgeVerdict.SATISFIED
    return _BY_OTHERWISE[otherwise]


# An edge carries the set of parents' ends that satisfy it as a bit mask, so that the release is one SQL statement.
END_BIT = {S.SUCCESS: 1, S.FAILED: 2, S.DEAD: 2, S.CANCELLED: 4, S.SKIPPED: 8}


@lru_cache
def satisfied_mask(when: When, otherwise: Otherwise) -> int:
    """Bits of the parent's ends (see ``END_BIT``) that satisfy an edge, by :func:`edge_verdict`."""
    mask = 0
    for end, bit in END_BIT.items():
        if edge_verdict(end, when, otherwise) is EdgeVerdict.SATISFIED:
            mask |= bit
    return mask


def parse_states(given: str | Iterable[str]) -> Sequence[TaskState]:
    """State names and short names as states. Raises ConfigError, which lists the valid ones."""
    names = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    found: list[TaskState] = []
    for name in names:
        # "failed" is the one state, "Failed" the short name of four
        matching = [s for s in TaskState if name == s.value]
        matching = matching or [s for s in TaskState if str(name).lower() == s.simple.lower()]
        if not matching:
            raise ConfigError(
                f"there is no state {name!r}; there are {', '.join(TaskState)} and "
                f"{', '.join(dict.fromkeys(s.simple for s in TaskState))}"
            )
        found += matching
    return found
