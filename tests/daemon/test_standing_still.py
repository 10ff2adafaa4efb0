"""What stands still beside a daemon: the reader of its log, systemd, a sink, the console. Tasks and a stop go on."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from daemon.test_console_process import children_of

from scheduler import Scheduler, task
from support.databases import Database

F_SETPIPE_SZ = 1031
DRAIN = 1.0
PATIENCE = 60.0
JOBS = """
import logging
import sys
from scheduler import task

@task(on_success="sinks.slow")
def Talk(ctx, n: int):
    ctx.log.info("x" * 2000)
    logging.getLogger("app").warning("y" * 2000)
    print("z" * 2000)
    print("z" * 2000, file=sys.stderr)
    return n
"""
CONFIG = """
[tasks]
modules = ["jobs"]
path = ["."]
[worker]
drain = {drain}
lease = 4
[console]
listen = "unix:{place}/console.sock"
[sinks.slow]
type = "cloudevents"
url = "http://127.0.0.1:{port}/"
secret = "a secret of the receiver"
[http]
allow = ["127.0.0.1"]
"""


@task
def Talk(ctx: Any, n: int) -> int:
    return n


def until(over: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while not (found := over()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return found


class Surroundings:
    """A daemon, and all that it talks to: nobody reads, answers or goes on."""

    def __init__(self, database: Database, place: Path) -> None:
        self.sink = socket.create_server(("127.0.0.1", 0))
        self.systemd = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.systemd.bind(str(place / "notify"))
        (place / "jobs.py").write_text(JOBS)
        port = self.sink.getsockname()[1]
        (place / "config.toml").write_text(CONFIG.format(drain=DRAIN, place=place, port=port))
        self._reader, writer = os.pipe()
        fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
        environ = {**os.environ, "SCHEDD_STORE__URL": database.url, "NOTIFY_SOCKET": str(place / "notify")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scheduler.daemon"],
            cwd=place,
            env={**environ, "WATCHDOG_USEC": "400000", "SCHEDD_LOG__FORMAT": "json"},
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=writer,
        )
        os.close(writer)
        self._text = b""

    def read_until(self, text: bytes) -> None:
        def look() -> bool:
            if select.select([self._reader], [], [], 0.1)[0]:
                self._text += os.read(self._reader, 65536)
            return re.search(text, self._text) is not None

        until(look, f"{text!r} in {self._text[-500:]!r}")

    def close(self) -> None:
        for child in children_of(self.process.pid):
            os.kill(child, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        os.close(self._reader)
        self.sink.close()
        self.systemd.close()


@pytest.fixture
def around(database: Database, tmp_path: Path) -> Iterator[Surroundings]:
    made = Surroundings(database, tmp_path)
    yield made
    made.close()


@pytest.mark.alone
@pytest.mark.case(100)
def test_what_stands_still_delays_no_task_and_no_stop(database: Database, around: Surroundings) -> None:
    jobs = Scheduler(database.url)
    jobs.register(Talk)
    around.read_until(b"ready")
    around.read_until(b"console: unix")
    (console,) = until(lambda: children_of(around.process.pid), "the console has not started")
    os.kill(console, signal.SIGSTOP)
    ids = [jobs.task(Talk, n).schedule() for n in range(60)]
    assert [jobs.result(one, timeout=PATIENCE) for one in ids] == list(range(60))
    assert [str(one.state) for one in jobs.workers.list()] == ["live"]
    began = time.monotonic()
    around.process.terminate()
    assert around.process.wait(PATIENCE) == 0
    assert time.monotonic() - began < DRAIN + 5
    jobs.close()


@pytest.mark.alone
@pytest.mark.case(100)
def test_a_reader_that_is_back_hears_how_much_it_has_missed(database: Database, around: Surroundings) -> None:
    jobs = Scheduler(database.url)
    jobs.register(Talk)
    around.read_until(b"ready")
    ids = [jobs.task(Talk, n).schedule() for n in range(200)]
    assert [jobs.result(one, timeout=PATIENCE) for one in ids] == list(range(200))
    around.read_until(rb'"dropped": ?\d+')
    again = jobs.task(Talk, 7).schedule()
    assert jobs.result(again, timeout=PATIENCE) == 7
    around.process.terminate()
    around.read_until(b'"stopped"')
    assert around.process.wait(PATIENCE) == 0
    jobs.close()
