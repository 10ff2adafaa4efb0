"""Poller: polls the database until a condition holds, for commands that wait, and for ``--watch``."""

from __future__ import annotations

import functools
import io
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

import click

from scheduler.backoff import Backoff, LogOnce
from scheduler.cli.options import SPAN
from scheduler.cli.output import redraw
from scheduler.cli.session import Session, note
from scheduler.errors import StoreUnavailableError

PAUSES = (0.02, 0.5)  # seconds between polls: first, longest
SETTLED = 5.0  # seconds after an outage in which workers renew their leases: they try every 2 s at least
EVERY = 2_000_000  # microseconds between two frames of --watch
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


class Poller:
    """Polls with growing pauses up to a deadline. ``timeout``: microseconds, None for ever."""

    def __init__(self, session: Session, timeout: int | None) -> None:
        clock = session.database.clock
        self._monotonic = clock.monotonic
        self._deadline = None if timeout is None else clock.monotonic() + timeout / 1_000_000
        self._backoff = Backoff(*PAUSES, 1.5)
        self._never = threading.Event()
        self._seen = False
        self._noted = LogOnce()
        self._away_at = float("-inf")

    @property
    def settled(self) -> bool:
        """Whether the last outage is some time ago: right after one, leases may have run out."""
        return self._monotonic() - self._away_at > SETTLED

    def take(self, look: Callable[[], T]) -> T:
        """Return what ``look`` returns. After the first success, this waits for a database that goes away.

        Raises StoreUnavailableError at the first look, for what waiting does not heal, and when the time is up.
        """
        while True:
            try:
                found = look()
            except StoreUnavailableError as error:
                if not (self._seen and error.heals and self.again()):
                    raise
                self._away_at = self._monotonic()
                if self._noted.is_new(str(error)):
                    note(f"{error}; waiting for it")
            else:
                self._seen = True
                return found

    def again(self) -> bool:
        """Pause before the next poll; False once the time is up."""
        left = float("inf") if self._deadline is None else self._deadline - self._monotonic()
        if left <= 0:
            return False
        self._never.wait(min(self._backoff.next(), left))
        return True


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
        import shutil

        room = shutil.get_terminal_size().lines - 1
        lines = text.splitlines()
        if len(lines) > room:
            text = "\n".join([*lines[: room - 1], f"… {len(lines) - room + 1} more lines"]) + "\n"
    return text
