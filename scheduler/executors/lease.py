"""ExecutorLease: of the daemons that have an executor in their configuration, one starts its jobs."""

from __future__ import annotations

import logging

from scheduler.config.executors import Executor as Section
from scheduler.executors.link import EngineLink
from scheduler.model.capacity import Scale
from scheduler.ports import SECOND
from scheduler.store import placements
from scheduler.store.db.database import Database
from scheduler.store.placements import ExecutorRecord

LEASE_S = 15.0  # seconds, or so many intervals
LEASE_INTERVALS = 10

log = logging.getLogger("scheduler.executors")


class ExecutorLease:
    """The lease of ``[executors.NAME]`` for the daemon ``holder``. ``record``: while it has it."""

    def __init__(
        self,
        name: str,
        section: Section,
        link: EngineLink,
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
