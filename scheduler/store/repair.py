"""What ``schedctl doctor --repair`` mends: what no daemon would come to by itself, each in the engine's own way."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import sqlalchemy as sa

from scheduler.model.capacity import Capacity
from scheduler.model.texts import counted, listed
from scheduler.store import checks, schedules, waits, workers
from scheduler.store.control import recount
from scheduler.store.dialect import Dialect, bind_rows, prepared
from scheduler.store.replacing import mend

NOBODY = "doctor"  # the host of the worker that claims without one are given to


def repair(connection: sa.Connection, dialect: Dialect, now: int) -> list[str]:
    """Mend what can be mended, in the caller's transaction. Returns what was done, a line for each sort.

    Leases that ran out are left to the daemons: whether a machine only slept is theirs to judge.
    """
    return [
        *_edges(connection, dialect, now),
        *_waits(connection, dialect, now),
        *_claims(connection, dialect, now),
        *_replaced(connection, dialect, now),
        *_schedules(connection, now),
    ]


def _told(what: str, ids: Sequence[int]) -> str:
    return f"{what} {counted(len(ids), 'task')}: {listed([str(i) for i in ids])}"


def _all(find: Callable[[], Collection[int]], repaired: Callable[[list[int]], object]) -> list[int]:
    """Repair what is found, until nothing more is: a look finds a thousand at most. Returns all of it."""
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
    late = _all(lambda: checks.overslept(connection, now), lambda ids: waits.rouse(connection, dialect, ids, now))
    if late:
        yield _told("woke", late)


def _claims(connection: sa.Connection, dialect: Dialect, now: int) -> Iterator[str]:
    """Those of workers that are recorded as ended; and of workers that have no row, by way of one that is made up."""
    if checks.unclaimed(connection):
        made_up = workers.WorkerInfo(f"nobody-{now}", NOBODY, 0, "", (), Capacity())
        nobody = workers.register(connection, made_up, (), now, 0)
        workers.stop(connection, nobody, now)
        give = prepared(f"UPDATE schedd_tasks SET worker = :worker WHERE id IN {dialect.ids()}")
        _all(
            lambda: checks.unclaimed(connection),
            lambda ids: connection.execute(give, {"worker": nobody, "ids": bind_rows(ids)}),
        )
    for one in workers.reap(connection, dialect, now, lapsed=False):
        yield f"took back {counted(one.tasks, 'task')} of worker {one.worker}, {one.label}"


def _replaced(connection: sa.Connection, dialect: Dialect, now: int) -> Iterator[str]:
    stale = _all(lambda: checks.stale(connection), lambda ids: mend(connection, dialect, ids, now))
    if stale:
        yield _told("looked after what was to replace", stale)


def _schedules(connection: sa.Connection, now: int) -> Iterator[str]:
    given, _ = schedules.end_delays(connection, now)
    if given:
        yield f"gave the next slot to {counted(len(given), 'schedule')}: {listed(given)}"
