"""Programs that define their tasks themselves, and those that cannot have them run in child processes."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from support.leftovers import MARK, none_left

pytestmark = pytest.mark.faults

PROGRAM = """
import os, sys
from scheduler import RetryPolicy, Scheduler, Task, task

class Odd(Exception):
    pass

class Own(Task, isolation="process", retry=RetryPolicy(min_wait=0, max_wait=0, jitter=0, max_attempts=2, retry_on=Odd)):
    n: int
    def run(self, ctx):
        if ctx.attempt == 1:
            raise Odd("once")
        return [self.n, os.getpid(), __name__]

@task(isolation="process")
def double(ctx, n: int):
    return ctx.cpu(twice, n)

def twice(n):
    return 2 * n

@task
def compute(ctx, n: int):
    return ctx.cpu(twice, n)

@task
def compute_inline(ctx, n: int):
    try:
        ctx.cpu(lambda: odd(n))
    except Odd as error:  # the same class there and here
        return error.args[0]

def odd(n):
    raise Odd(twice(n))

def main():
    jobs = Scheduler(f"sqlite:///{sys.argv[1]}", processes=1)
    for one in (Own, double, compute, compute_inline):
        jobs.register(one)
    with jobs:
        n, pid, name = jobs.result(jobs.task(Own(3)).schedule(), timeout=60)
        assert (n, name) == (3, "__mp_main__") and pid != os.getpid(), (n, pid, name)
        assert jobs.result(jobs.task(double, 4).schedule(), timeout=60) == 8
        assert jobs.result(jobs.task(compute, 5).schedule(), timeout=60) == 10
        assert jobs.result(jobs.task(compute_inline, 6).schedule(), timeout=60) == 12
    print("fine")

"""
GUARDED = PROGRAM + 'if __name__ == "__main__":\n    main()\n'
UNGUARDED = PROGRAM.replace("processes=1)", "processes=1)\n    jobs.database.open()") + "main()\n"


def run(place: Path, *arguments: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
    mark = uuid.uuid4().hex
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=place,
        input=given,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, MARK: mark},
    )
    none_left(mark)
    return done


def test_a_program_with_its_own_tasks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(GUARDED)
    done = run(tmp_path, "program.py", "jobs.db")
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_files_in_the_current_directory_are_no_modules(tmp_path: Path) -> None:
    """Such as those that tasks write: no child process could be started beside a ``json.py``."""
    (tmp_path / "program.py").write_text(GUARDED)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "json.py").write_text("raise ImportError('this is data')")
    done = run(tmp_path / "data", "../program.py", "jobs.db")
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


def test_a_module_run_as_a_program(tmp_path: Path) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "program.py").write_text(GUARDED)
    done = run(tmp_path, "-m", "package.program", "jobs.db")
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr


@pytest.mark.parametrize("how", ["-c", "stdin"])
def test_a_program_without_a_file_gets_an_error_when_it_registers(tmp_path: Path, how: str) -> None:
    done = run(tmp_path, "-c", GUARDED, "jobs.db") if how == "-c" else run(tmp_path, "-", "jobs.db", given=GUARDED)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "scheduler.errors.ConfigError: task type Own cannot be run in a child"
    )
    assert "a program without a file" in done.stderr


def test_a_program_without_a_guard_gets_an_error_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import logging\nlogging.basicConfig()\n" + UNGUARDED)
    done = run(tmp_path, "program.py", "jobs.db")
    assert done.returncode == 1
    assert 'below if __name__ == "__main__":' in done.stderr
