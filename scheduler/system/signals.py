"""Signals that a system may lack."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys

HUP: int | None = getattr(signal, "SIGHUP", None)
# Ends a process that does not listen. To os.kill() of Windows each signal but those of a console is that one.
KILL: int = getattr(signal, "SIGKILL", signal.SIGTERM)
# On Windows a process that was started in a group of its own hears Ctrl-Break, and no Ctrl-C.
STOPPING: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT, *filter(None, [getattr(signal, "SIGBREAK", None)]))
HANDLED: tuple[int, ...] = (*STOPPING, *filter(None, [HUP]))


def ignore_hangup() -> None:
    """Let the end of a terminal not end this process."""
    if HUP is not None:
        signal.signal(HUP, signal.SIG_IGN)


def stop_self() -> None:
    """Have this process hear SIGTERM. From any thread. To os.kill() of Windows that would be its end at once."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGTERM)
    else:
        os.kill(os.getpid(), signal.SIGTERM)  # also wakes the main thread from a system call


def show_stacks() -> None:
    """Let SIGUSR1 print what each thread does on stderr, where there is that signal."""
    if sys.platform != "win32":
        faulthandler.register(signal.SIGUSR1, all_threads=True)
