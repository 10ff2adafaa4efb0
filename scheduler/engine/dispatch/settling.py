"""A cycle's batch of outcomes, and what follows once it is recorded: release of attempts, log lines."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from operator import sub
from typing import NamedTuple

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.dead_letter_hook import dead_letter_of
from scheduler.engine.state import EngineState
from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd, Outcome, OutcomeColumns
from scheduler.model.running import envelope_fields, log_fields
from scheduler.model.state import TaskState
from scheduler.ports import SECOND
from scheduler.store.tasks.complete import Completion

log = logging.getLogger("scheduler.engine")

SLOW_SUCCESS_US = SECOND  # slower successes get a log line
MILLISECOND = SECOND // 1000
_LEVELS = {  # of other ends: debug
    AttemptEnd.DEAD: logging.ERROR,
    AttemptEnd.FAILED: logging.ERROR,
    AttemptEnd.RETRIED: logging.WARNING,
    AttemptEnd.REPLACED: logging.INFO,
}

Pairs = list[tuple[Attempt, Outcome]]


class CompletedBatch(NamedTuple):
    """Attempts with their outcomes, by pair and by column.

    ``died``: some died with their process; ``over``: none of their tasks will be claimed again; ``back``: how many are
    released and may run at once.
    """

    pairs: Pairs
    attempts: Sequence[Attempt]
    outcomes: Sequence[Outcome]
    ends: OutcomeColumns
    died: bool
    over: bool
    back: int

    @classmethod
    def of(cls, pairs: Pairs) -> CompletedBatch:
        attempts, outcomes = zip(*pairs, strict=True) if pairs else ((), ())
        ends = OutcomeColumns.of(outcomes)
        over = min(ends.states, default=st.FIRST_TERMINAL) >= st.FIRST_TERMINAL
        back = 0 if over else sum(o.end is AttemptEnd.HANDED_BACK and _due(o) for o in outcomes)
        return cls(pairs, attempts, outcomes, ends, AttemptEnd.LOST in ends.ends, over, back)

    def keys(self) -> set[tuple[int, int]]:
        """Their (task id, claim)."""
        return set(zip(self.ends.task_ids, self.ends.claims, strict=True))


def _due(outcome: Outcome) -> bool:
    return outcome.run_at is None or outcome.run_at <= outcome.finished_at


def finalize(engine_state: EngineState, ended: CompletedBatch, finished: Completion) -> None:
    """Remove the attempts, log their ends, notify of dead letters. ``ended`` has no deferred outcomes."""
    ends = ended.ends
    engine_state.remove_held(ended.attempts, ends)
    lost = {(o.task_id, o.claim) for o in finished.lost}
    plain = ends.plain and not lost
    runs: list[int] = list(map(sub, ends.finished_at, ends.started_at)) if plain else []  # pyright: ignore[reportArgumentType]
    longest = max(runs, default=0)
    if engine_state.rollups is not None and ended.attempts:
        if plain and not finished.overridden:
            engine_state.rollups.add_successes(engine_state.now(), ended.attempts, ends, runs)
        else:
            engine_state.rollups.add(engine_state.now(), ended.attempts, ends, lost, finished.overridden)
    all_logged = log.isEnabledFor(logging.DEBUG) or engine_state.options.log_attempts == "all"
    if plain and not all_logged and longest <= SLOW_SUCCESS_US:
        return  # as nearly always: hundreds of which there is nothing to tell
    for attempt, o in ended.pairs:
        if (
            o.end is AttemptEnd.SUCCEEDED
            and not (all_logged or lost)
            and o.finished_at - (o.started_at or 0) <= SLOW_SUCCESS_US
        ):
            continue
        if (o.task_id, o.claim) in lost:
            log.warning(
                "outcome dropped: this worker no longer held the task",
                extra={"task": o.task_id, "attempt": o.number, "outcome": o.end.value},
            )
            continue
        end = finished.overridden.get(o.task_id)
        _log_end(engine_state, attempt, o if end is None else o._replace(end=end))
        # A cancel or a replaced payload may have won over the failure.
        if o.end is AttemptEnd.DEAD and finished.ended.get(o.task_id) is TaskState.DEAD:
            engine_state.dead_letter_hook.notify(dead_letter_of(attempt.claimed, o))


def _log_end(engine_state: EngineState, attempt: Attempt, o: Outcome) -> None:
    c = attempt.claimed
    level = _LEVELS.get(o.end, logging.DEBUG)
    if level < logging.INFO and (
        (o.started_at is not None and o.finished_at - o.started_at > SLOW_SUCCESS_US)
        or engine_state.options.log_attempts == "all"
    ):
        level = logging.INFO
    if not log.isEnabledFor(level):
        return
    extra: dict[str, object] = {
        "key": c.key,
        **log_fields(c),
        **envelope_fields(c),
        "outcome": o.end.value,
    }
    if o.started_at is not None:
        extra["ms"] = (o.finished_at - o.started_at) / MILLISECOND
    if o.failure is not None:
        extra |= {"error": o.failure.text, "error_class": o.failure.error_class}
        if o.failure.status is not None:
            extra["status"] = o.failure.status
    log.log(level, "attempt %s", o.end.value, extra=extra)
