"""What ``schedctl doctor --repair`` mends: what no daemon would come to by itself, each in the engine's own way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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


def _edges(connection: sa.Connection, dialect: Dialect, now: int) -> Iterator[str]:
    wrong = sorted({*checks.wrong_counts(connection), *checks.decided(connection), *checks.orphans(connection)})
    if wrong:
        recount(connection, dialect, wrong, now)
        yield _told("counted the open edges anew of", wrong)


def _waits(connection: sa.Connection, dialect: Dialect, now: int) -> Iterator[str]:
    late = checks.overslept(connection, now)
    if late:
        waits.rouse(connection, dialect, late, now)
        yield _told("woke", late)


def _claims(connection: sa.Connection, dialect: Dialect, now: int) -> Iterator[str]:
    """Those of workers that are recorded as ended; and of workers that have no row, by way of one that is made up."""
    loose = checks.unclaimed(connection)
    if loose:
        made_up = workers.WorkerInfo(f"nobody-{now}", NOBODY, 0, "", (), Capacity())
        nobody = workers.register(connection, made_up, (), now, 0)
        workers.stop(connection, nobody, now)
        connection.execute(
            prepared(f"UPDATE schedd_tasks SET worker = :worker WHERE id IN {dialect.ids()}"),
            {"worker": nobody, "ids": bind_rows(loose)},
        )
    for one in workers.reap(connection, dialect, now, lapsed=False):
        yield f"took back {counted(one.tasks, 'task')} of worker {one.worker}, {one.label}"


def _replaced(connection: sa.Connection, dialect: Dialect, now: int) -> Iterator[str]:
    stale = checks.stale(connection)
    if stale:
        mend(connection, dialect, stale, now)
        yield _told("looked after what was to replace", stale)


def _schedules(connection: sa.Connection, now: int) -> Iterator[str]:
    given, _ = schedules.end_delays(connection, now)
    if given:
        yield f"gave the next slot to {counted(len(given), 'schedule')}: {listed(given)}"
