"""BackendLink: asks a backend, such as Slurm or Ray, for its jobs, and bears with it while it is away."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from scheduler.backoff import Backoff, LogOnce
from scheduler.executors import ports
from scheduler.executors.ports import ExecutorError, Seen
from scheduler.model.placement import PlacementPhase, job_key, name_prefix
from scheduler.model.texts import storable
from scheduler.store import placements
from scheduler.store.db.database import Database
from scheduler.store.placements import RESERVED, Placement

BACKOFF_S = (1.0, 60.0)  # between questions to a backend that is away
LOG_TAIL = 4000  # characters of what a job wrote that died before it could say anything itself

log = logging.getLogger("scheduler.executors")


class BackendState(NamedTuple):
    """An answer of a backend: jobs by their names; None: it could not be asked."""

    jobs: Mapping[str, Seen] | None

    def of(self, placement: Placement) -> Seen | None:
        """Its answer about the job of this placement."""
        return None if self.jobs is None else self.jobs.get(placement.name)

    def handles(self, found: Iterable[Placement]) -> list[str]:
        """The backend's own ids of these jobs, as far as they are known."""
        handles = []
        for placement in found:
            seen = self.of(placement)
            handle = placement.handle if seen is None else seen.handle
            if handle is not None:
                handles.append(handle)
        return handles


class BackendLink:
    """One executor's engine. For one thread. ``trouble``: why it could not be asked, as it is stored for people."""

    def __init__(self, name: str, executor: ports.Executor, database: Database) -> None:
        self.executor = executor
        self.trouble: str | None = None
        self._name = name
        self._database = database
        self._backoff = Backoff(*BACKOFF_S)
        self._ask_again = 0.0  # when a backend that was away is asked again (monotonic)
        self._logged = LogOnce()

    def poll(self) -> BackendState:
        """What the backend says of all jobs, in one question. Raises StoreUnavailableError."""
        if self._database.clock.monotonic() < self._ask_again:
            return BackendState(None)
        try:
            found = {seen.name: seen for seen in self.executor.observe()}
        except ExecutorError as error:
            self.was_away(error)
            return BackendState(None)
        self._backoff.reset()
        if self.trouble is not None:
            log.info("executor %s can be asked again", self._name)
            self._logged.clear()
            self._set_trouble(None)
        return BackendState(found)

    def attempt(self, work: Callable[[], object]) -> bool:
        """Ask something of the engine. False: it is away, and is asked again later."""
        try:
            work()
        except ExecutorError as error:
            self.was_away(error)
            return False
        return True

    def note(self, found: Sequence[Placement], polled: BackendState) -> None:
        """Store what the backend says that is new. Raises StoreUnavailableError."""
        rows = []
        for placement in found:
            seen = polled.of(placement)
            if seen is None:
                continue
            state = (seen.handle, seen.phase.code, seen.reason)
            if state != (placement.handle, placement.phase, placement.reason) or placement.state == RESERVED:
                rows.append((*placement.key, *state, seen.node))
        if rows:
            self._database.change(lambda tx: placements.seen(tx, rows))

    def forget_ended(self, found: Sequence[Placement], polled: BackendState) -> None:
        """Have the backend forget jobs of this store that are over, and whose placements are."""
        over = [seen.handle for seen in self._unplaced(found, polled) if seen.phase.over]
        if over:
            self.attempt(lambda: self.executor.forget(over))

    def unknown_jobs(self, found: Sequence[Placement], polled: BackendState) -> list[Seen]:
        """The jobs of tasks of this store that are not over, though their placements are. Raises StoreUnavailableError.

        ``found``: the open placements of this executor; a backend may have jobs of another one, too.
        """
        running = {
            job_key(seen.name): seen
            for seen in self._unplaced(found, polled)
            if not seen.phase.over and seen.phase is not PlacementPhase.GONE
        }
        keys = [key for key in running if key is not None]
        if not keys:
            return []
        with self._database.read() as tx:
            ended = placements.ended(tx, keys)
        return [running[key] for key in keys if key in ended]

    def _unplaced(self, found: Sequence[Placement], polled: BackendState) -> list[Seen]:
        """The jobs of this store without a placement among these."""
        identity = self._database.same.identity
        assert identity is not None, "an open store has one"
        ours, still = name_prefix(identity.store), {placement.name for placement in found}
        return [seen for seen in (polled.jobs or {}).values() if seen.name.startswith(ours) and seen.name not in still]

    def cancel(self, found: Sequence[Placement], polled: BackendState, grace: float) -> None:
        """Have the backend end these jobs, within ``grace`` seconds."""
        handles = polled.handles(found)
        if handles:
            self.attempt(lambda: self.executor.cancel(handles, grace))

    def was_away(self, error: ExecutorError) -> None:
        """Note that the backend could not be asked."""
        pause = max(self._backoff.next(), error.after or 0.0)
        self._ask_again = self._database.clock.monotonic() + pause
        if self._logged.is_new(str(error)):
            log.warning("executor %s: %s", self._name, error)
        if self.trouble != str(error):
            self._set_trouble(str(error))

    def _set_trouble(self, text: str | None) -> None:
        self.trouble = text
        self._database.change(lambda tx: placements.set_trouble(tx, self._name, text))

    def tail(self, placement: Placement, polled: BackendState) -> str | None:
        """The end of what a job wrote, if the backend keeps it."""
        handles = polled.handles([placement])
        if not handles or not self.executor.capabilities.has_logs:
            return None
        try:
            found = self.executor.logs(handles[0], LOG_TAIL)
        except ExecutorError:
            return None
        return None if found is None else storable(found)
