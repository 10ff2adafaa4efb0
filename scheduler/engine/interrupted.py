"""The end of ``with jobs:`` by Ctrl-C: says at once what it waits for, and stops at once at a second one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from scheduler.interrupts import StopSignals
from scheduler.model.texts import listed

if TYPE_CHECKING:
    from scheduler.engine.engine import Engine

log = logging.getLogger("scheduler.engine")

_OWN = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")


def end_at_interrupt(
    error: KeyboardInterrupt,
    engine: Engine | None,
    drain: float,
    close: Callable[[], None],
    stop_now: Callable[[], object],
) -> None:
    """Close, or at a later interrupt stop at once. Leaves the program's own frames in the error's traceback."""
    signals, told = StopSignals(), False
    signals.counts()
    while True:
        try:  # around all of it: the same interrupt may come twice in a moment
            if not told:
                _cut(error)
                _tell(engine, drain)
                told = True
            close()
            return
        except KeyboardInterrupt:
            if signals.counts():
                break
    log.warning("stopping at once")
    stop_now()
    close()


def _tell(engine: Engine | None, drain: float) -> None:
    running = [] if engine is None else engine.running()
    if running:
        tasks = listed([f"task {task_id} ({kind})" for task_id, kind in running])
        log.warning("stopping: up to %g s for %s; Ctrl-C again hands back at once what still runs", drain, tasks)


def _cut(error: BaseException) -> None:
    """Forget where within schedd the program waited."""
    last: TracebackType | None = None
    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith(_OWN):
        last, trace = trace, trace.tb_next
    if last is not None:
        last.tb_next = None
