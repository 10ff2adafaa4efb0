"""``schedctl doctor --repair``: repairs what no daemon would, by the engine's own functions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import sqlalchemy as sa

from scheduler.model.capacity import Capacity
from scheduler.model.texts import counted, listed
from scheduler.store import audit, reaper, schedules, workers
from scheduler.store.admin import doctor as checks
from scheduler.store.db.dialect import Dialect, bind_rows, prepared
from scheduler.store.durable import waits
from scheduler.store.tasks.control import recount
from scheduler.store.tasks.replace import repair_replacements

REPAIR_HOST = "doctor"  # host of the made-up worker that gets claims without a worker


def repair(connection: sa.Connection, dialect: Dialect, now: int) -> list[str]:
    """Repair what can be repaired, in the caller's transaction. Returns a line for each kind of repair.

    Expired leases are left to the daemons, which judge whether a machine only slept.
    """
    done = [
        *_edges(connection, dialect, now),
        *_waits(connection, dialect, now),
        *_claims(connection, dialect, now),
        *_replaced(connection, dialect, now),
        *_schedules(connection, now),
    ]
    if done:
        audit.record(connection, now, "repair", subject="store", done=done)
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


def _edges(connection: sa.Connection, dialect: Dialect, now: int) -> Iterator[str]:
    def find() -> set[int]:
        return {*checks.wrong_counts(connection), *checks.decided(connection), *checks.orphans(connection)}

    wrong = _all(find, lambda ids: recount(connection, dialect, ids, now))
    if wrong:
        yield _told("counted the open edges anew of", wrong)


def _waits(connection: sa.Connection, dialect: Dialect, now: int) -> Iterator[str]:
    late = _all(lambda: checks.missed(connection, now), lambda ids: waits.force_wake(connection, dialect, ids, now))
    if late:
        yield _told("woke", late)


def _claims(connection: sa.Connection, dialect: Dialect, now: int) -> Iterator[str]:
    """Reclaim from workers recorded as ended, and, through a made-up worker, from those without a row."""
    if checks.unclaimed(connection):
        made_up = workers.WorkerInfo(f"nobody-{now}", REPAIR_HOST, 0, "", (), Capacity())
        nobody = workers.register(connection, made_up, (), now, 0)
        workers.stop(connection, nobody, now)
        give = prepared(f"UPDATE schedd_tasks SET worker = :worker WHERE id IN {dialect.ids()}")
        _all(
            lambda: checks.unclaimed(connection),
            lambda ids: connection.execute(give, {"worker": nobody, "ids": bind_rows(ids)}),
        )
    for one in reaper.reap(connection, dialect, now, lapsed=False):
        yield f"took back {counted(one.tasks, 'task')} of worker {one.worker}, {one.label}"


def _replaced(connection: sa.Connection, dialect: Dialect, now: int) -> Iterator[str]:
    stale = _all(lambda: checks.stale(connection), lambda ids: repair_replacements(connection, dialect, ids, now))
    if stale:
        yield _told("looked after what was to replace", stale)


def _schedules(connection: sa.Connection, now: int) -> Iterator[str]:
    given, _ = schedules.end_delays(connection, now)
    if given:
        yield f"gave the next slot to {counted(len(given), 'schedule')}: {listed(given)}"
