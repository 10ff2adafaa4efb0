"""What a running handler writes can be read while it runs."""

from __future__ import annotations

import threading
import time

from scheduler import Context, Scheduler, task
from scheduler.model.texts import beyond
from support.databases import Database

from .conftest import Ctl

go_on = threading.Event()


@task
def talks(ctx: Context) -> None:
    ctx.log.info("half way", item=7)
    assert go_on.wait(30)
    ctx.log.info("all the way")


def test_logs_of_a_running_attempt(database: Database, ctl: Ctl) -> None:
    go_on.clear()
    jobs = Scheduler(database.url)
    jobs.register(talks)
    with jobs:
        task_id = jobs.task(talks).schedule()
        deadline = time.monotonic() + 30
        logged = ""
        while "half way item=7" not in logged:
            assert time.monotonic() < deadline, logged
            logged = ctl("logs", task_id).stdout
        assert "all the way" not in logged
        go_on.set()
        jobs.wait(task_id, timeout=30)
    assert "all the way" in ctl("logs", task_id).stdout
    jobs.close()


def test_what_is_new_in_a_growing_text() -> None:
    assert beyond("", "one\n") == "one\n"
    assert beyond("one\n", "one\ntwo\n") == "two\n"
    assert beyond("one\n", "one\n") == ""
    assert beyond("one\ntwo\n" * 200, "[… earlier output dropped]\n" + "one\ntwo\n" * 150 + "three\n") == "three\n"
