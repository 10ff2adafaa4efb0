"""``wait`` and ``logs``."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from typing import Any

from scheduler import Retry, RetryPolicy
from support.bench import Bench
from support.databases import one_database

from .conftest import PROGRAM, Ctl


def test_wait_for_success_and_failure(ctl: Ctl, live: Bench) -> None:
    good, dead = live.ended("success"), live.ended("dead")
    assert ctl.json("wait", good) == [{"id": good, "state": "success", "kind": "Step", "error": None}]
    rows = ctl.json("wait", good, dead, status=1)
    assert [(r["id"], r["state"]) for r in rows] == [(good, "success"), (dead, "dead")]
    assert "ends dead failed" in rows[1]["error"]


def test_wait_times_out(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("later").after(3600).schedule())
    assert f"still not ended: {made}" in ctl("wait", made, "--timeout", "0.05").stderr
    result = ctl("wait", made, "--timeout", "0")
    assert result.exit_code == 124
    assert "no worker is live" in result.stderr
    assert result.stdout == ""


def test_wait_for_an_unknown_task(ctl: Ctl) -> None:
    assert ctl.fails(3, "wait", 4711) == "schedctl: there is no task 4711\n"


def test_wait_for_a_task_that_retention_removed(ctl: Ctl, live: Bench) -> None:
    made = live.ended("success")
    live.execute("INSERT INTO schedd_outcomes (task_id, state, removed_at) VALUES (:id, 6, 1)", id=made)
    live.execute("DELETE FROM schedd_tasks")
    assert ctl.json("wait", made) == [{"id": made, "state": "success", "kind": None, "error": None}]


def test_wait_sees_the_end_of_a_running_task(ctl: Ctl, live: Bench) -> None:
    go = threading.Event()
    live.script.bodies["slow"] = lambda ctx: go.wait(30)
    made = int(live.step("slow").schedule())
    jobs = live.worker()
    jobs.start()
    try:
        waiting = subprocess.Popen(
            [*PROGRAM, "wait", str(made)], env=ctl.environment, stdout=subprocess.PIPE, text=True
        )
        go.set()
        assert waiting.communicate(timeout=60)[0].split()[-4:-2] == [str(made), "success"]
        assert waiting.returncode == 0
    finally:
        jobs.stop()


def test_an_interrupted_wait(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("later").after(3600).schedule())
    waiting = subprocess.Popen([*PROGRAM, "wait", str(made)], env=ctl.environment, stderr=subprocess.PIPE, text=True)
    assert waiting.stderr is not None
    assert "no worker is live" in waiting.stderr.readline()  # said in its loop
    waiting.send_signal(signal.SIGINT)
    assert waiting.communicate(timeout=60)[1].strip() == ""
    assert waiting.returncode == 130


# The process is interrupted as it gives its connection back, when SQLAlchemy has something to log.
INTERRUPTED = """
from sqlalchemy.pool.base import _ConnectionFairy

def reset(*_args, **_more):
    raise KeyboardInterrupt

_ConnectionFairy._reset = reset
from scheduler.cli import main
main()
"""


@one_database
def test_an_interrupted_return_of_a_connection_says_nothing(ctl: Ctl) -> None:
    argv = [sys.executable, "-c", INTERRUPTED, "workers"]
    done = subprocess.run(argv, env=ctl.environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (130, "")


def twice(live: Bench) -> int:
    """A task that wrote something in each of two attempts."""

    def body(ctx: Any) -> None:
        ctx.capture(f"attempt {ctx.attempt} says hello\n")
        if ctx.attempt == 1:
            raise Retry(after=0)

    live.script.bodies["twice"] = body
    made = int(live.step("twice").with_retry(RetryPolicy(min_wait=0, max_attempts=3)).schedule())
    live.drain()
    assert live.state(made) == "success"
    return made


def test_logs_of_every_attempt(ctl: Ctl, live: Bench) -> None:
    made = twice(live)
    text = ctl("logs", made).stdout.splitlines()
    assert [line for line in text if "hello" in line] == ["attempt 1 says hello", "attempt 2 says hello"]
    assert text[0].startswith("==> attempt 1, retried, ")
    entries = ctl.json("logs", made)
    assert [(e["attempt"], e["outcome"]) for e in entries] == [(1, "retried"), (2, "succeeded")]
    assert "attempt 2 says hello" in entries[1]["text"]
    lines = ctl("logs", made, "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["attempt"] for line in lines] == [1, 2]


def test_logs_of_a_single_attempt_are_bare(ctl: Ctl, live: Bench) -> None:
    live.script.bodies["one"] = lambda ctx: ctx.capture("just this")
    made = int(live.step("one").schedule())
    live.drain()
    assert ctl("logs", made).stdout == "just this\n"


def test_logs_follow_until_the_end(ctl: Ctl, live: Bench) -> None:
    made = twice(live)
    assert "attempt 2 says hello" in ctl("logs", "-f", made).stdout


def test_logs_of_a_task_that_wrote_nothing(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("silent").schedule())
    result = ctl("logs", made)
    assert (result.exit_code, result.stdout) == (0, "")
    assert "has written nothing" in result.stderr
    assert ctl.json("logs", made) == []
    assert ctl.fails(3, "logs", 4711) == "schedctl: there is no task 4711\n"
