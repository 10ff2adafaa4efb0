"""A process that forks jobs: ``python -P -m scheduler.daemon.job_template FD MODULE…``.

``executors/job_fork_server.py`` starts it. It has imported schedd, and nothing of the user's; it has read no
configuration, opened no connection and started no thread. So a job that is forked from it goes the same way as one
that was started anew, and only begins sooner. Jobs are in sessions of their own and do not end with it; it ends with
the daemon.

A request is a job's directory, its arguments, its niceness and variables, with the descriptor of its lock. The answer
is None, or why there is no process.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from scheduler.daemon import job
from scheduler.daemon.main import leave
from scheduler.executors.job_process import keep, open_log
from scheduler.interpreter import freeze

MAX_REQUEST_BYTES = 65_536
ENDING = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
CANNOT_KEEP = 70  # the exit status without the files that tell of the job


def main(argv: Sequence[str]) -> None:
    """Fork jobs until the daemon closes its end."""
    control = socket.socket(fileno=int(argv[0]))
    control.set_inheritable(False)
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # as in the daemon
    for name in argv[1:]:
        with suppress(ImportError):  # a job that needs it reports the error
            importlib.import_module(name)
    freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    with control, suppress(ConnectionError):
        while _serve(control):
            pass


def _serve(control: socket.socket) -> bool:
    """Answer one request. False: there are none any more."""
    data, fds, _, _ = socket.recv_fds(control, MAX_REQUEST_BYTES, 1)
    if not data:
        return False
    directory, arguments, nice, own = msgspec.msgpack.decode(data, type=tuple[str, list[str], int, dict[str, str]])
    place, trouble = Path(directory), None
    try:
        fds.append(open_log(place))
        if os.fork() == 0:
            control.close()
            os.environ.update(own)
            _become_job(place, fds[0], fds[1], arguments, nice)
    except OSError as error:
        trouble = error.strerror or type(error).__name__
    for fd in fds:
        os.close(fd)
    control.send(msgspec.msgpack.encode(trouble))
    return True


def _become_job(place: Path, lock: int, log: int, arguments: list[str], nice: int) -> NoReturn:
    """Run the job in a process of its own, and wait for it in this one."""
    status = CANNOT_KEEP
    try:
        os.setsid()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDING)  # they go to the whole group, and this process stays
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.set_inheritable(lock, True)  # what the job starts is part of it
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGQUIT, signal.SIG_IGN)  # as for what a shell starts in the background
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
            os.nice(nice)
            _run(arguments)
        keep(place, pid)
        status = job.DONE
    except BaseException:
        traceback.print_exc()
    os._exit(status)


def _run(arguments: list[str]) -> NoReturn:
    importlib.invalidate_caches()
    sys.argv[:] = [str(job.__file__), *arguments]
    try:
        status = job.main(arguments)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        status = 1
    leave(status)


if __name__ == "__main__":
    main(sys.argv[1:])
