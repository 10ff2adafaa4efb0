"""However a CommandTask ends, nothing of it is left.

A command says by a line of output that it is ready; nothing sleeps.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from scheduler import TaskTimeout
from scheduler.errors import Cancelled
from scheduler.tasks.command.process import CommandFailed

from .commands import ALLOWED, carriers, descriptors, gone, run, sh
from .fake import FakeContext

FAMILY = """
    sleep 1000 & sleep 1000 &
    (sleep 1000 & sleep 1000) &
    setsid sh -c 'sleep 1000 & echo escaped; wait' &
    echo started
"""


def ready(ctx: FakeContext) -> bool:
    return ctx.has_captured("started\n") and ctx.has_captured("escaped\n")


def test_timeout_ends_the_whole_family(mark: str) -> None:
    before = descriptors()
    with pytest.raises(TaskTimeout, match=r"longer than its timeout of 0.5 s"):
        sh(FAMILY + "wait", env={"MARK": mark}, timeout=0.5)
    assert not carriers(mark)
    assert descriptors() <= before


@pytest.mark.parametrize("interruption", [Cancelled("cancelled"), TaskTimeout("too long"), KeyboardInterrupt()])
def test_whatever_unwinds_the_body_leaves_nothing(interruption: BaseException, mark: str) -> None:
    before = descriptors()
    ctx = FakeContext(ALLOWED, cancel_when=ready, interruption=interruption)
    with pytest.raises(type(interruption)):
        sh(FAMILY + "wait", ctx, env={"MARK": mark})
    assert not carriers(mark)
    assert descriptors() <= before


def test_the_grace_period_is_given(mark: str) -> None:
    ctx = FakeContext(ALLOWED, cancel_when=lambda ctx: ctx.has_captured("ready"))
    with pytest.raises(Cancelled):
        sh("trap 'echo goodbye; exit' TERM; echo ready; sleep 1000 & wait $!", ctx, env={"MARK": mark})
    assert ctx.captured.startswith("ready\n")
    assert ctx.captured.endswith("goodbye\n")


def test_what_ignores_sigterm_is_killed_after_the_grace_period(mark: str) -> None:
    ctx = FakeContext(ALLOWED, cancel_when=lambda ctx: ctx.has_captured("ready"))
    with pytest.raises(Cancelled):
        sh("trap '' TERM HUP INT; (sleep 1000)& echo ready; sleep 1000", ctx, env={"MARK": mark}, grace=0.1)
    assert not carriers(mark)


def test_a_stopped_process_is_ended_too(mark: str) -> None:
    ctx = FakeContext(ALLOWED, cancel_when=lambda ctx: ctx.has_captured("ready"))
    with pytest.raises(Cancelled):
        sh("sleep 1000 & kill -STOP $!; echo ready; kill -STOP $$", ctx, env={"MARK": mark}, grace=20)
    assert not carriers(mark)


def test_a_command_that_floods_while_it_is_ended(mark: str) -> None:
    ctx = FakeContext(ALLOWED, cancel_when=lambda ctx: len(ctx.captured) > 100_000)
    ctx.capture = lambda text: setattr(ctx, "captured", (ctx.captured + text)[-200_000:])  # type: ignore[method-assign]
    with pytest.raises(Cancelled):
        sh("trap '' TERM; yes & yes", ctx, env={"MARK": mark}, grace=0.1)
    assert not carriers(mark)


@pytest.mark.parametrize("code", [0, 7])
def test_a_background_child_that_holds_the_pipe_hangs_nothing(code: int, mark: str) -> None:
    began = time.monotonic()
    ctx = FakeContext(ALLOWED)
    family = FAMILY + f"exit {code}"
    if code:
        with pytest.raises(CommandFailed, match="exit code 7"):
            sh(family, ctx, env={"MARK": mark})
    else:
        assert sh(family, ctx, env={"MARK": mark})["exit_code"] == 0
    assert not carriers(mark)
    assert time.monotonic() - began < 60, "they sleep for 1,000 s"


def test_a_daemon_that_left_group_and_session_is_ended(mark: str) -> None:
    code = """
import os, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
print("up", flush=True)
time.sleep(1000)
"""
    ctx = FakeContext(ALLOWED, cancel_when=lambda ctx: ctx.has_captured("up"))
    with pytest.raises(Cancelled):
        sh(
            f'"{sys.executable}" -S -c "$CODE" & sleep 1000',
            ctx,
            env={"MARK": mark, "CODE": code},
        )
    assert not carriers(mark)


def test_a_crowd_of_grandchildren(mark: str) -> None:
    ctx = FakeContext(ALLOWED, cancel_when=lambda ctx: ctx.captured.count("up") == 50)
    with pytest.raises(Cancelled):
        sh(
            "trap '' TERM; for i in 1 2 3 4 5 6 7 8 9 10; do ("
            "for j in 1 2 3 4 5; do (echo up; exec sleep 1000) & done; wait) & done; wait",
            ctx,
            env={"MARK": mark},
            grace=0.2,
        )
    assert not carriers(mark)


def test_a_reaper_that_is_killed_takes_the_group_along(mark: str) -> None:
    with pytest.raises(CommandFailed, match="supervising process was killed"):
        sh("sleep 1000 & kill -9 $PPID; sleep 1000", env={"MARK": mark})
    assert gone(mark)


def test_a_killed_schedd_takes_its_commands_along(mark: str, tmp_path: Path) -> None:
    code = """
import sys
from scheduler.tasks.command.process import Process
env = {"PATH": "/usr/bin:/bin", "MARK": sys.argv[1]}
script = "trap '' TERM; sleep 1000 & setsid sleep 1000 & echo ready; wait"
def show(data): print(data.decode(), flush=True)
with Process(["sh", "-c", script], env, None, 100.0, show) as process:
    while process.pump(10): pass
"""
    argv = [sys.executable, "-c", code, mark]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as schedd:
        assert schedd.stdout is not None
        assert schedd.stdout.readline() == "ready\n"
        assert len(carriers(mark)) >= 3
        schedd.kill()
    assert gone(mark)


def test_descriptors_do_not_leak() -> None:
    run("true")
    before = descriptors()
    for _ in range(5):
        run("true")
        with pytest.raises(CommandFailed):
            run("false")
    assert descriptors() <= before


def test_threads_at_a_time(mark: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    before = descriptors()
    with ThreadPoolExecutor(8) as threads:
        texts = list(threads.map(lambda n: run("printf", "%s", f"{n}-{mark}")["output_tail"], range(24)))
    assert texts == [f"{n}-{mark}" for n in range(24)]
    assert descriptors() <= before
