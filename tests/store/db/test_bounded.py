"""Reads for pages on SQLite: what counts towards their bound."""

from __future__ import annotations

import time

import pytest

from scheduler import Scheduler
from scheduler.store.db.bounded import ReadTooLongError, bounded_read
from support.databases import Database

ROWS = "WITH RECURSIVE c(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM c WHERE i < {}) SELECT count(*) FROM c"
QUICK, ENDLESS = ROWS.format(20_000), ROWS.format(10**12)
pytestmark = pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)


def read(database: Database, seconds: float, waits: float, statement: str) -> int:
    """Wait in a transaction, as for a processor that others use, and read."""
    jobs = Scheduler(database.url)
    try:
        with bounded_read(jobs.database, seconds) as tx:
            time.sleep(waits)
            return int(tx.rows(statement)[0][0])
    finally:
        jobs.close()


def test_a_read_that_waits_for_a_processor_is_not_cut_off(database: Database) -> None:
    assert read(database, 2, 2.2, QUICK) == 20_000


def test_a_read_that_computes_for_too_long_is_cut_off(database: Database) -> None:
    with pytest.raises(ReadTooLongError, match=r"took longer than 0\.1 s"):
        read(database, 0.1, 0, ENDLESS)


def test_a_read_that_waits_for_very_long_is_cut_off(database: Database) -> None:
    with pytest.raises(ReadTooLongError):
        read(database, 0.1, 0.6, QUICK)
