"""How the daemon, and a program that asks for it, set up their Python interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler, interpreter, task
from support.databases import Database, one_database
from support.processes import Nursery

TOLD = """
import gc, sys
from scheduler import task

{first}
model = {{"weights": []}}

@task
def tell(ctx):
    looked_at = any(one is model for one in gc.get_objects())
    return [sys.getswitchinterval(), gc.get_threshold()[0], gc.isenabled(), looked_at]
"""


@task
def tell(ctx: Any) -> None: ...


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        made.write("config.toml", '[tasks]\nmodules = ["jobs"]\npath = ["."]\n')
        yield made


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("", [0.001, interpreter.GC_THRESHOLD, True, False]),
        ("gc.set_threshold(800); sys.setswitchinterval(0.25)", [0.25, 800, True, False]),
        ("gc.disable()", [0.001, interpreter.GC_THRESHOLD, False, False]),
    ],
    ids=["usual", "the program's own", "no collector"],
)
@one_database
def test_the_daemon_sets_it_up_unless_the_tasks_do(
    database: Database, nursery: Nursery, first: str, expected: list[Any]
) -> None:
    nursery.write("jobs.py", TOLD.format(first=first))
    jobs = Scheduler(database.url)
    jobs.register(tell)
    task_id = jobs.task(tell).schedule()
    nursery.start("-m", "scheduler.daemon", SCHEDD_STORE__URL=database.url)
    assert jobs.result(task_id, timeout=60) == expected
    jobs.close()


@pytest.mark.parametrize(("before", "after"), [(0, 0), (700, interpreter.GC_THRESHOLD), (50_000, 50_000)])
def test_a_collector_that_looks_less_often_stays_so(before: int, after: int) -> None:
    code = (
        "import gc, sys; from scheduler import interpreter; import scheduler.app\n"
        f"gc.set_threshold({before}, 7, 8); interpreter.tune(); interpreter.freeze()\n"
        "print(*gc.get_threshold()[:2], gc.get_freeze_count() > 1000, sys.getswitchinterval())"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed == f"{after} 7 True 0.001\n"
