"""The command ``schedctl``. It works on the store, so it answers when no daemon runs."""

from __future__ import annotations

import signal


def main() -> None:
    """Run ``schedctl`` with the arguments of this process."""
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if ours:  # while modules are imported an interrupt ends the process, and shows nobody a traceback of an import
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from scheduler.cli.root import root
    from scheduler.cli.streams import ready

    ready()
    if ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        root.main(prog_name="schedctl")
    finally:
        if ours:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # nor one of the end
