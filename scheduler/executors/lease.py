"""Of the daemons that have an executor in their configuration, one has its jobs started: by a lease."""

from __future__ import annotations

import logging

from scheduler.config.executors import ExecutorSection
from scheduler.executors import ports
from scheduler.executors.backend_state import BackendLink, BackendState
from scheduler.executors.ports import NOT_MINE
from scheduler.model.capacity import Scale
from scheduler.model.placement import PlacementPhase
from scheduler.ports import SECOND
from scheduler.store import placements
from scheduler.store.db.database import Database
from scheduler.store.placements import RESERVED, ExecutorRecord, Placement

LEASE_S = 15.0  # seconds, or so many intervals
LEASE_INTERVALS = 10

log = logging.getLogger("scheduler.executors")


class ExecutorLease:
    """The lease of ``[executors.NAME]`` for the daemon ``holder``. ``record``: while it has it."""

    def __init__(
        self,
        name: str,
        section: ExecutorSection,
        link: BackendLink,
        database: Database,
        holder: str,
    ) -> None:
        self.holder = holder
        self.record: ExecutorRecord | None = None
        self._name = name
        self._queues = section.queues
        self._scale = None
        if section.place == "worker":
            self._scale = Scale(most=section.max_workers, older=section.scale_when_older)
        self._span = round(max(LEASE_S, LEASE_INTERVALS * section.interval) * SECOND)
        self._link = link
        self._database = database

    def keep(self) -> ExecutorRecord | None:
        """Take or renew the lease; None: another daemon has it. Raises StoreUnavailableError."""
        had = self.record
        if had is not None and had.until - self._database.now() > self._span * 2 // 3:
            return had
        if had is None:
            with self._database.read() as tx:
                seen = placements.executor(tx, self._name)
                if seen is not None and seen.until > tx.now and seen.holder != self.holder:
                    return None
        self.record = self._database.change(
            lambda tx: placements.take_lease(tx, self._name, self.holder, self._span, self._queues, self._scale)
        )
        if self.record is not None and had is None:
            self._link.trouble = self.record.trouble
            what = "places tasks" if self._scale is None else "starts workers"
            log.info("this daemon %s for executor %s", what, self._name)
        elif self.record is None and had is not None:
            log.warning("another daemon has executor %s now", self._name)
        return self.record

    def give_up(self) -> None:
        """Leave the lease to another daemon. Raises StoreUnavailableError."""
        if self.record is not None:
            self.record = None
            self._database.change(lambda tx: placements.give_up_lease(tx, self._name, self.holder))


class LeasedExecutor:
    """``[executors.NAME]`` for the daemon ``holder``: its backend, and its lease. For one thread."""

    def __init__(
        self, name: str, section: ExecutorSection, executor: ports.Executor, database: Database, holder: str
    ) -> None:
        self.name = name
        self._section = section
        self._database = database
        self._link = BackendLink(name, executor, database)
        self._lease = ExecutorLease(name, section, self._link, database, holder)

    @property
    def leads(self) -> bool:
        """Whether this daemon has jobs started."""
        return self._lease.record is not None

    def give_up(self) -> None:
        """Leave the lease to another daemon; jobs go on. Raises StoreUnavailableError."""
        self._lease.give_up()

    def close(self) -> None:
        self._link.executor.close()

    def _why_lost(self, placement: Placement, polled: BackendState, now: int) -> str | None:
        """Why this job will not begin; None if it may."""
        if polled.jobs is None:
            return None
        seen = polled.of(placement)
        if seen is None or seen.phase is PlacementPhase.GONE:
            submitted = placement.submitted_at or placement.reserved_at
            late = now - submitted > round(self._section.submit_grace * SECOND)
            return "the backend does not know the job" if late and placement.state != RESERVED else None
        if not seen.phase.over:
            return None
        what = "the task is not its own" if placement.kind is not None else "it is not wanted"
        if seen.exit_code == NOT_MINE:
            return f"the job found that {what}: does it use the same store?"
        begins = "took the task up" if placement.kind is not None else "began"
        return f"the job ended before it {begins}: {seen.reason or seen.phase}"
