"""Tuning of the Python interpreter for a process that runs tasks: GIL switches, garbage collection, open files.

The daemon does this itself. A program that runs an engine may do the same:

    from scheduler import interpreter

    interpreter.tune()
    ...  # import, connect, load models
    interpreter.freeze()
    jobs.start()
"""

from __future__ import annotations

import contextlib
import gc
import sys

from scheduler.system.processes import allow_files, file_limits

# The engine's loop releases the GIL at each call of the database. Beside busy handlers it waits this long to get it
# back, each time, so Python's default makes dispatch cycles slow.
SWITCH_INTERVAL_S = 0.001
# New objects after which the collector runs. The tasks of two dispatch cycles are more objects than Python's default
# before 3.13, and the collector can free none of them. The price is that cyclic garbage lives longer.
GC_THRESHOLD = 5_000


def tune() -> None:
    """Set the thread switch interval and the garbage collector's threshold for an engine.

    Call it before the program's own imports, so that their settings win. A higher threshold stays as it is.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    collect_seldom()


def collect_seldom() -> None:
    """The collector's part of :func:`tune`."""
    young, *older = gc.get_threshold()
    if 0 < young < GC_THRESHOLD:  # 0: the collector does not run by itself
        gc.set_threshold(GC_THRESHOLD, *older)


_files_before: int | None = None  # the soft limit of open files, before it was raised


def raise_file_limit() -> None:
    """Let this process open as many files as its hard limit allows.

    The usual soft limit, 1,024, is for programs that use select(2). Programs that it starts get it back where they
    may be such: :func:`file_limit` says which one it was.
    """
    global _files_before
    soft, hard = file_limits()
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            allow_files(hard)
            _files_before = soft


def file_limit() -> int:
    """The soft limit of open files that this process was started with."""
    return file_limits()[0] if _files_before is None else _files_before


def freeze() -> None:
    """Collect garbage, then exclude the objects that exist now from later collections.

    Call it once everything is imported and set up. Later collections then stop the threads for a shorter time, and
    forked children do not copy these objects.
    """
    gc.collect()
    gc.freeze()
