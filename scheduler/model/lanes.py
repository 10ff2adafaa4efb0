"""Lanes: the partitions of ready tasks. A lane is a kind, or a kind and a concurrency key; marks in front say more.

``!`` marks a task in quarantine. ``@NAME`` marks tasks that an executor places: workers leave their lanes alone.
``#NN`` marks tasks with a rank: of the lanes of one priority those with the highest rank go first. ``%NN`` marks tasks
of a graph by its work: they go as if they had come so much later. ``~KEY`` marks tasks with a fairness key, with the
weight of the task behind it unless that is 1. The marks stand in this order.
"""

from __future__ import annotations

from collections.abc import Callable
from math import log
from sys import intern
from typing import NamedTuple, TypeGuard

from scheduler.errors import ConfigError, PayloadError
from scheduler.model.names import check_text

LANE_SEPARATOR = "\x1f"
MILLISECOND = 1000
WAIT_FOR_WORK = 30  # a graph is taken to have come later by so many times its work, divided by the slots
QUARANTINE_LANE = "!"  # no kind and no executor begins with a mark
PLACED_LANE = "@"
RANKED_LANE = "#"
SIZED_LANE = "%"
FAIR_LANE = "~"
MAX_RANK = 33  # and -33 the lowest; so three priorities have the 201 ranks of Django's tasks
MAX_FAIRNESS_KEY = 64
MAX_PARTS = 16_384  # lanes whose parts are kept
WEIGHTS = (0.001, 1000.0)  # least, most
_new = tuple.__new__  # faster than the named tuple's own constructor
_MARKS = (QUARANTINE_LANE, PLACED_LANE, RANKED_LANE, SIZED_LANE, FAIR_LANE)
_RANK_LENGTH = len("#NN") + len(LANE_SEPARATOR)
_SIZE_LENGTH = _RANK_LENGTH
WEIGHT_SEPARATOR = "\x1e"
SIZE_STEP, LARGEST_SIZE = 4, 20  # each size is a delay of so many times that of the one before, the first a millisecond


class Fairness(NamedTuple):
    """Whose turn a task takes, and how much that weighs; the key is empty for tasks without one."""

    key: str = ""
    weight: float = 1.0


class Parts(NamedTuple):
    """``marks``: of quarantine, executor, rank and size, as they stand in front; ``size``: None without one; ``base``:
    the lane without any mark; ``turn``: see :func:`without_key`."""

    marks: str
    executor: str | None
    rank: int
    size: int | None
    fairness: Fairness
    base: str
    kind: str
    turn: str


class _PartsByLane(dict[str, Parts]):
    """The parts of the lanes that were asked for: a look here takes half the time of a cached function."""

    def __missing__(self, lane: str) -> Parts:
        if len(self) >= MAX_PARTS:
            self.clear()
        parts = self[lane] = _parts(lane)
        return parts


def _parts(lane: str) -> Parts:
    if lane[:1] == FAIR_LANE and WEIGHT_SEPARATOR not in lane:  # mostly, and there may be very many
        key, _, rest = lane[1:].partition(LANE_SEPARATOR)
        kind = intern(rest.partition(LANE_SEPARATOR)[0])
        fairness: Fairness = _new(Fairness, (key, 1.0))
        parts: Parts = _new(Parts, ("", None, 0, None, fairness, rest, kind, kind))
        return parts
    rest, executor, rank, size, fairness = lane.lstrip(QUARANTINE_LANE), None, 0, None, _NO_FAIRNESS
    if rest[:1] == PLACED_LANE:
        executor, _, rest = rest[1:].partition(LANE_SEPARATOR)
    if rest[:1] == RANKED_LANE:
        rank, rest = MAX_RANK - int(_number(rest[1:3], MAX_RANK)), rest[_RANK_LENGTH:]
    before = lane[: len(lane) - len(rest)]
    if rest[:1] == SIZED_LANE:
        size, rest = min(int(_number(rest[1:3], 0)), LARGEST_SIZE), rest[_SIZE_LENGTH:]
    marks = lane[: len(lane) - len(rest)]
    if rest[:1] == FAIR_LANE:
        mark, _, rest = rest[1:].partition(LANE_SEPARATOR)
        key, _, weight = mark.partition(WEIGHT_SEPARATOR)
        fairness = Fairness(key, min(max(_number(weight, 1.0), WEIGHTS[0]), WEIGHTS[1]))
    kind = rest.partition(LANE_SEPARATOR)[0]
    return Parts(marks, executor, rank, size, fairness, rest, kind, before + kind)


_NO_FAIRNESS = Fairness()
parts_of: Callable[[str], Parts] = _PartsByLane().__getitem__  # a lane in its parts


def _number(text: str, otherwise: float) -> float:
    """A number of a mark; a text that no version of ours wrote breaks nothing."""
    return float(text) if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit() else otherwise


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
    """The lane of tasks with this rank, 0 being that of all others; ``lane``: with a fairness key, or without marks."""
    return lane if rank == 0 else f"{RANKED_LANE}{MAX_RANK - rank:02}{LANE_SEPARATOR}{lane}"


def with_rank(rank: int, lane: str) -> str:
    """The lane of a new task, once it has this rank."""
    return ranked_lane(rank, lane[_RANK_LENGTH:] if lane[:1] == RANKED_LANE else lane)


def rank_of(lane: str) -> int:
    """The rank of the tasks of this lane: of one priority the highest goes first."""
    return parts_of(lane).rank if lane[:1] in _MARKS else 0


def size_of(delay: float) -> int:
    """The size whose delay is the nearest to this one (microseconds)."""
    return min(max(0, round(log(max(delay, 1.0) / MILLISECOND, SIZE_STEP))), LARGEST_SIZE)


def sized_lane(size: int | None, lane: str) -> str:
    """The lane of tasks of a graph of this size; ``lane``: perhaps with a rank and another size."""
    parts = parts_of(lane)
    if size == parts.size:
        return lane
    before = parts.marks if parts.size is None else parts.marks[:-_SIZE_LENGTH]
    mark = "" if size is None else f"{SIZED_LANE}{size:02}{LANE_SEPARATOR}"
    return f"{before}{mark}{lane[len(parts.marks) :]}"


def delay_of(lane: str) -> int | None:
    """How much later than it did each task of this lane is taken to have come (microseconds); None: no graph's."""
    if lane[:1] not in _MARKS:
        return None
    size = parts_of(lane).size
    return None if size is None else MILLISECOND * SIZE_STEP**size


def check_fairness_key(key: object) -> str:
    """Check a fairness key. Raises PayloadError."""
    text = check_text(key, "a fairness key", MAX_FAIRNESS_KEY)
    if any(char < " " or "\x7f" <= char < "\xa0" for char in text):
        raise PayloadError(f"a fairness key has no control characters, as {text!r:.80} has: leave them out")
    return text


def check_weight(weight: object) -> float:
    """Check the weight of a fairness key. Raises ConfigError."""
    if not is_weight(weight):
        least, most = WEIGHTS
        raise ConfigError(f"a fairness weight is a number from {least:g} to {most:g}, not {weight!r:.80}")
    return float(weight)


def is_weight(weight: object) -> TypeGuard[float]:
    """Whether a fairness key may have it."""
    return isinstance(weight, int | float) and not isinstance(weight, bool) and WEIGHTS[0] <= weight <= WEIGHTS[1]


def fairness_of(lane: str) -> Fairness:
    """The fairness key of the tasks of this lane, and its weight."""
    return parts_of(lane).fairness if lane[:1] in _MARKS else _NO_FAIRNESS


def fair_lane(lane: str, key: str | None = None, weight: float | None = None) -> str:
    """The lane of a new task, perhaps with a rank, once it has this fairness key and weight; None: as it is."""
    before = fairness_of(lane)
    key, weight = before.key if key is None else key, before.weight if weight is None else weight
    if (key, weight) == before:
        return lane
    parts = parts_of(lane)
    if (key, weight) == _NO_FAIRNESS:
        return parts.marks + parts.base
    said = "" if weight == 1 else f"{WEIGHT_SEPARATOR}{weight:.6g}"
    return f"{parts.marks}{FAIR_LANE}{key}{said}{LANE_SEPARATOR}{parts.base}"


def inherited_lane(lane: str, causes: str) -> str:
    """The lane of a task that a handler makes: in the graph of the handler's own task, and with its fairness key and
    weight; the task's own stay."""
    if causes[:1] not in _MARKS:
        return lane
    theirs, own = parts_of(causes), fairness_of(lane)
    if theirs.fairness.key and not own.key:
        lane = fair_lane(lane, theirs.fairness.key, theirs.fairness.weight if own.weight == 1 else own.weight)
    return lane if theirs.size is None else sized_lane(theirs.size, lane)


def derived_lane(lane: str, before: str) -> str:
    """The lane that a new payload makes of a task whose lane was ``before``, without marks of quarantine and executor:
    it keeps its rank and size, and its fairness key where the payload makes none."""
    own, theirs = fairness_of(lane), fairness_of(before)
    if not own.key or own.key == theirs.key:
        lane = fair_lane(lane, *theirs)
    return sized_lane(parts_of(before).size, with_rank(rank_of(before), lane))


def executor_of(lane: str) -> str | None:
    """The executor that places the tasks of this lane; None: workers claim them."""
    return parts_of(lane).executor if lane[:1] in _MARKS else None


def base_lane(lane: str) -> str:
    """The lane without marks: whose cap counts its tasks."""
    return parts_of(lane).base if lane[:1] in _MARKS else lane


def kind_of(lane: str) -> str:
    """The kind whose tasks queue up in this lane."""
    return parts_of(lane).kind if lane[:1] in _MARKS else lane.partition(LANE_SEPARATOR)[0]


def without_key(lane: str) -> str:
    """The lane without its concurrency key and its fairness key: lanes that are the same here take turns as one."""
    if lane[:1] in _MARKS:
        return parts_of(lane).turn
    return lane.partition(LANE_SEPARATOR)[0]
