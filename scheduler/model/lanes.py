"""Lanes: the partitions of ready tasks. A lane is a kind, or a kind and a concurrency key; marks in front say more.

``!`` marks a task in quarantine. ``@NAME`` marks tasks that an executor places: workers leave their lanes alone.
``#NN`` marks tasks with a rank: of the lanes of one priority those with the highest rank go first. The marks stand in
this order.
"""

from __future__ import annotations

from scheduler.errors import ConfigError

LANE_SEPARATOR = "\x1f"
QUARANTINE_LANE = "!"  # no kind and no executor begins with a mark
PLACED_LANE = "@"
RANKED_LANE = "#"
MAX_RANK = 33  # and -33 the lowest; so three priorities have the 201 ranks of Django's tasks
_MARKS = (QUARANTINE_LANE, PLACED_LANE, RANKED_LANE)
_MARK_LENGTH = len("#NN") + len(LANE_SEPARATOR)


def placed_lane(executor: str | None, lane: str) -> str:
    """The lane of tasks that this executor places; the lane itself for None."""
    return lane if executor is None else f"{PLACED_LANE}{executor}{LANE_SEPARATOR}{lane}"


def check_rank(number: int, kind: str, *, ranked: bool) -> int:
    """Check the rank of a task of this kind. Raises ConfigError."""
    if not isinstance(number, int) or isinstance(number, bool) or not -MAX_RANK <= number <= MAX_RANK:
        raise ConfigError(f"rank is a whole number from -{MAX_RANK} to {MAX_RANK}, not {number!r}")
    if number and not ranked:
        raise ConfigError(f"kind {kind} has no ranks: make it with ranked=True")
    return number


def ranked_lane(rank: int, lane: str) -> str:
    """The lane, without marks, of tasks with this rank; the lane itself for 0, which all others have."""
    return lane if rank == 0 else f"{RANKED_LANE}{MAX_RANK - rank:02}{LANE_SEPARATOR}{lane}"


def rank_of(lane: str) -> int:
    """The rank of the tasks of this lane: of one priority the highest goes first."""
    if lane[:1] not in _MARKS:
        return 0
    lane = _unplaced(lane)
    return MAX_RANK - int(lane[1:3]) if lane[:1] == RANKED_LANE else 0


def _unplaced(lane: str) -> str:
    """The lane without the marks of quarantine and of an executor."""
    lane = lane.lstrip(QUARANTINE_LANE)
    return lane.partition(LANE_SEPARATOR)[2] if lane[:1] == PLACED_LANE else lane


def executor_of(lane: str) -> str | None:
    """The executor that places the tasks of this lane; None: workers claim them."""
    lane = lane.lstrip(QUARANTINE_LANE)
    return lane[1:].partition(LANE_SEPARATOR)[0] if lane[:1] == PLACED_LANE else None


def base_lane(lane: str) -> str:
    """The lane without marks: whose cap counts its tasks."""
    lane = _unplaced(lane)
    return lane[_MARK_LENGTH:] if lane[:1] == RANKED_LANE else lane


def kind_of(lane: str) -> str:
    """The kind whose tasks queue up in this lane."""
    return base_lane(lane).partition(LANE_SEPARATOR)[0]


def without_key(lane: str) -> str:
    """The lane without its concurrency key, but with its marks: lanes that are the same here take turns as one."""
    if lane[:1] in _MARKS:
        base = base_lane(lane)
        return lane[: len(lane) - len(base)] + base.partition(LANE_SEPARATOR)[0]
    return lane.partition(LANE_SEPARATOR)[0]
