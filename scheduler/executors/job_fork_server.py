"""JobTemplate: the daemon's end of a process that has imported schedd and forks jobs: see daemon/job_template.py."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from scheduler.engine.child.protocol import socket_pair
from scheduler.executors.job_process import JOB_MODULE
from scheduler.executors.ports import Job
from scheduler.forking import after_fork
from scheduler.model.placement import TOKEN_VARIABLE

START = (sys.executable, "-P", "-m", JOB_MODULE)  # of the commands that can be forked
TEMPLATE_MODULE = "scheduler.daemon.job_template"
# What a job imports later, if this program has it: importing them opens nothing and starts no thread.
PRELOAD = (
    "scheduler.app",
    "scheduler.engine.placed",
    "scheduler.store.placements",
    "structlog",
    "sqlite3",
    "psycopg",
    "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlalchemy.dialects.postgresql.psycopg",
)
ANSWER_S = 10.0  # for one answer, the first one with all imports
CLOSE_S = 1.0
_ANSWER_BYTES = 4096


class TemplateGoneError(Exception):
    """The template does not answer. Whether the job was started, its lock and files say."""


def arguments_of(argv: Sequence[str]) -> Sequence[str] | None:
    """The arguments of a job that a template can fork; None for any other command."""
    return argv[len(START) :] if tuple(argv[: len(START)]) == START else None


class JobTemplate:
    """Starts the process when it is first needed, and another one when it has ended. For one thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._env: dict[str, str] = {}
        after_fork(self, JobTemplate._close_in_fork)

    def start(self, place: Path, lock: int, arguments: Sequence[str], job: Job, nice: int) -> str | None:
        """Have a job forked. ``lock``: see :func:`scheduler.executors.job_process.start`.

        Returns why there is no process for it now; None: it was started. Raises TemplateGoneError, and OSError if no
        template can be started.
        """
        own = {name: value for name, value in job.env.items() if name == TOKEN_VARIABLE}  # each job has another one
        env = {name: value for name, value in job.env.items() if name not in own}
        if self._process is not None and (env != self._env or self._process.poll() is not None):
            self.close()
        control = self._open(env, job.without)
        try:
            socket.send_fds(control, [msgspec.msgpack.encode((str(place), list(arguments), nice, own))], [lock])
            answer = control.recv(_ANSWER_BYTES)
        except OSError as error:
            self._kill()
            raise TemplateGoneError from error
        if not answer:
            self._kill()
            raise TemplateGoneError
        return msgspec.msgpack.decode(answer, type=str | None)

    def close(self) -> None:
        """End the process; its jobs go on. Harmless when repeated."""
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        if process is not None:
            try:
                process.wait(CLOSE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
        self.close()

    def _open(self, env: Mapping[str, str], without: Sequence[str]) -> socket.socket:
        if self._control is not None:
            return self._control
        control, theirs = socket_pair(socket.SOCK_SEQPACKET)
        loaded = [name for name in PRELOAD if name in sys.modules]
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", TEMPLATE_MODULE, str(theirs.fileno()), *loaded],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env={**{name: value for name, value in os.environ.items() if name not in without}, **env},
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                control.close()
                raise
        control.settimeout(ANSWER_S)
        self._control, self._env = control, dict(env)
        return control

    def _close_in_fork(self) -> None:
        """In a forked process: an open copy would keep the template from noticing the daemon's end."""
        if self._control is not None:
            with suppress(OSError):
                self._control.close()
            self._control = self._process = None
