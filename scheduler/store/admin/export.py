"""A whole store as JSON lines, and back.

The first line says what this is; then one line for each row, ``{"table": …, "row": {…}}`` without its nulls; the last
one has the count and the digest of each table, so that a file that was cut or changed is refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.errors import SchedulerError
from scheduler.store.admin.transfer import (
    TABLES,
    Digest,
    Progress,
    TableSummary,
    finish,
    last_number,
    no_progress,
    reading,
    write_table,
    writing,
)
from scheduler.store.db import migrate, whole_tables
from scheduler.store.db.database import Database
from scheduler.store.db.whole_tables import Row

if TYPE_CHECKING:
    import sqlalchemy as sa

FORMAT = 1


def export(
    source: Database, write_line: Callable[[bytes], object], progress: Progress = no_progress
) -> list[TableSummary]:
    """Give each line of a store, without its newline, to ``write_line``.

    Raises SchedulerError while workers live or hold tasks, StoreUnavailableError, and what ``write_line`` raises.
    """
    encode = msgspec.json.Encoder().encode
    summaries = []
    source.open()
    with reading(source) as tx:
        write_line(encode({"schedd": FORMAT, "schema": migrate.HEAD, "at": tx.now}))
        for table in TABLES:
            name = str(table.name)  # a quoted_name is no plain text
            columns = [str(column.name) for column in table.c]
            digest = Digest()
            for row in digest.through(whole_tables.read(tx, table), partial(progress, name)):
                given = {column: value for column, value in zip(columns, row, strict=True) if value is not None}
                write_line(encode({"table": name, "row": given}))
            summaries.append(digest.summary(table.name, last_number(tx, table)))
        write_line(encode({"tables": [one._asdict() for one in summaries]}))
    return summaries


def load(target: Database, lines: Iterable[bytes], progress: Progress = no_progress) -> list[TableSummary]:
    """Fill an empty store, which has its tables already, with the lines of an export.

    Raises SchedulerError for what is no whole export of this schema, naming the line, and keeps nothing then;
    StoreUnavailableError.
    """
    reader = _ExportReader(lines)
    target.open()
    with writing(target) as tx:
        written = [write_table(tx, table, reader.rows(table), 0, progress) for table in TABLES]
        declared = reader.end()
        for table, found in zip(TABLES, written, strict=True):
            expected = declared.get(table.name)
            if expected is None or (expected.rows, expected.digest) != (found.rows, found.digest):
                raise SchedulerError(f"{table.name} differs from what its last line says of it: the export was changed")
            if expected.last:
                whole_tables.go_on_after(tx, table, expected.last)
        finish(tx, [declared[table.name] for table in TABLES], "an export")
    return [declared[table.name] for table in TABLES]


class _ExportReader:
    """The lines of an export, in the order of the tables."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self._lines = enumerate(lines, 1)
        self._next: tuple[int, dict[str, Any]] | None = None
        number, head = self._take()
        if head.get("schedd") != FORMAT:
            raise SchedulerError(f"line {number} is not the first line of an export of schedd")
        if head.get("schema") != migrate.HEAD:
            raise SchedulerError(
                f"the export has schema {head.get('schema')}, this program {migrate.HEAD}: import it with the program "
                "that made it, and then run `schedctl db upgrade`"
            )

    def _take(self) -> tuple[int, dict[str, Any]]:
        if self._next is not None:
            taken, self._next = self._next, None
            return taken
        for number, line in self._lines:
            try:
                return number, msgspec.json.decode(line, type=dict[str, Any])
            except msgspec.DecodeError as error:
                raise SchedulerError(f"line {number} is no line of an export: {error}") from None
        raise SchedulerError("the export ends before its last line: it was cut")

    def rows(self, table: sa.Table) -> Iterator[Row]:
        """The rows of this table, whose turn it is."""
        names = [str(column.name) for column in table.c]  # a quoted_name is no plain text
        known = frozenset(names)
        while True:
            number, line = self._take()
            if line.get("table") != table.name:
                self._next = number, line
                return
            row = line.get("row")
            if not isinstance(row, dict) or not row.keys() <= known:
                raise SchedulerError(f"line {number} is no row of {table.name}")
            yield [row.get(name) for name in names]

    def end(self) -> dict[str, TableSummary]:
        """What the last line says of each table."""
        number, line = self._take()
        try:
            found = msgspec.convert(line, type=_End)
        except msgspec.ValidationError:
            raise SchedulerError(
                f"line {number} has a row of a table that is not due there, or is no last line"
            ) from None
        for number, _ in itertools.islice(self._lines, 1):
            raise SchedulerError(f"line {number} follows the last line of the export")
        return {one.table: TableSummary(one.table, one.rows, one.digest, one.last) for one in found.tables}


class _Summary(msgspec.Struct):
    table: str
    rows: int
    digest: str
    last: int


class _End(msgspec.Struct, forbid_unknown_fields=True):
    tables: list[_Summary]
