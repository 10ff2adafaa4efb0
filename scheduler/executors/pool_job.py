"""What a pool runs for each job of the executor ``futures``: it starts the job's process, waits for it, and ends it.

A function of a module of its own, so that it can be sent to a pool on another machine by its name.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from scheduler.executors.job_process import end_if_due, lock_to_start, send_signal, start

POLL_S = 0.2  # between two looks whether the job is to end


def run(
    directory: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    limit: float | None,
    python: str,
    without: Sequence[str] = (),
) -> int | None:
    """Run a job whose files are in this directory; its exit status. None: it runs elsewhere, has run, or is to end.

    ``python``: the daemon's interpreter, in whose place this one's stands in ``argv``.
    """
    place = Path(directory)
    lock = lock_to_start(place)
    if lock is None:
        return None
    try:
        if (place / "cancel").exists():  # asked with the lock: a daemon that saw it free says that the job is over
            return None
        process = start(place, lock, [sys.executable if part == python else part for part in argv], env, without)
    finally:
        os.close(lock)  # the job has it, too
    began, asked = time.time(), False
    while process.poll() is None:
        if not asked and (place / "cancel").exists():
            send_signal(place, signal.SIGTERM)
            asked = (place / "pid").exists()
        end_if_due(place, began, limit)
        time.sleep(POLL_S)
    return process.returncode
