"""The commands ``schedd`` and ``schedctl``, which say so where another package has the name of schedd's own."""

from __future__ import annotations

import sys

from schedd import hidden


def daemon() -> int:
    """Run ``schedd``; returns its exit status."""
    _end_if_hidden("schedd")
    from scheduler.daemon import run

    return run()


def control() -> None:
    """Run ``schedctl``."""
    _end_if_hidden("schedctl")
    from scheduler.cli import main

    main()


def either() -> int:
    """``python -m schedd`` and ``python -m scheduler``: the daemon, or with a COMMAND ``schedctl COMMAND``."""
    if sys.argv[1:2] and not sys.argv[1].startswith("-"):
        control()
    return daemon()


def _end_if_hidden(command: str) -> None:
    text = hidden()
    if text is not None:
        print(f"{command}: {text}", file=sys.stderr)
        raise SystemExit(2)
