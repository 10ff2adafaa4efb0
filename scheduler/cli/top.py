"""``schedctl top``: what runs now, drawn again every second."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import click

from scheduler.cli.echo import say
from scheduler.cli.options import SPAN, Number, common
from scheduler.cli.output import Row, cell, print_object, print_table, seconds, time
from scheduler.cli.session import Session, prints
from scheduler.cli.stats import percent
from scheduler.errors import StoreUnavailableError
from scheduler.system.terminals import by_keys

if TYPE_CHECKING:
    from scheduler.operations.top import RunningTask, Top

FIELDS = (*("at", "workers", "slots", "held", "due", "later", "at_least", "throughput", "failure_rate", "running"),)
_COLUMNS = ("id", "kind", "for", "progress", "worker", "key")
_WIDTHS = {"id": 7, "kind": 20, "for": 7, "progress": 24, "worker": 16, "key": 10**6}  # at most, but for the last
_FEWER = 80  # columns of a terminal below which a progress shows its percentage only
# The other screen, without a cursor, where no line goes on in the next one.
_ENTER, _LEAVE = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
_HOME, _END_OF_LINE, _REST = "\x1b[H", "\x1b[K", "\x1b[J"
_HEAD_LINES = 4
TERMINATED = 143


@click.command(name="top")
@click.option("--once", is_flag=True, help="Print it once; so does a pipe, or another output than a table.")
@click.option(
    "--interval", type=SPAN, metavar="S", default="1s", show_default=True, help="The time between two drawings."
)
@click.option(
    "--limit", type=Number(1, 10_000), metavar="N", help="At most this many tasks; by default as many as fit, or 100."
)
@common
@prints(FIELDS, lasting=True)
def top_command(session: Session, /, once: bool, interval: int, limit: int | None) -> None:
    """Running tasks, the longest first: start, progress, worker; and the throughput.

    On a terminal it is drawn anew every second, until q or Ctrl-C.
    """
    if interval < 100_000:
        raise click.UsageError("--interval is a tenth of a second at least")
    if once or session.output != "table" or session.columns is not None or not sys.stdout.isatty():
        found, now = _look(session, limit or 100)
        if not print_object(session, _view(found, now)):
            for line in _summary(found, now, None):
                say(line)
            say()
            print_table([_row(task, now, short=False) for task in found.running], _COLUMNS)
        return
    with _screen() as pressed:
        _draw_until(lambda: pressed(interval / 1_000_000), session, limit)


def _look(session: Session, most: int) -> tuple[Top, int]:
    from scheduler.operations.top import top

    database = session.existing()
    with database.read() as tx:
        now = tx.now
        return top(tx, most), now


def _draw_until(over: Callable[[], bool], session: Session, limit: int | None) -> None:
    """Draw until ``over()``, which waits. A database that goes away after the first look is waited for."""
    found, now = _look(session, limit or _size()[1])
    trouble = ""
    while True:
        _draw(found, now, trouble)
        if over():
            return
        try:
            (found, now), trouble = _look(session, limit or _size()[1]), ""
        except StoreUnavailableError as error:
            trouble = f"the database is away: {error}"


def _size() -> tuple[int, int]:
    """The terminal's columns, and how many tasks fit into its lines."""
    columns, lines = shutil.get_terminal_size()
    return columns, max(1, lines - _HEAD_LINES - 1)


def _draw(found: Top, now: int, trouble: str) -> None:
    columns, room = _size()
    first, second = _summary(found, now, columns)
    rows = [_row(task, now, short=columns <= _FEWER) for task in found.running]
    lines = [trouble[:columns] or first, second, "", *_table(rows, columns)][: room + _HEAD_LINES]
    sys.stdout.write(_HOME + "".join(f"{line}{_END_OF_LINE}\n" for line in lines) + _REST)
    sys.stdout.flush()


def _summary(found: Top, now: int, columns: int | None) -> list[str]:
    """Two lines of what there is and how much gets done."""
    from scheduler.model.texts import counted

    alive = sum(worker.alive for worker in found.workers)
    more = "+" if found.capped else ""
    rate, failed = _rates(found, now)
    at, slots = (time(now) or "")[11:19], counted(found.slots, "slot")
    lines = [
        f"{at}Z  {counted(alive, 'worker')}, {found.held} of {slots} taken; "
        f"{found.due}{more} due, {found.later}{more} later",
        f"{rate * 60:.{1 if 0 < rate * 60 < 10 else 0}f} ended a minute"
        + ("" if failed is None else f", {percent(failed)} failed")
        + ("" if columns is None else "; q quits"),
    ]
    return lines if columns is None else [line[:columns] for line in lines]


def _rates(found: Top, now: int) -> tuple[float, float | None]:
    """Ended attempts a second, and the share of failures."""
    return found.numbers.attempts / max(1e-6, (now - found.since) / 1_000_000), found.numbers.failure_rate


def _table(rows: Sequence[Row], columns: int) -> list[str]:
    """A head and rows as lines that fit; a column is as wide as it must be, the last one takes the rest."""
    cells = [{name: cell(row[name]) for name in _COLUMNS} for row in rows]
    lines = [{name: name.upper() for name in _COLUMNS}, *cells]
    widths = {name: min(_WIDTHS[name], max(len(line[name]) for line in lines)) for name in _COLUMNS}
    widths["id"] = max(len(line["id"]) for line in lines)
    made = []
    for line in lines:
        parts = [
            line["id"].rjust(widths["id"]),
            *(_cut(line[name], widths[name]).ljust(widths[name]) for name in _COLUMNS[1:]),
        ]
        made.append(_cut("  ".join(parts).rstrip(), columns))
    return made


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 1)] + "…"


def _row(task: RunningTask, now: int, *, short: bool) -> dict[str, Any]:
    progress = None if task.progress is None else f"{task.progress:.0f}%"
    if task.message and not short:
        progress = f"{progress or ''} {task.message}".strip()
    return {
        "id": task.id,
        "kind": task.kind,
        "for": None if task.since is None else _clock(max(0, now - task.since) // 1_000_000),
        "progress": progress,
        "worker": task.worker,
        "key": task.key,
    }


def _clock(seconds: int) -> str:
    """Minutes and seconds, or hours too, or days and hours: 0:05, 1:02:03, 2d 03h."""
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86_400
    if days:
        return f"{days}d {hours % 24:02}h"
    return f"{hours}:{minutes % 60:02}:{seconds % 60:02}" if hours else f"{minutes}:{seconds % 60:02}"


def _view(found: Top, now: int) -> dict[str, Any]:
    from scheduler.client.json_views import fields

    rate, failed = _rates(found, now)
    return {
        "at": time(now),
        "workers": sum(worker.alive for worker in found.workers),
        **fields(found, "slots", "held", "due", "later"),
        "at_least": found.capped,
        "throughput": rate,
        "failure_rate": failed,
        "running": [
            {
                **fields(task, "id", "kind", "queue", "key", "attempt", "since"),
                "seconds": None if task.since is None else seconds(max(0, now - task.since)),
                **fields(task, "progress", "message", "worker"),
            }
            for task in found.running
        ],
    }


@contextlib.contextmanager
def _screen() -> Iterator[Callable[[float], bool]]:
    """Take the terminal's other screen; yields a call that waits and says whether q was pressed.

    However it ends, the terminal is as it was. Ctrl-C ends it quietly.
    """
    with by_keys() as stdin:
        terminate = signal.signal(signal.SIGTERM, _terminated)
        sys.stdout.write(_ENTER)
        try:
            yield lambda wait: _pressed(stdin, wait)
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, terminate)
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()


def _terminated(*_: object) -> NoReturn:
    sys.exit(TERMINATED)


def _pressed(stdin: int | None, wait: float) -> bool:
    """Wait for a key; True for q, and at the end of the input."""
    if stdin is None:
        threading.Event().wait(wait)
        return False
    if not select.select([stdin], [], [], wait)[0]:
        return False
    return os.read(stdin, 64)[:1] in (b"q", b"Q", b"")
