"""The schedd process: entry point, supervisor, signals, logs, systemd notification."""

from __future__ import annotations

from scheduler.interrupts import ends_quietly


def run() -> int:
    """Run ``schedd`` with the arguments of this process. Returns its exit status."""
    ends_quietly()  # until the daemon waits for signals
    from scheduler.daemon.main import main

    return main()
