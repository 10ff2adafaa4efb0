"""A whole store goes elsewhere: from SQLite to PostgreSQL, back, or through a file of JSON lines.

One transaction reads, and keeps writers out; one transaction writes. So the copy is whole, or nothing of it is there.
Both sides are counted and summed up before the copy is committed. A store's identity stays with its database: the rows
of ``schedd_store`` are not copied.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from scheduler.errors import SchedulerError
from scheduler.model.texts import counted
from scheduler.model.worker_states import STOPPED
from scheduler.ports import FOREVER
from scheduler.store import audit, placements
from scheduler.store.db import whole_tables
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.db.whole_tables import Row
from scheduler.store.predicates import HELD
from scheduler.store.schema import metadata
from scheduler.store.schema import store as identity_table

if TYPE_CHECKING:
    import sqlalchemy as sa

TABLES = tuple(table for table in metadata.sorted_tables if table is not identity_table)
_DIGEST = 16  # bytes
_STEP = 100_000  # rows between two words of progress
_SPACE = 1 << (8 * _DIGEST)


class TableSummary(NamedTuple):
    """``digest``: of all rows, whatever their order, as hexadecimal digits; ``last``: the last id given out, or 0."""

    table: str
    rows: int
    digest: str
    last: int


Progress = Callable[[str, int], object]  # a table, and the rows of it so far


def no_progress(_table: str, _rows: int) -> None:
    """Tell of no progress."""


class Digest:
    """Counts rows and sums up their hashes (BLAKE2b, 128 bits, added modulo 2^128), so that their order is all one."""

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def through(self, rows: Iterable[Row], progress: Callable[[int], object] = lambda _: None) -> Iterator[Row]:
        """The same rows, counted and summed up on their way."""
        encode = msgspec.json.Encoder().encode
        for row in rows:
            hashed = hashlib.blake2b(encode(tuple(row)), digest_size=_DIGEST).digest()
            self._sum = (self._sum + int.from_bytes(hashed, "big")) % _SPACE
            self.rows += 1
            if self.rows % _STEP == 0:
                progress(self.rows)
            yield row

    def summary(self, table: str, last: int) -> TableSummary:
        """Of what went through so far."""
        return TableSummary(str(table), self.rows, f"{self._sum:0{2 * _DIGEST}x}", last)


def copy(source: Database, target: Database, progress: Progress = no_progress) -> list[TableSummary]:
    """Copy all of a store into another database, which has its tables already, and no rows in them.

    Raises SchedulerError while workers live or hold tasks, if the target is not empty or the copy differs;
    StoreUnavailableError.
    """
    source.open()
    target.open()
    if source.same.identity is not None and source.same.identity == target.same.identity:
        raise SchedulerError("the target is the store itself: name another database")
    with reading(source) as read, writing(target) as write:
        written = [
            write_table(write, table, whole_tables.read(read, table), last_number(read, table), progress)
            for table in TABLES
        ]
        finish(write, written, source.url.get_backend_name())
    return written


@contextmanager
def reading(source: Database) -> Iterator[Tx]:
    """A transaction that reads a store and keeps all writers out. Raises SchedulerError while workers live."""
    with source.write() as tx:
        whole_tables.keep_writers_out(tx, TABLES)
        _refuse_use(tx)
        yield tx


@contextmanager
def writing(target: Database) -> Iterator[Tx]:
    """A transaction that writes into an empty store. Raises SchedulerError if it is not empty."""
    with target.write() as tx:
        whole_tables.keep_writers_out(tx, TABLES)
        full = [table.name for table in TABLES if not whole_tables.is_empty(tx, table)]
        if full:
            raise SchedulerError(
                f"the target is not empty (rows in {', '.join(full)}): name a database without a store"
            )
        yield tx


def _refuse_use(tx: Tx) -> None:
    live = tx.run(
        f"SELECT id, host, pid FROM schedd_workers WHERE state < {STOPPED} AND lease_until > :now "
        f"AND lease_until < {FOREVER} ORDER BY id",
        now=tx.now,
    ).fetchall()
    if live:
        named = ", ".join(f"{row.id} ({row.host}, process {row.pid})" for row in live[:5])
        raise SchedulerError(
            f"{counted(len(live), 'worker')} {'is' if len(live) == 1 else 'are'} live, such as {named}: stop every "
            "worker first (`schedctl workers` lists them)"
        )
    placed = sum(pending + running for pending, running in placements.counts(tx).values())
    if placed:
        raise SchedulerError(
            f"{'1 task has a job of an executor' if placed == 1 else f'{placed} tasks have jobs of executors'}, which "
            "would go on with this store: wait until they end, or cancel them and let schedd run until they have "
            "(`schedctl executors list` counts them)"
        )
    (held,) = tx.run(f"SELECT count(*) FROM schedd_tasks WHERE {HELD}").one()
    if held:
        raise SchedulerError(
            f"{'1 task is held by a worker' if held == 1 else f'{held} tasks are held by workers'} that died: start "
            "schedd once on this store, which takes back what they held, and stop it again"
        )


def write_table(
    tx: Tx, table: sa.Table, rows: Iterable[Row], last: int, progress: Progress = no_progress
) -> TableSummary:
    """Append rows to an empty table and let it number on after ``last``. Returns what went into it."""
    digest = Digest()
    whole_tables.write(tx, table, digest.through(rows, lambda number: progress(table.name, number)))
    if last:
        whole_tables.go_on_after(tx, table, last)
    if digest.rows % _STEP:
        progress(table.name, digest.rows)
    return digest.summary(table.name, last)


def last_number(tx: Tx, table: sa.Table) -> int:
    """The last id that the database has given out in this table; 0 if it gives out none."""
    return whole_tables.last_number(tx, table) if table.autoincrement_column is not None else 0


def summarize(tx: Tx, table: sa.Table) -> TableSummary:
    """Read a whole table and sum it up."""
    digest = Digest()
    for _ in digest.through(whole_tables.read(tx, table)):
        pass
    return digest.summary(table.name, last_number(tx, table))


def finish(tx: Tx, written: Iterable[TableSummary], origin: str) -> None:
    """Read back what was written, compare it, and record the move. Raises SchedulerError if they differ."""
    expected = {one.table: one for one in written}
    for table in TABLES:
        found = summarize(tx, table)
        if found != expected[table.name]:
            raise SchedulerError(
                f"{table.name} differs after it was copied ({expected[table.name]} became {found}): nothing was kept"
            )
    rows = {one.table: one.rows for one in expected.values() if one.rows}
    audit.record(tx, "db copy", subject=f"store from {origin}", rows=rows)
