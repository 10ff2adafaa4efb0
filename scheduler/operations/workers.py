"""Workers of the fleet, how they do, and what steers them; executors, which are places of tasks and workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from scheduler.errors import ConfigError, UnknownWorkerError
from scheduler.model.capacity import ASYNC, PROCESS, THREAD
from scheduler.store.db.tx import Tx
from scheduler.store.read import workers
from scheduler.store.read.executors import executor_statuses
from scheduler.store.read.workers import NOT_LIVE
from scheduler.store.read.workers import Drained as Drained
from scheduler.store.read.workers import Fleet as Fleet
from scheduler.store.read.workers import WorkerRecord as WorkerRecord
from scheduler.store.read.workers import drained as drained
from scheduler.store.read.workers import orphans_phrase as orphans_phrase
from scheduler.store.read.workers import read_fleet as read_fleet
from scheduler.store.workers import request_drain, request_restart

if TYPE_CHECKING:
    from scheduler.config.executors import ExecutorSection
    from scheduler.operations.desk import Desk


_SLOTS = (THREAD, ASYNC, PROCESS)
Held = Mapping[tuple[int, str, int], int]  # tasks by worker, pool of their priority, and type of slot


class WorkersNow(NamedTuple):
    """``idle``: why no worker takes new work; ``orphans``: a sentence for each worker that runs attempts which lost
    their claims."""

    at: int
    workers: list[WorkerRecord]
    idle: str | None
    orphans: list[str]


class PoolUse(NamedTuple):
    """Tasks of a pool's priority that a worker holds, beside the pool's slots. A task may run in a lower pool.

    ``of``: what the slots are. Child processes belong to all pools.
    """

    name: str
    of: str
    held: int
    slots: int


def now(tx: Tx, *, every: bool = False) -> WorkersNow:
    """The workers that go round or were lost; ``every``: the latest that have ended, too."""
    found = workers.workers(tx, every=every)
    orphans = [text for text in map(workers.orphans_text, found) if text is not None]
    return WorkersNow(tx.now, found, workers.no_worker_reason(found), orphans)


def held(tx: Tx) -> Held:
    """How many tasks each worker has claimed or is running."""
    return workers.held_by_pool(tx)


def pool_use(worker: WorkerRecord, held: Held) -> list[PoolUse]:
    """How full the pools of a worker are."""
    made: list[PoolUse] = []
    for name, (threads, coroutines) in worker.capacity.pools.items():
        made.append(PoolUse(name, "threads", held.get((worker.id, name, THREAD), 0), threads))
        made.append(PoolUse(name, "coroutines", held.get((worker.id, name, ASYNC), 0), coroutines))
    in_children = sum(held.get((worker.id, name, PROCESS), 0) for name in worker.capacity.pools)
    if in_children:
        made.append(PoolUse("all", "child processes", in_children, worker.capacity.processes or 0))
    return [one for one in made if one.slots or one.held]


def held_of(worker: WorkerRecord, held: Held) -> dict[str, int]:
    """The tasks of each pool's priority, whatever slots they have."""
    found = {name: sum(held.get((worker.id, name, one), 0) for one in _SLOTS) for name in worker.capacity.pools}
    return {name: n for name, n in found.items() if n or sum(worker.capacity.pools[name])}


def notes(worker: WorkerRecord) -> list[str]:
    """Faults of a worker: it claims nothing, its cycles fail, it runs attempts that lost their claims,
    or has handlers that hang."""
    found = [workers.far_text(worker), workers.failing_text(worker), workers.orphans_text(worker)]
    return [text for text in found if text] + [workers.hung_text(worker, hang) for hang in worker.hung]


def tasks_wait(idle: str | None, refused: str | None = None) -> str | None:
    """A sentence that says until when tasks wait if no worker takes new work. ``refused``: why the database takes no
    writes."""
    if idle is None:
        return None
    until = "schedd is started" if idle == NOT_LIVE else "one resumes, or another is started"
    return f"{idle}: tasks wait until {'the database takes writes' if refused else until}"


def drain(desk: Desk, worker: int) -> None:
    """Let a worker claim nothing more: what it runs ends, what it has not begun goes back.

    Raises UnknownWorkerError; InvalidTransitionError if it has stopped.
    """
    _check(worker)
    desk.write(lambda tx: request_drain(tx, worker, drain=True))


def resume(desk: Desk, worker: int) -> None:
    """Let a draining worker claim again. Raises as :func:`drain`."""
    _check(worker)
    desk.write(lambda tx: request_drain(tx, worker, drain=False))


def restart(desk: Desk, worker: int) -> None:
    """Let a daemon end and start anew, which frees the slots of handlers that hang. Raises as :func:`drain`."""
    _check(worker)
    desk.write(lambda tx: request_restart(tx, worker))


def _check(worker: int) -> None:
    if not isinstance(worker, int) or isinstance(worker, bool):
        raise ConfigError(f"a worker's id is a number, not {worker!r:.80}")
    if not 0 < worker < 2**63:
        raise UnknownWorkerError(worker)


class ExecutorInfo(NamedTuple):
    """One executor. ``worker``: its id among the workers; ``placed_by``: the daemon that starts its jobs; ``wanted``:
    how many workers the backlog asks for, where jobs are workers; ``pending``, ``running``: its jobs."""

    executor: str
    type: str | None = None
    place: str | None = None
    worker: int | None = None
    placed_by: str | None = None
    draining: bool = False
    wanted: int | None = None
    pending: int = 0
    running: int = 0
    trouble: str | None = None


def listed(desk: Desk, sections: Mapping[str, ExecutorSection]) -> list[ExecutorInfo]:
    """The executors of a configuration, and those that daemons of this store have had."""
    with desk.read() as tx:
        found = executor_statuses(tx, counted_too=True)
    made = []
    for name in sorted({*sections, *found}):
        one, known, section = ExecutorInfo(name), found.get(name), sections.get(name)
        if section is not None:
            one = one._replace(type=section.type, place=section.place)
        if known is not None:
            scale = known.scale
            one = one._replace(
                worker=known.worker,
                placed_by=known.placed_by,
                draining=known.draining,
                pending=known.pending,
                running=known.running,
                wanted=None if scale is None else scale.wanted,
                trouble=known.trouble or (None if scale is None else scale.trouble),
            )
        made.append(one)
    return made
