"""``top``: what runs, once and live on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time

import pytest

from support.bench import Bench, notify_and_step
from support.databases import one_database

from .conftest import PROGRAM, Ctl

LEAVE = b"\x1b[?1049l"


def running(live: Bench, count: int) -> list[int]:
    """Tasks that run, the first for the longest."""
    live.ended("success")
    made = [int(live.step(f"s{n}").key(f"key-{n}").schedule()) for n in range(count)]
    notify_and_step(live.jobs)
    for seconds, task_id in enumerate(reversed(made), start=1):
        live.execute(
            "UPDATE schedd_tasks SET state = 5, started_at = :at, progress = 42, progress_message = 'half way' "
            "WHERE id = :id",
            at=live.jobs.database.now() - seconds * 60_000_000,
            id=task_id,
        )
    return made


def test_what_runs_once(ctl: Ctl, live: Bench) -> None:
    made = running(live, 3)
    live.jobs.stats()  # writes what was counted
    live.step("due").schedule()
    live.step("later").after(3600).schedule()
    view = ctl.json("top")
    assert [task["id"] for task in view["running"]] == made
    first = view["running"][0]
    assert (first["kind"], first["key"], first["progress"], first["message"]) == ("Step", "key-0", 42, "half way")
    assert first["seconds"] >= 180
    assert first["worker"].endswith(f":{os.getpid()}")
    assert (view["workers"], view["held"], view["due"], view["later"], view["at_least"]) == (1, 3, 1, 1, False)
    assert view["throughput"] > 0
    assert view["failure_rate"] == 0
    assert len(ctl.json("top", "--limit", 2)["running"]) == 2
    lines = ctl("top", "--once").stdout.splitlines()
    assert "1 worker, 3 of " in lines[0]
    assert "1 due, 1 later" in lines[0]
    assert "ended a minute, 0% failed" in lines[1]
    assert lines[3].split() == ["ID", "KIND", "FOR", "PROGRESS", "WORKER", "KEY"]
    assert lines[4].split()[:2] == [str(made[0]), "Step"]
    assert lines[4].split()[2].startswith("3:")
    assert "42% half way" in lines[4]


def test_a_pipe_gets_it_once(ctl: Ctl, live: Bench) -> None:
    result = ctl("top", "-o", "jsonl")
    assert json.loads(result.stdout)["running"] == []
    assert "0 workers" in ctl("top").stdout
    assert "a tenth of a second" in ctl.fails(2, "top", "--interval", "0.01s")
    assert "--limit" in ctl.fails(2, "top", "--limit", "0")


class Screen:
    """``schedctl`` on a terminal of its own, 80 columns wide."""

    def __init__(self, ctl: Ctl, *arguments: str) -> None:
        self.ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 80, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self.theirs = theirs
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SCHEDD_", "COLUMNS", "LINES"))}
        self.process = subprocess.Popen(
            [*PROGRAM, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**inherited, **ctl.environment},
            start_new_session=True,
        )
        self.seen = b""

    def until(self, text: bytes) -> None:
        """Read until the screen has shown this."""
        deadline = time.monotonic() + 60
        while text not in self.seen:
            left = deadline - time.monotonic()
            assert left > 0, self.seen
            if select.select([self.ours], [], [], left)[0]:
                self.seen += os.read(self.ours, 65536)

    def end(self) -> int:
        status = self.process.wait(60)
        self.until(LEAVE)
        assert termios.tcgetattr(self.theirs) == self.before
        os.close(self.theirs)
        os.close(self.ours)
        return status


@one_database
@pytest.mark.parametrize(("way", "status"), [("q", 0), ("ctrl-c", 0), ("terminate", 143)])
def test_live_on_a_terminal(ctl: Ctl, live: Bench, way: str, status: int) -> None:
    """Drawn again and again within the screen's size; the terminal is as it was, whatever ends it."""
    made = running(live, 20)
    screen = Screen(ctl, "top", "--interval", "0.1s")
    screen.until(b"q quits")
    screen.until(str(made[0]).encode())
    live.execute("UPDATE schedd_tasks SET progress = 77 WHERE id = :id", id=made[0])
    screen.until(b"77%")
    if way == "q":
        os.write(screen.ours, b"q")
    else:
        screen.process.send_signal(signal.SIGINT if way == "ctrl-c" else signal.SIGTERM)
    assert screen.end() == status
    drawn = screen.seen.partition(b"\x1b[?7l")[2].partition(b"\x1b[?7h")[0].decode()
    for frame in filter(None, drawn.split("\x1b[H")):
        lines = frame.removesuffix("\x1b[J").removesuffix("\r\n").split("\x1b[K\r\n")
        assert len(lines) <= 12
        assert max(map(len, lines)) <= 80
