"""``--watch``: a command's output again and again, until it is interrupted."""

from __future__ import annotations

import functools
import io
import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import click

from scheduler.cli.looks import Poller
from scheduler.cli.options import SPAN
from scheduler.cli.output import redraw
from scheduler.cli.session import Session

F = TypeVar("F", bound=Callable[..., Any])

EVERY = 2_000_000  # microseconds between two looks


class _Frame(io.StringIO):
    """Collects what a command prints, as for the stream that it is printed on afterwards."""

    def __init__(self, stream: Any) -> None:
        super().__init__()
        self._stream = stream

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return str(self._stream.encoding)

    def isatty(self) -> bool:
        return bool(self._stream.isatty())


def pause(seconds: float) -> None:
    """Wait for the next look; an interrupt ends it."""
    threading.Event().wait(seconds)


def watchable(command: F) -> F:
    """Adds ``--watch`` and ``--interval`` to a command that takes a session and prints."""

    @functools.wraps(command)
    def called(session: Session, /, *args: Any, watch: bool, interval: int | None, **given: Any) -> Any:
        if not watch:
            if interval is not None:
                raise click.UsageError("--interval belongs to --watch")
            return command(session, *args, **given)
        session.lasting = True
        session.existing()
        poller = Poller(session, None)
        while True:
            redraw(poller.take(lambda: _frame(lambda: command(session, *args, **given))))
            pause((EVERY if interval is None else max(100_000, interval)) / 1_000_000)

    for option in (
        click.option(
            "--interval", type=SPAN, metavar="S", help="With --watch: the time between two prints; 2s by default."
        ),
        click.option("--watch", is_flag=True, help="Print it again and again, until interrupted."),
    ):
        called = option(called)
    return called  # type: ignore[return-value]


def _frame(draw: Callable[[], Any]) -> str:
    """What this prints; on a terminal as many lines as it has."""
    stream, frame = sys.stdout, _Frame(sys.stdout)
    sys.stdout = frame
    try:
        draw()
    finally:
        sys.stdout = stream
    text = frame.getvalue()
    if stream.isatty():
        room = shutil.get_terminal_size().lines - 1
        lines = text.splitlines()
        if len(lines) > room:
            text = "\n".join([*lines[: room - 1], f"… {len(lines) - room + 1} more lines"]) + "\n"
    return text
