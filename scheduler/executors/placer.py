"""Placer: has jobs started for an executor's tasks, and puts right what engines lose; one daemon does, by a lease.

What an engine says is a hint. A task whose job has not taken its claim over is taken back by the fence, and a job that
starts late then changes nothing. Once the job holds the claim, its own lease decides.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from scheduler.config.executors import Executor as Section
from scheduler.engine.dead_letter_hook import DeadLetterHook
from scheduler.executors import ports
from scheduler.executors.lease import LeasedExecutor
from scheduler.executors.link import Answers
from scheduler.executors.ports import NOT_MINE
from scheduler.executors.reservations import Reservations
from scheduler.executors.submissions import Commands, Submissions, TaskJobs
from scheduler.executors.take_back import TakeBack
from scheduler.model.placement import Phase
from scheduler.model.registry import Registry
from scheduler.model.texts import counted
from scheduler.ports import FAILPOINTS, SECOND
from scheduler.store import placements
from scheduler.store.db.database import Database
from scheduler.store.placements import Placement

LEAST_PENDING = 4  # jobs that have not begun, where nothing runs yet

log = logging.getLogger("scheduler.executors")


class Placer(LeasedExecutor):
    """Places tasks for ``[executors.NAME]`` while it holds the executor's lease. For one thread.

    ``default_timeout``: microseconds, of tasks that have none; 0: none either.
    """

    def __init__(
        self,
        name: str,
        section: Section,
        executor: ports.Executor,
        database: Database,
        registry: Registry,
        holder: str,
        commands: Commands,
        *,
        ring: Callable[[], object],
        dead_letters: DeadLetterHook | None = None,
        default_timeout: int = 0,
    ) -> None:
        super().__init__(name, section, executor, database, holder)
        self._ring = ring
        self._dead_letters = dead_letters if dead_letters is not None else DeadLetterHook(None, None)
        self._reservations = Reservations(name, section.queues, database, registry)
        self._take_back = TakeBack(name, section.interval, database, ring, self._dead_letters)
        jobs = TaskJobs(name, database, commands, section.grace, default_timeout)
        refused = self._take_back.refused
        self._submissions = Submissions(name, self._link, database, jobs.make, refused, section.submit_grace)
        self._default_timeout = default_timeout
        self._leaving: dict[tuple[int, int], float] = {}  # jobs whose claim is over and that still run, and since when
        self._strangers: dict[str, float] = {}  # jobs whose placement is over and that still run, and since when

    def step(self) -> float:
        """Ask the engine once, put right what is amiss, and place what is due. Returns seconds to wait.

        Raises StoreUnavailableError.
        """
        lease = self._lease.keep()
        if lease is None:
            return self._section.interval
        worker, answers = lease.worker, self._link.ask()
        with self._database.read() as tx:
            found, now = placements.open_placements(tx, self.name), tx.now
        self._dead_letters.notify_pending(self._database)
        self._link.note(found, answers)
        self._link.forget_ended(found, answers)
        self._end_strangers(found, answers)
        left = self._end_over(found, answers)
        unattached = [placement for placement in left if placement.holder == worker]
        attached = [placement for placement in left if placement.holder != worker]
        pending = self._settle(worker, unattached, answers, now)
        self._watch(attached, answers, now)
        if answers.jobs is not None:
            self._submissions.again(worker, pending, now)
            self._place(worker, len(pending), len(attached))
        return self._section.interval

    def close(self) -> None:
        """Close the executor, and the hook of dead letters."""
        super().close()
        self._dead_letters.close()

    def _end_over(self, found: Sequence[Placement], answers: Answers) -> list[Placement]:
        """End the placements whose claims are over, once their jobs are. Returns the others."""
        mono, done = self._database.clock.monotonic(), []
        for placement in found:
            if placement.holder is not None or answers.jobs is None:
                continue
            seen = answers.of(placement)
            if seen is None or seen.phase.over or seen.phase is Phase.GONE:
                done.append(placement.key)
            elif mono - self._leaving.setdefault(placement.key, mono) >= self._section.grace:
                self._leaving[placement.key] = mono
                self._link.cancel([placement], answers, self._section.grace)
        if done:
            self._database.change(lambda tx: placements.end(tx, done))
            for key in done:
                self._leaving.pop(key, None)
        return [placement for placement in found if placement.holder is not None]

    def _end_strangers(self, found: Sequence[Placement], answers: Answers) -> None:
        """End the jobs that the engine had forgotten, and knows again after their placements were over.

        They run no more, or hold what others wait for: a server that lost state may take them for running for ever.
        """
        mono, grace = self._database.clock.monotonic(), self._section.grace
        strangers = self._link.strangers(found, answers)
        self._strangers = {one.name: self._strangers.get(one.name, mono) for one in strangers}
        late = [one for one in strangers if mono - self._strangers[one.name] >= grace]
        if late:
            log.info("executor %s ends %s that it should not have any more", self.name, counted(len(late), "job"))
            self._strangers |= dict.fromkeys((one.name for one in late), mono)
            self._link.attempt(lambda: self._link.executor.cancel([one.handle for one in late], grace))

    # Jobs that have not taken their claims over

    def _settle(self, worker: int, unattached: Sequence[Placement], answers: Answers, now: int) -> list[Placement]:
        """Take back what was cancelled or replaced, and what no job will begin. Returns what stays."""
        stay: list[Placement] = []
        asked: list[Placement] = []
        lost: list[Placement] = []
        for placement in unattached:
            why = self._why_lost(placement, answers, now)
            if placement.cancel_requested is not None or placement.rerun == 1:
                asked.append(placement)
            elif why is not None:
                seen = answers.of(placement)
                counts = seen is None or seen.phase is not Phase.PREEMPTED
                self._take_back.lost(worker, placement, why, self._link.tail(placement, answers), counts=counts)
                lost.append(placement)
            else:
                stay.append(placement)
        if asked:
            self._take_back.asked_for(worker, asked)
        # After the fence: a job that starts late changes nothing.
        self._link.cancel([*asked, *lost], answers, self._section.grace)
        return stay

    # Jobs that have

    def _watch(self, attached: Sequence[Placement], answers: Answers, now: int) -> None:
        """End jobs that should have ended, and take the engine's word that one has for a hint."""
        grace, ended, deaf = round(self._section.grace * SECOND), [], []
        for placement in attached:
            seen = answers.of(placement)
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
                deaf.append(placement)
        if ended:
            self._database.change(lambda tx: placements.expire(tx, ended))
            self._ring()
        if deaf:
            self._database.change(lambda tx: placements.cancelling(tx, [placement.key for placement in deaf]))
            self._link.cancel(deaf, answers, self._section.grace)

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
