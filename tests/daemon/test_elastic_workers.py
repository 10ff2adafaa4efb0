"""Real daemons and real workers of the executor ``process``: a backlog starts them, and none is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import Context, RetryPolicy, Scheduler, Task
from support.databases import Database, one_database
from support.fleet import until
from support.processes import Child, Nursery

PATIENCE = 120.0
JOBS = """
import os, time
from pathlib import Path
from scheduler import Context, RetryPolicy, Task

class Gated(Task, queue="a", retry=RetryPolicy(min_wait=0, max_attempts=3, jitter=0)):
    place: str
    def run(self, ctx: Context):
        place = Path(self.place)
        with (place / "workers").open("a") as file:
            file.write(f"{os.getpid()}\\n")
        while not (place / "go").exists():
            time.sleep(0.01)
        return os.getpid()

class Long(Task, queue="a", executor="it", retry=RetryPolicy(max_attempts=1)):
    place: str
    def run(self, ctx: Context):
        place = Path(self.place)
        if (place / "handed-back").exists():
            return os.getpid()
        while ctx.time_left() is None:
            time.sleep(0.01)
        (place / "handed-back").touch()
        time.sleep(3600)
"""


class Gated(Task, queue="a", retry=RetryPolicy(min_wait=0, max_attempts=3, jitter=0)):
    place: str

    def run(self, ctx: Context) -> None: ...


class Long(Task, queue="a", executor="it", retry=RetryPolicy(max_attempts=1)):
    place: str

    def run(self, ctx: Context) -> None: ...


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        made.write("elasticjobs.py", JOBS)
        yield made


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(Gated)
    made.register(Long)
    yield made
    made.close()


def daemon(nursery: Nursery, url: str, place: Path, settings: str) -> Child:
    file = place / "schedd.toml"
    file.write_text(
        f'[store]\nurl = "{url}"\n[tasks]\nmodules = ["elasticjobs"]\npath = ["{place}"]\n'
        '[worker]\nqueues = ["local"]\nlease = 3\ndrain = 1\nmax_concurrent_tasks = 1\n'
        f'[executors.it]\ntype = "process"\ndirectory = "{place / "jobs"}"\nplace = "worker"\nqueues = ["a"]\n'
        f"max_workers = 1\nscale_when_older = 0.1\ncooldown = 0.1\ninterval = 0.05\ngrace = 2\n{settings}"
    )
    environ = {"SCHEDD_LOG__FORMAT": "console", "SCHEDD_CONFIG": str(file)}
    return nursery.start("-m", "scheduler.daemon", **environ)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def jobs_left(place: Path) -> list[str]:
    return sorted(entry.name for entry in (place / "jobs").iterdir()) if (place / "jobs").exists() else []


def end(child: Child) -> None:
    child.kill(signal.SIGTERM)
    assert child.end() == 0


@pytest.mark.faults
def test_a_backlog_is_served_though_the_daemon_and_the_worker_are_killed(
    jobs: Scheduler, database: Database, nursery: Nursery, tmp_path: Path
) -> None:
    """The daemon is killed while its worker works, and the worker after it: there are two workers in all."""
    tasks = [jobs.task(Gated(str(tmp_path))).schedule() for _ in range(3)]
    doomed = daemon(nursery, database.url, tmp_path, "idle = 0.2\n")
    until(lambda: lines(tmp_path / "workers"), PATIENCE)
    (first,) = jobs_left(tmp_path)
    doomed.kill(signal.SIGKILL)
    assert doomed.end() == -signal.SIGKILL
    jobs.database.change(lambda tx: tx.run("UPDATE schedd_executors SET until = 0"))  # some seconds later
    second = daemon(nursery, database.url, tmp_path, "idle = 0.2\n")
    second.expect("this daemon starts workers for executor it")
    assert jobs_left(tmp_path) == [first]
    os.kill(int(lines(tmp_path / "workers")[0]), signal.SIGKILL)
    until(lambda: len(lines(tmp_path / "workers")) > 1, PATIENCE)
    (tmp_path / "go").touch()
    ran = {jobs.result(task, timeout=PATIENCE) for task in tasks}
    assert len(ran) == 1
    assert {*map(int, lines(tmp_path / "workers"))} == {*ran, int(lines(tmp_path / "workers")[0])}
    until(lambda: jobs_left(tmp_path) == [], PATIENCE)
    ends = [[attempt.outcome.value for attempt in jobs.get_attempts(task)] for task in tasks]
    assert sorted(ends) == [["lost", "succeeded"], ["succeeded"], ["succeeded"]]
    end(second)


@one_database
def test_a_task_that_a_workers_lifetime_is_too_short_for_goes_on_in_the_next(
    jobs: Scheduler, database: Database, nursery: Nursery, tmp_path: Path
) -> None:
    """It names the executor, and has one attempt, which is not used by the first worker."""
    task = jobs.task(Long(str(tmp_path))).schedule()
    child = daemon(nursery, database.url, tmp_path, 'idle = 0.2\nlifetime = "6s"\n')
    assert jobs.result(task, timeout=PATIENCE) is not None
    assert (tmp_path / "handed-back").exists()
    assert jobs.get_task(task).attempt == 1
    until(lambda: jobs_left(tmp_path) == [], PATIENCE)
    end(child)
