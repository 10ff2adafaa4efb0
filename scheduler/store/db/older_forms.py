"""Stores that an earlier checkout made: what they lack is added before the first migration.

Until its release the first migration was changed in place, so one revision has several forms. Here is what was added or
renamed meanwhile. A store that differs in another way was made by no schedd, and is refused before anything is done.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn, CreateIndex, CreateTable, DropIndex

from scheduler.errors import StoreUnavailableError
from scheduler.model.texts import listed

# What the first migration has made only since some checkout.
_LATER_TABLES = ("schedd_pauses", "schedd_rollups", "schedd_settings", "schedd_store")
_LATER_COLUMNS = {
    "schedd_tasks": ("slot_tz",),
    "schedd_outcomes": ("schedule", "slot"),
    "schedd_schedules": ("graph", "jitter", "owner"),
    "schedd_workers": ("restart_requested",),
}
_LATER_INDEXES = ("ix_schedd_tasks_key_ended", "ix_schedd_outcomes_slot", "ux_schedd_tasks_slot")
_AUDIT = "schedd_audit"
_AUDIT_ADDED = ("via", "reason", "subject", "bulk")
# Columns with another name since this revision, and in one checkout before it.
_RENAMED_BY = "0011"
_RENAMED = {"schedd_tasks": ("pool", "priority"), "schedd_checkpoints": ("sort", "type")}

Columns = dict[str, set[str]]  # of each table


class _Form(NamedTuple):
    """What a database has of ours."""

    columns: Columns
    indexes: dict[str, tuple[str, ...]]  # the columns of each index


def amend(connection: sa.Connection, version: str, columns_at: Callable[[str], Columns]) -> None:
    """Bring a store of this revision to the form that the migrations after it expect, and its rows with it.

    ``columns_at``: what the migrations make of each table up to a revision. Raises StoreUnavailableError for a form
    that no schedd made, and has changed nothing then.
    """
    for statement in amendments(connection, version, columns_at):
        connection.exec_driver_sql(statement.replace("%", "%%") if _pg(connection) else statement)


def amendments(connection: sa.Connection, version: str, columns_at: Callable[[str], Columns]) -> list[str]:
    """The statements of :func:`amend`. Raises StoreUnavailableError."""
    found = _form(connection)
    _refuse_unknown(found.columns, version, columns_at(version))
    made = _compiler(connection)
    first = importlib.import_module("scheduler.migrations.versions.0001_initial").metadata.tables
    wanted: list[str] = []
    if version < _RENAMED_BY:
        for table, (before, after) in _RENAMED.items():
            if before not in found.columns[table] and after in found.columns[table]:
                wanted.append(f"ALTER TABLE {table} RENAME COLUMN {after} TO {before}")
    for name in _LATER_TABLES:
        if name not in found.columns:
            wanted += [made(CreateTable(first[name])), *(made(CreateIndex(one)) for one in first[name].indexes)]
            wanted += [_identity(connection)] if name == "schedd_store" else []
    for table, names in _LATER_COLUMNS.items():
        lacking = [first[table].c[name] for name in names if name not in found.columns[table]]
        wanted += [f"ALTER TABLE {table} ADD COLUMN {made(CreateColumn(column))}" for column in lacking]
    if "via" not in found.columns[_AUDIT]:
        wanted += _audit(first[_AUDIT], made, in_place=_pg(connection))
    for index in (one for table in first.values() for one in table.indexes if one.name in _LATER_INDEXES):
        there = found.indexes.get(str(index.name))
        if there != tuple(column.name for column in index.columns):
            wanted += [made(DropIndex(index))] if there is not None else []
            wanted.append(made(CreateIndex(index)))
    if version >= _RENAMED_BY and has_old_graphs(connection, found.columns):
        wanted.append("""UPDATE schedd_schedules SET graph = replace(graph, '"pool":', '"priority":')""")
    return wanted


def _refuse_unknown(found: Columns, version: str, expected: Columns) -> None:
    """Raise StoreUnavailableError if something is missing that is never added here."""
    lacking = []
    for table, columns in sorted(expected.items()):
        if table not in found:
            lacking += [] if table in _LATER_TABLES else [f"the table {table}"]
            continue
        may_lack = {*_LATER_COLUMNS.get(table, ()), *(_AUDIT_ADDED if table == _AUDIT else ())}
        if version < _RENAMED_BY and table in _RENAMED and _RENAMED[table][1] in found[table]:
            may_lack.add(_RENAMED[table][0])
        lacking += [f"{table}.{name}" for name in sorted(columns - found[table] - may_lack)]
    if lacking:
        raise StoreUnavailableError(
            f"the database says that its schema is {version}, but lacks {listed(lacking)}: no schedd made that, so "
            "nothing was changed; restore a backup"
        )


def _audit(table: sa.Table, made: Callable[[Any], str], *, in_place: bool) -> list[str]:
    """The audit was about dead letters alone, and each entry about a task."""
    dropped, *_ = (made(DropIndex(one)) for one in table.indexes if one.name == "ix_schedd_audit_task_id")
    indexes = [made(CreateIndex(one)) for one in sorted(table.indexes, key=lambda one: str(one.name))]
    if in_place:
        added = [f"ALTER TABLE {_AUDIT} ADD COLUMN {name} text" for name in _AUDIT_ADDED if name != "via"]
        return [
            f"ALTER TABLE {_AUDIT} ADD COLUMN via text NOT NULL DEFAULT 'python'",
            f"ALTER TABLE {_AUDIT} ALTER COLUMN via DROP DEFAULT",
            f"ALTER TABLE {_AUDIT} ALTER COLUMN task_id DROP NOT NULL",
            *added,
            dropped,
            *indexes,
        ]
    return [
        dropped,
        f"ALTER TABLE {_AUDIT} RENAME TO {_AUDIT}_before",
        made(CreateTable(table)),
        f"INSERT INTO {_AUDIT} (id, at, action, actor, via, task_id, detail) "
        f"SELECT id, at, action, actor, 'python', task_id, detail FROM {_AUDIT}_before",
        f"DROP TABLE {_AUDIT}_before",
        *indexes,
    ]


def _identity(connection: sa.Connection) -> str:
    random = "replace(CAST(gen_random_uuid() AS text), '-', '')" if _pg(connection) else "lower(hex(randomblob(16)))"
    return f"INSERT INTO schedd_store (epoch, store, since, first_id) VALUES (1, {random}, 0, 1)"


def has_old_graphs(connection: sa.Connection, columns: Columns) -> bool:
    """Whether schedules have graphs that an earlier form of a migration passed over."""
    if "graph" not in columns["schedd_schedules"]:
        return False
    sql = """SELECT 1 FROM schedd_schedules WHERE graph LIKE '%"pool":%' LIMIT 1"""
    return connection.execute(sa.text(sql)).first() is not None


def columns_of(connection: sa.Connection) -> Columns:
    """The columns of each of our tables."""
    if _pg(connection):
        sql = (
            "SELECT c.relname, a.attname FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid WHERE "
            "c.relkind IN ('r', 'p') AND pg_table_is_visible(c.oid) AND a.attnum > 0 AND NOT a.attisdropped"
        )
    else:
        sql = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"
    found: Columns = {}
    for table, column in connection.execute(sa.text(sql)):
        if table.startswith("schedd_"):
            found.setdefault(table, set()).add(column)
    return found


def _form(connection: sa.Connection) -> _Form:
    if _pg(connection):
        sql = (
            "SELECT i.relname, a.attname FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid JOIN pg_attribute a "
            "ON a.attrelid = i.oid WHERE pg_table_is_visible(x.indrelid) ORDER BY i.relname, a.attnum"
        )
    else:
        sql = "SELECT t.name, c.name FROM sqlite_master t, pragma_index_info(t.name) c WHERE t.type = 'index'"
    indexes: dict[str, tuple[str, ...]] = {}
    for index, column in connection.execute(sa.text(sql)):
        indexes[index] = (*indexes.get(index, ()), column)
    return _Form(columns_of(connection), indexes)


def _compiler(connection: sa.Connection) -> Callable[[Any], str]:
    return lambda element: str(element.compile(dialect=connection.dialect)).strip()


def _pg(connection: sa.Connection) -> bool:
    return bool(connection.dialect.name == "postgresql")


def always_there() -> set[str]:
    """The tables that a store of each revision and form has."""
    first = importlib.import_module("scheduler.migrations.versions.0001_initial").metadata.tables
    return set(first) - set(_LATER_TABLES)
