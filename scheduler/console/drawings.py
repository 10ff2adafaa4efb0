"""Drawings as SVG: shapes with attributes only, as the pages' policy allows no styles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.model.outcome import AttemptEnd
from scheduler.model.texts import span_text
from scheduler.model.timeline import Phase, Place, Span, place_of, places
from scheduler.operations.analysis import TaskTimeline

MAX_LANES = 30  # attempts that are drawn, the last ones
_HEIGHT, _LANE, _TOP = 14, 24, 6
_NARROWEST = 0.25  # per cent: what is shorter is still seen


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


class Drawing(NamedTuple):
    """A timeline. ``marks``: (x in per cent, title); ``breaks``: where idle time is drawn shorter than it was."""

    lanes: list[Lane]
    height: int
    marks: list[tuple[float, str]]
    breaks: list[float]
    start: int
    end: int


def draw_timeline(past: TaskTimeline, now: int, task_id: int) -> Drawing | None:
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
    return Drawing(lanes, _TOP + _LANE * len(lanes), marks, breaks, drawn[0].start, drawn[-1].end)


def _label(spans: Sequence[Span]) -> str:
    number = next((span.number for span in spans if span.number is not None), None)
    return f"#{number}" if number else "held"


def _bar(span: Span, drawn: Sequence[Place], now: int) -> Bar:
    end = now if span.end is None else span.end
    left, right = place_of(span.start, drawn), place_of(end, drawn)
    css = f"b-{span.phase.value}"
    if span.phase is Phase.RUNNING and span.outcome is not None:
        css += " b-ok" if span.outcome is AttemptEnd.SUCCEEDED else " b-bad" if span.outcome in _BAD else " b-other"
    title = f"{span.phase.value} for {span_text(end - span.start)}"
    if span.outcome is not None:
        title += f", {span.outcome.value}"
    return Bar(100 * left, max(_NARROWEST, 100 * (right - left)), css, title, span.end is None)


_BAD = (AttemptEnd.FAILED, AttemptEnd.DEAD, AttemptEnd.RETRIED, AttemptEnd.LOST)
