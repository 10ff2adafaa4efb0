"""One cycle: report what has ended, release what waited for it, claim new work, commit, hand out."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from scheduler.engine.attempt.attempt import Attempt, CountedStarts
from scheduler.engine.attempt.outcomes import released
from scheduler.engine.dispatch.completion import CompletedBatch, Completer, Pairs
from scheduler.engine.dispatch.completion_thread import CompletionThread
from scheduler.engine.dispatch.handoff import SlotFeeder
from scheduler.engine.dispatch.lanes import LANES_PER_SCAN, Due, LaneScanner, by_turn, claimed_per_lane, flat
from scheduler.engine.dispatch.limits import Admission, DispatchLimits
from scheduler.engine.dispatch.lost_commits import LostCommits
from scheduler.engine.dispatch.planner import BATCH_BOUNDS, SHORT_TASK_S, ClaimPlan, ClaimPlanner, PoolShare
from scheduler.engine.dispatch.quarantine import Quarantine
from scheduler.engine.dispatch.requests import RequestBatch
from scheduler.engine.slots import Slots, all_waiting, take_waiting
from scheduler.engine.state import EngineState
from scheduler.errors import StoreUnavailableError
from scheduler.model.capacity import SlotKey
from scheduler.model.lanes import QUARANTINE_LANE
from scheduler.model.outcome import AttemptEnd
from scheduler.model.pauses import Pauses
from scheduler.ports import FAILPOINTS, FOREVER, SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.durable import waits
from scheduler.store.durable.resume import Recorded, resume
from scheduler.store.tasks import claim
from scheduler.store.tasks.claim import Claimed, LaneClaim, LaneHead
from scheduler.store.tasks.complete import Completion, RowLocked
from scheduler.store.tasks.ready_children import ReadyChildren

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

MARK_RUNNING_AFTER_S = 0.005  # shorter attempts end before their rows are marked
HIGH_PRIORITY = 0

CYCLE_TARGET_S = 0.012  # a notification during a cycle waits for its end
SHORT_TASK_WAIT_S = 0.005  # longest wait for the ends of short tasks


class CycleResult(NamedTuple):
    """What a cycle did, and what that leaves to do.

    ``ready``: how many tasks became ready, for any worker; ``next_due``: when the next known task is due
    (microseconds); ``busy``: another cycle may find work at once; ``may_have_more``: the recorded outcomes may have
    made work that it did not see; ``capacity_freed``: a cap has room that this worker did not take; ``given_back``:
    ids of released tasks.
    """

    finished: int
    claimed: int
    ready: int
    next_due: int
    busy: bool
    schedule_ended: bool
    may_have_more: bool = False
    capacity_freed: bool = False
    given_back: Collection[int] = ()


@dataclass(slots=True)
class _Cycle:
    """The state of one cycle."""

    claiming: bool
    urgent: bool
    fresh: bool
    ended: CompletedBatch
    gone: set[tuple[int, int]]  # (task id, claim) of what has ended
    requests: RequestBatch
    skip_locks: bool  # outcomes may be written without locking their rows first
    alone: Attempt | None  # the suspect that ran alone when the cycle began
    recording: Future[Completion] | None = None  # outcomes being recorded in the background
    began: float = 0.0  # monotonic
    now: int = 0  # microseconds
    pending: bool = False  # claims of a lost commit may be left
    noted: int = 0  # lost commits that were known by then
    finished: Completion | None = None
    marked: Collection[tuple[int, int]] = ()
    due: Due = field(default_factory=dict)
    every: Sequence[LaneHead] | None = None  # due lanes, if all lanes were read
    plan: ClaimPlan = field(default_factory=lambda: ClaimPlan([], {}))
    claimed: list[Claimed] = field(default_factory=list)
    got: Mapping[tuple[str, str, int], int] = field(default_factory=Counter)  # of it, by lane; 0 for any other
    recorded: Mapping[int, Sequence[Recorded]] = field(default_factory=dict)  # of claimed tasks that go on
    start_by: Mapping[tuple[str, str], CountedStarts] = field(default_factory=dict)
    again: int = FOREVER  # when something that is due and was refused may be claimed (microseconds)

    @property
    def ready_children(self) -> ReadyChildren | None:
        return None if self.finished is None else self.finished.ready_children

    @property
    def records(self) -> bool:
        """Whether it writes what has ended itself."""
        return bool(self.ended.pairs) and self.recording is None

    def hit(self, if_it_records: str, if_it_answers: str) -> None:
        """Failpoints around its commit."""
        if self.records:
            FAILPOINTS.hit(if_it_records)
        if self.requests:
            FAILPOINTS.hit(if_it_answers)


class DispatchCycle:
    """One worker's dispatch cycles. Not thread-safe: the engine's loop calls it."""

    def __init__(
        self, engine_state: EngineState, slots: Mapping[SlotKey, Slots], completion_thread: CompletionThread | None
    ) -> None:
        self.engine_state = engine_state
        self.slots = slots
        self.limits = DispatchLimits(engine_state)
        self.worker = 0
        self.pauses_changed = False  # and no cycle has scanned since
        self.in_vain = False  # the last cycle could claim nothing of what it had found
        self.lost_commits = LostCommits(engine_state, self.limits)
        self._last_lane: LaneHead | None = None  # from which something was claimed
        self.planner = ClaimPlanner(engine_state, slots, self.limits)
        self.quarantine = Quarantine(engine_state, self.planner)
        self.completer = Completer(engine_state, self.planner, self.limits, completion_thread)
        self.lanes = LaneScanner(engine_state.monotonic)
        self.feeder = SlotFeeder(engine_state, slots, self.planner, holds=completion_thread is None)

    def claim_eagerly(self, connection: sa.Connection) -> bool:
        """Claim one task of the lane that gave the last one, without a scan. Returns whether there was one.

        An idle engine calls this on a notification, which is mostly about that lane; a full cycle follows. A task that
        the cycle would have preferred starts one attempt later.
        """
        engine_state = self.engine_state
        engine_state.dispatching = True
        try:
            return self._claim_eagerly(connection)
        finally:
            engine_state.dispatching = False

    def _claim_eagerly(self, connection: sa.Connection) -> bool:
        lane, engine_state = self._last_lane, self.engine_state
        if lane is None or engine_state.losing or self.limits.known or not self.at_rest():
            return False
        plan = self.planner.plan_single(lane)
        if not plan.picks:
            return False
        noted = self.lost_commits.noted
        self.lost_commits.pending = True  # until it is handed out
        try:
            with engine_state.database.single(connection) as tx:
                claimed = claim.claim_one(tx, self.worker, plan.picks[0], engine_state.claims_above)
        except BaseException:
            self.lost_commits.on_uncertain_commit()
            raise
        if claimed:
            FAILPOINTS.hit("after claim")
            self.planner.turns.charge(claimed, by_turn(plan.picks))
            self.feeder.submit(claimed, plan, {})
        else:
            self._last_lane = None  # a notification wakes all workers: try only once
        self.lost_commits.conclude(pending=False, noted=noted)
        return bool(claimed)

    def claim_task(self, connection: sa.Connection, task_id: int) -> bool:
        """Claim one task by its id if it is due, and no pause holds it; caps and rates are not asked. Inline only."""
        with self.engine_state.database.write(connection) as tx:
            head = claim.head_of(tx, task_id)
            if head is None or not self.planner.serves(head, chosen=True):
                return False
            claimed = claim.claim_by_id(tx, self.worker, task_id, self.engine_state.claims_above)
            recorded = resume(tx, [(one.id, one.claim) for one in claimed if one.claim > 1])
        lane = claim.LANE_OF(head)
        plan = ClaimPlan([LaneClaim(*lane, 1)], {lane: (PoolShare(head.priority, 1),)})
        self.feeder.submit(claimed, plan, {}, recorded)
        return bool(claimed)

    def wait_for_short_tasks(self) -> None:
        """Wait a moment for waiting short tasks to end, so that one cycle records them all.

        Not while a high task runs: its dependents are urgent, too.
        """
        if not self.engine_state.outcomes:
            return
        coming = 0
        for slots in self.slots.values():
            try:
                kind = slots.waiting[0].kind  # a slot may take it away at any moment
            except IndexError:
                continue
            if self.engine_state.means.get(kind.name, 1.0) < SHORT_TASK_S:
                coming += len(slots.waiting)
        if coming and not any(attempt.pool == HIGH_PRIORITY for attempt in list(self.engine_state.held.values())):
            self.feeder.release()
            self.engine_state.wait_for_outcomes(
                min(self.planner.batch, len(self.engine_state.outcomes) + coming), SHORT_TASK_WAIT_S
            )

    def has_work(self) -> bool:
        """Whether outcomes or requests wait to be written."""
        return bool(self.engine_state.outcomes or self.engine_state.requests)

    def at_rest(self) -> bool:
        """Whether a cycle would do nothing if no task is ready. False while lane offsets are kept: only a cycle reads
        behind them."""
        state = self.engine_state
        busy = state.held or state.reserved or self.completer.deferred
        return not (busy or self.lost_commits.pending or self.lanes.offsets.start)

    def run(
        self,
        connection: sa.Connection,
        *,
        claiming: bool,
        extra: Pairs | None = None,
        urgent: bool = False,
        fresh: bool = True,
    ) -> CycleResult:
        """Run one cycle: one transaction, or two at a time (``Completer.start_in_background``).

        ``urgent``: only claim high tasks; recording a flood's outcomes would keep them waiting. ``fresh``: lanes that
        were empty may have work now. After an error outcomes and requests wait for the next cycle.
        """
        metrics, began = self.engine_state.metrics, self.engine_state.monotonic()
        self.engine_state.dispatching = True
        try:
            self._count_direct_starts()
            result = self._run(connection, claiming, extra, urgent, fresh)
        except RowLocked:
            self.completer.lock_first()
            result = self._run(connection, claiming, None, urgent, fresh)
        finally:
            self.engine_state.dispatching = False
        if metrics is not None:
            metrics.cycles.observe(round((self.engine_state.monotonic() - began) * SECOND))
        return result

    def _run(
        self, connection: sa.Connection, claiming: bool, extra: Pairs | None, urgent: bool, fresh: bool
    ) -> CycleResult:
        cycle = self._begin(claiming, extra, urgent, fresh)
        try:
            if cycle.skip_locks and claiming and not (cycle.ended.died or self.lost_commits.pending):
                cycle.recording = self.completer.start_in_background(self.worker, cycle.ended)
            with self.engine_state.database.write(connection) as tx:
                self._transact(tx, cycle)
                cycle.hit("before finish commit", "before answer commit")
            cycle.hit("after finish commit", "after answer commit")
            if cycle.claimed:
                FAILPOINTS.hit("after claim")
        except BaseException as error:
            self._failed(cycle, error)
            raise
        return self._conclude(connection, cycle)

    def _count_direct_starts(self) -> None:
        """Count what callers have stored as claimed since the last cycle: as turns of keys, and in the metrics."""
        state = self.engine_state
        while state.started_here:
            one = state.started_here.popleft()
            lane = claim.LANE_OF(one)
            self.planner.turns.charge([one], by_turn([LaneClaim(*lane, 1)]))
            self._last_lane = LaneHead(*lane, 0)
            if state.metrics is not None:
                state.metrics.direct_starts += 1

    def _begin(self, claiming: bool, extra: Pairs | None, urgent: bool, fresh: bool) -> _Cycle:
        """Take the outcomes to record and the requests to answer."""
        put_off = bool(self.completer.deferred)
        pairs: Pairs = []
        requests = RequestBatch(self.engine_state)
        if not urgent:
            pairs = self.completer.take(self.planner.batch if claiming else None) + self._stale()
            if extra:  # without those that have ended since
                known = {(o.task_id, o.claim) for _, o in pairs}
                pairs += [(a, o) for a, o in extra if (o.task_id, o.claim) not in known]
            requests.take()
        skip_locks = not (requests or put_off) and self.completer.can_skip_locks(pairs)
        ended = CompletedBatch.of(pairs)
        if ended.back:
            self.planner.newer.met(a for a, o in pairs if o.end is AttemptEnd.HANDED_BACK and a.schema_too_new)
        return _Cycle(claiming, urgent, fresh, ended, ended.keys(), requests, skip_locks, self.planner.alone)

    def _transact(self, tx: Tx, cycle: _Cycle) -> None:
        """Everything that the cycle does in its transaction."""
        engine_state = self.engine_state
        cycle.began = engine_state.monotonic()  # after the write lock: other writers' time does not shrink our batch
        cycle.now = tx.now
        cycle.noted = self.lost_commits.noted
        if self.lost_commits.pending:
            cycle.pending = self.lost_commits.release_unknown(tx, self.worker)
            self.lanes.reset()
        if cycle.records:
            begin, claims_too = self.feeder.release, cycle.skip_locks and cycle.claiming
            cycle.ended, cycle.finished = self.completer.write(
                tx, self.worker, cycle.ended, skip_locks=cycle.skip_locks, caller_claims=claims_too, before_write=begin
            )
        if not cycle.urgent:
            self.feeder.release()
        if cycle.requests:
            cycle.requests.answer(tx, self.worker, one_by_one=self.completer.one_by_one)
        reserved = list(engine_state.reserved)  # first: one that a caller hands over now is in both
        held = [attempt for key, attempt in list(engine_state.held.items()) if key not in cycle.gone]
        started = self._started(held)
        if started:
            cycle.marked = claim.mark_running(tx, self.worker, started)
        if engine_state.moves:
            engine_state.moves.write(tx, self.worker, cycle.gone)
        self.quarantine.clear(tx, self.worker, cycle.gone)
        if cycle.claiming and not self.completer.one_by_one:
            self._claim(tx, cycle, held + [one for one in reserved if one not in held] if reserved else held)
        ready_children = cycle.ready_children
        if ready_children is not None and cycle.finished is not None:
            ready_children.schedule()
            if ready_children.scheduled:
                self.lanes.reset()
                cycle.finished = cycle.finished._replace(ready=cycle.finished.ready + ready_children.scheduled)

    def _claim(self, tx: Tx, cycle: _Cycle, held: list[Attempt]) -> None:
        lanes, urgent, newer = self.lanes, cycle.urgent, self.planner.newer
        if newer.kinds and cycle.ready_children is not None:
            cycle.ready_children.schedule()  # they are claimed as what is stored
        admission = Admission(self.limits, tx, held)
        due = self._due_high(tx) if urgent else self._due(tx, cycle)
        if newer.kinds:
            due = newer.read_past(tx, due)
        plan = cycle.plan = self.planner.plan(admission, due, held)
        claimed = claim.claim(
            tx,
            self.worker,
            plan.picks,
            lanes.offsets.start,
            cycle.ready_children,
            self.engine_state.claims_above,
            newer.within,
        )
        asked = by_turn(plan.picks)
        claimed = self.planner.turns.charge(claimed, asked)
        cycle.due, cycle.claimed, cycle.got = due, claimed, claimed_per_lane(plan.picks, claimed)
        self.in_vain = bool(plan.picks) and not claimed
        if self.in_vain:
            self.planner.pass_over(due, plan.picks)
        again = [(one.id, one.claim) for one in claimed if one.claim > 1]
        if again:
            cycle.recorded = resume(tx, again)
        admission.count(claimed)
        if not urgent:
            lanes.on_claimed(sum(pick[3] for pick in plan.picks), len(claimed))
            if not lanes.whole:
                refused = [*admission.refused(flat(due)), *newer.without]
                lanes.remember(refused, asked, cycle.got, self.planner.turns)
        newer.claimed(cycle.got)
        self.quarantine.isolate(tx, self.worker, plan.picks, claimed)
        cycle.start_by, cycle.again = admission.start_by, min(admission.again, newer.again(cycle.now))
        if self.engine_state.metrics is not None and self.limits.known:
            self.engine_state.metrics.count_waits(admission.capped, admission.rated)

    def _due_high(self, tx: Tx) -> Due:
        heads = self.lanes.offsets.heads(tx, LANES_PER_SCAN, urgent=True)
        return by_turn(
            h for h in heads if h.priority == HIGH_PRIORITY and h.run_at <= tx.now and self.planner.serves(h)
        )

    def _due(self, tx: Tx, cycle: _Cycle) -> Due:
        finished, known = cycle.finished, self.limits.known
        ready = cycle.requests.woken + (finished.ready if finished else 0)
        overridden = finished is not None and finished.overridden  # a replaced task may run again
        rely = cycle.ended.over and not (ready or overridden or self.lost_commits.pending or cycle.requests or known)
        due = self.lanes.scan(
            tx,
            self.planner.serves,
            fresh=cycle.fresh,
            rely=rely,
            ready_children=cycle.ready_children,
            starts=self.planner.batch,
        )
        if self.lanes.whole:
            cycle.every = flat(due)
        elif known:
            freed = [head for head in self.limits.freed(cycle.ended.pairs) if self.planner.serves(head)]
            self.lanes.add(freed)
            due = by_turn({claim.LANE_OF(h): h for h in (*flat(due), *freed)}.values())
        return due

    def _failed(self, cycle: _Cycle, error: BaseException) -> None:
        """Undo after an error; the transaction may have committed, or not."""
        self.completer.one_by_one = not isinstance(error, StoreUnavailableError | RowLocked)
        self.lanes.offsets.reset()  # tasks before the offsets were not claimed
        self.lanes.reset()
        if not isinstance(error, RowLocked):
            self.lost_commits.on_uncertain_commit()
        self.lost_commits.remember(cycle.claimed, cycle.start_by)
        if cycle.alone is not None:
            self.planner.alone = cycle.alone
        cycle.requests.requeue()
        if cycle.recording is None:
            self.completer.requeue(cycle.ended.pairs)
        else:
            with suppress(Exception):  # the claim's error is raised; unrecorded outcomes wait
                self.completer.join(cycle.recording, cycle.ended)

    def _conclude(self, connection: sa.Connection, cycle: _Cycle) -> CycleResult:
        """After the commit: answer requests, finalize outcomes, hand off claimed tasks."""
        engine_state, completer, ended, claimed, plan = (
            self.engine_state,
            self.completer,
            cycle.ended,
            cycle.claimed,
            cycle.plan,
        )
        self.lost_commits.conclude(cycle.pending or bool(claimed), cycle.noted)  # until they are handed out
        if not cycle.pending:
            self.lost_commits.clear()
        if claimed:
            self._last_lane = LaneHead(*claim.LANE_OF(claimed[-1]), 0)
        busy = False
        if not cycle.urgent:
            busy, completer.one_by_one = completer.one_by_one, False  # a careful cycle records, and looks at nothing
            if busy or not cycle.claiming:
                self.lanes.reset()
        may_have_more = busy
        for key in cycle.marked:
            if key in engine_state.held:
                engine_state.held[key].marked = True
        busy = cycle.requests.send_answers() or busy
        got = cycle.got
        backlog = any(0 < pick[3] <= got[pick[:3]] for pick in plan.picks)
        if cycle.recording is None:
            if cycle.finished is not None:
                completer.finalize(ended, cycle.finished)
            made_ready = ended.back + (cycle.finished.ready if cycle.finished is not None else 0)
            self._hand_out(cycle)
        else:
            self._hand_out_beside(cycle.recording, cycle)
            made_ready = 0  # they are among what was freed
            # The claim passes over what the recording held, too: what gave less may have more.
            short = any(got[pick[:3]] < pick[3] for pick in plan.picks)
            may_have_more = (
                cycle.finished is None
                or bool(cycle.finished.ready or cycle.finished.overridden)
                or short
                or not ended.over
            )
        finished = cycle.finished
        capacity_freed = self.limits.opens(ended.pairs, finished, claimed, cycle.every, cycle.now)
        self._fit(engine_state.monotonic() - cycle.began, max(len(ended.pairs), len(claimed)))
        if completer.missed_wakeups:
            connection.info[waits.OVERLOOKED], completer.missed_wakeups = True, False
        schedule_ended, freed = False, 0
        if not cycle.urgent:  # an urgent cycle's result is not read
            schedule_ended, completer.schedule_ended = completer.schedule_ended, False
            freed = self._freed()
            full = bool(cycle.due) and not plan.picks  # no free slot: what is known of the lanes still holds
            completer.backlog = backlog or (completer.backlog and full)
            completer.released = finished is not None and finished.ready > 0
        return CycleResult(
            len(ended.pairs),
            len(claimed),
            cycle.requests.woken + freed + made_ready,
            min(self.lanes.next_due, cycle.again) if cycle.claiming else FOREVER,
            busy or (cycle.claiming and (self.lanes.unfinished or self.planner.newer.unread)) or backlog,
            schedule_ended,
            may_have_more,
            capacity_freed,
            _given_back(ended, finished) if finished is not None and not ended.over else (),
        )

    def _hand_out(self, cycle: _Cycle) -> None:
        self.feeder.submit(cycle.claimed, cycle.plan, cycle.start_by, cycle.recorded)
        self.lost_commits.conclude(cycle.pending, cycle.noted)

    def _hand_out_beside(self, recording: Future[Completion], cycle: _Cycle) -> None:
        """Hand off claimed tasks while outcomes are recorded, then join the recording, even after an error.

        A suspect starts only after the recording: if it kills the process, unrecorded attempts would be blamed, too.
        If the recording fails, the next cycle releases the claims.
        """
        self.engine_state.losing.difference_update(cycle.gone)  # their handlers have ended, recorded or not
        if any(c.lane.startswith(QUARANTINE_LANE) for c in cycle.claimed):
            cycle.finished = self.completer.join(recording, cycle.ended)
            if cycle.finished is not None:
                self._hand_out(cycle)
            return
        try:
            self._hand_out(cycle)
        finally:
            cycle.finished = self.completer.join(recording, cycle.ended)

    def _freed(self) -> int:
        """How many tasks attempts' own transactions have made ready."""
        freed = 0
        while self.engine_state.freed:
            freed += self.engine_state.freed.popleft()
        if freed:
            self.lanes.reset()
        return freed

    def _fit(self, took: float, tasks: int) -> None:
        """Adapt the batch so that a cycle takes its target time on this machine."""
        if tasks >= BATCH_BOUNDS[0] and took > 0:
            fits = min(BATCH_BOUNDS[1], max(BATCH_BOUNDS[0], int(tasks * CYCLE_TARGET_S / took)))
            batch = (3 * self.planner.batch + fits) / 4
            self.planner.batch = math.ceil(batch)  # rounded up, or it never reaches the upper bound again

    def _stale(self) -> Pairs:
        """Release attempts that no slot started in time; they use no attempt."""
        engine_state = self.engine_state
        since = engine_state.monotonic() - engine_state.options.give_back
        back: Pairs = []
        for slots in self.slots.values():
            if slots.waiting:
                back += [(a, released(a, engine_state.now())) for a in take_waiting(slots, since)]
        return back

    def apply_pauses(self, stored: str | None) -> bool:
        """Claim by what is paused now, as it is stored. Returns whether that is something new: then a cycle must scan.

        What no slot has started is released, if something is paused that was not.
        """
        state = self.engine_state
        if stored == state.pauses_read:
            return False
        before, state.pauses, state.pauses_read = state.pauses, Pauses.of(stored), stored
        log.info("paused: %s; before: %s", state.pauses.describe(), before.describe())
        if state.pauses:
            self.return_waiting()
        self.scan_anew()
        return True

    def scan_anew(self) -> None:
        """Rely on nothing that was read of the lanes: others may be claimed from than before."""
        self._last_lane = None
        self.lanes.forget()
        self.pauses_changed = True

    def return_waiting(self) -> None:
        """Release everything that no slot has started: the worker drains, or something is paused."""
        for attempt in all_waiting(self.slots.values()):
            self.engine_state.report(attempt, released(attempt, self.engine_state.now()))

    def unmarked(self) -> bool:
        """Whether an attempt has run long enough that its row should say so."""
        return bool(self._started(list(self.engine_state.held.values())))

    def _started(self, attempts: Iterable[Attempt]) -> list[tuple[int, int, int]]:
        """Rows (id, claim, started_at) of running attempts that are not marked running yet."""
        since = self.engine_state.monotonic() - MARK_RUNNING_AFTER_S
        rows = []
        for attempt in attempts:
            at = attempt.started_at
            if at is None or attempt.marked or attempt.lost:
                continue
            if attempt.started_mono <= since:
                rows.append((attempt.claimed.id, attempt.claimed.claim, at))
        return rows


def _given_back(ended: CompletedBatch, finished: Completion) -> set[int]:
    """Ids of tasks released by this cycle, without those lost, deferred or ended otherwise."""
    others = {o.task_id for o in (*finished.lost, *finished.deferred)} | finished.ended.keys()
    return {o.task_id for _, o in ended.pairs if o.end is AttemptEnd.HANDED_BACK} - others
