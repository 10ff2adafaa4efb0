"""This engine as one of the fleet's workers: its row and its lease, its doorbell, and what operators ask of it."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from scheduler.engine.capacity import capacity_of
from scheduler.engine.desk import Desk
from scheduler.engine.duties import REAP_EVERY, SWEEP_EVERY, Duties
from scheduler.engine.guard import Guard
from scheduler.engine.pools import all_waiting
from scheduler.engine.turn import Turner
from scheduler.engine.upkeep import Lease
from scheduler.engine.verdict import hand_back
from scheduler.model.outcome import Ends
from scheduler.ports import SECOND, Spawner
from scheduler.store import workers
from scheduler.store.doorbell import Bell, SilentBell, make_bell
from scheduler.store.workers import WorkerInfo

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

TOLD_EVERY = 0.25  # seconds between looks at what is asked of this worker


class Membership:
    """See the module. ``spawn`` None: there is no doorbell, the engine is stepped by hand (tests)."""

    def __init__(
        self,
        desk: Desk,
        turner: Turner,
        duties: Duties,
        guard: Guard,
        *,
        spawn: Spawner | None,
        new_incarnation: Callable[[], str],
        version: str,
    ) -> None:
        self.desk = desk
        self.turner = turner
        self.duties = duties
        self.guard = guard
        self.lease: Lease = duties.lease
        self.bell: Bell = SilentBell()
        self.incarnation = ""
        self.told_to_drain = False  # by an operator
        self.may_be_asked = False  # somebody may have asked something of this worker
        self._lost = 0  # the id of the row that was reclaimed
        self._spawn = spawn
        self._new_incarnation = new_incarnation
        self._version = version

    @property
    def worker(self) -> int:
        """The id of this engine's row in the workers table; 0 before it has one."""
        return self.turner.worker

    def join(self, connection: sa.Connection) -> None:
        """Become a worker: a new incarnation with a lease, and take back at once what the dead left behind."""
        desk, database, lease = self.desk, self.desk.database, self.desk.options.lease
        self.incarnation = self._new_incarnation()
        if self._spawn is not None:
            self._hang_bell(self._spawn)
        info = WorkerInfo(
            self.incarnation,
            socket.gethostname(),
            os.getpid(),
            self._version,
            desk.options.queues,
            capacity_of(desk),
        )
        kinds, begun = list(desk.registry), desk.monotonic()
        with database.write(connection) as c:
            worker = workers.register(c, info, kinds, desk.now(), round(lease * SECOND), database.offset)
            if self._lost:
                self.told_to_drain = workers.told(c, self._lost).drain  # which it may not have heard of
            if self.told_to_drain:  # by an operator, who did not mean this incarnation only
                workers.ask_to_drain(c, worker, desk.now(), drain=True)
            self.turner.limits.learn(c)
        # Not before the commit: what was rolled back may be another worker's id next.
        self.turner.worker = desk.worker = worker
        self.duties.known_kinds, self.duties.known_capacity = len(kinds), info.capacity
        self.lease.joined(begun)
        self.bell.ring()  # who takes itself for alone rings for nobody
        self.lease.reap(connection, worker, self.bell.known_dead)
        self.duties.timers.restart(renew=lease / 3, reap=REAP_EVERY, sweep=SWEEP_EVERY)

    def _hang_bell(self, spawn: Spawner) -> None:
        self.bell.close()
        self.bell = make_bell(self.desk.database, spawn)
        try:
            self.bell.listen(self.incarnation, self.desk.ring)
        except OSError as error:
            log.warning("no doorbell (%s): this engine polls instead", error)
            self.bell.close()
            self.bell = SilentBell()

    def renew(self, connection: sa.Connection, *, claims: bool) -> None:
        """Extend the lease; a new worker, if it was reclaimed. ``claims``: this one takes new work."""
        if self.lease.renew(connection, self.worker, not claims):
            self.guard.renewed()
            self.turner.doubts.look_back()
        else:
            self._start_over(connection)

    def obey_if_asked(self, connection: sa.Connection) -> bool:
        """Do what the worker's own row says, if it may say something new. True: it did."""
        timers = self.duties.timers
        if not (self.may_be_asked and timers.at("told", TOLD_EVERY)):
            return False
        self.may_be_asked = False
        if self.bell.dear and self.lease.alone():
            timers.bring_forward("reap")  # who rang may have just come
        return bool(self.duties.attempt("reading what is asked of this worker", lambda: self._obey(connection)))

    def _obey(self, connection: sa.Connection) -> bool:
        with self.desk.database.glance(connection) as c:
            told = workers.told(c, self.worker)
        if told.dead:
            self._start_over(connection)
            return True
        if told.drain == self.told_to_drain:
            return False
        self.told_to_drain = told.drain
        log.info("told to drain: no new tasks" if told.drain else "told to claim tasks again")
        self.duties.timers.bring_forward("renew")  # which writes the new state
        if told.drain:
            self.turner.return_waiting()
        return True

    def _start_over(self, connection: sa.Connection) -> None:
        """The lease was reclaimed, and everything held belongs to others now: join as a new worker."""
        desk, turner = self.desk, self.turner
        log.error("this worker's lease was lost; its %d tasks were reclaimed", len(desk.held))
        now = desk.now()
        waiting = all_waiting(turner.slots.values())
        desk.put_down(waiting, Ends.of([hand_back(attempt, now) for attempt in waiting]))
        for attempt in list(desk.held.values()):
            desk.lose(attempt)
        self.guard.reclaimed()
        turner.planner.alone = None
        self._lost, turner.worker = turner.worker, 0  # should joining fail: no turn may claim for a worker that is dead
        self.join(connection)
