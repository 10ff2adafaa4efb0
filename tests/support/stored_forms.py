"""Stores as earlier checkouts made them, and all that a store holds."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from support.databases import Database

FORMS = Path(__file__).parents[1] / "store" / "db" / "forms"
FIRST = "8de6081"  # the first checkout that made stores; the eight tasks of its store are in every state


def load(database: Database, form: str = FIRST) -> None:
    """Fill an empty database with the store of a checkout."""
    text = (FORMS / f"{form}.{database.dialect}.sql").read_text()
    if database.is_sqlite:
        with closing(sqlite3.connect(database.path)) as raw:
            raw.executescript(text)
    else:
        with psycopg.connect(database.url.replace("+psycopg", "", 1)) as server:
            server.execute(text.encode())


def execute(database: Database, *statements: str) -> None:
    engine = sa.create_engine(database.url)
    with engine.begin() as connection:
        for statement in statements:
            connection.exec_driver_sql(statement)
    engine.dispose()


def everything(database: Database) -> dict[str, Any]:
    """All columns, indexes and rows."""
    if not database.is_sqlite:
        return _everything_there(database)
    engine = sa.create_engine(database.url)
    with engine.connect() as connection:
        inspector = sa.inspect(connection)
        found: dict[str, Any] = {}
        for table in sorted(inspector.get_table_names()):
            columns = [(c["name"], str(c["type"]), c["nullable"]) for c in inspector.get_columns(table)]
            indexes = sorted((str(i["name"]), tuple(map(str, i["column_names"]))) for i in inspector.get_indexes(table))
            rows = sorted(map(str, connection.exec_driver_sql(f"SELECT * FROM {table}").all()))
            found[table] = (columns, indexes, rows)
    engine.dispose()
    return found


COLUMNS = """
SELECT relname, attname, format_type(atttypid, atttypmod), attnotnull
FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND attnum > 0 AND NOT attisdropped
ORDER BY relname, attnum
"""


def _everything_there(database: Database) -> dict[str, Any]:
    """On PostgreSQL, in three questions and one for each table: an inspector has several for each."""
    with psycopg.connect(database.url.replace("+psycopg", "", 1)) as server:
        found: dict[str, Any] = {}
        for table, *column in server.execute(COLUMNS).fetchall():
            found.setdefault(table, ([], [], []))[0].append(tuple(column))
        kept = "SELECT tablename, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2"
        for table, index in server.execute(kept).fetchall():
            found[table][1].append(index)
        for table, (_, _, rows) in found.items():
            rows += sorted(map(str, server.execute(f"SELECT * FROM {table}".encode()).fetchall()))
    return found
