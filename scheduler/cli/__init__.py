"""The command ``schedctl``. It works on the store, so it answers when no daemon runs."""

from __future__ import annotations

from scheduler.interrupts import ends_quietly, raises_again


def main() -> None:
    """Run ``schedctl`` with the arguments of this process."""
    ours = ends_quietly()  # while modules are imported
    from scheduler.cli.root import root
    from scheduler.cli.streams import ready

    ready()
    if ours:
        raises_again()
    try:
        root.main(prog_name="schedctl")
    finally:
        if ours:
            ends_quietly()  # nor shows it a traceback of the end
