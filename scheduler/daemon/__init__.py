"""The schedd process: entry point, supervisor, signals, logs, systemd notification."""

from __future__ import annotations

import signal


def run() -> int:
    """Run ``schedd`` with the arguments of this process. Returns its exit status."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # Until the daemon waits for signals, one ends the process, and shows nobody the traceback of an import.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from scheduler.daemon.main import main

    return main()
