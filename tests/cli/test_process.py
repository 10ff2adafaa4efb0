"""``schedctl`` as a process of its own: streams, statuses, a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from support.bench import Bench, Step

from .conftest import PROGRAM, Ctl


def test_data_and_messages_are_kept_apart(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("s").schedule())
    done = ctl.process("list", "-o", "json")
    assert (done.returncode, done.stderr) == (0, "")
    assert [t["id"] for t in json.loads(done.stdout)] == [made]
    failed = ctl.process("show", "4711")
    assert (failed.returncode, failed.stdout, failed.stderr) == (3, "", "schedctl: there is no task 4711\n")
    assert ctl.process("frob").returncode == 2
    live.jobs.cancel_task(made)
    assert ctl.process("wait", made).returncode == 1


def test_submit_and_run_end_without_threads_left(ctl: Ctl) -> None:
    done = ctl.process("run", "--", "true")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().isdigit()


def test_a_reader_that_leaves_is_no_reason_to_complain(ctl: Ctl, live: Bench) -> None:
    with live.jobs.batch() as batch:
        for _ in range(2000):
            batch.task(Step("s" * 200))
    listing = subprocess.Popen(
        [*PROGRAM, "list", "--limit", "2000", "-o", "jsonl"],
        env=ctl.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert listing.stdout is not None
    assert listing.stderr is not None
    listing.stdout.readline()
    listing.stdout.close()
    assert listing.stderr.read() == b""
    listing.wait(60)


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_what_is_stored_is_done_although_the_output_is_closed(ctl: Ctl) -> None:
    """A status of 1 would have a script submit it again."""
    for closing in ("1", "2", "0 1 2"):
        close = f"import os; [os.close(int(fd)) for fd in '{closing}'.split()]"
        code = f"{close}; os.execv({PROGRAM[0]!r}, {[*PROGRAM, 'run', 'true']!r})"
        assert subprocess.run([sys.executable, "-c", code], env=ctl.environment, check=False).returncode == 0
    assert len(ctl.json("list")) == 3


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_what_the_encoding_lacks_is_escaped(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("s").key("photo 写 \N{GRINNING FACE}").schedule())
    latin = Ctl(ctl.environment | {"PYTHONIOENCODING": "latin-1"})
    assert "photo \\u5199 \\U0001f600" in latin.process("list").stdout
    assert json.loads(latin.process("-o", "json", "list").stdout)[0]["key"] == "photo 写 \N{GRINNING FACE}"
    assert latin.process("graph", made).returncode == 0


def on_a_terminal(ctl: Ctl, columns: int, *arguments: str, colour: bool) -> str:
    """The output of the command on a terminal so wide."""
    environment = {**ctl.environment, "COLUMNS": str(columns), "TERM": "xterm"}
    if colour:
        del environment["NO_COLOR"]
    ours, theirs = pty.openpty()
    with subprocess.Popen([*PROGRAM, *arguments], env=environment, stdout=theirs, stdin=theirs) as process:
        os.close(theirs)
        parts = []
        try:
            while part := os.read(ours, 65536):
                parts.append(part)
        except OSError:
            pass  # the other end is closed
        finally:
            os.close(ours)
    assert process.returncode == 0
    return b"".join(parts).decode()


@pytest.mark.skipif(sys.platform != "linux", reason="terminals are made the Linux way")
@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_on_a_terminal_tables_are_cut_and_coloured(ctl: Ctl, live: Bench) -> None:
    live.step("s").key("a rather long key 写 " * 5).schedule()
    live.ended("dead")
    plain = on_a_terminal(ctl, 70, "list", colour=False)
    lines = plain.splitlines()
    assert all(len(line) <= 70 for line in lines)
    assert any(line.endswith("…") for line in lines)
    assert "\x1b" not in plain
    coloured = on_a_terminal(ctl, 300, "list", colour=True)
    assert "\x1b[31mdead" in coloured
    assert "\x1b" not in ctl.process("list").stdout


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_logs_cannot_command_the_terminal(ctl: Ctl, live: Bench) -> None:
    live.script.bodies["loud"] = lambda ctx: ctx.capture("\x1b]0;owned\x07bell\n")
    made = int(live.step("loud").schedule())
    live.drain()
    assert "\x1b" not in on_a_terminal(ctl, 80, "logs", str(made), colour=True)
    assert ctl.process("logs", made).stdout == "·]0;owned·bell\n"
    assert ctl.process("logs", made, "--raw").stdout == "\x1b]0;owned\x07bell\n"
