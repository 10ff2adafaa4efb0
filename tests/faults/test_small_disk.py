"""A disk that really fills up under three daemons on SQLite, again and again, and has room again after a while."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from faults.campaign import Campaign
from faults.harness import Fleet, Mother, connect, until
from scheduler.store.db import migrate
from support.session import shared_directory
from support.small_disk import SmallDisk

pytestmark = [pytest.mark.faults, pytest.mark.soak]
LEASE = 3.0
SLOTS = {"high": 2, "medium": 4, "low": 2}
TASKS, FAULTS, MEBIBYTES = 20_000, 5, 128
FULL, BACK = "the disk is full", "the database is back"


@pytest.fixture
def disk() -> Iterator[SmallDisk]:
    directory = Path(tempfile.mkdtemp(prefix="d", dir=shared_directory()))
    with SmallDisk(directory, MEBIBYTES) as made:
        yield made
    directory.rmdir()


@pytest.fixture
def fleet(disk: SmallDisk, mother: Mother) -> Iterator[Fleet]:
    """What handlers note and workers say is elsewhere."""
    url = f"sqlite:///{disk.directory}/jobs.db"
    migrate.upgrade(url)
    directory = Path(tempfile.mkdtemp(prefix="f", dir=shared_directory()))
    made = Fleet(url, directory, mother)
    yield made
    made.close()
    for process in made.processes:
        print(process.tail())  # shown when the test failed
    shutil.rmtree(directory, ignore_errors=True)


def emptied(path: Path) -> bool:
    """Whether the write-ahead log could be brought to nothing: it keeps room that it once had."""
    with closing(sqlite3.connect(path, timeout=1.0)) as connection:
        (busy, _, _) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    return not busy


def full(disk: SmallDisk) -> Callable[[Campaign], None]:
    """No room for longer than the lease, and then room again."""

    def fault(campaign: Campaign) -> None:
        full_lines, back = len(campaign.lines(FULL)), len(campaign.lines(BACK))
        path = disk.directory / "jobs.db"
        until(lambda: emptied(path), "the log is empty")
        disk.fill()
        until(lambda: len(campaign.lines(FULL)) > full_lines, "a worker logs that the disk is full")
        time.sleep(1.5 * LEASE)  # real leases run out in real time
        disk.free()
        until(lambda: len(campaign.lines(BACK)) > back, "a worker goes on")

    return fault


@pytest.mark.case(9)
def test_a_disk_fills_up_and_has_room_again(disk: SmallDisk, fleet: Fleet, tell: Callable[[str], None]) -> None:
    seed = int(os.environ.get("SCHEDD_SEED", random.randrange(10**6)))
    tell(f"seed {seed} (SCHEDD_SEED={seed} runs it again)")
    pools = {f"pools__{name}__slots": str(size) for name, size in SLOTS.items()}
    with connect(fleet.url) as jobs:
        jobs.stop()
        start = [lambda: fleet.daemon(ready=False, worker__lease=str(LEASE), **pools) for _ in range(3)]
        made = Campaign(fleet, jobs, random.Random(seed), start)
        made.build(TASKS, 2000 * 3 * FAULTS * 3 * sum(SLOTS.values()) / TASKS)
        made.run([full(disk)] * FAULTS, 600.0)
        report = made.check()
        tell(report.text())
        assert len(made.lines(FULL)) >= FAULTS
        assert not made.lines("lease was lost")
        assert report.rerun == 0, "no worker could have claimed a task"
        made.no_slot_is_leaked(SLOTS)
