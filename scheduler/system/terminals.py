"""Terminals: keys, each as it is pressed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def by_keys() -> Iterator[int | None]:
    """Within it each key of the terminal can be read from the descriptor that it yields; afterwards the terminal is as
    it was. None if stdin is no terminal, and on Windows, where select(2) takes no console."""
    if sys.platform == "win32" or not sys.stdin.isatty():
        yield None
        return
    import termios
    import tty

    stdin = sys.stdin.fileno()
    before = termios.tcgetattr(stdin)
    tty.setcbreak(stdin)
    try:
        yield stdin
    finally:
        termios.tcsetattr(stdin, termios.TCSADRAIN, before)
