"""Worker processes for the fault tests: a Scheduler with a real engine, told what to do through a pipe.

``python worker.py FD`` is the mother of them all: it has imported everything and forks one worker per
request, so that a worker starts in milliseconds. A worker dies with the test that started it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import socket
import sys
import time
import traceback
from typing import Any

import sqlalchemy as sa

from faults import durable_kinds, isolated, kinds, versions
from scheduler import Scheduler, app
from scheduler.build import running
from scheduler.engine import engine as loop
from scheduler.engine.dispatch import completion as ledger
from scheduler.ports import SECOND
from scheduler.store.db import engines as connecting
from support.next_program import become


class _Lines(logging.Formatter):
    """The level and the sentence; a traceback is no clear line, and shows as one."""

    def format(self, record: logging.LogRecord) -> str:
        text = f"{time.monotonic():.3f} {record.levelname} {record.getMessage()}"
        return text if record.exc_info is None else f"{text}\n{self.formatException(record.exc_info)}"


class Pages:
    """How many pages a SQLite file may have, as a disk has: over it, SQLite says that it is full."""

    def __init__(self) -> None:
        self._raw: list[Any] = []
        self.limit = 0
        sa.event.listen(sa.Engine, "connect", self._connected)

    def _connected(self, raw: Any, _record: Any) -> None:
        self._raw.append(raw)
        if self.limit:
            raw.execute(f"PRAGMA max_page_count = {self.limit}")

    def set(self, limit: int) -> None:
        self.limit = limit
        for raw in self._raw:
            with contextlib.suppress(Exception):  # closed
                raw.execute(f"PRAGMA max_page_count = {limit}")


def work(config: dict[str, Any], reports: int, commands: int) -> None:
    """Run one worker until a command tells it to exit."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    sys.setswitchinterval(0.001)  # as the daemon does
    link = kinds.connect(reports, commands, config["notes"])
    link.armed = config.get("arm", "")
    connecting.SQLITE_BUSY_MS = config.get("busy_ms", connecting.SQLITE_BUSY_MS)
    ledger.BACKGROUND_MIN_OUTCOMES = config.get("many", ledger.BACKGROUND_MIN_OUTCOMES)
    pages = Pages()
    if "next" in config:  # the next version of this program, with one migration more
        become(config["next"])
        version = f"{running()}+next"
        app.running = lambda: version  # type: ignore[attr-defined]
    kinds.clock.offset = round(config.get("clock", 0.0) * SECOND)
    jobs = Scheduler(config["url"], clock=kinds.clock, **config.get("options", {}))
    for kind in (
        *kinds.ALL,
        *durable_kinds.ALL,
        isolated.Durable,
        isolated.Twice,
        *(getattr(versions, name) for name in config.get("extra", ())),
    ):
        jobs.register(kind)
    jobs.start()
    jobs.engine.wait_ready()
    link.say("ready", worker=jobs.engine.worker)
    while True:
        command = link.commands.get()
        match command["do"]:
            case "stop":
                left = jobs.stop(command["drain"])
                link.say("stopped", left=left, running=jobs.is_running())
            case "stop now":
                link.say("stopped", left=jobs.stop_now(), running=jobs.is_running())
            case "schedule":
                while link.armed:  # until one was its own at once
                    jobs.task(kinds.Work()).schedule()
                    time.sleep(0.05)
            case "pages":
                pages.set(command["limit"])
                link.say("limited")
            case "exit":
                return


def _child(request: dict[str, Any], fds: list[int]) -> None:
    status = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        reports, commands, log = fds
        os.dup2(log, 1)
        os.dup2(log, 2)
        work(request, reports, commands)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        os._exit(status)


def mother(fd: int) -> None:
    """Fork a worker per request (JSON, three descriptors), answer with its pid; or tell how one ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests = socket.socket(fileno=fd)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, 65536, 3)
        if not data:
            return
        request = json.loads(data)
        if "wait" in request:
            _, status = os.waitpid(request["wait"], 0)
            requests.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            _child(request, fds)
        for one in fds:
            os.close(one)
        requests.send(str(pid).encode())


__all__ = ["loop"]  # imported so that no worker has to do it

if __name__ == "__main__":
    mother(int(sys.argv[1]))
