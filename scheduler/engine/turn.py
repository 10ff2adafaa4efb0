"""One turn: report what has ended, release what waited for it, claim new work, commit, hand out."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from scheduler.engine import deaths
from scheduler.engine.answering import Answering
from scheduler.engine.attempt import Attempt, hand_back
from scheduler.engine.desk import Desk
from scheduler.engine.handout import HandOut
from scheduler.engine.lanes import STRETCH, Lanes, got_of
from scheduler.engine.limits import Admission, Limits
from scheduler.engine.plan import Plan
from scheduler.engine.planner import ALONE, BATCH, QUICK, Planner
from scheduler.engine.pools import Slots, take_waiting
from scheduler.engine.recorder import Recorder
from scheduler.engine.settling import Ended, Pairs, settle
from scheduler.errors import StoreUnavailableError
from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.registry import SlotKey
from scheduler.ports import FAILPOINTS, FOREVER
from scheduler.store import claim as claims
from scheduler.store import waits
from scheduler.store.claim import SUSPECT_LANE, Claimed, LaneHead, Pick
from scheduler.store.finish import ContendedError, Finished, finish
from scheduler.store.ripe import Ripe
from scheduler.store.salvage import finish_one_by_one

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

MARK_AFTER = 0.005  # seconds a body has run before its row is marked running: shorter ones end first
HIGH = 0

TURN = 0.012  # seconds that a turn should take at most: what was rung for meanwhile waits for its end
GATHER = 0.005  # seconds that a turn waits for such bodies' ends
_SCHEDULE_OF = attrgetter("claimed.schedule")
LOCKING = 1.0  # seconds that turns lock rows before they write them, after somebody held one that a turn wrote at once
MANY = 50  # ends from which on they are recorded beside the claim, in a transaction of their own


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


class Turner:
    """Takes turns for one worker. Not thread-safe: the engine's loop calls it.

    ``recorder``: records ends beside the claim where that helps, None where it never does (SQLite has one writer).
    """

    def __init__(self, desk: Desk, slots: Mapping[SlotKey, Slots], recorder: Recorder | None) -> None:
        self.desk = desk
        self.slots = slots
        self.recorder = recorder
        self.limits = Limits(desk)
        self.worker = 0
        self.deferred: Pairs = []  # to be written with the next turn
        self._locks_first_until = 0.0  # somebody held what was written without locking it (monotonic)
        self._unsure = False  # the last commit may or may not have been made
        self._careful = False  # the last turn met something unforeseen
        self._last_lane: LaneHead | None = None  # from which something was claimed
        self._backlog = False  # some lane gave the last turn all that it asked for
        self._released = False  # what the last turn recorded made others ready
        self._schedule_ended = self._overlooked = False  # by what was recorded beside a claim, and not told yet
        self.planner = Planner(desk, slots, self.limits)
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
        self._unsure = True  # until it is handed out
        with desk.database.single(connection) as c:
            claimed = claims.claim_one(c, desk.database.dialect, self.worker, plan.picks[0], desk.now())
        if claimed:
            FAILPOINTS.hit("after claim")
            self.handout.give(claimed, plan, {})
        else:
            self._last_lane = None  # each ring wakes all workers: let who was too late look only once
        self._unsure = False
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
        return not (self.desk.held or self.deferred or self._unsure or self.lanes.prefix.start)

    def turn(
        self,
        connection: sa.Connection,
        *,
        claiming: bool,
        extra: Pairs | None = None,
        urgent: bool = False,
        fresh: bool = True,
    ) -> TurnResult:
        """One transaction, or two beside each other (``recorder``). On an error nothing is lost: outcomes and requests
        wait for the next turn.

        ``urgent``: claim high tasks and do nothing else; recording what a flood has brought in would keep them waiting.
        ``fresh``: there may be work where there was none in the last turn.
        """
        try:
            return self._turn(connection, claiming, extra, urgent, fresh)
        except ContendedError:
            self._locks_first_until = self.desk.monotonic() + LOCKING
            return self._turn(connection, claiming, None, urgent, fresh)

    def _turn(
        self, connection: sa.Connection, claiming: bool, extra: Pairs | None, urgent: bool, fresh: bool
    ) -> TurnResult:
        desk = self.desk
        outcomes: Pairs = []
        put_off = bool(self.deferred)
        requests = Answering(desk)
        if not urgent:
            outcomes, self.deferred = self.deferred, []
            count = min(len(desk.outcomes), self.planner.batch - len(outcomes)) if claiming else len(desk.outcomes)
            take = desk.outcomes.popleft
            outcomes += [take() for _ in range(count)]
            outcomes += self._stale()
            if extra:  # but for what has ended since
                known = {(o.task_id, o.claim) for _, o in outcomes}
                outcomes += [(a, o) for a, o in extra if (o.task_id, o.claim) not in known]
            requests.take()
        claimed: list[Claimed] = []
        finished: Finished | None = None
        plan = Plan([], {})
        due: list[LaneHead] = []
        every: list[LaneHead] | None = None
        marked: set[tuple[int, int]] = set()
        ended = Ended.of(outcomes)
        gone = ended.keys()
        quick = not (requests or put_off) and self._may_be_quick(outcomes)
        recording: Future[Finished] | None = None
        ripe: Ripe | None = None
        try:
            if quick and claiming and not ended.died and self._beside(outcomes):
                recording = self._record(ended)
            with desk.database.write(connection) as c:
                begun = desk.monotonic()  # what other writers took before makes no turn of ours smaller
                dialect = desk.database.dialect
                now = desk.now()
                unsure = self._unsure and self._give_back_unknown(c, now)
                if outcomes and recording is None:
                    if ended.died:
                        outcomes = deaths.judge(c, outcomes)
                        ended = Ended.of(outcomes)
                    begin, claims_too = self.handout.release, quick and claiming
                    usual = partial(finish, ends=ended.ends, quick=quick, meanwhile=begin, claims=claims_too)
                    write = finish_one_by_one if self._careful else usual
                    finished = _own(outcomes, write(c, dialect, self.worker, ended.outcomes, now))
                    ripe = finished.ripe
                    if self.limits.known:
                        self.limits.recorded(c, outcomes, finished)
                    if ended.died:
                        deaths.count(c, outcomes, finished)
                if not urgent:
                    self.handout.release()
                if requests:
                    requests.answer(c, self.worker, now, one_by_one=self._careful)
                held = [attempt for key, attempt in desk.held.items() if key not in gone]
                started = self._started(held)
                if started:
                    marked = claims.mark_running(c, dialect, self.worker, started)
                self._absolve(c, gone)
                admission = Admission(self.limits, c, now)
                if claiming and not self._careful:
                    if urgent:
                        heads = self.lanes.prefix.heads(c, now, STRETCH, urgent=True)
                        due = [h for h in heads if h.pool == HIGH and h.run_at <= now and self.planner.serves(h)]
                    else:
                        ready = requests.woken + (finished.ready if finished else 0)
                        told = finished is not None and finished.told  # what was replaced may run again
                        rely = ended.over and not (ready or told or self._unsure or requests or self.limits.known)
                        due = self.lanes.look(c, self.planner.serves, now, fresh=fresh, rely=rely, ripe=ripe)
                        if self.lanes.whole:
                            every = due
                        elif self.limits.known:
                            due = list({claims.LANE_OF(h): h for h in (*self.limits.freed(outcomes), *due)}.values())
                    plan = self.planner.plan(admission, due, held)
                    claimed = claims.claim(c, dialect, self.worker, plan.picks, now, self.lanes.prefix.start, ripe)
                    admission.count(claimed)
                    if not urgent:
                        self.lanes.claimed(plan.picks, claimed)
                    if not (urgent or self.lanes.whole):
                        self.lanes.keep(admission.admitted(due), plan.picks, claimed)
                    self._part(c, plan.picks, claimed)
                if ripe is not None and finished is not None:
                    ripe.schedule()
                    if ripe.scheduled:
                        self.lanes.forget()
                        finished = finished._replace(ready=finished.ready + ripe.scheduled)
                if outcomes and recording is None:
                    FAILPOINTS.hit("before finish commit")
                if requests:
                    FAILPOINTS.hit("before answer commit")
            if outcomes and recording is None:
                FAILPOINTS.hit("after finish commit")
            if requests:
                FAILPOINTS.hit("after answer commit")
            if claimed:
                FAILPOINTS.hit("after claim")
        except BaseException as error:
            self._careful = not isinstance(error, StoreUnavailableError | ContendedError)
            self.lanes.prefix.forget()  # what it has passed over was not claimed
            self.lanes.forget()
            self._unsure = self._unsure or not isinstance(error, ContendedError)
            requests.put_back()
            if recording is None:
                self.deferred = outcomes + self.deferred
            else:
                with suppress(Exception):  # the claim's error is told; what could not be recorded waits
                    self._recorded(recording, ended)
            raise
        self._unsure = unsure or bool(claimed)  # until they are handed out
        if claimed:
            self._last_lane = LaneHead(*claims.LANE_OF(claimed[-1]), 0)
        busy = unseen = False
        if not urgent:
            busy, self._careful = self._careful, False
            unseen = busy  # a careful turn records, and looks at nothing
            if busy or not claiming:
                self.lanes.forget()
        for key in marked:
            if key in desk.held:
                desk.held[key].marked = True
        busy = requests.tell() or busy
        picked = {claims.LANE_OF(p): p.limit for p in plan.picks}
        got = got_of(plan.picks, claimed)
        backlog = any(0 < most <= got[lane] for lane, most in picked.items())
        back = ended.back
        if recording is None:
            if finished is not None:
                self._settle(ended, finished)
            ready = finished.ready if finished is not None else 0
            self.handout.give(claimed, plan, admission.start_by)
            self._unsure = unsure
        else:
            finished = self._hand_out_beside(recording, ended, claimed, plan, admission.start_by, unsure)
            ready = back = 0  # they are among what was freed
            # The claim passes over what the recording held, too: what gave less may have more.
            short = any(got[lane] < most for lane, most in picked.items())
            unseen = finished is None or bool(finished.ready or finished.told) or short or not ended.over
        opened = self.limits.opens(outcomes, finished, claimed, every, now)
        self._fit(desk.monotonic() - begun, max(len(outcomes), len(claimed)))
        schedule_ended, freed = False, 0
        if not urgent:  # nobody looks at that one's result
            schedule_ended, self._schedule_ended = self._schedule_ended, False
            freed = self._freed()
        if self._overlooked:
            connection.info[waits.OVERLOOKED], self._overlooked = True, False
        if not urgent:
            full = bool(due) and not plan.picks  # there was no room: what was known of the lanes still holds
            self._backlog = backlog or (self._backlog and full)
            self._released = finished is not None and finished.ready > 0
        return TurnResult(
            len(outcomes),
            len(claimed),
            requests.woken + freed + ready + back,
            min(self.lanes.next_due, admission.again) if claiming else FOREVER,
            busy or (claiming and self.lanes.unfinished) or backlog,
            schedule_ended,
            unseen,
            opened,
            _given_back(ended, finished) if finished is not None and not ended.over else (),
        )

    def _may_be_quick(self, outcomes: Pairs) -> bool:
        """Whether ends may be written without locking them first: no row is known to be held, and nothing follows for
        caps, rates and suspects."""
        return (
            self.planner.alone is None
            and self.desk.monotonic() >= self._locks_first_until
            and not self.limits.concern(outcomes)
        )

    def _beside(self, outcomes: Pairs) -> bool:
        """Whether to record these beside the claim, which then does not see what they make ready: mostly nothing, there
        is more to claim than the slots take anyway, and more to record than a transaction of its own costs."""
        return (
            self.recorder is not None
            and self._backlog
            and not self._released
            and len(outcomes) >= MANY
            and not (self._unsure or self._careful)
        )

    def _record(self, ended: Ended) -> Future[Finished] | None:
        """Begin to record them in a transaction of their own; None if that is not possible at present."""
        assert self.recorder is not None
        desk, rows = self.desk, ended.outcomes

        def write(connection: sa.Connection) -> Finished:
            finished = finish(connection, desk.database.dialect, self.worker, rows, desk.now(), ended.ends, quick=True)
            FAILPOINTS.hit("before commit beside the claim")
            return finished

        return self.recorder.begin(write)

    def _hand_out_beside(
        self,
        recording: Future[Finished],
        ended: Ended,
        claimed: list[Claimed],
        plan: Plan,
        start_by: Mapping[str, int],
        unsure: bool,
    ) -> Finished | None:
        """Hand out what was claimed while the rest is recorded, and see that through, whatever happens.

        A suspect starts only once what has ended is recorded: should it kill the process, that would be blamed, too.
        If it cannot be, the next turn gives the claims back.
        """
        for attempt, o in ended.pairs:
            if attempt.lost:
                self.desk.losing.discard((o.task_id, o.claim))  # its body has ended, recorded or not
        if not any(c.lane.startswith(SUSPECT_LANE) for c in claimed):
            try:
                self.handout.give(claimed, plan, start_by)
                self._unsure = unsure
            finally:
                finished = self._recorded(recording, ended)
            return finished
        finished = self._recorded(recording, ended)
        if finished is not None:
            self.handout.give(claimed, plan, start_by)
            self._unsure = unsure
        return finished

    def _recorded(self, recording: Future[Finished], ended: Ended) -> Finished | None:
        """Wait until they are recorded. None: they wait for the next turn.

        Raises what kept them from being recorded; then they wait, too. What else it brought about is told by this turn,
        or by the next one that succeeds.
        """
        assert self.recorder is not None
        try:
            finished = _own(ended.pairs, recording.result())
        except BaseException as error:
            self.deferred = ended.pairs + self.deferred
            self._backlog = False
            if isinstance(error, ContendedError):
                self._locks_first_until = self.desk.monotonic() + LOCKING
                return None
            self._careful = self._careful or not isinstance(error, StoreUnavailableError)
            self.recorder.failed()
            raise
        self._overlooked |= self.recorder.flagged(waits.OVERLOOKED)
        self.desk.freed.append(finished.ready + ended.back)
        self._settle(ended, finished)
        FAILPOINTS.hit("after commit beside the claim")
        return finished

    def _settle(self, ended: Ended, finished: Finished) -> None:
        if finished.deferred:
            deferred = {(o.task_id, o.claim) for o in finished.deferred}
            self.deferred += [pair for pair in ended.pairs if (pair[1].task_id, pair[1].claim) in deferred]
            ended = Ended.of([pair for pair in ended.pairs if (pair[1].task_id, pair[1].claim) not in deferred])
        self._schedule_ended |= any(map(_SCHEDULE_OF, ended.attempts))
        settle(self.desk, self.planner, ended, finished)

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
            self.planner.batch = -(
                -(3 * self.planner.batch + fits) // 4
            )  # rounded up, or it never gets back to the most

    def _give_back_unknown(self, connection: sa.Connection, now: int) -> bool:
        """Claims that a turn made whose commit came through without its answer: nobody here knows of them.

        Returns whether some are left for the next turn, since somebody's transaction holds them.
        """
        rows = claims.held_by(connection, self.worker)
        unknown = [
            Outcome(r.id, r.claim, r.attempt, AttemptEnd.HANDED_BACK, st.SCHEDULED, r.claimed_at, None, now, refund=1)
            for r in rows
            if (r.id, r.claim) not in self.desk.held
        ]
        if not unknown:
            return False
        log.warning("%d tasks were claimed by a commit that was not answered: given back", len(unknown))
        self.lanes.forget()
        return bool(finish(connection, self.desk.database.dialect, self.worker, unknown, now).deferred)

    def _absolve(self, connection: sa.Connection, gone: set[tuple[int, int]]) -> None:
        """A suspect that has ended, or has run long enough, no longer keeps others waiting (nor is it blamed alone)."""
        alone = self.planner.alone
        if alone is None:
            return
        c = alone.claimed
        if (c.id, c.claim) in gone or (c.id, c.claim) not in self.desk.held:
            self.planner.alone = None
        elif alone.started_at is not None and alone.started_mono <= self.desk.monotonic() - ALONE:
            claims.clear_suspicion(connection, self.worker, c.id, c.claim)
            self.planner.alone = None

    def _part(self, connection: sa.Connection, picks: list[Pick], claimed: list[Claimed]) -> None:
        """A suspect that runs in a process of its own does not die with this one: should that happen, it is one of the
        bystanders again."""
        processes = self.desk.processes
        if processes is None or not any(pick.lane.startswith(SUSPECT_LANE) for pick in picks):
            return
        for c in claimed:
            if c.lane.startswith(SUSPECT_LANE) and processes.can_run(self.desk.registry.named(c.kind)):
                claims.clear_suspicion(connection, self.worker, c.id, c.claim)

    def _stale(self) -> Pairs:
        """Attempts that no slot started in time go back, without using an attempt."""
        desk = self.desk
        since = desk.monotonic() - desk.options.give_back
        back: Pairs = []
        for slots in self.slots.values():
            if slots.waiting:
                back += [(a, hand_back(a, desk.now())) for a in take_waiting(slots, since)]
        return back

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


def _own(outcomes: Pairs, finished: Finished) -> Finished:
    """What attempts' own transactions have committed was not to be written again, and is not lost."""
    if not finished.lost:
        return finished
    own = {(o.task_id, o.claim) for a, o in outcomes if a.settled is not None and o.end is AttemptEnd.SUCCEEDED}
    return finished._replace(lost=[o for o in finished.lost if (o.task_id, o.claim) not in own])
