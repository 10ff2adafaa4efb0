"""What a task has been through, from what is recorded of it: its timeline, and its state at a past instant. Pure.

What is not recorded is unknown. When an earlier pause was over is not recorded, for instance, as a task has one time at
which it is due; and nothing says when a task came back that was revived with its parent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from scheduler.model.outcome import AttemptEnd
from scheduler.model.state import CLAIMABLE, HELD, TaskState


class Phase(StrEnum):
    """What a task does meanwhile.

    ``waiting``: for other tasks; ``planned``: until it is due; ``ready``: due, no worker has claimed it; ``pending``:
    planned or ready, as it is not recorded when it was due; ``backoff``: until its retry; ``claimed``: by a worker that
    has not begun it; ``ended``: until it was run again.
    """

    WAITING = "waiting"
    PLANNED = "planned"
    READY = "ready"
    PENDING = "pending"
    BACKOFF = "backoff"
    SUSPENDED = "suspended"
    CLAIMED = "claimed"
    RUNNING = "running"
    ENDED = "ended"
    UNKNOWN = "unknown"


class Attempted(NamedTuple):
    """A recorded attempt. Instants are microseconds."""

    claim: int
    number: int
    claimed_at: int | None
    started_at: int | None
    finished_at: int
    outcome: AttemptEnd


class AuditedChange(NamedTuple):
    """A verb that the audit has of the task. ``before``: the state before it, if it says so."""

    at: int
    action: str
    before: TaskState | None = None


class Life(NamedTuple):
    """What is recorded of a task. Instants are microseconds.

    ``parents``: how many tasks it waits for or waited for; ``parents_ended``: when the last one ended, None if one has
    not, or nothing says when. ``claim``, ``number``, ``claimed_at``, ``started_at``: of the attempt that is under way,
    if there is one; ``finished_at``: of a task that has ended.
    """

    id: int
    state: TaskState
    created_at: int
    run_at: int
    now: int
    attempts: Sequence[Attempted] = ()
    changes: Sequence[AuditedChange] = ()
    parents: int = 0
    parents_ended: int | None = None
    claim: int = 0
    number: int = 0
    claimed_at: int | None = None
    started_at: int | None = None
    finished_at: int | None = None


class Span(NamedTuple):
    """A time in which the task was in one state; None: nothing says in which. ``end`` None: it still is.

    ``claim``, ``number``: of the attempt, while it is claimed or running; ``outcome``: how that ended.
    """

    phase: Phase
    state: TaskState | None
    start: int
    end: int | None
    claim: int | None = None
    number: int | None = None
    outcome: AttemptEnd | None = None


class _Turn(NamedTuple):
    """From ``at`` on the task is in ``state``; None: unknown. ``reopens``: the audit says so."""

    at: int
    state: TaskState | None
    attempt: Attempted | None = None
    reopens: bool = False


_AFTER = {
    AttemptEnd.SUCCEEDED: TaskState.SUCCESS,
    AttemptEnd.FAILED: TaskState.FAILED,
    AttemptEnd.DEAD: TaskState.DEAD,
    AttemptEnd.CANCELLED: TaskState.CANCELLED,
    AttemptEnd.RETRIED: TaskState.RETRY,
    AttemptEnd.SUSPENDED: TaskState.SUSPENDED,
    AttemptEnd.SNOOZED: TaskState.SCHEDULED,
    AttemptEnd.HANDED_BACK: TaskState.SCHEDULED,
    AttemptEnd.REPLACED: TaskState.SCHEDULED,
    AttemptEnd.LOST: TaskState.SCHEDULED,
}
_REOPENING = frozenset({"retry", "replay", "rerun"})
_PHASES = {
    TaskState.WAITING: Phase.WAITING,
    TaskState.SCHEDULED: Phase.PENDING,
    TaskState.RETRY: Phase.BACKOFF,
    TaskState.SUSPENDED: Phase.SUSPENDED,
    TaskState.CLAIMED: Phase.CLAIMED,
    TaskState.RUNNING: Phase.RUNNING,
}
_BEFORE_DUE = {Phase.PENDING: Phase.PLANNED, Phase.BACKOFF: Phase.BACKOFF, Phase.SUSPENDED: Phase.SUSPENDED}


def spans(life: Life) -> list[Span]:
    """The task's times from its creation to its end, or to now, in order and without gaps."""
    turns = _turns(life)
    last_pause = max((i for i, turn in enumerate(turns) if turn.state in CLAIMABLE), default=-1)
    found: list[Span] = []
    for i, turn in enumerate(turns):
        final = i == len(turns) - 1
        ends = None if final else turns[i + 1].at
        if final and turn.state is not None and turn.state.terminal:
            break
        if ends is not None and ends <= turn.at:
            continue
        phase = Phase.UNKNOWN if turn.state is None else _PHASES.get(turn.state, Phase.ENDED)
        own = (None, None, None)
        if turn.attempt is not None and turn.state in HELD:
            ended = None if turn.attempt.finished_at > life.now else turn.attempt.outcome
            own = (turn.attempt.claim, turn.attempt.number, ended)  # type: ignore[assignment]
        if i == last_pause and phase in _BEFORE_DUE:
            found += _until_due(phase, turn, ends, life)
        else:
            found.append(Span(phase, turn.state, turn.at, ends, *own))
    return found


def _until_due(phase: Phase, turn: _Turn, ends: int | None, life: Life) -> list[Span]:
    """The last pause: until the task is due, and from then on until it is claimed."""
    due = max(life.run_at, turn.at)
    until = life.now if ends is None else ends
    if due >= until:
        return [Span(_BEFORE_DUE[phase], turn.state, turn.at, ends)]
    pause = [Span(_BEFORE_DUE[phase], turn.state, turn.at, due)] if due > turn.at else []
    return [*pause, Span(Phase.READY, turn.state, due, ends)]


def state_at(life: Life, at: int) -> TaskState | None:
    """The state in which the task was at this instant (microseconds), None if nothing says so.

    Raises ValueError for an instant before it was made, or after ``life.now``.
    """
    if not life.created_at <= at <= life.now:
        raise ValueError(f"task {life.id} was made at {life.created_at} and is known until {life.now}, not at {at}")
    if at == life.now:
        return life.state
    found: TaskState | None = None
    for turn in _turns(life):
        if turn.at > at:
            break
        found = turn.state
    return found


def _turns(life: Life) -> list[_Turn]:
    attempts = sorted(life.attempts)
    first = min((at for at in _begin(life, attempts) if at is not None), default=None)
    turns = _first_turns(life, first)
    for attempt in attempts:
        begin = attempt.claimed_at if attempt.claimed_at is not None else attempt.started_at
        if attempt.claimed_at is not None:
            turns.append(_Turn(attempt.claimed_at, TaskState.CLAIMED, attempt))
        if attempt.started_at is not None:
            turns.append(_Turn(max(attempt.started_at, begin or 0), TaskState.RUNNING, attempt))
        turns.append(_Turn(max(attempt.finished_at, begin or 0), _AFTER[attempt.outcome]))
    for change in life.changes:
        if change.action == "cancel" and change.before not in HELD:
            turns.append(_Turn(change.at, TaskState.CANCELLED))
        elif change.action in _REOPENING:
            here = life.parents == 0 or (life.parents_ended is not None and life.parents_ended <= change.at)
            turns.append(_Turn(change.at, TaskState.SCHEDULED if here else None, reopens=True))
    if life.state in HELD and life.claimed_at is not None:
        # The end lies after ``now``: it has none.
        present = Attempted(life.claim, life.number, life.claimed_at, life.started_at, life.now + 1, AttemptEnd.LOST)
        turns.append(_Turn(life.claimed_at, TaskState.CLAIMED, present))
        if life.state is TaskState.RUNNING and life.started_at is not None:
            turns.append(_Turn(max(life.started_at, life.claimed_at), TaskState.RUNNING, present))
    if life.state.terminal and life.finished_at is not None:
        turns.append(_Turn(life.finished_at, life.state))
    turns.sort(key=lambda turn: turn.at)  # stable: of one instant the last one counts
    return _settled(life, turns)


def _begin(life: Life, attempts: Iterable[Attempted]) -> Iterable[int | None]:
    """The instants at which the task was certainly not waiting any more."""
    for attempt in attempts:
        yield attempt.started_at if attempt.claimed_at is None else attempt.claimed_at
    if life.state in HELD:
        yield life.claimed_at
    if life.state.terminal:
        yield life.finished_at


def _first_turns(life: Life, first: int | None) -> list[_Turn]:
    """From the creation until the first claim."""
    if not life.parents:
        return [_Turn(life.created_at, TaskState.SCHEDULED)]
    ended = life.parents_ended
    if life.state is TaskState.WAITING and first is None and not life.changes:  # also for a parent that ended badly
        return [_Turn(life.created_at, TaskState.WAITING)]
    if ended is None:
        return [_Turn(life.created_at, None)]
    if first is not None and ended > first:  # a parent ran again since
        return [_Turn(life.created_at, None)]
    if ended <= life.created_at:
        return [_Turn(life.created_at, TaskState.SCHEDULED)]
    return [_Turn(life.created_at, TaskState.WAITING), _Turn(ended, TaskState.SCHEDULED)]


def _settled(life: Life, turns: list[_Turn]) -> list[_Turn]:
    """Without what contradicts what came after it."""
    found: list[_Turn] = []
    for turn in turns:
        before = found[-1] if found else None
        ended = before is not None and before.state is not None and before.state.terminal
        if before is not None and ended and not turn.reopens and turn.state not in (before.state, None):
            if turn.state in CLAIMABLE:
                continue  # a parent that ended once more, or an attempt that was found lost after its task's end
            if turn.state in HELD:  # it came back, and nothing says when
                found[-1] = before._replace(state=None)
        found.append(turn)
    last = found[-1]
    if last.state is not life.state:
        found[-1] = last._replace(state=_same_wait(last, life))
    return found


def _same_wait(last: _Turn, life: Life) -> TaskState | None:
    """The present state, if the task has been in it since this turn: both are ways to wait for a worker, or it was
    reopened then."""
    if last.reopens and life.state in (TaskState.WAITING, TaskState.SCHEDULED):
        return life.state
    return life.state if last.state in CLAIMABLE and life.state in CLAIMABLE else None


class DrawnSpan(NamedTuple):
    """A stretch of time on a drawing: from ``left`` to ``right``, both 0 to 1; ``cut``: drawn shorter than it is."""

    start: int
    end: int
    left: float
    right: float
    cut: bool


_IDLE_SHARE = 0.25  # of all busy time: an idle stretch is drawn no longer than that
_BUSY = frozenset({Phase.CLAIMED, Phase.RUNNING})


def places(found: Iterable[Span], now: int) -> list[DrawnSpan]:
    """Where the stretches of one or many tasks' spans go on a drawing, so that hours of waiting leave room for runs.

    A stretch is idle if nothing is claimed or runs in it. Without any busy time all are drawn to scale.
    """
    whole = [(span.start, now if span.end is None else span.end, span.phase) for span in found]
    cuts = sorted({edge for start, end, _ in whole for edge in (start, end)})
    if len(cuts) < 2:
        return []
    busy = _covered(sorted((start, end) for start, end, phase in whole if phase in _BUSY and end > start))
    stretches: list[tuple[int, int, bool]] = []
    at = 0
    for start, end in itertools.pairwise(cuts):
        while at < len(busy) and busy[at][1] <= start:
            at += 1
        runs = at < len(busy) and busy[at][0] <= start
        if stretches and not runs and not stretches[-1][2]:
            stretches[-1] = (stretches[-1][0], end, False)
        else:
            stretches.append((start, end, runs))
    total = sum(end - start for start, end, runs in stretches if runs)
    most = total * _IDLE_SHARE if total else float("inf")
    drawn = [float(end - start) if runs else min(float(end - start), most) for start, end, runs in stretches]
    scale, left, result = 1 / (sum(drawn) or 1.0), 0.0, []
    for (start, end, runs), length in zip(stretches, drawn, strict=True):
        right = left + length * scale
        result.append(DrawnSpan(start, end, left, min(1.0, right), not runs and length < end - start))
        left = right
    return result


def place_of(at: int, drawn: Sequence[DrawnSpan]) -> float:
    """Where an instant is on the drawing, 0 to 1."""
    for place in drawn:
        if at <= place.end:
            share = (at - place.start) / max(1, place.end - place.start)
            return place.left + max(0.0, share) * (place.right - place.left)
    return 1.0


def _covered(sorted_spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted_spans:
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
