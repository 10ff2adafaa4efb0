"""A program that embeds the engine and sets up nothing: it sees what fails, where, and what a stop waits for."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import Context, PermanentError, Scheduler, Task, TaskFailedError, task
from scheduler.store.read.history import traceback_in
from support.databases import Database, one_database

PATIENCE = 30.0


class Breaks(Task):
    how: str = "deep"

    def run(self, ctx: Context) -> None:
        ctx.log.info("about to break")
        if self.how == "permanent":
            raise PermanentError("never")
        try:
            [][0]
        except IndexError as error:
            raise LookupError("no such row") from error


class BreaksInside(Breaks, isolation="process"): ...


@task
def quiet(ctx: Context) -> int:
    return 1


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url, processes=1)
    for kind in (Breaks, BreaksInside, quiet):
        made.register(kind)
    with made:
        yield made


@pytest.mark.parametrize("kind", [Breaks, BreaksInside])
def test_what_a_handler_raised_is_told_with_its_traceback(jobs: Scheduler, kind: type[Breaks]) -> None:
    made = jobs.task(kind()).schedule()
    with pytest.raises(TaskFailedError) as caught:
        jobs.result(made, timeout=PATIENCE)
    text = "".join(traceback.format_exception(caught.value))
    for found in (caught.value.traceback, text, jobs.get_attempts(made)[0].traceback, jobs.logs(made)):
        assert "direct cause of the following exception" in str(found)
        assert 'raise LookupError("no such row") from error' in str(found)
    assert str(caught.value) == f"task {made} failed: LookupError: no such row"
    assert str(caught.value.traceback).startswith("Traceback (most recent call last):")
    assert "about to break" not in str(caught.value.traceback)


def test_logs_are_there_for_programs(jobs: Scheduler) -> None:
    broken, fine = jobs.task(Breaks()).schedule(), jobs.task(quiet).schedule()
    told = jobs.task(Breaks("permanent")).schedule()
    jobs.wait([broken, fine, told], timeout=PATIENCE)
    jobs.retry_task(broken)
    jobs.wait([broken], timeout=PATIENCE)
    assert jobs.logs(broken) == jobs.logs(broken, attempt=2) != jobs.logs(broken, attempt=1)
    assert "about to break" in jobs.logs(broken, attempt=1)
    assert jobs.logs(broken, attempt=3) == jobs.logs(fine) == ""
    assert asyncio.run(jobs.logs_async(broken)) == jobs.logs(broken)
    assert jobs.get_attempts(fine)[0].traceback is None
    assert jobs.get_attempts(told)[0].traceback is None  # its text says enough


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, None),
        ("printed\n", None),
        ("Traceback (most recent call last):\n  one\nA: b\n", "Traceback (most recent call last):\n  one\nA: b"),
        (
            "2026-01-01T00:00:00.000Z ERROR shop: oh\nTraceback (most recent call last):\nfirst\n"
            "Traceback (most recent call last):\nsecond\n",
            "Traceback (most recent call last):\nsecond",
        ),
        (
            "Traceback (most recent call last):\nA\n\nDuring handling of the above exception, another exception "
            "occurred:\n\nTraceback (most recent call last):\nB\n2026-01-01T00:00:00.000Z INFO shop: end\n",
            "Traceback (most recent call last):\nA\n\nDuring handling of the above exception, another exception "
            "occurred:\n\nTraceback (most recent call last):\nB",
        ),
    ],
)
def test_the_traceback_in_what_an_attempt_wrote(text: str | None, found: str | None) -> None:
    assert traceback_in(text) == found


PROGRAM = """
import sys, time
from scheduler import Context, Scheduler, task

@task
def fails(ctx: Context) -> None:
    raise ValueError("the shop is closed")

@task
def lasts(ctx: Context) -> None:
    print("begun", flush=True)
    time.sleep(float(sys.argv[2]))

if __name__ == "__main__":
    jobs = Scheduler(sys.argv[1])
    jobs.register(fails)
    jobs.register(lasts)
    with jobs:
        if len(sys.argv) > 2:
            jobs.result(jobs.task(lasts).schedule())
        try:
            jobs.result(jobs.task(fails).schedule(), timeout=30)
        except Exception:
            pass
"""


def program(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, str(path), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@one_database
def test_a_failure_is_seen_though_no_logging_is_set_up(database: Database, tmp_path: Path) -> None:
    _, errors = program(tmp_path, database.url).communicate(timeout=PATIENCE)
    assert errors == "attempt dead: task 1 (fails): ValueError: the shop is closed\n"


@one_database
@pytest.mark.parametrize("again", [False, True])
def test_an_interrupt_says_what_the_stop_waits_for(database: Database, tmp_path: Path, again: bool) -> None:
    running = program(tmp_path, database.url, "600" if again else "3")
    assert running.stdout is not None
    assert running.stderr is not None
    assert running.stdout.readline() == "begun\n"
    for _ in range(2):  # by the terminal and by what started it: one interrupt
        running.send_signal(signal.SIGINT)
    said = running.stderr.readline()
    assert said == "stopping: up to 30 s for task 1 (lasts); Ctrl-C again hands back at once what still runs\n"
    if again:
        with pytest.raises(subprocess.TimeoutExpired):
            running.wait(1.1)
        running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == -signal.SIGINT
    lines = errors.splitlines()
    assert lines[0] == ("stopping at once" if again else "Traceback (most recent call last):")
    assert lines[-1] == "KeyboardInterrupt"
    assert len(lines) <= 6
    assert not [line for line in lines if os.sep + "scheduler" + os.sep in line]
