"""The directory and the umask of handlers in threads: each thread's own, and put back when its attempt has ended.

They are a process's: a handler that changes them would do so for the worker and for every other handler. So the first
change in a thread gives that thread its own (unshare(2)).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

from scheduler.system import files, libc

CLONE_FS = 0x200


class Home(NamedTuple):
    """What a thread had before: an open directory, and a umask."""

    directory: int
    umask: int


moved: dict[int, Home] = {}  # by the ident of the thread
_apart = threading.local()  # whether this thread has a directory of its own


def guard() -> None:
    """Let each thread but the main one have its own from its first change on. For a process that is schedd's own."""
    if sys.platform != "win32" and not hasattr(os.chdir, "__wrapped__"):
        os.chdir, os.fchdir, os.umask = _apart_first(os.chdir), _apart_first(os.fchdir), _apart_first(os.umask)


def put_back() -> None:
    """Put back what this thread's handler has changed, if anything."""
    home = moved.pop(threading.get_ident(), None)
    if sys.platform == "win32" or home is None:
        return
    try:
        _original(os.fchdir)(home.directory)
        _original(os.umask)(home.umask)
    finally:
        os.close(home.directory)


def _apart_first(change: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(change)
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread() and threading.get_ident() not in moved:
            _be_apart()
        return change(*args, **kwargs)

    return call


def _be_apart() -> None:
    if not getattr(_apart, "yes", False):
        libc.call("unshare", CLONE_FS)  # where that is refused the change is everybody's, until it is put back
        _apart.yes = True
    umask = _original(os.umask)
    try:
        directory = os.open(".", files.AS_PLACE | files.DIRECTORY | files.CLOEXEC)
    except OSError:  # it was removed
        return
    present = umask(0o077)
    umask(present)
    moved[threading.get_ident()] = Home(directory, present)


def _original(function: Any) -> Callable[..., Any]:
    found: Callable[..., Any] = getattr(function, "__wrapped__", function)
    return found
