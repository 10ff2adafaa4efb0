"""Graphs of tasks and timelines as SVG: shapes with attributes only, as the pages' policy allows no styles."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from scheduler.model.graph_folding import Fold
from scheduler.model.graph_layout import layout
from scheduler.model.outcome import AttemptEnd
from scheduler.model.state import TaskState
from scheduler.model.texts import span_text
from scheduler.model.timeline import DrawnSpan, Phase, Span, place_of, places
from scheduler.operations.analysis import TaskTimeline

BOX_W, BOX_H = 168, 42
_GAP_ACROSS, _GAP_ALONG = 18, 40
_MARGIN = 6
_SIDEWAYS_FROM = 1_300  # pixels of width from which on layers are columns
_ORDER = ("dead", "failed", "running", "claimed", "retry", "suspended", "scheduled", "waiting", "cancelled", "skipped")
UNKNOWN = "unknown"


MAX_LANES = 30  # attempts that are drawn, the last ones
_LANE, _TOP = 24, 6
_NARROWEST = 0.25  # per cent: what is shorter is still seen
_BAD = (AttemptEnd.FAILED, AttemptEnd.DEAD, AttemptEnd.RETRIED, AttemptEnd.LOST)


class Part(NamedTuple):
    """A piece of a box's bar: so many tasks in a state."""

    state: str
    number: int
    x: float
    width: float


class DrawnBox(NamedTuple):
    """``worst``: the state that its icon shows; ``first``: the task, or the first one of those that it stands for."""

    id: int
    kind: str
    size: int
    worst: str
    parts: list[Part]
    x: int
    y: int
    first: int
    on_path: bool


class DrawnEdge(NamedTuple):
    """An edge. ``path``: of an SVG path."""

    path: str
    on_path: bool


class Drawing(NamedTuple):
    """``boxes`` in the order of the layers, so that a screen reader hears parents before children."""

    boxes: list[DrawnBox]
    lines: list[DrawnEdge]
    width: int
    height: int


def states_of(tasks: Sequence[int], states: Mapping[int, TaskState | None]) -> dict[str, int]:
    """State -> how many of these tasks, the worst first."""
    found: dict[str, int] = {}
    for task_id in tasks:
        state = states.get(task_id)
        name = UNKNOWN if state is None else state.value
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items(), key=lambda item: _rank(item[0])))


def _rank(state: str) -> int:
    return _ORDER.index(state) if state in _ORDER else len(_ORDER)


def draw(fold: Fold, states: Mapping[int, TaskState | None], path: Sequence[int]) -> Drawing:
    """Place a folded graph. ``states``: of its tasks, None for unknown; ``path``: the longest path, which is marked.

    Layers are rows, or columns where rows would be wider than a screen.
    """
    found = layout([box.id for box in fold.boxes], [(a, b) for a, b, _ in fold.edges])
    marked = [fold.box_of[task_id] for task_id in path if task_id in fold.box_of]
    way = set(itertools.pairwise(marked))
    wide = found.width * (BOX_W + _GAP_ACROSS)
    sideways = wide > _SIDEWAYS_FROM and found.width > len(found.layers)
    places = {}
    for box_id, x in found.x.items():
        if sideways:
            place = (found.layer[box_id] * (BOX_W + _GAP_ALONG), round((x - 0.5) * (BOX_H + _GAP_ACROSS)))
        else:
            place = (round((x - 0.5) * (BOX_W + _GAP_ACROSS)), found.layer[box_id] * (BOX_H + _GAP_ALONG))
        places[box_id] = (place[0] + _MARGIN, place[1] + _MARGIN)
    boxes = {box.id: box for box in fold.boxes}
    drawn = []
    for box_id in (box_id for row in found.layers for box_id in row):
        box = boxes[box_id]
        counts = states_of(box.tasks, states)
        x, y = places[box_id]
        drawn.append(
            DrawnBox(
                *(box_id, box.kind or "(removed)", len(box.tasks), next(iter(counts)), _parts(counts)),
                *(x, y, box.tasks[0], box_id in marked),
            )
        )
    lines = [DrawnEdge(_line(places[a], places[b], sideways), (a, b) in way) for a, b, _ in fold.edges]
    lines.sort(key=lambda line: line.on_path)  # the marked ones on top
    width = max((box.x for box in drawn), default=0) + BOX_W + _MARGIN
    height = max((box.y for box in drawn), default=0) + BOX_H + _MARGIN
    return Drawing(drawn, lines, width, height)


def _parts(counts: Mapping[str, int]) -> list[Part]:
    total, x, found = sum(counts.values()), 0.0, []
    for state, count in counts.items():
        width = BOX_W * count / total
        found.append(Part(state, count, round(x, 1), round(width, 1)))
        x += width
    return found


def _line(start: tuple[int, int], end: tuple[int, int], sideways: bool) -> str:
    if sideways:
        (x, y), (u, v) = (start[0] + BOX_W, start[1] + BOX_H // 2), (end[0], end[1] + BOX_H // 2)
        half = (x + u) // 2
        return f"M{x} {y}C{half} {y} {half} {v} {u} {v}"
    (x, y), (u, v) = (start[0] + BOX_W // 2, start[1] + BOX_H), (end[0] + BOX_W // 2, end[1])
    half = (y + v) // 2
    return f"M{x} {y}C{x} {half} {u} {half} {u} {v}"


class Bar(NamedTuple):
    """A bar: per cent of the width, a class, and what its title says."""

    x: float
    width: float
    css: str
    title: str
    open: bool = False


class Lane(NamedTuple):
    """A row of bars with its label. ``y``: pixels."""

    label: str
    y: int
    bars: list[Bar]


class Timeline(NamedTuple):
    """A timeline. ``marks``: (x in per cent, title); ``breaks``: where idle time is drawn shorter than it was."""

    lanes: list[Lane]
    height: int
    marks: list[tuple[float, str]]
    breaks: list[float]
    start: int
    end: int


def draw_timeline(past: TaskTimeline, now: int, task_id: int) -> Timeline | None:
    """A task's life: one lane of all its times, one for each attempt with its wait for a slot and its run."""
    if not past.spans:
        return None
    drawn = places(past.spans, now)
    if not drawn:
        return None
    lanes = [Lane("all", _TOP, [_bar(span, drawn, now) for span in past.spans])]
    claims = [claim for claim in dict.fromkeys(span.claim for span in past.spans) if claim is not None][-MAX_LANES:]
    for claim in claims:
        own = [span for span in past.spans if span.claim == claim]
        lanes.append(Lane(_label(own), _TOP + _LANE * len(lanes), [_bar(span, drawn, now) for span in own]))
    steps = [
        Bar(
            100 * place_of(step.start if step.start is not None else step.end, drawn),
            max(_NARROWEST, 100 * (place_of(step.end, drawn) - place_of(step.start or step.end, drawn))),
            "b-step",
            f"{step.type.label} {step.name}",
        )
        for step in past.steps[-200:]
    ]
    if steps:
        lanes.append(Lane("steps", _TOP + _LANE * len(lanes), steps))
    marks = [(100 * place_of(mark.at, drawn), mark.text) for mark in past.marks]
    breaks = [100 * (place.left + place.right) / 2 for place in drawn if place.cut]
    return Timeline(lanes, _TOP + _LANE * len(lanes), marks, breaks, drawn[0].start, drawn[-1].end)


def _label(spans: Sequence[Span]) -> str:
    number = next((span.number for span in spans if span.number is not None), None)
    return f"#{number}" if number else "held"


def _bar(span: Span, drawn: Sequence[DrawnSpan], now: int) -> Bar:
    end = now if span.end is None else span.end
    left, right = place_of(span.start, drawn), place_of(end, drawn)
    css = f"b-{span.phase.value}"
    if span.phase is Phase.RUNNING and span.outcome is not None:
        css += " b-ok" if span.outcome is AttemptEnd.SUCCEEDED else " b-bad" if span.outcome in _BAD else " b-other"
    title = f"{span.phase.value} for {span_text(end - span.start)}"
    if span.outcome is not None:
        title += f", {span.outcome.value}"
    return Bar(100 * left, max(_NARROWEST, 100 * (right - left)), css, title, span.end is None)
