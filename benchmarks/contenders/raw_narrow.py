"""raw.py's loops over the narrowest rows and fewest indexes that they can do with: 17 columns where schedd has 66, two
indexes beside the primary key where it has thirteen. No bar is measured by it: it shows what the width of schedd's rows
costs any engine that has them, and the least that a start can take on this machine."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable

from contenders import raw
from contenders.calls import Calls
from scheduler.store.db.engines import make_engine
from scheduler.store.db.urls import parse_url

_TABLES = """
CREATE TABLE schedd_tasks (id {id}, state {small}, queue TEXT, lane TEXT, priority {small}, run_at BIGINT, kind TEXT,
  unmet INTEGER, worker BIGINT, claim BIGINT, attempt INTEGER, claimed_at BIGINT, started_at BIGINT,
  finished_at BIGINT, payload TEXT, result TEXT, result_until BIGINT) {tail};
CREATE INDEX ix_schedd_tasks_ready ON schedd_tasks (queue, priority, lane, run_at, id, state)
  WHERE state >= 1 AND state <= 3;
CREATE INDEX ix_schedd_tasks_held ON schedd_tasks (worker) WHERE state >= 4 AND state <= 5;
CREATE TABLE schedd_edges (parent BIGINT, child BIGINT, on_end {small}, otherwise {small}, ok {small},
  PRIMARY KEY (parent, child)) {rowid};
CREATE TABLE schedd_attempts (task_id BIGINT, claim BIGINT, number INTEGER, worker BIGINT, claimed_at BIGINT,
  started_at BIGINT, finished_at BIGINT, outcome {small}, PRIMARY KEY (task_id, claim)) {rowid};
"""
_SQLITE = {"id": "INTEGER PRIMARY KEY", "small": "INTEGER", "tail": "", "rowid": "WITHOUT ROWID"}
_POSTGRESQL = {"id": "BIGINT PRIMARY KEY", "small": "SMALLINT", "tail": "WITH (fillfactor=70)", "rowid": ""}
_ROW: raw.Row = {
    "state": 1,
    "queue": "default",
    "lane": "noop",
    "priority": 1,
    "run_at": 1,
    "kind": "noop",
    "unmet": 0,
    "claim": 0,
    "attempt": 0,
    "payload": '{"n":1,"text":"hello world"}',
}


def opened(url: str) -> tuple[raw.Driver, raw.Row]:
    """A connection of the driver with the settings of schedd's store, to empty narrow tables, and a row."""
    driver = make_engine(parse_url(url))[0].raw_connection().driver_connection
    assert driver is not None
    if url.startswith("postgresql"):
        driver.autocommit = True
    tables = _TABLES.format(**(_SQLITE if url.startswith("sqlite") else _POSTGRESQL))
    for statement in filter(str.strip, tables.split(";")):
        driver.execute(statement)
    return driver, _ROW


def drain(url: str, size: int) -> float:
    return raw.drain(url, size, opened)


def dag(url: str, size: int) -> float:
    return raw.dag(url, size, opened)


_NOTIFY = f"""WITH stored AS (INSERT INTO schedd_tasks (id, {", ".join(_ROW)})
  VALUES (%(id)s, {", ".join(f"%({name})s" for name in _ROW)}) RETURNING id)
  SELECT id, pg_notify('narrow', '') FROM stored"""


def _driver(url: str) -> raw.Driver:
    driver: raw.Driver = make_engine(parse_url(url))[0].raw_connection().driver_connection
    driver.autocommit = True
    return driver


def caller(url: str) -> Callable[[int], None]:
    """Stores a task and notifies in one statement, which is a transaction of its own."""
    driver = _driver(url)
    return lambda n: driver.execute(_NOTIFY, {**_ROW, "id": n + 2}) and None


def start(url: str, size: int) -> list[float]:
    """What any queue must do that commits a task before schedule() returns, and its claim before the handler begins:
    two statements, each with its commit, and a notification between them. PostgreSQL only."""
    claiming, _ = opened(url)
    listening = _driver(url)
    listening.execute("LISTEN narrow")
    started: dict[int, float] = {}
    over = threading.Event()

    def work() -> None:
        bound = {"now": 2, "turn": 1}
        while not over.is_set():
            select.select([listening.fileno()], [], [], 0.1)
            list(listening.notifies(timeout=0))
            while got := claiming.execute(raw._PG_CLAIM, bound).fetchall():
                started.setdefault(got[0][0] - 2, time.time())

    worker = threading.Thread(target=work)
    worker.start()
    try:
        return Calls("raw_narrow", url, size).latencies(started)
    finally:
        over.set()
        worker.join()


_ALL = {"drain": drain, "dag 5,000": dag}
WORKS = {(work, dialect): function for work, function in _ALL.items() for dialect in ("sqlite", "postgresql")}
WORKS["start", "postgresql"] = start
