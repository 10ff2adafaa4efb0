"""The limit: a bare driver loop over schedd's own rows, one connection, one thread, and no engine.

The tables are schedd's, as its migration makes them, with all their columns and indexes, and the connection is one that
its store opened, so page cache, WAL and durability are the same. The rows are copies of one that schedd has stored.
Each cycle is one transaction that records what ended (the fenced row, with a row in the attempts' table), releases what
waited for it where there are edges, and claims as many as schedd's cycles had on average in this run (--turn). What an
engine does besides is left out: no leases, lanes, keys, events, cancels or outcomes other than success, no threads, no
handler but the decoding of the payload. The statements are those that were fastest of what was tried, on SQLite
SELECT then UPDATE, and VALUES rather than executemany, json_each or RETURNING.

raw_narrow.py is the same over the narrowest rows and fewest indexes that such a loop can do with.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from contenders.collector import forget
from contenders.graphs import WIDTH, parents_of
from contenders.schedd import noop, scheduler

TURN = int(os.environ.get("BENCH_TURN", "250"))  # tasks; bench.py says what schedd's cycles had
Driver = Any  # a sqlite3 or psycopg connection
Row = dict[str, Any]
Graph = Sequence[Sequence[int]]  # the parents of each task
_KEPT: list[Any] = []
Opener = Callable[[str], tuple[Driver, Row]]


def opened(url: str) -> tuple[Driver, Row]:
    """A connection of the driver as schedd's store opens it, to its empty tables, and one of its rows."""
    jobs = scheduler(url)
    _KEPT.append(jobs)  # a Scheduler that is dropped closes its connections
    stored = jobs.task(noop, 1, "hello world").schedule()
    engine = jobs.database.open()
    driver = engine.raw_connection().driver_connection
    if url.startswith("postgresql"):
        driver.rollback()
        driver.autocommit = True
    cursor = driver.execute(f"SELECT * FROM schedd_tasks WHERE id = {int(stored)}")
    row = dict(zip([column[0] for column in cursor.description], cursor.fetchone(), strict=True))
    driver.execute(f"DELETE FROM schedd_tasks WHERE id = {int(stored)}")  # other callers have theirs
    return driver, {name: value for name, value in row.items() if value is not None and name != "id"}


def rows_of(row: Row, wanted: Graph) -> tuple[list[str], list[tuple[Any, ...]], list[tuple[int, ...]]]:
    """Columns and rows of these tasks with ids from 1, and their edges (parent, child, on_end, otherwise, ok)."""
    names = ["id", *row]
    state, unmet = names.index("state"), names.index("unmet")
    tasks: list[tuple[Any, ...]] = []
    edges: list[tuple[int, ...]] = []
    for n, parents in enumerate(wanted):
        values = [n + 1, *row.values()]
        if parents:
            values[state], values[unmet] = 0, len(parents)
            edges += [(parent + 1, n + 1, 0, 0, 1) for parent in parents]
        tasks.append(tuple(values))
    return names, tasks, edges


# SQLite

_FIRST = """FROM schedd_tasks INDEXED BY ix_schedd_tasks_ready WHERE state >= 1 AND state <= 3 AND queue = 'default'
  AND priority = 1 AND lane = 'noop' AND run_at <= ?1 ORDER BY run_at, id LIMIT ?2"""
_READ = f"SELECT id, claim + 1, attempt + 1, payload {_FIRST}"
_CLAIM = f"""UPDATE schedd_tasks SET state = 4, worker = 1, claim = claim + 1, attempt = attempt + 1, claimed_at = ?1
  WHERE id IN (SELECT id {_FIRST})"""
_FINISH = """WITH j(id, claim, at) AS (VALUES {rows}) UPDATE schedd_tasks SET state = 6, worker = NULL,
  started_at = j.at, finished_at = j.at, result_until = j.at + 86400000000 FROM j WHERE schedd_tasks.id = j.id
  AND schedd_tasks.claim = j.claim AND schedd_tasks.worker = 1 AND schedd_tasks.state + 0 BETWEEN 4 AND 5"""
_ATTEMPT = "task_id, claim, number, worker, claimed_at, started_at, finished_at, outcome"
_RECORD = f"INSERT INTO schedd_attempts ({_ATTEMPT}) VALUES {{rows}}"
_RELEASE = """UPDATE schedd_tasks SET unmet = unmet - d.n, state = CASE WHEN unmet - d.n = 0 THEN 1 ELSE state END
  FROM (SELECT child, count(*) n FROM schedd_edges WHERE parent IN (SELECT value FROM json_each(?)) AND ok & 1
        GROUP BY child) d
  WHERE schedd_tasks.id = d.child AND schedd_tasks.state = 0"""
_SQLITE_EDGES = "INSERT INTO schedd_edges (parent, child, on_end, otherwise, ok) VALUES (?,?,?,?,?)"


def _values(count: int, width: int) -> str:
    return ", ".join([f"({', '.join('?' * width)})"] * count)


def _sqlite_fill(db: Driver, row: Row, wanted: Graph) -> None:
    names, tasks, edges = rows_of(row, wanted)
    db.execute("BEGIN IMMEDIATE")
    db.executemany(f"INSERT INTO schedd_tasks ({', '.join(names)}) VALUES {_values(1, len(names))}", tasks)
    if edges:
        db.executemany(_SQLITE_EDGES, edges)
    db.execute("COMMIT")


def _sqlite_loop(db: Driver, size: int, turn: int, *, edges: bool) -> float:
    got: list[Any] = []
    forget()
    begun = time.perf_counter()
    while True:
        db.execute("BEGIN IMMEDIATE")
        now = time.time_ns() // 1000
        if got:
            done = chain.from_iterable((i, claim, now) for i, claim, _, _ in got)
            db.execute(_FINISH.format(rows=_values(len(got), 3)), [*done])
            tried = chain.from_iterable((i, claim, number, 1, now, now, now, 0) for i, claim, number, _ in got)
            db.execute(_RECORD.format(rows=_values(len(got), 8)), [*tried])
            if edges:
                db.execute(_RELEASE, (json.dumps([row[0] for row in got]),))
        got = db.execute(_READ, (now, turn)).fetchall()
        if got:
            db.execute(_CLAIM, (now, turn))
        db.execute("COMMIT")
        for row in got:
            json.loads(row[3])
        if not got:
            return size / (time.perf_counter() - begun)


# PostgreSQL

_PG_CLAIM = """WITH c AS MATERIALIZED (SELECT id FROM schedd_tasks WHERE state >= 1 AND state <= 3
    AND queue = 'default' AND priority = 1 AND lane = 'noop' AND run_at <= %(now)s ORDER BY run_at, id LIMIT %(turn)s
    FOR UPDATE SKIP LOCKED)
  UPDATE schedd_tasks SET state = 4, worker = 1, claim = claim + 1, attempt = attempt + 1, claimed_at = %(now)s
  WHERE id = ANY(ARRAY(SELECT id FROM c)) RETURNING id, claim, attempt, payload"""
_PG_FINISH = """WITH j AS (SELECT * FROM unnest(%(ids)s::bigint[], %(claims)s::bigint[], %(numbers)s::int[])
    j(id, claim, number)),
  f AS (UPDATE schedd_tasks t SET state = 6, worker = NULL, started_at = %(now)s, finished_at = %(now)s,
      result_until = %(now)s + 86400000000 FROM j WHERE t.id = j.id AND t.id = ANY(%(ids)s::bigint[])
      AND CASE WHEN t.claim = j.claim THEN t.worker = 1 AND t.state + 0 BETWEEN 4 AND 5 ELSE false END
    RETURNING t.id, j.claim, j.number)
  INSERT INTO schedd_attempts (task_id, claim, number, worker, claimed_at, started_at, finished_at, outcome)
  SELECT id, claim, number, 1, %(now)s, %(now)s, %(now)s, 0 FROM f"""
_PG_RELEASE = """WITH d AS (SELECT child, count(*)::int n FROM schedd_edges WHERE parent = ANY(%s::bigint[])
    AND ok & 1 <> 0 GROUP BY child),
  l AS (SELECT t.id, d.n FROM schedd_tasks t JOIN d ON d.child = t.id WHERE t.state = 0 ORDER BY t.id FOR UPDATE OF t)
  UPDATE schedd_tasks t SET unmet = unmet - l.n, state = CASE WHEN unmet - l.n = 0 THEN 1 ELSE state END FROM l
  WHERE t.id = l.id"""


def _pg_fill(db: Driver, row: Row, wanted: Graph) -> None:
    names, tasks, edges = rows_of(row, wanted)
    with db.transaction(), db.cursor() as cursor:
        with cursor.copy(f"COPY schedd_tasks ({', '.join(names)}) FROM STDIN") as copy:
            for task in tasks:
                copy.write_row(task)
        if edges:
            with cursor.copy("COPY schedd_edges (parent, child, on_end, otherwise, ok) FROM STDIN") as copy:
                for edge in edges:
                    copy.write_row(edge)


def _array(values: Any) -> str:
    return "{" + ",".join(map(str, values)) + "}"  # the driver's own way takes much longer


def _pg_loop(db: Driver, size: int, turn: int, *, edges: bool) -> float:
    got: list[Any] = []
    cursor = db.cursor()
    forget()
    begun = time.perf_counter()
    while True:
        cursor.execute("BEGIN")
        now = time.time_ns() // 1000
        if got:
            ids, claims, numbers, _ = zip(*got, strict=True)
            bound = {"ids": _array(ids), "claims": _array(claims), "numbers": _array(numbers), "now": now}
            cursor.execute(_PG_FINISH, bound)
            if edges:
                cursor.execute(_PG_RELEASE, (bound["ids"],))
        got = cursor.execute(_PG_CLAIM, {"now": now, "turn": turn}).fetchall()
        cursor.execute("COMMIT")
        for row in got:
            json.loads(row[3])
        if not got:
            return size / (time.perf_counter() - begun)


# the works

_FILL = {"sqlite": _sqlite_fill, "postgresql": _pg_fill}
_LOOP = {"sqlite": _sqlite_loop, "postgresql": _pg_loop}


def _dialect(url: str) -> str:
    return "sqlite" if url.startswith("sqlite") else "postgresql"


def drain(url: str, size: int, opened: Opener = opened) -> float:
    db, row = opened(url)
    _FILL[_dialect(url)](db, row, parents_of(size, 0))
    return _LOOP[_dialect(url)](db, size, TURN, edges=False)


def dag(url: str, size: int, opened: Opener = opened) -> float:
    db, row = opened(url)
    _FILL[_dialect(url)](db, row, parents_of(size))
    return _LOOP[_dialect(url)](db, size, max(TURN, WIDTH), edges=True)


def enqueue(url: str, size: int) -> float:
    db, row = opened(url)
    mark = "?" if _dialect(url) == "sqlite" else "%s"
    insert = f"INSERT INTO schedd_tasks ({', '.join(row)}) VALUES ({', '.join([mark] * len(row))})"
    values = tuple(row.values())
    begun = time.perf_counter()
    for _ in range(size):
        db.execute(insert, values)  # and a commit
    return size / (time.perf_counter() - begun)


def batch(url: str, size: int) -> float:
    return _batch(url, size, graph=False)


def batch_of_edges(url: str, size: int) -> float:
    return _batch(url, size, graph=True)


def _batch(url: str, size: int, *, graph: bool) -> float:
    db, row = opened(url)
    wanted = parents_of(size, 3 if graph else 0)
    forget()
    begun = time.perf_counter()
    _FILL[_dialect(url)](db, row, wanted)
    return size / (time.perf_counter() - begun)


_ALL = {
    "drain": drain,
    "dag 5,000": dag,
    "dag 100,000": dag,
    "enqueue": enqueue,
    "batch": batch,
    "batch of edges": batch_of_edges,
}
WORKS = {(work, dialect): function for work, function in _ALL.items() for dialect in _FILL}
