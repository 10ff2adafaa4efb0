"""Placer: has jobs started for an executor's tasks, and puts right what backends lose; one daemon does, by a lease.

What a backend says is a hint. A task whose job has not taken its claim over is taken back by the fence, and a job that
starts late then changes nothing. Once the job holds the claim, its own lease decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.config.executors import ExecutorSection
from scheduler.engine.dead_letter_hook import DeadLetterHook
from scheduler.engine.dispatch.lane_turns import LaneTurns
from scheduler.engine.dispatch.lanes import by_turn
from scheduler.engine.dispatch.limits import Admission, DispatchLimits
from scheduler.engine.dispatch.planner import PRIORITIES, ClaimPlan, allocate
from scheduler.engine.options import EngineOptions
from scheduler.executors import ports
from scheduler.executors.backend_state import BackendState
from scheduler.executors.claim_release import ClaimRelease
from scheduler.executors.lease import LeasedExecutor
from scheduler.executors.ports import NOT_MINE
from scheduler.executors.submissions import JobLauncher, Submissions, TaskJobs
from scheduler.model.lanes import executor_of, kind_of
from scheduler.model.pauses import Pauses
from scheduler.model.placement import PlacementPhase
from scheduler.model.registry import Registry
from scheduler.model.texts import counted
from scheduler.ports import FAILPOINTS, SECOND
from scheduler.store import placements
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.placements import Placement
from scheduler.store.tasks import claim
from scheduler.store.tasks.claim import Claimed, LaneHead

LANES_PER_LOOK = 2000  # lanes that one look reads; the next one goes on behind them
MAX_BATCH = 200  # jobs of one submission


LEAST_PENDING = 4  # jobs that have not begun, where nothing runs yet
log = logging.getLogger("scheduler.executors")


@dataclass(frozen=True)
class _PlacerScope:
    """What limits are read for: all queues, and the kinds of this program."""

    registry: Registry
    options: EngineOptions


class Reservations:
    """Claims for one executor. ``queues``: those whose tasks it takes though they name no executor."""

    def __init__(self, name: str, queues: tuple[str, ...], database: Database, registry: Registry) -> None:
        self._name = name
        self._queues = frozenset(queues)
        self._database = database
        self._registry = registry
        self._limits = DispatchLimits(_PlacerScope(registry, EngineOptions()))
        self._after: LaneHead | None = None  # where the next look at the lanes begins
        self._rotation = 0
        self._turns = LaneTurns()

    def make(self, worker: int, budget: int) -> list[Claimed]:
        """Claim up to ``budget`` due tasks, the most urgent priority first. Raises StoreUnavailableError."""
        budget = min(budget, MAX_BATCH)
        if budget <= 0:
            return []
        with self._database.read() as tx:
            wanted = placements.commands(tx, worker)
            heads = claim.lane_heads(tx, self._after, LANES_PER_LOOK)
            now = tx.now
        self._after = heads[-1] if len(heads) >= LANES_PER_LOOK else None
        pauses = Pauses.of(wanted.pauses)
        due = [head for head in heads if head.run_at <= now and self._takes(head, pauses)]
        if wanted.drain or not due:
            return []
        return self._database.change(lambda tx: self._claim(tx, worker, due, budget))

    def _takes(self, head: LaneHead, pauses: Pauses) -> bool:
        named, kind = executor_of(head.lane), kind_of(head.lane)
        ours = named == self._name or (named is None and head.queue in self._queues)
        return ours and self._registry.get(kind) is not None and not pauses.hold(head.queue, kind)

    def _claim(self, tx: Tx, worker: int, due: list[LaneHead], budget: int) -> list[Claimed]:
        self._rotation += 1
        self._limits.learn(tx)
        self._turns.weights = self._limits.known.weights
        admission = Admission(self._limits, tx)
        before, due = -1, admission.admitted(due)
        plan = ClaimPlan([], {})
        while len(due) != before:
            plan = allocate(
                by_turn(due), _own_level(budget), budget, self._rotation, budget, PRIORITIES, self._turns.share
            )
            admission.lock(plan.picks, due)
            before, due = len(due), admission.admitted(due)
        identity = self._database.same.identity
        assert identity is not None, "an open store has one"
        picks = admission.cut(plan.picks, self._turns.start_of)
        claimed = self._turns.charge(claim.claim(tx, worker, picks, above=identity.claims_above), by_turn(picks))
        self._turns.record([claim.LANE_OF(pick) for pick in picks])
        admission.count(claimed)
        if not claimed:
            return []
        placements.reserve(tx, self._name, claimed, identity.store)
        FAILPOINTS.hit("before placement commit")
        return claimed


def _own_level(budget: int) -> Callable[[int, LaneHead], int]:
    return lambda pool, head: budget if pool == head.priority else 0


class Placer(LeasedExecutor):
    """Places tasks for ``[executors.NAME]`` while it holds the executor's lease. For one thread.

    ``default_timeout``: microseconds, of tasks that have none; 0: none either.
    """

    def __init__(
        self,
        name: str,
        section: ExecutorSection,
        executor: ports.Executor,
        database: Database,
        registry: Registry,
        holder: str,
        commands: JobLauncher,
        *,
        ring: Callable[[], object],
        dead_letters: DeadLetterHook | None = None,
        default_timeout: int = 0,
    ) -> None:
        super().__init__(name, section, executor, database, holder)
        self._ring = ring
        self._dead_letters = dead_letters if dead_letters is not None else DeadLetterHook(None, None)
        self._reservations = Reservations(name, section.queues, database, registry)
        self._claim_release = ClaimRelease(name, section.interval, database, ring, self._dead_letters)
        jobs = TaskJobs(name, database, commands, section.grace, default_timeout)
        refused = self._claim_release.refused
        self._submissions = Submissions(name, self._link, database, jobs.make, refused, section.submit_grace)
        self._default_timeout = default_timeout
        self._leaving: dict[tuple[int, int], float] = {}  # jobs whose claim is over and that still run, and since when
        self._unknown_jobs: dict[str, float] = {}  # jobs whose placement is over and that still run, and since when

    def step(self) -> float:
        """Ask the backend once, put right what is amiss, and place what is due. Returns seconds to wait.

        Raises StoreUnavailableError.
        """
        lease = self._lease.keep()
        if lease is None:
            return self._section.interval
        worker, polled = lease.worker, self._link.poll()
        with self._database.read() as tx:
            found, now = placements.open_placements(tx, self.name), tx.now
        self._dead_letters.notify_pending(self._database)
        self._link.note(found, polled)
        self._link.forget_ended(found, polled)
        self._end_unknown_jobs(found, polled)
        left = self._finish_ended(found, polled)
        unattached = [placement for placement in left if placement.holder == worker]
        attached = [placement for placement in left if placement.holder != worker]
        pending = self._settle(worker, unattached, polled, now)
        self._watch(attached, polled, now)
        if polled.jobs is not None:
            self._submissions.again(worker, pending, now)
            self._place(worker, len(pending), len(attached))
        return self._section.interval

    def close(self) -> None:
        """Close the executor, and the hook of dead letters."""
        super().close()
        self._dead_letters.close()

    def _finish_ended(self, found: Sequence[Placement], polled: BackendState) -> list[Placement]:
        """End the placements whose claims are over, once their jobs are. Returns the others."""
        mono, done = self._database.clock.monotonic(), []
        for placement in found:
            if placement.holder is not None or polled.jobs is None:
                continue
            seen = polled.of(placement)
            if seen is None or seen.phase.over or seen.phase is PlacementPhase.GONE:
                done.append(placement.key)
            elif mono - self._leaving.setdefault(placement.key, mono) >= self._section.grace:
                self._leaving[placement.key] = mono
                self._link.cancel([placement], polled, self._section.grace)
        if done:
            self._database.change(lambda tx: placements.end(tx, done))
            for key in done:
                self._leaving.pop(key, None)
        return [placement for placement in found if placement.holder is not None]

    def _end_unknown_jobs(self, found: Sequence[Placement], polled: BackendState) -> None:
        """End the jobs that the backend had forgotten, and knows again after their placements were over.

        They run no more, or hold what others wait for: a server that lost state may take them for running for ever.
        """
        mono, grace = self._database.clock.monotonic(), self._section.grace
        unknown = self._link.unknown_jobs(found, polled)
        self._unknown_jobs = {one.name: self._unknown_jobs.get(one.name, mono) for one in unknown}
        late = [one for one in unknown if mono - self._unknown_jobs[one.name] >= grace]
        if late:
            log.info("executor %s ends %s that it should not have any more", self.name, counted(len(late), "job"))
            self._unknown_jobs |= dict.fromkeys((one.name for one in late), mono)
            self._link.attempt(lambda: self._link.executor.cancel([one.handle for one in late], grace))

    # Jobs that have not taken their claims over

    def _settle(self, worker: int, unattached: Sequence[Placement], polled: BackendState, now: int) -> list[Placement]:
        """Take back what was cancelled or replaced, and what no job will begin. Returns what stays."""
        stay: list[Placement] = []
        asked: list[Placement] = []
        lost: list[Placement] = []
        for placement in unattached:
            why = self._why_lost(placement, polled, now)
            if placement.cancel_requested is not None or placement.rerun == 1:
                asked.append(placement)
            elif why is not None:
                seen = polled.of(placement)
                counts = seen is None or seen.phase is not PlacementPhase.PREEMPTED
                self._claim_release.lost(worker, placement, why, self._link.tail(placement, polled), counts=counts)
                lost.append(placement)
            else:
                stay.append(placement)
        if asked:
            self._claim_release.asked_for(worker, asked)
        # After the fence: a job that starts late changes nothing.
        self._link.cancel([*asked, *lost], polled, self._section.grace)
        return stay

    # Jobs that have

    def _watch(self, attached: Sequence[Placement], polled: BackendState, now: int) -> None:
        """End jobs that should have ended, and take the backend's word that one has for a hint."""
        grace, ended, ignoring = round(self._section.grace * SECOND), [], []
        for placement in attached:
            seen = polled.of(placement)
            if seen is not None and seen.phase.over and seen.exit_code != NOT_MINE:
                if self._link.executor.capabilities.names_unique and placement.holder is not None:
                    ended.append(placement.holder)
                continue
            due = [] if placement.cancel_requested is None else [placement.cancel_requested]
            timeout = self._default_timeout if placement.timeout is None else placement.timeout
            if timeout and placement.executing is not None:
                due.append(placement.executing + timeout)
            asked = placement.cancelled_at
            # After the job itself, which ends without a handler that hears nothing.
            if due and now - min(due) > 2 * grace and (asked is None or now - asked > 2 * grace):
                ignoring.append(placement)
        if ended:
            self._database.change(lambda tx: placements.expire(tx, ended))
            self._ring()
        if ignoring:
            self._database.change(lambda tx: placements.cancelling(tx, [placement.key for placement in ignoring]))
            self._link.cancel(ignoring, polled, self._section.grace)

    # More

    def _place(self, worker: int, pending: int, running: int) -> None:
        section = self._section
        budget = (section.max_pending or max(LEAST_PENDING, 2 * running)) - pending
        if section.max_running:
            budget = min(budget, section.max_running - pending - running - len(self._leaving))
        reserved = self._reservations.make(worker, budget)
        if not reserved:
            return
        FAILPOINTS.hit("after reserve")
        keys = {(one.id, one.claim) for one in reserved}
        with self._database.read() as tx:
            placed = [one for one in placements.open_placements(tx, self.name) if one.key in keys]
        self._submissions.submit(worker, placed)
