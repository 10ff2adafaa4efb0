"""The limit with several callers: as raw.py, each caller with the driver's own connection; callers' own transactions
without a task in them."""

from __future__ import annotations

import sqlalchemy as sa

from contenders.callers import BATCH, Call, by_count, on_slow_disk
from contenders.raw import opened
from contenders.schedd_callers import INSERT, TYPES, orders, prepare


def one_by_one(url: str) -> Call:
    db, row = opened(url)
    mark = "?" if url.startswith("sqlite") else "%s"
    insert = f"INSERT INTO schedd_tasks ({', '.join(row)}) VALUES ({', '.join([mark] * len(row))})"
    values = tuple(row.values())

    def call() -> int:
        db.execute(insert, values)  # and a commit
        return 1

    return call


def without_a_task(url: str) -> Call:
    engine, text = orders(url), sa.text(INSERT)

    def call() -> int:
        with engine.begin() as connection:
            connection.execute(text, {"text": "hello world"})
        return 1

    return call


def in_batches(url: str) -> Call:
    db, row = opened(url)
    names, values = ", ".join(row), tuple(row.values())

    def sqlite() -> int:
        db.execute("BEGIN IMMEDIATE")
        db.executemany(f"INSERT INTO schedd_tasks ({names}) VALUES ({', '.join('?' * len(row))})", [values] * BATCH)
        db.execute("COMMIT")
        return BATCH

    def postgresql() -> int:
        with db.transaction(), db.cursor() as cursor, cursor.copy(f"COPY schedd_tasks ({names}) FROM STDIN") as copy:
            for _ in range(BATCH):
                copy.write_row(values)
        return BATCH

    return sqlite if url.startswith("sqlite") else postgresql


_ALL = {
    "callers": by_count(prepare, one_by_one),
    "callers' transactions": by_count(prepare, without_a_task),
    "callers' batches": by_count(prepare, in_batches),
}
_SLOW = {
    ("callers", "postgresql"): on_slow_disk(prepare, one_by_one),
    ("callers' transactions", "postgresql"): on_slow_disk(prepare, without_a_task),
}
WORKS = {(work, dialect): of | _SLOW.get((work, dialect), {}) for work, of in _ALL.items() for dialect in TYPES}
