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
from scheduler.executors.link import Answers, EngineLink
from scheduler.executors.ports import NOT_MINE
from scheduler.executors.reservations import Reservations
from scheduler.executors.submissions import Commands, Submissions
from scheduler.executors.take_back import TakeBack
from scheduler.model.placement import Phase, name_prefix
from scheduler.model.registry import Registry
from scheduler.ports import FAILPOINTS, SECOND
from scheduler.store import placements
from scheduler.store.db.database import Database
from scheduler.store.placements import RESERVED, ExecutorRecord, Placement

LEASE_S = 15.0  # of the placer: seconds, or so many intervals
LEASE_INTERVALS = 10
LEAST_PENDING = 4  # jobs that have not begun, where nothing runs yet

log = logging.getLogger("scheduler.executors")


class Placer:
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
        self.name = name
        self._section = section
        self._database = database
        self._holder = holder
        self._ring = ring
        self._dead_letters = dead_letters if dead_letters is not None else DeadLetterHook(None, None)
        self._link = EngineLink(name, executor, database)
        self._reservations = Reservations(name, section.queues, database, registry)
        self._take_back = TakeBack(name, section.interval, database, ring, self._dead_letters)
        self._submissions = Submissions(name, section, self._link, database, commands, self._take_back, default_timeout)
        self._default_timeout = default_timeout
        self._lease: ExecutorRecord | None = None
        self._leaving: dict[tuple[int, int], float] = {}  # jobs whose claim is over and that still run, and since when

    @property
    def leads(self) -> bool:
        """Whether this one places."""
        return self._lease is not None

    def step(self) -> float:
        """Ask the engine once, put right what is amiss, and place what is due. Returns seconds to wait.

        Raises StoreUnavailableError.
        """
        if not self._keep_lease():
            return self._section.interval
        assert self._lease is not None
        worker, answers = self._lease.worker, self._link.ask()
        with self._database.read() as tx:
            found, now = placements.open_placements(tx, self.name), tx.now
        self._dead_letters.notify_pending(self._database)
        self._note(found, answers)
        self._forget_ended(found, answers)
        left = self._end_over(found, answers)
        unattached = [placement for placement in left if placement.holder == worker]
        attached = [placement for placement in left if placement.holder != worker]
        pending = self._settle(worker, unattached, answers, now)
        self._watch(attached, answers, now)
        if answers.jobs is not None:
            self._submissions.again(worker, pending, now)
            self._place(worker, len(pending), len(attached))
        return self._section.interval

    def give_up(self) -> None:
        """Leave the lease to another daemon; jobs go on. Raises StoreUnavailableError."""
        if self._lease is not None:
            self._lease = None
            self._database.change(lambda tx: placements.give_up_lease(tx, self.name, self._holder))

    def close(self) -> None:
        """Close the executor."""
        self._link.executor.close()
        self._dead_letters.close()

    def _keep_lease(self) -> bool:
        span = round(max(LEASE_S, LEASE_INTERVALS * self._section.interval) * SECOND)
        lease = self._lease
        if lease is not None and lease.until - self._database.now() > span * 2 // 3:
            return True
        if lease is None:
            with self._database.read() as tx:
                seen = placements.executor(tx, self.name)
                if seen is not None and seen.until > tx.now and seen.holder != self._holder:
                    return False
        queues = self._section.queues
        self._lease = self._database.change(lambda tx: placements.take_lease(tx, self.name, self._holder, span, queues))
        if self._lease is not None and lease is None:
            self._link.trouble = self._lease.trouble
            log.info("this daemon places tasks for executor %s", self.name)
        elif self._lease is None and lease is not None:
            log.warning("another daemon places tasks for executor %s now", self.name)
        return self._lease is not None

    def _note(self, found: Sequence[Placement], answers: Answers) -> None:
        """Store what the engine says that is new."""
        rows = []
        for placement in found:
            seen = answers.of(placement)
            if seen is None:
                continue
            state = (seen.handle, seen.phase.code, seen.reason)
            if state != (placement.handle, placement.phase, placement.reason) or placement.state == RESERVED:
                rows.append((*placement.key, *state, seen.node))
        if rows:
            self._database.change(lambda tx: placements.seen(tx, rows))

    def _forget_ended(self, found: Sequence[Placement], answers: Answers) -> None:
        """Have the engine forget jobs of this store that are over, and whose placements are."""
        identity = self._database.same.identity
        assert identity is not None, "an open store has one"
        ours, still = name_prefix(identity.store), {placement.name for placement in found}
        over = [
            seen.handle
            for seen in (answers.jobs or {}).values()
            if seen.phase.over and seen.name.startswith(ours) and seen.name not in still
        ]
        if over:
            self._link.attempt(lambda: self._link.executor.forget(over))

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
                self._cancel([placement], answers)
        if done:
            self._database.change(lambda tx: placements.end(tx, done))
            for key in done:
                self._leaving.pop(key, None)
        return [placement for placement in found if placement.holder is not None]

    def _cancel(self, found: Sequence[Placement], answers: Answers) -> None:
        handles = answers.handles(found)
        if handles:
            self._link.attempt(lambda: self._link.executor.cancel(handles, self._section.grace))

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
        self._cancel([*asked, *lost], answers)  # after the fence: a job that starts late changes nothing
        return stay

    def _why_lost(self, placement: Placement, answers: Answers, now: int) -> str | None:
        """Why this job will not begin; None if it may."""
        if answers.jobs is None:
            return None
        seen = answers.of(placement)
        if seen is None or seen.phase is Phase.GONE:
            submitted = placement.submitted_at or placement.reserved_at
            late = now - submitted > round(self._section.submit_grace * SECOND)
            return "the engine does not know the job" if late and placement.state != RESERVED else None
        if not seen.phase.over:
            return None
        if seen.exit_code == NOT_MINE:
            return "the job found that the task is not its own: does it use the same store?"
        return f"the job ended before it took the task up: {seen.reason or seen.phase}"

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
            self._cancel(deaf, answers)

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
