"""Lanes: the partitions of ready tasks. A lane is a kind, or a kind and a concurrency key; marks in front say more.

``!`` marks a task in quarantine. ``@NAME`` marks tasks that an executor places: workers leave their lanes alone.
"""

from __future__ import annotations

LANE_SEPARATOR = "\x1f"
QUARANTINE_LANE = "!"  # no kind and no executor begins with a mark
PLACED_LANE = "@"


def placed_lane(executor: str | None, lane: str) -> str:
    """The lane of tasks that this executor places; the lane itself for None."""
    return lane if executor is None else f"{PLACED_LANE}{executor}{LANE_SEPARATOR}{lane}"


def executor_of(lane: str) -> str | None:
    """The executor that places the tasks of this lane; None: workers claim them."""
    lane = lane.lstrip(QUARANTINE_LANE)
    return lane[1:].partition(LANE_SEPARATOR)[0] if lane[:1] == PLACED_LANE else None


def base_lane(lane: str) -> str:
    """The lane without marks: whose cap counts its tasks."""
    lane = lane.lstrip(QUARANTINE_LANE)
    return lane.partition(LANE_SEPARATOR)[2] if lane[:1] == PLACED_LANE else lane


def kind_of(lane: str) -> str:
    """The kind whose tasks queue up in this lane."""
    return base_lane(lane).partition(LANE_SEPARATOR)[0]


def without_key(lane: str) -> str:
    """The lane without its concurrency key, but with its marks: lanes that are the same here take turns as one."""
    if lane[:1] in (QUARANTINE_LANE, PLACED_LANE):
        base = base_lane(lane)
        return lane[: len(lane) - len(base)] + base.partition(LANE_SEPARATOR)[0]
    return lane.partition(LANE_SEPARATOR)[0]
