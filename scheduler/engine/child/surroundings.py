"""What a handler changes of its child process is put back for the next one.

That is the directory, the umask, the environment, the import path, signal handlers, blocked signals, the cores, the
streams, logging, warnings, the locale and such. The state of modules stays; where an attempt has imported some, so do
their additions to the import path, for they may need them later.
"""

from __future__ import annotations

import gc
import locale
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from scheduler.engine.attempt.capture import TASK_LOGGER

_SIGNALS = (
    *(signal.SIGHUP, signal.SIGINT, signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF),
    *(signal.SIGCHLD, signal.SIGPIPE, signal.SIGUSR2),
)
_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU, resource.RLIMIT_AS)
_signal = import_module("_signal")  # without the names that the module signal makes of each answer: dear
_HOOKS = ("stdin", "stdout", "stderr", "excepthook", "unraisablehook", "displayhook")
_KNOWN = [logging.root, *map(logging.getLogger, ("scheduler", "scheduler.engine", TASK_LOGGER))]
_environment: dict[bytes, bytes] = os.environb._data  # type: ignore[attr-defined]  # a copy takes a hundred times as long


class Surroundings:
    """How the process was before an attempt."""

    def __init__(self) -> None:
        self._directory = os.getcwd()
        self._home = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._modules = len(sys.modules)
        self._path: list[list[Any]] = [list(sys.path), list(sys.meta_path)]
        self._loggers = {one: _logger(one) for one in (logging.root, *_loggers())}
        self._structlog = _structlog()
        self._kept = [part.read() for part in _PARTS]
        self._logging = _logging()

    def close(self) -> None:
        """Another one takes its place."""
        os.close(self._home)

    def put_back(self) -> bool:
        """Put back what has changed. False: something cannot be, so this process should take no more jobs."""
        try:
            self._put_back()
        except Exception:  # a closed directory, a limit that may not be raised, a broken object of a handler's
            return False
        return True

    def _put_back(self) -> None:
        if _here() != self._directory:
            os.fchdir(self._home)
        for part, kept in zip(_PARTS, self._kept, strict=True):
            if part.read() != kept:
                part.write(kept)
        if _logging() != self._logging:
            for logger in _loggers():
                logger.disabled = False  # those made since: a dictConfig disables what there is
            for logger, state in self._loggers.items():
                logger.level, logger.disabled, logger.propagate, logger.handlers[:] = state
            logging.disable(self._logging[0])
            logging.root.manager._clear_cache()  # type: ignore[attr-defined]
        if self._structlog is not None and _structlog() != self._structlog:
            sys.modules["structlog"].configure(**self._structlog)
        imported, self._modules = len(sys.modules) != self._modules, len(sys.modules)
        lists: tuple[list[Any], list[Any]] = (sys.path, sys.meta_path)
        for present, kept in zip(lists, self._path, strict=True):
            if present != kept:
                present[:] = [*kept, *(one for one in present if one not in kept)] if imported else kept
                kept[:] = present


class _Part(NamedTuple):
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _here() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


def _umask() -> int:
    present = os.umask(0o077)
    os.umask(present)
    return present


def _put_environment(kept: dict[bytes, bytes]) -> None:
    for name in [name for name in os.environb if name not in kept]:
        del os.environb[name]
    os.environb.update(kept)
    time.tzset()


def _hooks() -> list[Any]:
    return [*(getattr(sys, name) for name in _HOOKS), threading.excepthook]


def _put_hooks(kept: list[Any]) -> None:
    *ours, threading.excepthook = kept
    for name, value in zip(_HOOKS, ours, strict=True):
        setattr(sys, name, value)


def _put_signals(kept: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, kept, strict=True):
        if handler is not None:  # None: it was set by C code
            signal.signal(number, handler)


def _thread() -> tuple[set[int], set[int]]:
    """The signals that the main thread blocks, and the cores that it may use."""
    return _signal.pthread_sigmask(signal.SIG_BLOCK, ()), os.sched_getaffinity(0)


def _put_thread(kept: tuple[set[int], set[int]]) -> None:
    blocked, cores = kept
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.sched_setaffinity(0, cores)


def _put_limits(kept: list[tuple[int, int]]) -> None:
    for number, limit in zip(_LIMITS, kept, strict=True):
        resource.setrlimit(number, limit)


def _interpreter() -> tuple[Any, ...]:
    return (
        *(gc.isenabled(), gc.get_threshold(), sys.getrecursionlimit(), sys.getswitchinterval()),
        *(socket.getdefaulttimeout(), locale.setlocale(locale.LC_ALL), os.getpriority(os.PRIO_PROCESS, 0)),
    )


def _put_interpreter(kept: tuple[Any, ...]) -> None:
    collects, threshold, depth, interval, timeout, used, nice = kept
    (gc.enable if collects else gc.disable)()
    gc.set_threshold(*threshold)
    sys.setrecursionlimit(depth)
    sys.setswitchinterval(interval)
    socket.setdefaulttimeout(timeout)
    locale.setlocale(locale.LC_ALL, used)
    os.setpriority(os.PRIO_PROCESS, 0, nice)


def _put_warnings(kept: list[Any]) -> None:
    warnings.filters[:] = kept  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _structlog() -> dict[str, Any] | None:
    found = sys.modules.get("structlog")
    return None if found is None else dict(found.get_config())


def _logging() -> tuple[Any, ...]:
    """What differs once a handler has configured logging: any ``dictConfig`` makes new handlers."""
    return (logging.root.manager.disable, list(logging._handlerList), *map(_logger, _KNOWN))  # type: ignore[attr-defined]


def _loggers() -> list[logging.Logger]:
    return [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]


def _logger(one: logging.Logger) -> tuple[Any, ...]:
    return one.level, one.disabled, one.propagate, list(one.handlers)


_PARTS = (
    _Part(_umask, os.umask),
    _Part(_environment.copy, _put_environment),
    _Part(_hooks, _put_hooks),
    _Part(lambda: list(map(_signal.getsignal, _SIGNALS)), _put_signals),
    _Part(_thread, _put_thread),
    _Part(lambda: list(map(resource.getrlimit, _LIMITS)), _put_limits),
    _Part(_interpreter, _put_interpreter),
    _Part(lambda: list(warnings.filters), _put_warnings),
)
