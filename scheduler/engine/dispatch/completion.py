"""Records outcomes, in the cycle's own transaction or in a background one, then removes their attempts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from operator import attrgetter, sub
from typing import NamedTuple

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.capture import ATTEMPTS_LOGGER
from scheduler.engine.dead_letter_hook import dead_letter_of
from scheduler.engine.dispatch import traces
from scheduler.engine.dispatch.completion_thread import CompletionThread
from scheduler.engine.dispatch.limits import DispatchLimits
from scheduler.engine.dispatch.planner import ClaimPlanner
from scheduler.engine.dispatch.quarantine import count_crashes, judge_crashes
from scheduler.engine.state import EngineState
from scheduler.errors import StoreUnavailableError, TaskTimeout
from scheduler.model.outcome import AttemptEnd, Outcome, OutcomeColumns
from scheduler.model.running import envelope_fields, log_fields
from scheduler.model.state import FIRST_TERMINAL, TaskState
from scheduler.ports import FAILPOINTS, SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.durable import waits
from scheduler.store.tasks import attempts
from scheduler.store.tasks.complete import Completion, RowLocked, finish
from scheduler.store.tasks.salvage import complete_one_by_one

log = logging.getLogger("scheduler.engine")
attempts_log = logging.getLogger(ATTEMPTS_LOGGER)

LOCK_FIRST_S = 1.0  # how long cycles lock rows first, after another transaction held one
BACKGROUND_MIN_OUTCOMES = 50  # fewer cost less in the cycle's own transaction
_SCHEDULE_OF = attrgetter("claimed.schedule")
_TIMEOUT = TaskTimeout.__name__
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
        over = min(ends.states, default=FIRST_TERMINAL) >= FIRST_TERMINAL
        back = 0 if over else sum(o.end is AttemptEnd.HANDED_BACK and _due(o) for o in outcomes)
        return cls(pairs, attempts, outcomes, ends, AttemptEnd.LOST in ends.ends, over, back)

    def keys(self) -> set[tuple[int, int]]:
        """Their (task id, claim)."""
        return set(zip(self.ends.task_ids, self.ends.claims, strict=True))


class Completer:
    """Takes outcomes, writes them, and finalizes their attempts. Only the engine's loop calls it.

    ``completion_thread``: writes outcomes while the cycle claims; None on SQLite, where that never helps.
    """

    def __init__(
        self,
        engine_state: EngineState,
        planner: ClaimPlanner,
        limits: DispatchLimits,
        completion_thread: CompletionThread | None,
    ) -> None:
        self.engine_state = engine_state
        self.planner = planner
        self.limits = limits
        self.completion_thread = completion_thread
        self.deferred: Pairs = []  # for the next cycle
        self.one_by_one = False  # after an unexpected error: write each outcome by itself
        self.backlog = False  # a lane gave the last cycle all that it asked for
        self.released = False  # the last cycle's outcomes made tasks ready
        self.schedule_ended = self.missed_wakeups = False  # recorded, and not reported yet
        self._locks_first_until = 0.0  # another transaction held a row (monotonic)

    def take(self, most: int | None) -> Pairs:
        """Take the outcomes to record now: all deferred ones, filled up to ``most``."""
        pairs, self.deferred = self.deferred, []
        outcomes = self.engine_state.outcomes
        count = len(outcomes) if most is None else min(len(outcomes), most - len(pairs))
        take = outcomes.popleft
        pairs += [take() for _ in range(count)]
        return pairs

    def requeue(self, pairs: Pairs) -> None:
        """Keep outcomes that were not recorded, to be written before all others."""
        self.deferred = pairs + self.deferred

    def lock_first(self) -> None:
        """Lock rows first for a while: another transaction held one."""
        self._locks_first_until = self.engine_state.monotonic() + LOCK_FIRST_S

    def can_skip_locks(self, pairs: Pairs) -> bool:
        """Whether outcomes may be written without locking their rows first.

        True if no row is known to be held, and no cap, rate or suspect is concerned.
        """
        return (
            self.planner.alone is None
            and self.engine_state.monotonic() >= self._locks_first_until
            and not self.limits.concern(pairs)
        )

    def write(
        self,
        tx: Tx,
        worker: int,
        ended: CompletedBatch,
        *,
        skip_locks: bool,
        caller_claims: bool,
        before_write: Callable[[], None],
    ) -> tuple[CompletedBatch, Completion]:
        """Record outcomes in this transaction. Returns them as judged, and the completion.

        ``skip_locks``, ``caller_claims``, ``before_write``: see ``finish``.
        """
        if ended.died:
            ended = CompletedBatch.of(judge_crashes(tx, ended.pairs))
        if self.one_by_one:
            finished = complete_one_by_one(tx, worker, ended.outcomes, self.engine_state.lifetimes)
        else:
            finished = finish(
                tx,
                worker,
                ended.outcomes,
                ended.ends,
                skip_locks=skip_locks,
                before_write=before_write,
                caller_claims=caller_claims,
                lifetimes=self.engine_state.lifetimes,
            )
        finished = self._recognised(tx, ended, finished)
        if self.limits.known:
            self.limits.recorded(tx, ended.pairs, finished)
        if ended.died:
            count_crashes(tx, ended.pairs, finished)
        self._store_traces(tx, worker, ended, finished)
        return ended, finished

    def _store_traces(self, tx: Tx, worker: int, ended: CompletedBatch, finished: Completion) -> None:
        tracing = self.engine_state.tracing
        if tracing is not None and ended.pairs:
            unrecorded = [*finished.lost, *finished.deferred]
            traces.store(tx, worker, tracing, ended.pairs, ended.ends, unrecorded)

    def _recognised(self, tx: Tx, ended: CompletedBatch, finished: Completion) -> Completion:
        """The completion without outcomes that look lost but are recorded: by an attempt's own transaction, or by a
        commit whose answer was lost. How many tasks the latter made ready is unknown, so it counts as some."""
        finished = _own(ended.pairs, finished)
        if not finished.lost:
            return finished
        lost = [(o.task_id, o.claim) for o in finished.lost]
        found = attempts.recorded(tx, lost)
        ends = {
            key: end for key, end in found.items() if end is not AttemptEnd.LOST
        }  # recorded by the worker that reclaimed it
        return finished._replace(
            lost=[o for o in finished.lost if (o.task_id, o.claim) not in ends],
            overridden={**finished.overridden, **{task_id: end for (task_id, _), end in ends.items()}},
            ended={**finished.ended, **{i: TaskState.DEAD for (i, _), end in ends.items() if end is AttemptEnd.DEAD}},
            ready=finished.ready + bool(ends),
        )

    # beside the claim

    def start_in_background(self, worker: int, ended: CompletedBatch) -> Future[Completion] | None:
        """Start to record outcomes while the cycle claims. None if that does not pay now, or is not possible.

        The claim does not see tasks that these outcomes make ready, so there must be a backlog anyway.
        """
        if (
            self.completion_thread is None
            or self.one_by_one
            or self.released
            or not self.backlog
            or len(ended.pairs) < BACKGROUND_MIN_OUTCOMES
        ):
            return None
        engine_state, rows = self.engine_state, ended.outcomes

        def write(tx: Tx) -> Completion:
            finished = finish(tx, worker, rows, ended.ends, skip_locks=True, lifetimes=engine_state.lifetimes)
            finished = self._recognised(tx, ended, finished)
            self._store_traces(tx, worker, ended, finished)
            FAILPOINTS.hit("before commit beside the claim")
            return finished

        return self.completion_thread.begin(write)

    def join(self, recording: Future[Completion], ended: CompletedBatch) -> Completion | None:
        """Wait until they are recorded, and finalize them. None: they wait for the next cycle.

        Raises what kept them from being recorded; then they wait, too. This cycle reports what else it brought about,
        or the next one that succeeds.
        """
        assert self.completion_thread is not None
        try:
            finished = recording.result()
        except BaseException as error:
            self.requeue(ended.pairs)
            self.backlog = False
            if isinstance(error, RowLocked):
                self.lock_first()
                return None
            self.one_by_one = self.one_by_one or not isinstance(error, StoreUnavailableError)
            self.completion_thread.failed()
            raise
        self.missed_wakeups |= self.completion_thread.flagged(waits.OVERLOOKED)
        self.engine_state.freed.append(finished.ready + ended.back)
        self.finalize(ended, finished)
        FAILPOINTS.hit("after commit beside the claim")
        return finished

    # once they are recorded

    def finalize(self, ended: CompletedBatch, finished: Completion) -> None:
        """Remove the attempts whose outcomes are recorded, and keep the rest for the next cycle."""
        if finished.deferred:
            deferred = {(o.task_id, o.claim) for o in finished.deferred}
            self.deferred += [pair for pair in ended.pairs if (pair[1].task_id, pair[1].claim) in deferred]
            ended = CompletedBatch.of(
                [pair for pair in ended.pairs if (pair[1].task_id, pair[1].claim) not in deferred]
            )
        self.schedule_ended |= any(map(_SCHEDULE_OF, ended.attempts))
        finalize(self.engine_state, ended, finished)
        if ended.attempts and self.engine_state.on_ends is not None:
            self.engine_state.on_ends()


def _own(pairs: Pairs, finished: Completion) -> Completion:
    """The completion without outcomes that attempts' own transactions have committed."""
    if not finished.lost:
        return finished
    own = {(o.task_id, o.claim) for a, o in pairs if a.committed_outcome is not None and o.end is AttemptEnd.SUCCEEDED}
    return finished._replace(lost=[o for o in finished.lost if (o.task_id, o.claim) not in own])


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
    if engine_state.tracing is not None:
        traces.write(engine_state.tracing, ended.pairs, lost, finished.overridden)
    all_logged = log.isEnabledFor(logging.DEBUG) or engine_state.options.log_attempts == "all"
    if plain and not all_logged and longest <= SLOW_SUCCESS_US:
        return  # as nearly always: hundreds without anything to log
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
        if engine_state.metrics is not None and o.failure is not None and o.failure.error_class == _TIMEOUT:
            engine_state.metrics.timeouts += 1
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
    if not attempts_log.isEnabledFor(level):
        return
    extra: dict[str, object] = {
        "key": c.key,
        **log_fields(c),
        **envelope_fields(c),
        "outcome": o.end.value,
    }
    if attempt.trace is not None:
        extra |= attempt.trace.log_fields
    if o.started_at is not None:
        extra["ms"] = (o.finished_at - o.started_at) / MILLISECOND
    if o.failure is not None:
        extra |= {"error": o.failure.text, "error_class": o.failure.error_class}
        if o.failure.status is not None:
            extra["status"] = o.failure.status
    # The text says by itself what a program needs that has set up no logging; the daemon's lines have the fields.
    error = "" if o.failure is None else f": {o.failure.text}"
    attempts_log.log(level, "attempt %s: task %d (%s)%s", o.end.value, c.id, c.kind, error, extra=extra)
