"""A daemon whose command line says which queues it serves, and when it ends by itself."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import Context, RetryPolicy, Scheduler, Task, TaskState
from scheduler.config.load import load
from scheduler.daemon.bounded_run import BoundedRun, add_options
from support.databases import Database
from support.processes import Nursery

JOBS = """
import time
from pathlib import Path
from scheduler import Context, RetryPolicy, Task

class Quick(Task):
    def run(self, ctx: Context):
        return "done"

class Long(Task, retry=RetryPolicy(max_attempts=1)):
    place: str
    def run(self, ctx: Context):
        Path(self.place).touch()
        while ctx.time_left() is None:
            time.sleep(0.01)
        left = ctx.time_left()
        while ctx.time_left() and not Path(self.place + ".go").exists():
            time.sleep(0.01)
        if not Path(self.place + ".go").exists():
            time.sleep(3600)
        return left
"""


class Quick(Task):
    def run(self, ctx: Context) -> None: ...


class Long(Task, retry=RetryPolicy(max_attempts=1)):
    place: str

    def run(self, ctx: Context) -> None: ...


def parsed(*arguments: str) -> BoundedRun:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser)
    return BoundedRun.of(parser.parse_args(arguments))


def test_the_command_line_is_checked(capsys: pytest.CaptureFixture[str]) -> None:
    bounds = parsed("--queues", "a, b,a", "--exit-when-idle", "1.5", "--lifetime", "55m")
    assert (bounds.queues, bounds.idle, bounds.lifetime) == (("a", "b"), 1.5, 3300.0)
    assert parsed("--queues=*", "--exit-when-idle", "90s").idle == 90.0
    assert (parsed().queues, parsed().idle, parsed().lifetime) == (None, None, None)
    for wrong in (("--queues", "a,,b"), ("--lifetime", "0"), ("--lifetime", "long"), ("--exit-when-idle", "-1")):
        with pytest.raises((argparse.ArgumentError, SystemExit)):
            parsed(*wrong)


def test_it_claims_nothing_in_the_last_part_of_its_lifetime() -> None:
    began = time.monotonic()
    assert BoundedRun(lifetime=100.0, began=began).over(None, drain=30.0) is None
    assert BoundedRun(lifetime=100.0, began=began - 69).over(None, drain=30.0) is None
    ending = BoundedRun(lifetime=100.0, began=began - 71)
    assert ending.over(None, drain=30.0) == "its lifetime of 100 s is about to end"
    assert 28 < ending.drain(30.0) <= 29
    short = BoundedRun(lifetime=10.0, began=began)  # it serves for half of it, whatever the drain
    assert short.over(None, drain=30.0) is None
    assert 4 < short.poll(10.0, drain=30.0) <= 5
    assert BoundedRun().drain(30.0) == 30.0


def test_queues_of_the_command_line_stand_in_for_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[worker]\nqueues = ["c"]\n')
    config = load(str(file), {})
    assert BoundedRun().applied(config) is config
    changed = parsed("--queues", "a").applied(config)
    assert (changed.worker.queues, changed.origins["worker.queues"]) == (("a",), "--queues")


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        made.write("boundjobs.py", JOBS)
        made.write("config.toml", '[tasks]\nmodules = ["boundjobs"]\npath = ["."]\n[worker]\ndrain = 2\n')
        yield made


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(Quick)
    made.register(Long)
    yield made
    made.close()


def test_it_takes_its_queues_and_ends_when_there_is_nothing_left(
    jobs: Scheduler, database: Database, nursery: Nursery
) -> None:
    ours = [jobs.task(Quick()).queue("a").schedule() for _ in range(5)]
    other = jobs.task(Quick()).queue("b").schedule()
    daemon = nursery.start(
        "-m", "scheduler.daemon", "--queues", "a", "--exit-when-idle", "0", SCHEDD_STORE__URL=database.url
    )
    daemon.expect("ending: no task to run for 0 s")
    assert daemon.end() == 0
    assert {jobs.get_task(one).state for one in ours} == {TaskState.SUCCESS}
    assert jobs.get_task(other).state is TaskState.SCHEDULED


def test_at_the_end_of_its_lifetime_what_runs_ends_or_is_handed_back(
    jobs: Scheduler, database: Database, nursery: Nursery, tmp_path: Path
) -> None:
    """One handler hears how long it has and ends; the other is handed back, and its only attempt is not used."""
    ends, stays = (jobs.task(Long(str(tmp_path / name))).schedule() for name in ("ends", "stays"))
    (tmp_path / "ends.go").touch()
    daemon = nursery.start("-m", "scheduler.daemon", "--lifetime", "7s", SCHEDD_STORE__URL=database.url)
    daemon.expect("ending: its lifetime of 7 s is about to end")
    assert daemon.end() == 0
    assert 0 < jobs.result(ends, timeout=0) <= 2
    task = jobs.get_task(stays)
    assert (task.state, task.attempt) == (TaskState.SCHEDULED, 0)
    assert (tmp_path / "stays").exists()
