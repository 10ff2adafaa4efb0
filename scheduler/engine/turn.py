"""One turn: report what has ended, release what waited for it, claim new work, commit, hand out."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from scheduler.engine.answering import Answering
from scheduler.engine.attempt import Attempt
from scheduler.engine.desk import Desk
from scheduler.engine.doubts import Doubts
from scheduler.engine.handout import HandOut
from scheduler.engine.lanes import STRETCH, Lanes, got_of
from scheduler.engine.ledger import Ledger
from scheduler.engine.limits import Admission, Limits
from scheduler.engine.plan import Plan
from scheduler.engine.planner import BATCH, QUICK, Planner
from scheduler.engine.pools import Slots, all_waiting, take_waiting
from scheduler.engine.recorder import Recorder
from scheduler.engine.settling import Ended, Pairs
from scheduler.engine.suspects import Suspects
from scheduler.engine.verdict import hand_back
from scheduler.errors import StoreUnavailableError
from scheduler.model.outcome import AttemptEnd
from scheduler.model.registry import SlotKey
from scheduler.ports import FAILPOINTS, FOREVER
from scheduler.store import claim as claims
from scheduler.store import waits
from scheduler.store.claim import SUSPECT_LANE, Claimed, LaneHead
from scheduler.store.finish import Finished
from scheduler.store.outcomes import ContendedError
from scheduler.store.ripe import Ripe

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

MARK_AFTER = 0.005  # seconds a body has run before its row is marked running: shorter ones end first
HIGH = 0

TURN = 0.012  # seconds that a turn should take at most: what was rung for meanwhile waits for its end
GATHER = 0.005  # seconds that a turn waits for such bodies' ends


class TurnResult(NamedTuple):
    """``next_due``: when the next known task is due (microseconds); ``busy``: another turn may find work at once;
    ``ready``: how many tasks may run that could not before, here or elsewhere; ``unseen``: what was recorded may have
    made work that this turn did not see; ``opened``: a cap has room again that this worker did not
    take; ``given_back``: tasks that it handed back, which now wait for a worker."""

    finished: int
    claimed: int
    ready: int
    next_due: int
    busy: bool
    schedule_ended: bool
    unseen: bool = False
    opened: bool = False
    given_back: Collection[int] = ()


@dataclass(slots=True)
class _Turn:
    """What one turn has in hand."""

    claiming: bool
    urgent: bool
    fresh: bool
    ended: Ended
    gone: set[tuple[int, int]]  # (task id, claim) of what has ended
    requests: Answering
    quick: bool  # what has ended may be written without locking it first
    alone: Attempt | None  # the suspect that ran alone when it began
    recording: Future[Finished] | None = None  # it is being recorded beside this turn's own transaction
    began: float = 0.0  # monotonic
    now: int = 0  # microseconds
    unsure: bool = False  # claims are left that nobody here knows of
    finished: Finished | None = None
    marked: Collection[tuple[int, int]] = ()
    due: Sequence[LaneHead] = ()
    every: Sequence[LaneHead] | None = None  # what is due, if all lanes were looked at
    plan: Plan = field(default_factory=lambda: Plan([], {}))
    claimed: list[Claimed] = field(default_factory=list)
    start_by: Mapping[str, int] = field(default_factory=dict)
    again: int = FOREVER  # when something that is due and was refused may be claimed (microseconds)

    @property
    def ripe(self) -> Ripe | None:
        return None if self.finished is None else self.finished.ripe

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


class Turner:
    """Takes turns for one worker. Not thread-safe: the engine's loop calls it. ``recorder``: see ``Ledger``."""

    def __init__(self, desk: Desk, slots: Mapping[SlotKey, Slots], recorder: Recorder | None) -> None:
        self.desk = desk
        self.slots = slots
        self.limits = Limits(desk)
        self.worker = 0
        self.doubts = Doubts(desk, self.limits)
        self._last_lane: LaneHead | None = None  # from which something was claimed
        self.planner = Planner(desk, slots, self.limits)
        self.suspects = Suspects(desk, self.planner)
        self.ledger = Ledger(desk, self.planner, self.limits, recorder)
        self.lanes = Lanes(desk.monotonic)
        self.handout = HandOut(desk, slots, self.planner, holds=recorder is None)

    def guess(self, connection: sa.Connection) -> bool:
        """Claim one task of the lane that gave the last one, without looking at any. Whether there was one.

        For who is rung and has nothing to do: mostly it is that for which it was rung, and begins without waiting for a
        look at all lanes; a turn is to follow. It is one task, of its own level's pool: what a turn would have chosen
        in its place, be it a suspect, comes one body later.
        """
        lane, desk = self._last_lane, self.desk
        if lane is None or desk.losing or self.limits.known or not self.at_rest():
            return False
        plan = self.planner.one_of(lane)
        if not plan.picks:
            return False
        self.doubts.unsure = True  # until it is handed out
        try:
            with desk.database.single(connection) as c:
                claimed = claims.claim_one(c, desk.database.dialect, self.worker, plan.picks[0], desk.now())
        except BaseException:
            self.doubts.arise()
            raise
        if claimed:
            FAILPOINTS.hit("after claim")
            self.handout.give(claimed, plan, {})
        else:
            self._last_lane = None  # each ring wakes all workers: let who was too late look only once
        self.doubts.unsure = False
        return bool(claimed)

    def gather(self) -> None:
        """Where bodies of microseconds wait for a slot: let them end, so that one turn records them, not one the first
        and another one the rest. Not while a high task is under way: what waits for it is urgent, too."""
        if not self.desk.outcomes:
            return
        coming = 0
        for slots in self.slots.values():
            try:
                kind = slots.waiting[0].kind  # a slot may take it away at any moment
            except IndexError:
                continue
            if self.desk.means.get(kind.name, 1.0) < QUICK:
                coming += len(slots.waiting)
        if coming and not any(attempt.pool == HIGH for attempt in self.desk.held.values()):
            self.handout.release()
            self.desk.gather(min(self.planner.batch, len(self.desk.outcomes) + coming), GATHER)

    def has_work(self) -> bool:
        """Whether outcomes or requests wait to be written."""
        return bool(self.desk.outcomes or self.desk.requests)

    def at_rest(self) -> bool:
        """Whether a turn would do nothing, should there be nothing to claim. Not while some place in the ready index is
        kept: only a turn knows how to look past what died in front of it."""
        return not (self.desk.held or self.ledger.deferred or self.doubts.unsure or self.lanes.prefix.start)

    def turn(
        self,
        connection: sa.Connection,
        *,
        claiming: bool,
        extra: Pairs | None = None,
        urgent: bool = False,
        fresh: bool = True,
    ) -> TurnResult:
        """One transaction, or two beside each other (``Ledger.begin``). On an error nothing is lost: outcomes and
        requests wait for the next turn.

        ``urgent``: claim high tasks and do nothing else; recording what a flood has brought in would keep them waiting.
        ``fresh``: there may be work where there was none in the last turn.
        """
        try:
            return self._turn(connection, claiming, extra, urgent, fresh)
        except ContendedError:
            self.ledger.lock_first()
            return self._turn(connection, claiming, None, urgent, fresh)

    def _turn(
        self, connection: sa.Connection, claiming: bool, extra: Pairs | None, urgent: bool, fresh: bool
    ) -> TurnResult:
        turn = self._begin(claiming, extra, urgent, fresh)
        try:
            if turn.quick and claiming and not (turn.ended.died or self.doubts.unsure):
                turn.recording = self.ledger.begin(self.worker, turn.ended)
            with self.desk.database.write(connection) as c:
                self._transact(c, turn)
                turn.hit("before finish commit", "before answer commit")
            turn.hit("after finish commit", "after answer commit")
            if turn.claimed:
                FAILPOINTS.hit("after claim")
        except BaseException as error:
            self._failed(turn, error)
            raise
        return self._conclude(connection, turn)

    def _begin(self, claiming: bool, extra: Pairs | None, urgent: bool, fresh: bool) -> _Turn:
        """Take what the turn is to record and to answer."""
        put_off = bool(self.ledger.deferred)
        pairs: Pairs = []
        requests = Answering(self.desk)
        if not urgent:
            pairs = self.ledger.take(self.planner.batch if claiming else None) + self._stale()
            if extra:  # but for what has ended since
                known = {(o.task_id, o.claim) for _, o in pairs}
                pairs += [(a, o) for a, o in extra if (o.task_id, o.claim) not in known]
            requests.take()
        quick = not (requests or put_off) and self.ledger.may_be_quick(pairs)
        ended = Ended.of(pairs)
        if ended.back:
            self.planner.leave_to_newer(a for a, o in pairs if o.end is AttemptEnd.HANDED_BACK and a.too_new)
        return _Turn(claiming, urgent, fresh, ended, ended.keys(), requests, quick, self.planner.alone)

    def _transact(self, c: sa.Connection, turn: _Turn) -> None:
        """Everything that the turn does in its transaction."""
        desk = self.desk
        turn.began = desk.monotonic()  # what other writers took before makes no turn of ours smaller
        now = turn.now = desk.now()
        if self.doubts.unsure:
            turn.unsure = self.doubts.give_back(c, self.worker, now)
            self.lanes.forget()
        if turn.records:
            begin, claims_too = self.handout.release, turn.quick and turn.claiming
            turn.ended, turn.finished = self.ledger.write(
                c, self.worker, turn.ended, now, quick=turn.quick, claims=claims_too, meanwhile=begin
            )
        if not turn.urgent:
            self.handout.release()
        if turn.requests:
            turn.requests.answer(c, self.worker, now, one_by_one=self.ledger.careful)
        held = [attempt for key, attempt in desk.held.items() if key not in turn.gone]
        started = self._started(held)
        if started:
            turn.marked = claims.mark_running(c, desk.database.dialect, self.worker, started)
        self.suspects.absolve(c, self.worker, turn.gone)
        if turn.claiming and not self.ledger.careful:
            self._claim(c, turn, held)
        ripe = turn.ripe
        if ripe is not None and turn.finished is not None:
            ripe.schedule()
            if ripe.scheduled:
                self.lanes.forget()
                turn.finished = turn.finished._replace(ready=turn.finished.ready + ripe.scheduled)

    def _claim(self, c: sa.Connection, turn: _Turn, held: list[Attempt]) -> None:
        lanes, urgent = self.lanes, turn.urgent
        admission = Admission(self.limits, c, turn.now)
        due = self._due_high(c, turn.now) if urgent else self._due(c, turn)
        plan = turn.plan = self.planner.plan(admission, due, held)
        dialect = self.desk.database.dialect
        claimed = claims.claim(c, dialect, self.worker, plan.picks, turn.now, lanes.prefix.start, turn.ripe)
        turn.due, turn.claimed = due, claimed
        admission.count(claimed)
        if not urgent:
            lanes.claimed(plan.picks, claimed)
            if not lanes.whole:
                lanes.keep(admission.admitted(due), plan.picks, claimed)
        self.suspects.part(c, self.worker, plan.picks, claimed)
        turn.start_by, turn.again = admission.start_by, admission.again

    def _due_high(self, c: sa.Connection, now: int) -> list[LaneHead]:
        heads = self.lanes.prefix.heads(c, now, STRETCH, urgent=True)
        return [h for h in heads if h.pool == HIGH and h.run_at <= now and self.planner.serves(h)]

    def _due(self, c: sa.Connection, turn: _Turn) -> list[LaneHead]:
        finished, known = turn.finished, self.limits.known
        ready = turn.requests.woken + (finished.ready if finished else 0)
        told = finished is not None and finished.told  # what was replaced may run again
        rely = turn.ended.over and not (ready or told or self.doubts.unsure or turn.requests or known)
        due = self.lanes.look(c, self.planner.serves, turn.now, fresh=turn.fresh, rely=rely, ripe=turn.ripe)
        if self.lanes.whole:
            turn.every = due
        elif known:
            due = list({claims.LANE_OF(h): h for h in (*self.limits.freed(turn.ended.pairs), *due)}.values())
        return due

    def _failed(self, turn: _Turn, error: BaseException) -> None:
        """All of it may have been committed, or nothing."""
        self.ledger.careful = not isinstance(error, StoreUnavailableError | ContendedError)
        self.lanes.prefix.forget()  # what it has passed over was not claimed
        self.lanes.forget()
        if not isinstance(error, ContendedError):
            self.doubts.arise()
        self.doubts.keep(turn.claimed, turn.start_by)
        if turn.alone is not None:
            self.planner.alone = turn.alone
        turn.requests.put_back()
        if turn.recording is None:
            self.ledger.put_back(turn.ended.pairs)
        else:
            with suppress(Exception):  # the claim's error is told; what could not be recorded waits
                self.ledger.see_through(turn.recording, turn.ended)

    def _conclude(self, connection: sa.Connection, turn: _Turn) -> TurnResult:
        """It is committed: tell who asked, put down what has ended, hand out what was claimed."""
        desk, ledger, ended, claimed, plan = self.desk, self.ledger, turn.ended, turn.claimed, turn.plan
        self.doubts.unsure = turn.unsure or bool(claimed)  # until they are handed out
        if not turn.unsure:
            self.doubts.end()
        if claimed:
            self._last_lane = LaneHead(*claims.LANE_OF(claimed[-1]), 0)
        busy = False
        if not turn.urgent:
            busy, ledger.careful = ledger.careful, False  # a careful turn records, and looks at nothing
            if busy or not turn.claiming:
                self.lanes.forget()
        unseen = busy
        for key in turn.marked:
            if key in desk.held:
                desk.held[key].marked = True
        busy = turn.requests.tell() or busy
        picked = {claims.LANE_OF(p): p.limit for p in plan.picks}
        got = got_of(plan.picks, claimed)
        backlog = any(0 < most <= got[lane] for lane, most in picked.items())
        if turn.recording is None:
            if turn.finished is not None:
                ledger.settle(ended, turn.finished)
            made_ready = ended.back + (turn.finished.ready if turn.finished is not None else 0)
            self._hand_out(turn)
        else:
            self._hand_out_beside(turn.recording, turn)
            made_ready = 0  # they are among what was freed
            # The claim passes over what the recording held, too: what gave less may have more.
            short = any(got[lane] < most for lane, most in picked.items())
            unseen = turn.finished is None or bool(turn.finished.ready or turn.finished.told) or short or not ended.over
        finished = turn.finished
        opened = self.limits.opens(ended.pairs, finished, claimed, turn.every, turn.now)
        self._fit(desk.monotonic() - turn.began, max(len(ended.pairs), len(claimed)))
        if ledger.overlooked:
            connection.info[waits.OVERLOOKED], ledger.overlooked = True, False
        schedule_ended, freed = False, 0
        if not turn.urgent:  # nobody looks at that one's result
            schedule_ended, ledger.schedule_ended = ledger.schedule_ended, False
            freed = self._freed()
            full = bool(turn.due) and not plan.picks  # there was no room: what was known of the lanes still holds
            ledger.backlog = backlog or (ledger.backlog and full)
            ledger.released = finished is not None and finished.ready > 0
        return TurnResult(
            len(ended.pairs),
            len(claimed),
            turn.requests.woken + freed + made_ready,
            min(self.lanes.next_due, turn.again) if turn.claiming else FOREVER,
            busy or (turn.claiming and self.lanes.unfinished) or backlog,
            schedule_ended,
            unseen,
            opened,
            _given_back(ended, finished) if finished is not None and not ended.over else (),
        )

    def _hand_out(self, turn: _Turn) -> None:
        self.handout.give(turn.claimed, turn.plan, turn.start_by)
        self.doubts.unsure = turn.unsure

    def _hand_out_beside(self, recording: Future[Finished], turn: _Turn) -> None:
        """Hand out what was claimed while the rest is recorded, and see that through, whatever happens.

        A suspect starts only once what has ended is recorded: should it kill the process, that would be blamed, too.
        If it cannot be, the next turn gives the claims back.
        """
        self.desk.losing.difference_update(turn.gone)  # their bodies have ended, recorded or not
        if any(c.lane.startswith(SUSPECT_LANE) for c in turn.claimed):
            turn.finished = self.ledger.see_through(recording, turn.ended)
            if turn.finished is not None:
                self._hand_out(turn)
            return
        try:
            self._hand_out(turn)
        finally:
            turn.finished = self.ledger.see_through(recording, turn.ended)

    def _freed(self) -> int:
        """How many tasks may run because of transactions that attempts have committed themselves."""
        freed = 0
        while self.desk.freed:
            freed += self.desk.freed.popleft()
        if freed:
            self.lanes.forget()
        return freed

    def _fit(self, took: float, tasks: int) -> None:
        """Let the next turn be as large as fits into its time on this machine, with this database."""
        if tasks >= BATCH[0] and took > 0:
            fits = min(BATCH[1], max(BATCH[0], int(tasks * TURN / took)))
            batch = (3 * self.planner.batch + fits) / 4
            self.planner.batch = math.ceil(batch)  # rounded up, or it never gets back to the most

    def _stale(self) -> Pairs:
        """Attempts that no slot started in time go back, without using an attempt."""
        desk = self.desk
        since = desk.monotonic() - desk.options.give_back
        back: Pairs = []
        for slots in self.slots.values():
            if slots.waiting:
                back += [(a, hand_back(a, desk.now())) for a in take_waiting(slots, since)]
        return back

    def return_waiting(self) -> None:
        """What no slot has started goes back: nothing more is to be claimed."""
        for attempt in all_waiting(self.slots.values()):
            self.desk.report(attempt, hand_back(attempt, self.desk.now()))

    def unmarked(self) -> bool:
        """Whether a body is under way for so long that its row should say so."""
        return bool(self._started(self.desk.held.values()))

    def _started(self, attempts: Iterable[Attempt]) -> list[tuple[int, int, int]]:
        """Those of these whose bodies are under way, and whose rows do not say so yet."""
        since = self.desk.monotonic() - MARK_AFTER
        rows = []
        for attempt in attempts:
            at = attempt.started_at
            if at is None or attempt.marked or attempt.lost:
                continue
            if attempt.started_mono <= since:
                rows.append((attempt.claimed.id, attempt.claimed.claim, at))
        return rows


def _given_back(ended: Ended, finished: Finished) -> set[int]:
    """Without those whose end had been decided otherwise, and those that somebody's transaction holds."""
    others = {o.task_id for o in (*finished.lost, *finished.deferred)} | finished.ended.keys()
    return {o.task_id for _, o in ended.pairs if o.end is AttemptEnd.HANDED_BACK} - others
