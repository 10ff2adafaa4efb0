"""Keeps the daemon's log as it is, whatever tasks and their modules do to ``logging``.

A ``dictConfig``, as many projects have it in their first lines, disables all loggers and takes their handlers away.
"""

from __future__ import annotations

import logging
import logging.config
import sys
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from scheduler.engine.attempt import capture

log = logging.getLogger("scheduler.daemon")

_OURS = "scheduler"


class LogGuard:
    """Puts back the handler and the levels of the daemon. One for each process."""

    def __init__(self) -> None:
        self._handler: logging.Handler | None = None
        self._levels: dict[str, int] = {}
        self._hook = threading.excepthook
        self._told = False

    def keep(self, handler: logging.Handler, levels: dict[str, int]) -> None:
        """Keep this handler at the root, and these levels of loggers, from now on."""
        self._handler, self._levels, self._hook = handler, levels, threading.excepthook
        _after_each_configuration(self.put_back)

    def put_back(self) -> None:
        """Put back what has been changed. Handlers of others stay, but for those that would write each line twice."""
        root, handler = logging.getLogger(), self._handler
        if handler is None:
            return
        disabled = [one for one in _own_loggers() if one.disabled]
        levels = {name: level for name, level in self._levels.items() if logging.getLogger(name).level != level}
        if handler in root.handlers and not disabled and not levels and not logging.root.manager.disable:
            return
        for other in [one for one in root.handlers if _writes_to_the_streams(one)]:
            root.removeHandler(other)
        if handler not in root.handlers:
            root.addHandler(handler)
        for logger in disabled:
            logger.disabled = False
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        logging.disable(logging.NOTSET)
        threading.excepthook = self._hook
        capture.attach_again()
        if not self._told:
            self._told = True
            log.warning("a task, or a module of tasks, has set up logging: the daemon's own lines stay as they were")


def _own_loggers() -> list[logging.Logger]:
    found = [one for name, one in list(logging.root.manager.loggerDict.items()) if name.split(".")[0] == _OURS]
    return [one for one in found if isinstance(one, logging.Logger)]


def _writes_to_the_streams(handler: logging.Handler) -> bool:
    return type(handler) is logging.StreamHandler and handler.stream in (
        *(sys.stderr, sys.stdout, sys.__stderr__, sys.__stdout__),
    )


def _after_each_configuration(put_back: Callable[[], None]) -> None:
    """Call ``put_back`` after each call that configures logging as a whole."""
    for place, name in ((logging, "basicConfig"), (logging.config, "dictConfig"), (logging.config, "fileConfig")):
        function: Any = getattr(place, name)
        setattr(place, name, _then(getattr(function, "__wrapped__", function), put_back))


def _then(configure: Callable[..., Any], put_back: Callable[[], None]) -> Callable[..., Any]:
    @wraps(configure)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return configure(*args, **kwargs)
        finally:
            put_back()

    return call


GUARD = LogGuard()
