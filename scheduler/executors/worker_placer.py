"""WorkerPlacer: has a backend run workers for an executor's queues, as many as the age of the backlog asks for.

One daemon of the fleet decides, by the executor's lease. A job's row is stored before the job is submitted, and counts
until the backend says that the job is over, so that neither a lost answer nor another daemon starts too many. Workers
end by themselves: see ``BoundedRun``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from scheduler.backoff import Backoff
from scheduler.config.executors import ExecutorSection, resources_of_worker
from scheduler.engine.dead_letter_hook import DeadLetterHook
from scheduler.executors import ports
from scheduler.executors.backend_state import BackendState
from scheduler.executors.backlog import BacklogView, PoolBacklog, ScaleRules, Workforce, more_workers, superfluous
from scheduler.executors.claim_release import ClaimRelease
from scheduler.executors.lease import LeasedExecutor
from scheduler.executors.ports import Job
from scheduler.executors.submissions import START_ALLOWANCE_S, Submissions
from scheduler.model.capacity import Scale
from scheduler.model.pauses import Pauses
from scheduler.model.placement import PlacementPhase, name_prefix, worker_job_key
from scheduler.model.registry import Registry
from scheduler.model.texts import counted
from scheduler.ports import FAILPOINTS, SECOND
from scheduler.store import placements, worker_jobs
from scheduler.store.db.database import Database
from scheduler.store.placements import ATTACHED, Placement

LOST_PAUSES_S = (5.0, 300.0)  # until another worker is started after one that did not begin: first, longest
LAST_LINE = 300  # characters of what it wrote last

log = logging.getLogger("scheduler.executors")


class WorkerCommands(Protocol):
    """How a worker is started."""

    def worker_argv(self, executor: str, job: str, *, stays: bool) -> Sequence[str]:
        """The command of a worker, without secrets. ``stays``: it does not end when it is idle."""
        ...

    def env(self) -> Mapping[str, str]:
        """What is set beside what the job inherits."""
        ...


class WorkerPlacer(LeasedExecutor):
    """Starts workers for ``[executors.NAME]`` while it holds the executor's lease. For one thread."""

    def __init__(
        self,
        name: str,
        section: ExecutorSection,
        executor: ports.Executor,
        database: Database,
        registry: Registry,
        holder: str,
        commands: WorkerCommands,
        *,
        ring: Callable[[], object],
    ) -> None:
        super().__init__(name, section, executor, database, holder)
        self._commands = commands
        self._ring = ring
        self._resources = resources_of_worker(section)
        self._rules = ScaleRules(section.min_workers, section.max_workers, section.scale_when_older, section.cooldown)
        self._backlog = BacklogView(name, section.queues, registry)
        self._submissions = Submissions(name, self._link, database, self._job, self._refused, section.submit_grace)
        self._claim_release = ClaimRelease(name, section.interval, database, ring, DeadLetterHook(None, None))
        self._ranks: dict[str, int] = {}  # how many jobs are older, by the name
        self._leaving: dict[str, float] = {}  # jobs that no worker is any more and that still run, and since when
        self._changed_at: float | None = None  # when a worker was last started, or began (monotonic)
        self._due_at = database.clock.monotonic()  # when something was last due
        self._begun: set[str] = set()
        self._lost = Backoff(*LOST_PAUSES_S)
        self._start_after = 0.0  # after workers that did not begin (monotonic)
        self._trouble: str | None = None  # why the last one did not begin
        self._published: Scale | None = None

    def step(self) -> float:
        """Ask the backend once, put right what is amiss, and start what is needed. Returns seconds to wait.

        Raises StoreUnavailableError.
        """
        lease = self._lease.keep()
        if lease is None:
            self._published = None
            return self._section.interval
        polled = self._link.poll()
        with self._database.read() as tx:
            found, live, now = worker_jobs.open_workers(tx, self.name), worker_jobs.live(tx), tx.now
            wanted, of_tasks = placements.commands(tx, lease.worker), placements.open_placements(tx, self.name)
            backlog = self._backlog.look(tx, Pauses.of(wanted.pauses), self._rules.most)
        self._give_back_tasks(lease.worker, of_tasks)
        if polled.jobs is None:
            return self._section.interval
        self._link.note(found, polled)
        self._link.forget_ended([*found, *of_tasks], polled)
        left = self._settle(lease.worker, found, polled, live, now)
        self._cancel_unknown_jobs(lease.worker, found, polled)
        self._ranks = {placement.name: rank for rank, placement in enumerate(left)}
        waiting = [placement for placement in left if placement.state < ATTACHED]
        self._submissions.again(lease.worker, waiting, now)
        force = self._workforce(left, waiting)
        if backlog.age is not None:
            self._due_at = self._database.clock.monotonic()
        self._cancel_superfluous(lease.worker, force, waiting, polled)
        more = 0 if wanted.drain or self._is_resting() else more_workers(self._rules, force, backlog)
        if more:
            more = self._start(lease.worker, more, backlog)
        self._publish(lease.worker, force.jobs + more)
        return self._section.interval

    # What there is

    def _settle(
        self, row: int, found: Sequence[Placement], polled: BackendState, live: Mapping[str, int], now: int
    ) -> list[Placement]:
        """Remove jobs that are over, or that will not begin. Returns the others, the oldest first."""
        left, over, lost, ended = [], [], [], []
        for placement in found:
            seen = polled.of(placement)
            away = seen is None or seen.phase.over or seen.phase is PlacementPhase.GONE
            if placement.state < ATTACHED:
                why = self._why_lost(placement, polled, now)
                if why is None:
                    left.append(placement)
                else:
                    self._note_lost(placement, why, polled)
                    lost.append(placement)
            elif placement.name in live:
                if seen is not None and seen.phase.over and self._link.executor.capabilities.names_unique:
                    ended.append(live[placement.name])
                left.append(placement)
            elif away:
                over.append(placement)
            else:
                self._end_lingering(placement, polled)
                left.append(placement)
        if over or lost:
            self._remove(row, over, attached=True)
            self._remove(row, lost, attached=False)
            self._link.cancel(lost, polled, self._section.grace)  # what begins late finds no row, and ends
        if ended:
            self._database.change(lambda tx: placements.expire(tx, ended))
            self._ring()
        self._note_begun({placement.name for placement in left if placement.state == ATTACHED})
        return sorted(left, key=lambda one: one.claim)

    def _note_lost(self, placement: Placement, why: str, polled: BackendState) -> None:
        seen = polled.of(placement)
        if seen is not None and seen.phase in (PlacementPhase.PREEMPTED, PlacementPhase.CANCELLED):
            return
        wrote = (self._link.tail(placement, polled) or "").strip()
        last = f"; it wrote: {wrote.splitlines()[-1][:LAST_LINE]}" if wrote else ""
        self._did_not_begin(f"worker {placement.name}: {why}{last}")

    def _did_not_begin(self, text: str) -> None:
        """Start no other for a while, which grows from one such start to the next."""
        self._trouble = text
        if not self._is_resting():
            pause = self._lost.next()
            self._start_after = self._database.clock.monotonic() + pause
            log.warning("executor %s, %s; no other is started for %g s", self.name, text, pause)

    def _note_begun(self, begun: set[str]) -> None:
        if begun - self._begun:
            self._trouble, self._start_after = None, 0.0
            self._lost.reset()
        self._begun = begun

    def _end_lingering(self, placement: Placement, polled: BackendState) -> None:
        """End a job whose worker has stopped or was found dead, if it does not end by itself."""
        mono = self._database.clock.monotonic()
        if mono - self._leaving.setdefault(placement.name, mono) >= self._section.grace:
            self._leaving[placement.name] = mono
            self._link.cancel([placement], polled, self._section.grace)

    def _cancel_unknown_jobs(self, row: int, found: Sequence[Placement], polled: BackendState) -> None:
        """End jobs of this executor that have no row: they were cancelled, or given up, while nothing was known."""
        identity = self._database.same.identity
        assert identity is not None, "an open store has one"
        ours, known = f"{name_prefix(identity.store)}w{row}-", {placement.name for placement in found}
        mono, handles = self._database.clock.monotonic(), []
        for name, seen in (polled.jobs or {}).items():
            if not name.startswith(ours) or name in known or seen.phase.over or seen.phase is PlacementPhase.GONE:
                continue
            if name not in self._leaving or mono - self._leaving[name] >= self._section.grace:
                self._leaving[name] = mono
                handles.append(seen.handle)
        if handles:
            self._link.attempt(lambda: self._link.executor.cancel(handles, self._section.grace))
        there = known | set(polled.jobs or {})
        self._leaving = {name: at for name, at in self._leaving.items() if name in there}

    def _give_back_tasks(self, row: int, found: Sequence[Placement]) -> None:
        """Give back what was claimed for jobs of tasks, before this executor started workers."""
        held = [placement for placement in found if placement.holder == row]
        if held:
            self._claim_release.asked_for(row, held)
        over = [placement.key for placement in found if placement.holder is None]
        if over:
            self._database.change(lambda tx: placements.end(tx, over))

    def _workforce(self, left: Sequence[Placement], waiting: Sequence[Placement]) -> Workforce:
        mono, now = self._database.clock.monotonic(), self._database.now()
        times = [max(one.reserved_at, one.attached_at or 0) for one in left]
        rests = [max(0, now - at) / SECOND for at in times]
        if self._changed_at is not None:
            rests.append(mono - self._changed_at)
        return Workforce(len(waiting), len(left) - len(waiting), min(rests, default=None))

    def _is_resting(self) -> bool:
        return self._database.clock.monotonic() < self._start_after

    # More, and fewer

    def _start(self, row: int, number: int, backlog: PoolBacklog) -> int:
        """Store that many jobs, and submit them. Returns how many there are."""
        identity = self._database.same.identity
        assert identity is not None, "an open store has one"
        made = self._database.change(
            lambda tx: worker_jobs.reserve(tx, self.name, self._lease.holder, number, self._rules.most, identity.store)
        )
        if not made:
            return 0
        FAILPOINTS.hit("after reserve")
        self._changed_at, self._trouble = self._database.clock.monotonic(), None
        age = "" if backlog.age is None else f", a task has been due for {backlog.age:.3g} s"
        log.info("executor %s starts %s%s", self.name, counted(made, "worker"), age)
        with self._database.read() as tx:
            found = sorted(worker_jobs.open_workers(tx, self.name), key=lambda one: one.claim)
        self._ranks = {placement.name: rank for rank, placement in enumerate(found)}
        self._submissions.submit(row, found[-made:])
        return made

    def _cancel_superfluous(
        self, row: int, force: Workforce, waiting: Sequence[Placement], polled: BackendState
    ) -> None:
        quiet = self._database.clock.monotonic() - self._due_at
        number = superfluous(self._rules, force, quiet, self._section.idle)
        if number:
            last = sorted(waiting, key=lambda one: one.claim)[-number:]
            log.info(
                "executor %s: nothing is due any more for %s that had not begun", self.name, counted(number, "job")
            )
            self._remove(row, last, attached=False)
            self._link.cancel(last, polled, self._section.grace)

    def _remove(self, row: int, gone: Sequence[Placement], *, attached: bool) -> None:
        numbers = [placement.claim for placement in gone]
        if numbers:
            self._database.change(lambda tx: worker_jobs.remove(tx, row, numbers, attached=attached))

    def _refused(self, row: int, placement: Placement, reason: str) -> None:
        self._did_not_begin(f"worker {placement.name}: the backend never takes it: {reason}")
        self._remove(row, [placement], attached=False)

    def _job(self, placement: Placement) -> Job:
        identity, section = self._database.same.identity, self._section
        limit = section.lifetime + START_ALLOWANCE_S + section.grace if section.lifetime else None
        _, number = worker_job_key(placement.name)
        return Job(
            name=placement.name,
            argv=self._commands.worker_argv(
                self.name, placement.name, stays=self._ranks.get(placement.name, 0) < self._rules.least
            ),
            env=self._commands.env(),
            resources=self._resources,
            limit=limit,
            options=section.worker_options,
            labels={
                "store": "" if identity is None else identity.store,
                "task": "0",
                "claim": str(number),
                "kind": "",
                "queue": "",
            },
        )

    def _publish(self, row: int, wanted: int) -> None:
        scale = Scale(wanted, self._rules.most, self._rules.older, self._trouble)
        if scale != self._published:
            self._database.change(lambda tx: worker_jobs.publish_scale(tx, row, scale))
            self._published = scale
