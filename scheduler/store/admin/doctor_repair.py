"""``schedctl doctor --repair``: repairs what no daemon would, by the engine's own functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from scheduler.model.capacity import Capacity
from scheduler.model.rollup import RollupCounter
from scheduler.model.texts import counted, listed
from scheduler.store import abandoned, audit, reaper, rollups, schedules, worker_jobs, workers
from scheduler.store.admin import doctor
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.durable import waits
from scheduler.store.tasks.claim import DUE_AT, GROUP_OF
from scheduler.store.tasks.control import recount
from scheduler.store.tasks.replace import repair_replacements

REPAIR_HOST = "doctor"  # host of the made-up worker that gets claims without a worker


def repair(tx: Tx, *, counts: bool = True) -> list[str]:
    """Repair what can be repaired, in the caller's transaction. Returns a line for each kind of repair.

    ``counts``: attempts that are lost with their workers are added to the stored numbers.

    Expired leases are left to the daemons, which judge whether a machine only slept.
    """
    done = [
        *_edges(tx),
        *_waits(tx),
        *_claims(tx, counts),
        *_placements(tx),
        *_replaced(tx),
        *_schedules(tx),
    ]
    if done:
        audit.record(tx, "repair", subject="store", done=done)
    return done


def _told(what: str, ids: Sequence[int]) -> str:
    return f"{what} {counted(len(ids), 'task')}: {listed([str(i) for i in ids])}"


def _all(find: Callable[[], Collection[int]], repaired: Callable[[list[int]], object]) -> list[int]:
    """Find and repair until nothing more is found: each search is bounded. Returns all ids."""
    done: set[int] = set()
    while found := sorted(set(find()) - done):
        repaired(found)
        done.update(found)
    return sorted(done)


def _edges(tx: Tx) -> Iterator[str]:
    def find() -> set[int]:
        return {*doctor.wrong_counts(tx), *doctor.decided(tx), *doctor.orphans(tx)}

    wrong = _all(find, lambda ids: recount(tx, ids))
    if wrong:
        yield _told("counted the open edges anew of", wrong)


def _waits(tx: Tx) -> Iterator[str]:
    late = _all(lambda: doctor.missed(tx), lambda ids: waits.force_wake(tx, ids))
    if late:
        yield _told("woke", late)


def _claims(tx: Tx, counts: bool) -> Iterator[str]:
    """Reclaim from workers recorded as ended, and, through a made-up worker, from those without a row."""
    if doctor.unclaimed(tx):
        made_up = workers.WorkerInfo(f"repair-{tx.now}", REPAIR_HOST, 0, "", (), Capacity())
        stopped = workers.register(tx, made_up, (), 0)
        workers.stop(tx, stopped)
        give = f"UPDATE schedd_tasks SET worker = :worker WHERE id IN {tx.dialect.ids()}"
        _all(
            lambda: doctor.unclaimed(tx),
            lambda ids: tx.run(give, worker=stopped, ids=bind_rows(ids)),
        )
    found = reaper.reap(tx, lapsed=False)
    if counts:
        counter = RollupCounter(GROUP_OF, DUE_AT)
        reaper.count_lost(counter, tx.now, found)
        rollups.add(tx, counter.take())
    for one in found:
        yield f"took back {counted(one.tasks, 'task')} of worker {one.worker}, {one.label}"


def _placements(tx: Tx) -> Iterator[str]:
    given_back = _all(lambda: abandoned.abandoned(tx), lambda _: abandoned.release_abandoned(tx))
    if given_back:
        yield _told("gave back, since no daemon places for their executor,", given_back)
    forgotten = worker_jobs.forget_abandoned(tx)
    if forgotten:
        yield f"forgot {counted(forgotten, 'worker')} of executors that no daemon has"


def _replaced(tx: Tx) -> Iterator[str]:
    stale = _all(lambda: doctor.stale(tx), lambda ids: repair_replacements(tx, ids))
    if stale:
        yield _told("looked after what was to replace", stale)


def _schedules(tx: Tx) -> Iterator[str]:
    given, _ = schedules.end_delays(tx)
    if given:
        yield f"gave the next slot to {counted(len(given), 'schedule')}: {listed(given)}"
