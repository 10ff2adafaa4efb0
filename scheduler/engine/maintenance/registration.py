"""This engine as a worker: its row and lease, its notifier, and the commands of operators."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from scheduler.engine.attempt.outcomes import released
from scheduler.engine.dispatch.cycle import DispatchCycle
from scheduler.engine.maintenance.lease import LeaseWatchdog, WorkerLease
from scheduler.engine.maintenance.periodic import REAP_EVERY, SWEEP_EVERY, PeriodicWork
from scheduler.engine.slots import all_waiting
from scheduler.engine.state import EngineState
from scheduler.model.outcome import OutcomeColumns
from scheduler.ports import SECOND, Spawner
from scheduler.store import fleet_starts, workers
from scheduler.store.db.begun import Begun, begun, directories, is_gone
from scheduler.store.db.notifier import Notifier, NullNotifier, make_notifier
from scheduler.store.db.schema_version import knows
from scheduler.store.db.tx import Tx
from scheduler.store.tasks import claim
from scheduler.store.workers import WorkerInfo

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

COMMANDS_EVERY_S = 0.25  # between reads of this worker's commands


class WorkerRegistration:
    """See the module. ``spawn`` None: no notifier, the engine is stepped by hand (tests)."""

    def __init__(
        self,
        engine_state: EngineState,
        dispatch: DispatchCycle,
        periodic: PeriodicWork,
        guard: LeaseWatchdog,
        *,
        spawn: Spawner | None,
        new_incarnation: Callable[[], str],
        version: str,
    ) -> None:
        self.engine_state = engine_state
        self.dispatch = dispatch
        self.periodic = periodic
        self.guard = guard
        self.lease: WorkerLease = periodic.lease
        self.notifier: Notifier = NullNotifier()
        self.incarnation = ""
        self.drain_requested = False  # by an operator
        self.on_restart: Callable[[], None] | None = None  # an operator asks for it; None: this program cannot
        self._restart_requested = False
        self.on_join: Callable[[Tx, int, str], None] | None = None  # in the transaction
        self.publishes_kinds = True
        self.commands_may_wait = False  # a command for this worker may have been written
        self._reclaimed_worker = 0  # the id of the row that was reclaimed
        self._spawn = spawn
        self._new_incarnation = new_incarnation
        self.version = version

    @property
    def worker(self) -> int:
        """The id of this engine's row in the workers table; 0 before it has one."""
        return self.dispatch.worker

    def join(self, connection: sa.Connection) -> None:
        """Become a worker: a new incarnation with a lease. Reclaims at once what dead workers held."""
        engine_state, database, lease = self.engine_state, self.engine_state.database, self.engine_state.options.lease
        before, self.incarnation = self.incarnation, self._new_incarnation()
        engine_state.identity = database.same.identity
        engine_state.claims_above = 0 if engine_state.identity is None else engine_state.identity.claims_above
        if self._spawn is not None:
            self._open_notifier(self._spawn)
            self._note_begins()
        info = WorkerInfo(
            self.incarnation,
            socket.gethostname(),
            os.getpid(),
            self.version,
            engine_state.options.queues,
            engine_state.capacity(),
        )
        gone = self._gone(connection)
        kinds, begun = list(engine_state.registry) if self.publishes_kinds else [], engine_state.monotonic()
        with database.write(connection) as tx:
            if self._reclaimed_worker:
                workers.bury(tx, before)
            self.lease.measure(tx.connection)
            self.lease.heed_others(tx, 0)
            tx = tx.at(engine_state.now())  # the clock may have been measured anew
            worker = workers.register(tx, info, kinds, round(lease * SECOND), database.offset)
            if self._reclaimed_worker:
                self.drain_requested = workers.commands(tx, self._reclaimed_worker).drain  # it may not have read it
            if self.drain_requested:  # the operator meant more than one incarnation
                workers.set_drain(tx, worker, drain=True)
            self.dispatch.limits.learn(tx)
            if self.on_join is not None:
                self.on_join(tx, worker, self.incarnation)
            if not self.lease.anew:
                fleet_starts.note(tx, tx.now - 1, list(gone))
        # Not before the commit: after a rollback another worker may get this id.
        self.dispatch.worker = engine_state.worker = worker
        self.periodic.known_kinds, self.periodic.known_capacity = (
            len(kinds),
            info.capacity,
        )  # published again if it differs
        self.lease.acquired(begun)
        self.notifier.notify()  # a worker that believes it is the only one notifies no other
        if database.path is None:  # on SQLite they are reclaimed right below
            self._mark_for_the_dead(connection, gone)
        self.lease.reap(connection, worker, self.notifier.dead_peers)
        self.periodic.timers.restart(renew=self.engine_state.options.renew_every, reap=REAP_EVERY, sweep=SWEEP_EVERY)

    def _note_begins(self) -> None:
        try:
            noted = Begun(directories(self.engine_state.database.socket_directory), self.incarnation)
        except OSError as error:
            log.warning(
                "which handlers have begun cannot be noted (%s): should this process be killed, an attempt of "
                "less than some milliseconds does not count",
                error,
            )
            noted = None
        self.engine_state.note_begins(noted)

    def _mark_for_the_dead(self, connection: sa.Connection, gone: Mapping[int, str]) -> None:
        """Mark as running what had begun in dead workers of this host.

        The worker that reclaims it may be on another host, and cannot read their notes.
        """
        database = self.engine_state.database
        for worker, path in gone.items():
            if noted := begun(path):
                with database.write(connection) as tx:
                    held = claim.held_by(tx, worker)
                    started = [(r.id, r.claim, r.claimed_at) for r in held if (r.id, r.claim) in noted]
                    claim.mark_running(tx, worker, started)

    def _gone(self, connection: sa.Connection) -> dict[int, str]:
        """The workers of this host whose processes have ended, with the notes of each."""
        with self.engine_state.database.glance(connection) as tx:
            beside = workers.beside(tx, self.worker, socket.gethostname())
        return {worker: path for worker, path in beside if is_gone(path)}

    def _open_notifier(self, spawn: Spawner, *, again: bool = False) -> None:
        """``again``: the last try failed, for instance on a full disk, and that was logged."""
        self.notifier.close()
        self.notifier = make_notifier(self.engine_state.database, spawn, quiet=again)
        try:
            self.notifier.listen(self.incarnation, self.engine_state.wake)
        except (OSError, RuntimeError) as error:  # no room on the disk, or for a thread
            log.log(logging.DEBUG if again else logging.WARNING, "no notifier (%s): this engine polls instead", error)
            self.notifier.close()
            self.notifier = NullNotifier()
        self.engine_state.on_ends = None if isinstance(self.notifier, NullNotifier) else self.notifier.notify_ends
        if again and not isinstance(self.notifier, NullNotifier):
            log.info("the notifier works now")
            self.engine_state.wake()  # notifications may have been missed meanwhile

    def renew(self, connection: sa.Connection, *, claims: bool) -> None:
        """Extend the lease; if it was reclaimed, join as a new worker. ``claims``: this one takes new work.

        Raises StoreReplacedError.
        """
        self.engine_state.database.look_again(connection)
        if self.begin_anew_if_changed(connection):
            return
        if self.lease.renew(connection, self.worker, not claims, self.incarnation):
            self.guard.renewed()
            self.dispatch.lost_commits.recheck()
            if isinstance(self.notifier, NullNotifier) and self._spawn is not None:
                self._open_notifier(self._spawn, again=True)
        else:
            self._start_over(connection)

    def apply_commands(self, connection: sa.Connection) -> bool:
        """Read and apply the commands in this worker's row, if there may be new ones. True: there was one."""
        timers = self.periodic.timers
        if not (self.commands_may_wait and timers.due("commands", COMMANDS_EVERY_S)):
            return False
        self.commands_may_wait = False
        if self.notifier.expensive and self.lease.is_only_worker():
            timers.bring_forward("reap")  # the notification may come from a new worker
        return bool(
            self.periodic.attempt("reading what is asked of this worker", lambda: self._read_commands(connection))
        )

    def _read_commands(self, connection: sa.Connection) -> bool:
        with self.engine_state.database.glance(connection) as tx:
            commands = workers.commands(tx, self.worker)
        if commands.dead:
            self._start_over(connection)
            return True
        self.heed_schema(commands.schema)
        if commands.restart and not self._restart_requested:
            self._restart_requested = True
            self._restart()
        paused = self.dispatch.apply_pauses(commands.pauses)
        if commands.drain == self.drain_requested:
            return paused
        self.drain_requested = commands.drain
        log.info("draining: claiming no new tasks" if commands.drain else "claiming tasks again")
        self.periodic.timers.bring_forward("renew")  # which writes the new state
        if commands.drain:
            self.dispatch.return_waiting()
        return True

    def heed_schema(self, schema: str | None) -> bool:
        """Claim nothing while the database has a schema that this program does not know. Returns whether it has."""
        state = self.engine_state
        unknown = None if knows(state.made_for, schema) else schema or "none"
        if unknown == state.unknown_schema:
            return unknown is not None
        state.unknown_schema = unknown
        if unknown is None:
            log.info("the database has schema %s again: this worker claims again", schema)
            self.periodic.timers.bring_forward("renew")
            return False
        log.error(
            "the database has schema %s, and this worker knows %s: it claims nothing, what it runs goes on; stop it, "
            "and start a schedd that knows the schema",
            *(unknown, state.made_for),
        )
        self.dispatch.return_waiting()
        return True

    def _restart(self) -> None:
        if self.on_restart is None:
            log.warning(
                "a restart was requested, which only the daemon schedd can do: end this program, and start it again"
            )
            return
        log.info("restarting, as requested")
        self.on_restart()

    def begin_anew_if_changed(self, connection: sa.Connection) -> bool:
        """Join as a new worker if the store is in another epoch, or is another one. True: it was."""
        found = self.engine_state.database.same.identity
        if found is self.engine_state.identity or found == self.engine_state.identity or not self.worker:
            return False
        if (
            self.engine_state.identity is not None
            and found is not None
            and found.since == self.engine_state.identity.since
        ):
            self.engine_state.identity = found  # only its server was not known before
            return False
        log.error(
            "the store is in epoch %s now: a failover or a restore may have lost commits; this daemon begins anew as "
            "another worker, and the %d tasks that it held are lost to it",
            *(None if found is None else found.epoch, len(self.engine_state.held)),
        )
        self.dispatch.lanes.offsets.reset()  # the restored store may have ready tasks below them
        self.dispatch.lanes.reset()
        self.periodic.schedules.check_again()
        self._start_over(connection)
        return True

    def _start_over(self, connection: sa.Connection) -> None:
        """Join as a new worker: the lease was reclaimed, and the held tasks belong to other workers now."""
        engine_state, dispatch = self.engine_state, self.dispatch
        if engine_state.identity is engine_state.database.same.identity:
            log.error("this worker's lease was lost; its %d tasks were reclaimed", len(engine_state.held))
        if engine_state.metrics is not None:
            engine_state.metrics.leases_lost += 1
        # First, so that no caller's task begins in its name; and if joining fails, no cycle claims in it.
        self._reclaimed_worker, dispatch.worker = dispatch.worker, 0
        now = engine_state.now()
        waiting = all_waiting(dispatch.slots.values())
        engine_state.remove_held(waiting, OutcomeColumns.of([released(attempt, now) for attempt in waiting]))
        for attempt in list(engine_state.held.values()):
            engine_state.mark_lost(attempt)
        self.guard.reclaimed()
        self.lease.anew = True
        dispatch.planner.alone = None
        self.join(connection)
