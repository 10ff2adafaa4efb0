"""The command ``schedctl``. It works on the store, so it answers when no daemon runs."""

from __future__ import annotations


def main() -> None:
    """Run ``schedctl`` with the arguments of this process."""
    from scheduler.cli.root import root
    from scheduler.cli.streams import ready

    ready()
    root.main(prog_name="schedctl")
