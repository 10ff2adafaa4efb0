"""Signals to stop: which of them are a word of their own, and what an interrupt does while a command starts.

Commands import this module first of all, so it imports nothing that is not built in: until :func:`ends_quietly` is
called, an interrupt shows a traceback of an import.
"""

from __future__ import annotations

import importlib
import time

# signal.py makes enumerations of the numbers: that takes longer than all else here.
_signal = importlib.import_module("_signal")
SAME_SIGNAL = 1.0  # seconds after a signal to stop within which others are that one, sent again


class StopSignals:
    """Counts signals to stop. A manager and a terminal send theirs at the same time, and some send two of them."""

    def __init__(self) -> None:
        self._counted_at: float | None = None

    def counts(self) -> bool:
        """A signal has come: whether it is another one than the last that counted."""
        now = time.monotonic()
        if self._counted_at is not None and now - self._counted_at < SAME_SIGNAL:
            return False
        self._counted_at = now
        return True


def ends_quietly() -> bool:
    """Let an interrupt end the process, without a traceback, if it would raise. Returns whether it would."""
    ours: bool = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    if ours:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    return ours


def raises_again() -> None:
    """Let an interrupt raise KeyboardInterrupt, as in any program of Python."""
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)
