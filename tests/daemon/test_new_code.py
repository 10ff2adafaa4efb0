"""``schedd --reload`` and ``--dev``: real processes whose modules are edited under them."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import HTTPCookieProcessor, build_opener

import pytest

from scheduler import Scheduler, TaskState, task
from support.databases import Database
from support.processes import PATIENCE, Child, Nursery

JOBS = """
import os
from scheduler import task
import helpers

@task
def wait(ctx):
    os.write(1, f"running {ctx.id}\\n".encode())
    with open(f"gate-{ctx.id}"):  # a FIFO: opens when the test opens the other end
        return helpers.VALUE

@task
def answer(ctx):
    return helpers.VALUE

def setup(jobs):
    helpers.check()
"""
HELPERS = """
VALUE = "VALUE-HERE"

def check():
    pass
"""


@task
def wait(ctx: Any) -> None: ...


@task
def answer(ctx: Any) -> None: ...


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        made.write("jobs.py", JOBS)
        edit(made, "old")
        made.write("config.toml", '[tasks]\nmodules = ["jobs"]\npath = ["."]\n')
        yield made


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    with_types = Scheduler(database.url)
    with_types.register(wait)
    with_types.register(answer)
    yield with_types
    with_types.close()


def edit(nursery: Nursery, value: str, text: str = HELPERS) -> None:
    """Put another file in the module's place, as editors do."""
    written = nursery.write("helpers.new", text.replace("VALUE-HERE", value))
    os.replace(written, nursery.place / "helpers.py")


def schedd(nursery: Nursery, url: str, *options: str, **environ: str) -> Child:
    return nursery.start("-m", "scheduler.daemon", *options, SCHEDD_STORE__URL=url, **environ)


def ask(jobs: Scheduler) -> Any:
    return jobs.result(jobs.task(answer).schedule(), timeout=PATIENCE)


@pytest.mark.both_databases
def test_attempts_under_way_end_before_the_new_code_runs(database: Database, jobs: Scheduler, nursery: Nursery) -> None:
    running = jobs.task(wait).schedule()
    os.mkfifo(nursery.place / f"gate-{running}")
    daemon = schedd(nursery, database.url, "--reload")
    daemon.says("running")
    edit(nursery, "new")
    daemon.expect("changed: helpers.py")
    daemon.expect("stopping: no new tasks")
    assert jobs.get_task(running).state is TaskState.RUNNING
    (nursery.place / f"gate-{running}").write_text("")
    assert jobs.result(running, timeout=PATIENCE) == "old"
    daemon.expect("schedd .* starts")
    assert ask(jobs) == "new"
    assert jobs.get_task(running).attempts_used == 1
    daemon.kill(signal.SIGINT)
    daemon.expect("stopped")
    assert daemon.end() == 0


BROKEN = [
    ("def broken(:\n", r"helpers\.py:1: SyntaxError"),
    ("import nowhere_to_be_found\n", r"helpers\.py:1: ModuleNotFoundError"),
    (HELPERS.replace("pass", "raise ValueError('no')"), r"setup\(\) of module jobs failed: .*ValueError: no"),
]


def test_a_broken_edit_is_said_and_the_old_code_stays(database: Database, jobs: Scheduler, nursery: Nursery) -> None:
    daemon = schedd(nursery, database.url, "--reload")
    daemon.expect('"ready"')
    for broken, said in BROKEN:
        edit(nursery, "", broken)
        daemon.expect(said)
        daemon.expect("the old code stays running")
        assert ask(jobs) == "old"
    assert not [line for line in daemon.seen if "stopping" in line]
    edit(nursery, "mended")
    daemon.expect('"ready"')
    assert ask(jobs) == "mended"
    daemon.kill(signal.SIGTERM)
    assert daemon.end() == 0


def test_code_that_is_broken_at_the_start_waits_for_an_edit(
    database: Database, jobs: Scheduler, nursery: Nursery
) -> None:
    edit(nursery, "", "def broken(:\n")
    daemon = schedd(nursery, database.url, "--reload")
    daemon.expect("SyntaxError")
    daemon.expect("nothing runs")
    edit(nursery, "mended")
    daemon.expect('"ready"')
    assert ask(jobs) == "mended"


def test_an_edited_configuration_counts_as_code(database: Database, jobs: Scheduler, nursery: Nursery) -> None:
    daemon = schedd(nursery, database.url, "--reload")
    daemon.expect('"ready"')
    nursery.write("config.toml", '[tasks]\nmodules = ["jobs"]\npath = ["."]\n[worker]\nlaese = 3\n')
    daemon.expect("unknown|no setting|laese")
    daemon.expect("the old code stays running")
    nursery.write("config.toml", '[tasks]\nmodules = ["jobs"]\npath = ["."]\n[worker]\nqueues = ["other"]\n')
    daemon.expect('"ready"')
    assert jobs.result(jobs.task(answer).queue("other").schedule(), timeout=PATIENCE) == "old"


def test_a_daemon_ends_with_the_process_above_it(database: Database, jobs: Scheduler, nursery: Nursery) -> None:
    daemon = schedd(nursery, database.url, "--reload")
    daemon.expect('"ready"')
    daemon.kill(signal.SIGKILL)
    daemon.expect("stopped")


def test_in_development_the_link_of_the_console_is_printed(
    database: Database, jobs: Scheduler, nursery: Nursery
) -> None:
    daemon = schedd(nursery, database.url, "--dev", SCHEDD_LOG__FORMAT="console")
    link = re.findall(r"http://\S+\?t=[\w-]+", daemon.expect(r"console: http"))[0]
    visitor = build_opener(HTTPCookieProcessor())
    assert "schedd" in visitor.open(link, timeout=PATIENCE).read().decode()
    done = jobs.task(answer).schedule()
    row = daemon.expect(f"answer {done}")
    assert re.fullmatch(rf"\d\d:\d\d:\d\dZ \[info     \] succeeded answer {done}, [\d.]+ m?s", row)
    edit(nursery, "new")
    daemon.expect("changed: helpers.py")
    daemon.expect("ready ")
    assert ask(jobs) == "new"


def test_a_bounded_run_ends_in_order(database: Database, jobs: Scheduler, nursery: Nursery) -> None:
    done = jobs.task(answer).schedule()
    daemon = schedd(nursery, database.url, "--reload", "--exit-when-idle", "0")
    assert daemon.end() == 0
    assert jobs.get_task(done).state is TaskState.SUCCESS
