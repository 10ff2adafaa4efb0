"""The daemon over a real store: draining, handing back, reloading, and a database that is away."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from scheduler import Scheduler, TaskState, task
from support.databases import Database
from support.processes import Child, Nursery, Systemd

pytestmark = pytest.mark.both_databases

PATIENCE = 60.0

JOBS = """
import os
from scheduler import task

def say(what, ctx):
    os.write(1, f"{what} {ctx.id}\\n".encode())  # in one piece, which print() is not

@task
def wait(ctx):
    say("running", ctx)
    with open(f"gate-{ctx.id}"):  # a FIFO: opens when the test opens the other end
        return "waited"

@task
def quick(ctx):
    say("quick", ctx)
    return os.getpid()
"""
ONE_SLOT = {f"SCHEDD_POOLS__{pool}__SLOTS": "1" if pool == "MEDIUM" else "0" for pool in ("HIGH", "MEDIUM", "LOW")}


@task
def wait(ctx: Any) -> None: ...


@task
def quick(ctx: Any) -> None: ...


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        made.write("jobs.py", JOBS)
        made.write("config.toml", '[tasks]\nmodules = ["jobs"]\npath = ["."]\n')
        yield made


@pytest.fixture
def systemd(nursery: Nursery) -> Systemd:
    return nursery.systemd


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    scheduler = Scheduler(database.url)
    scheduler.register(wait)
    scheduler.register(quick)
    yield scheduler
    scheduler.close()


def schedd(nursery: Nursery, url: str, *, executed: bool = False, **environ: str) -> Child:
    return nursery.start("-m", "scheduler.daemon", executed=executed, SCHEDD_STORE__URL=url, **environ)


def schedule_waiting(jobs: Scheduler, nursery: Nursery, count: int = 1) -> list[int]:
    """Tasks that run until :func:`let_go`."""
    ids = [jobs.task(wait).schedule() for _ in range(count)]
    for task_id in ids:
        os.mkfifo(nursery.place / f"gate-{task_id}")
    return [int(task_id) for task_id in ids]


def let_go(nursery: Nursery, task_id: int) -> None:
    (nursery.place / f"gate-{task_id}").write_text("")


# Stopping


@pytest.mark.case(8)
def test_drain_lets_running_tasks_finish_and_leaves_the_others(
    database: Database, jobs: Scheduler, nursery: Nursery
) -> None:
    first, *others = schedule_waiting(jobs, nursery, 3)
    child = schedd(nursery, database.url, **ONE_SLOT)
    assert child.says("running") == f"running {first}"
    child.kill(signal.SIGTERM)
    child.expect("stopping: no new tasks")
    let_go(nursery, first)
    assert child.end() == 0
    assert jobs.get_task(first).state is TaskState.SUCCESS
    for task_id in others:
        queued = jobs.get_task(task_id)
        assert (queued.state, queued.attempts_used) == (TaskState.SCHEDULED, 0)
    assert not [line for line in child.rest(child.out) if line.startswith("running")]


@pytest.mark.case(8)
def test_two_signals_within_a_moment_are_one(database: Database, jobs: Scheduler, nursery: Nursery) -> None:
    """As timeout(1), honcho and a terminal's Ctrl-C beside a manager send them: what runs comes to its end."""
    (task_id,) = schedule_waiting(jobs, nursery)
    child = schedd(nursery, database.url)
    child.says("running")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        child.kill(number)
    child.expect("stopping: no new tasks")
    let_go(nursery, task_id)
    assert child.end() == 0
    assert jobs.get_task(task_id).state is TaskState.SUCCESS
    child.rest(child.err)
    assert len([line for line in child.seen if "received" in line]) == 1
    assert not [line for line in child.seen if "stopping at once" in line]


@pytest.mark.case(8)
@pytest.mark.parametrize("how", ["past the drain time", "a second signal"])
def test_what_still_runs_is_handed_back(database: Database, jobs: Scheduler, nursery: Nursery, how: str) -> None:
    (task_id,) = schedule_waiting(jobs, nursery)
    child = schedd(nursery, database.url, SCHEDD_WORKER__DRAIN="0" if how == "past the drain time" else "1h")
    child.says("running")
    child.kill(signal.SIGTERM)
    if how == "a second signal":
        child.expect("stopping: no new tasks")
        child.kill_until(signal.SIGTERM, "stopping at once")
    child.expect("1 tasks were still running")
    assert child.end() == 0
    back = jobs.get_task(task_id)
    (attempt,) = jobs.get_attempts(task_id)
    assert (back.state, back.attempts_used, back.worker) == (TaskState.SCHEDULED, 0, None)
    assert attempt.outcome == "handed back"
    assert attempt.finished_at is not None
    assert back.run_at - attempt.finished_at == timedelta(seconds=2)

    second = schedd(nursery, database.url)
    assert second.says("running") == f"running {task_id}"
    let_go(nursery, task_id)
    assert jobs.result(task_id, timeout=PATIENCE) == "waited"


# Reloading


def test_a_reload_brings_new_kinds_into_a_running_daemon(
    database: Database, jobs: Scheduler, nursery: Nursery, systemd: Systemd
) -> None:
    nursery.write("config.toml", "")
    child = schedd(nursery, database.url)
    systemd.expect("READY=1")
    task_id = jobs.task(quick).schedule()
    nursery.write("config.toml", '[tasks]\nmodules = ["jobs"]\npath = ["."]\n')
    child.kill(signal.SIGHUP)
    assert jobs.result(task_id, timeout=PATIENCE) == child.process.pid


# Several daemons


@pytest.mark.case(5)
def test_two_daemons_on_one_store_run_every_task_once(
    database: Database, jobs: Scheduler, nursery: Nursery, systemd: Systemd
) -> None:
    children = [schedd(nursery, database.url) for _ in range(2)]
    for _ in children:
        systemd.expect("READY=1")
    with jobs.batch() as batch:
        for _ in range(500):
            batch.task(quick)
    ended = jobs.wait(batch.ids, timeout=PATIENCE)
    assert {record.state for record in ended.values()} == {TaskState.SUCCESS}
    assert {record.attempt for record in ended.values()} == {1}
    for child in children:
        child.kill(signal.SIGTERM)
    assert [child.end() for child in children] == [0, 0]
    ran = [line for child in children for line in child.rest(child.out)]
    assert sorted(ran) == sorted(f"quick {task_id}" for task_id in batch.ids)


# A store that cannot be used


def complaint(child: Child) -> str:
    assert child.end() == 5
    (line,) = [line for line in child.rest(child.err) if not line.startswith("{")]
    return line


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_database_that_is_not_migrated(empty_database: Database, nursery: Nursery) -> None:
    assert "run `schedctl db upgrade`" in complaint(schedd(nursery, empty_database.url))


def test_a_database_newer_than_the_program(database: Database, jobs: Scheduler, nursery: Nursery) -> None:
    with jobs.database.write() as tx:
        tx.connection.exec_driver_sql("UPDATE schedd_version SET version_num = '9999'")
    try:
        assert "newer than this program's" in complaint(schedd(nursery, database.url))
    finally:
        with jobs.database.write() as tx:
            from scheduler.store.db.migrate import HEAD

            tx.connection.exec_driver_sql(f"UPDATE schedd_version SET version_num = '{HEAD}'")


def test_a_directory_that_is_not_there(nursery: Nursery) -> None:
    assert "does not exist; create it" in complaint(schedd(nursery, "sqlite:///nowhere/schedd.db"))


def test_a_file_that_is_no_database(nursery: Nursery) -> None:
    nursery.write("schedd.db", "I am not a database, and longer than its header would be. " * 20)
    assert "not a (healthy) SQLite database" in complaint(schedd(nursery, "sqlite:///schedd.db"))


def test_a_database_locked_at_start_is_waited_for(nursery: Nursery, systemd: Systemd) -> None:
    with closing(sqlite3.connect(nursery.place / "schedd.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        other.execute("CREATE TABLE mine (x)")
        child = schedd(nursery, "sqlite:///schedd.db")
        child.expect("the database is locked by another program .*trying again")
        other.execute("ROLLBACK")
    child.expect("the store is there now")
    systemd.expect("READY=1")


class Road:
    """A way to the test's PostgreSQL that can be closed: a directory with a link to its socket."""

    def __init__(self, database: Database, place: Path) -> None:
        real = urlsplit(database.url)
        self._socket = Path(parse_qs(real.query)["host"][0]) / ".s.PGSQL.5432"
        self._link = place / self._socket.name
        self.url = f"{real.scheme}://{real.netloc}{real.path}?host={place}"

    def open(self) -> None:
        self._link.symlink_to(self._socket)

    def close(self, jobs: Scheduler) -> None:
        self._link.unlink()
        with jobs.database.write() as tx:
            tx.connection.exec_driver_sql(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )


@pytest.fixture
def road(database: Database, nursery: Nursery) -> Road:
    return Road(database, nursery.place)


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_server_that_is_away_at_start_is_waited_for(
    road: Road, jobs: Scheduler, nursery: Nursery, systemd: Systemd
) -> None:
    child = schedd(nursery, road.url)
    systemd.expect("STATUS=waiting for the store")
    road.open()
    child.expect("the store is there now")
    systemd.expect("READY=1")
    assert jobs.result(jobs.task(quick).schedule(), timeout=PATIENCE) == child.process.pid


@pytest.mark.case(9)
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_the_watchdog_is_notified_while_the_server_is_away(
    road: Road, jobs: Scheduler, nursery: Nursery, systemd: Systemd
) -> None:
    road.open()
    child = schedd(nursery, road.url, WATCHDOG_USEC="4000000")
    systemd.expect("READY=1")
    assert jobs.result(jobs.task(quick).schedule(), timeout=PATIENCE) == child.process.pid
    road.close(jobs)
    child.expect("the database is away")
    systemd.forget()
    systemd.expect("WATCHDOG=1")
    systemd.expect("WATCHDOG=1")
    road.open()
    child.expect("the database is back")
    assert jobs.result(jobs.task(quick).schedule(), timeout=PATIENCE) == child.process.pid


# At rest


# Waits a second, of all its threads, whatever else the machine does: about twice the mean when this was recorded.
WAITS = {"sqlite": 7, "postgresql": 9}
# Of a core; only a busy loop takes so much. How near it is to the promised 0.005 is for benchmarks to say:
# on a virtual machine the hypervisor may take the first half millisecond after a second of sleep.
SPINS = 0.05


@pytest.mark.timeout(240)
def test_an_idle_daemon_costs_next_to_nothing(
    database: Database, nursery: Nursery, systemd: Systemd, tell: Callable[[str], None]
) -> None:
    """What its engine does meanwhile is counted in tests/store/test_costs.py."""
    child = schedd(nursery, database.url, executed=True, WATCHDOG_USEC="2000000")
    systemd.expect("READY=1")

    def spent() -> tuple[float, int, float]:
        systemd.expect("WATCHDOG=1")  # one a second: that is what time is measured by
        threads = list(Path(f"/proc/{child.process.pid}/task").iterdir())
        # schedstat counts to the nanosecond, not to the tick
        nanoseconds = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
        switches = [(thread / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2] for thread in threads]
        return nanoseconds / 1e9, sum(int(text.split()[0]) for text in switches), time.monotonic()

    spent()  # starting up is not idling
    shares: list[float] = []
    waits: list[float] = []
    bound = WAITS[database.dialect]
    # A neighbour's load makes it dearer, never cheaper; and once in a while it has more to look after.
    while not shares or ((min(shares) >= SPINS or min(waits) >= bound) and len(shares) < 12):
        used, waited, start = spent()
        for _ in range(3):
            used_then, waited_then, end = spent()
        shares.append((used_then - used) / (end - start))
        waits.append((waited_then - waited) / (end - start))
    status = Path(f"/proc/{child.process.pid}/status").read_text()
    resident = int(status.partition("VmRSS:")[2].split()[0]) / 1024
    tell(f"{min(shares):.2%} of a core, {min(waits):.1f} waits a second, {resident:.0f} MiB")
    assert min(shares) < SPINS
    assert min(waits) < bound
    assert resident < 80


def test_its_start_is_logged_in_one_line_with_counts(database: Database, jobs: Scheduler, nursery: Nursery) -> None:
    schedule_waiting(jobs, nursery, 2)
    child = schedd(nursery, database.url)
    line = json.loads(child.expect('"event":"ready"'))
    assert sum(line.get(state, 0) for state in ("scheduled", "claimed", "running")) == 2
