"""Workers of jobs that an executor started: PlacedEngine runs one claim, ElasticEngine many tasks.

A PlacedEngine's first transaction registers the worker and takes the claim over; a job whose claim is another's writes
nothing. An ElasticEngine's marks its job's row as its own; a second job of the same name, or one that is not wanted any
more, writes nothing and ends.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.engine.dispatch.planner import ClaimPlan, PoolShare
from scheduler.engine.engine import LOCKED_RETRY_S, Engine
from scheduler.engine.maintenance.periodic import CANCEL_EVERY
from scheduler.engine.options import EngineOptions
from scheduler.errors import StoreReplacedError
from scheduler.ports import FAILPOINTS, FOREVER
from scheduler.store import placements, worker_jobs
from scheduler.store.db.tx import Tx
from scheduler.store.durable.resume import Recorded, resume
from scheduler.store.tasks.claim import LANE_OF, Claimed, LaneClaim

if TYPE_CHECKING:
    import sqlalchemy as sa


ONE_SLOT = {"high": (1, 1), "medium": (1, 1), "low": (1, 1)}  # whatever priority and slot type the task needs
START_WITHIN_S = 600.0  # for the start of the handler, of a child process above all


class PlacedClaim(NamedTuple):
    """The claim that a job is for, and the executor that made it."""

    executor: str
    task_id: int
    number: int


class NotMineError(StoreReplacedError):
    """The claim is not this job's: another job has taken it over, or it was taken back."""


def options_of_job(options: EngineOptions) -> EngineOptions:
    """A worker's options for a job: it serves no queue, and has one slot of each type."""
    processes = options.processes._replace(children=1)
    return options._replace(queues=(), pools=ONE_SLOT, max_concurrent=0, give_back=START_WITHIN_S, processes=processes)


class PlacedEngine(Engine):
    """Runs the attempt of one claim. ``over`` is set once there is nothing to do any more."""

    claim: PlacedClaim

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.over = threading.Event()
        self.registration.on_join, self.registration.publishes_kinds = self._attach, False
        self._attached: tuple[Claimed, Sequence[Recorded] | None] | None = None  # until it is handed to a slot
        self._before = ""  # the incarnation of a first try whose answer was lost
        self._begun = False
        self._cancelled_at: dict[int, float] = {}  # when a cancel was first seen (monotonic), by the claim

    @property
    def claims(self) -> bool:
        return False

    @property
    def not_mine(self) -> bool:
        """Whether it ended because the claim is not its own, before it began."""
        return isinstance(self.replaced, NotMineError) and not self._begun

    def _attach(self, tx: Tx, worker: int, incarnation: str) -> None:
        """Take the claim over, in the transaction that registers the worker."""
        claim, before = self.claim, "" if self._begun else self._before
        taken = placements.attach(tx, claim.executor, claim.task_id, claim.number, worker, before)
        if taken is None:
            state = "any more" if self._begun else "it was taken back, or another job has taken it over"
            raise NotMineError(f"claim {claim.number} of task {claim.task_id} is not this job's: {state}")
        self._before = incarnation
        recorded = resume(tx, [(taken.id, taken.claim)]) if taken.claim > 1 else {}
        self._attached = taken, recorded.get(taken.id)
        FAILPOINTS.hit("before attach commit")

    def _step(self, connection: sa.Connection) -> float:
        if not self.worker:
            self.registration.join(connection)
            FAILPOINTS.hit("after attach")
        if self._attached is not None:
            self._begin(*self._attached)
        return super()._step(connection)

    def _begin(self, claimed: Claimed, recorded: Sequence[Recorded] | None) -> None:
        self._attached, self._begun = None, True
        self.periodic.known_kinds = len(self.engine_state.registry)  # the daemons publish them
        lane = LANE_OF(claimed)
        plan = ClaimPlan([LaneClaim(*lane, 1)], {lane: (PoolShare(claimed.priority, 1),)})
        known = {} if recorded is None else {claimed.id: recorded}
        self.dispatch.feeder.submit([claimed], plan, {}, known)

    def deaf_for(self) -> float:
        """For how many seconds the handler has gone on after it was cancelled, or after its timeout."""
        now, since = self.engine_state.monotonic(), []
        for attempt in list(self.engine_state.held.values()):
            if attempt.cancelled:
                since.append(self._cancelled_at.setdefault(attempt.claimed.claim, now))
            if attempt.deadline is not None:
                since.append(attempt.deadline)
        return now - min(since, default=now)

    def _round(self) -> float:
        pause = super()._round()
        if self._stop.is_set() or (self._begun and not self.engine_state.held and not self.dispatch.has_work()):
            self.over.set()
        return pause

    def _run(self) -> None:
        try:
            super()._run()
        finally:
            self.over.set()

    def _upkeep(self, connection: sa.Connection) -> bool:
        """Keep the lease, and look after the attempt: daemons do the rest."""
        periodic, timers = self.periodic, self.periodic.timers
        if timers.due("renew", self._renew_every):
            self.registration.renew(connection, claims=True)
            periodic.write_rollups(connection)
        periodic.publish_worker(connection)
        if timers.due("look", self._renew_every):
            self.registration.commands_may_wait = True
        self.registration.apply_commands(connection)
        if periodic.watch_attempts(connection, self._reported, woken=False):
            self.notifier.notify()
        return False

    def _wants_cycle(self, woken: bool) -> bool:
        if self._has_more or self.dispatch.has_work() or self.dispatch.unmarked():
            return True
        return self._is_blocked() and self.periodic.timers.remaining("retry") <= 0

    def _is_blocked(self) -> bool:
        """Whether another transaction held rows that an outcome or a request needs."""
        return bool(self.dispatch.completer.deferred or self.engine_state.put_off)

    def _run_cycle(self, connection: sa.Connection, woken: bool) -> None:
        result = self.dispatch.run(connection, claiming=False)
        self.cycles += 1
        self.periodic.timers.set("retry", LOCKED_RETRY_S)
        self._next_due, self._needs_scan, self._has_more = FOREVER, False, result.busy
        if result.finished:
            self.notifier.notify()  # the task's dependents may run, and its executor has room

    def _pause(self) -> float:
        if self._has_more or self.dispatch.has_work():
            return 0.0
        left = self.periodic.timers.remaining
        wait = min(left("renew"), left("look"), CANCEL_EVERY)
        if self.registration.commands_may_wait:
            wait = min(wait, left("commands"))
        if self.dispatch.unmarked():
            wait = min(wait, CANCEL_EVERY / 5)
        if self._is_blocked():
            wait = min(wait, left("retry"))
        return max(0.0, wait)


class NotWantedError(StoreReplacedError):
    """The job is not wanted: another one of its name is at work, or it was given up."""


class ElasticEngine(Engine):
    """An engine that attaches to the job ``options.job``."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.registration.on_join = self._attach
        self._before = ""  # the incarnation of a first try whose answer was lost

    @property
    def not_wanted(self) -> bool:
        """Whether it ended since it is not wanted."""
        return isinstance(self.replaced, NotWantedError)

    def _attach(self, tx: Tx, worker: int, incarnation: str) -> None:
        begun, job = self._ready.is_set(), self.options.job
        if not worker_jobs.attach(tx, job, self._before, again=begun):
            why = "its lease was lost, and it was given up" if begun else "another one has its name, or it was given up"
            raise NotWantedError(f"job {job} is not wanted: {why}")
        self._before = incarnation
        FAILPOINTS.hit("before attach commit")
