"""Printing data: tables for people, JSON for programs. The same rows always print the same."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.echo import is_utf8
from scheduler.cli.options import acts
from scheduler.cli.session import Session
from scheduler.cli.timefmt import brief, distance, instant_of, short, shown, zone_of
from scheduler.model.texts import printable_json

if TYPE_CHECKING:
    from scheduler.operations.desk import Tx
    from scheduler.operations.masks import ViewMasks


F = TypeVar("F", bound=Callable[..., Any])
Row = Mapping[str, Any]

_GAP = "  "
_COLOURS = {
    "success": "green",
    "live": "green",
    "ok": "green",
    "running": "cyan",
    "claimed": "cyan",
    "retry": "yellow",
    "draining": "yellow",
    "note": "yellow",
    "failed": "red",
    "dead": "red",
    "lost": "red",
    "problem": "red",
    "cancelled": "magenta",
    "skipped": "magenta",
}
_COLOURED = frozenset({"state", "level", "outcome"})
_OWN_TEXTS = frozenset({"key", "subject", "correlation", "causation", "payload", "result", "error", "progress message"})
# What a terminal that is too narrow leaves out first.
_SPARE = (
    *(
        "created_at",
        "priority",
        "version",
        "pid",
        "incarnation",
        "last_slot",
        "last_task",
        "finished_at",
        "heartbeat_at",
    ),
    *(
        "run_at",
        "attempt",
        "worker",
        "queues",
        "replay_count",
        "fingerprint",
        "oldest",
        "started_at",
        "via",
        "p99",
        "wait_p50",
        "suspended",
        "later",
    ),
)
_LAST_ROOM = 24  # columns that the last column of a table wants at least, where its rows are longer
_ROOMS = (32, 20, 14)  # what the other columns are cut to, one after the other, where that is not enough


def time(us: int | None) -> str | None:
    """A stored instant as RFC 3339, exact; None for none and for never."""
    from scheduler.model.texts import rfc3339
    from scheduler.ports import FOREVER

    return None if us is None or us >= FOREVER else rfc3339(us)


def seconds(us: int | None) -> float | None:
    """A stored span in seconds."""
    return None if us is None else us / 1_000_000


def print_rows(
    session: Session, rows: Sequence[Row], columns: Sequence[str] | None = None, *, whole: bool = False
) -> None:
    """Rows as a table of ``columns``, or as JSON with all fields of the command; ``--columns`` goes for both.

    ``whole``: a table's last column is never cut, as it is what the table is for.
    """
    chosen = session.chosen or session.fields
    if session.output == "table":
        print_table(
            rows, session.chosen or columns or session.fields, whole=whole, all_columns=session.chosen is not None
        )
        return
    picked = [{name: row.get(name) for name in chosen} for row in rows]
    if session.output == "jsonl":
        for row in picked:
            click.echo(_json(row))
    else:
        click.echo(_json(picked, indent=2))


def print_object(session: Session, value: Row) -> bool:
    """One object as JSON, or its ``--columns`` as lines. False: neither was asked for, nothing is printed."""
    chosen = session.chosen
    picked = {name: value[name] for name in chosen or session.fields}
    if session.output == "table":
        if chosen is None:
            return False
        print_fields(list(picked.items()))
        return True
    click.echo(_json(picked, indent=2 if session.output == "json" else None))
    return True


def _json(value: object, indent: int | None = None) -> str:
    return printable_json(json.dumps(value, ensure_ascii=not is_utf8(), indent=indent))


def cell(value: object) -> str:
    """One value as text on one line, without characters that control a terminal."""
    if value is None:
        text = "-"
    elif isinstance(value, bool):
        text = "yes" if value else "no"
    elif isinstance(value, str):
        text = value or "-"
    elif isinstance(value, (dict, list, tuple)):
        text = json.dumps(value, ensure_ascii=False) if value else "-"
    elif isinstance(value, float):
        # Microseconds only where there is nothing else; programs get all of them as JSON.
        text = f"{value:.{6 if abs(value) < 0.01 else 3}f}".rstrip("0").rstrip(".")
    else:
        text = str(value)
    return "".join(c if c.isprintable() else " " for c in text)


def print_table(
    rows: Iterable[Row], columns: Sequence[str], indent: str = "", *, whole: bool = False, all_columns: bool = False
) -> None:
    """An aligned table with a head; cut at the terminal's width when there is a terminal, the last column not if
    ``whole``. Of columns that do not fit the less important ones are left out, unless ``all_columns`` are wanted."""
    rows = list(rows)
    limit = None if whole else terminal_width()
    cells = [[_shown(name, row.get(name)) for name in columns] for row in rows]
    head = [name.replace("_", " ").upper() for name in columns]
    widths = [max(_width(line[i]) for line in [head, *cells]) for i in range(len(columns))]
    if limit is not None and not all_columns:
        kept = _fitting(columns, widths, limit - _width(indent))
        columns, head = [columns[i] for i in kept], [head[i] for i in kept]
        widths = [widths[i] for i in kept]
        cells = [[line[i] for i in kept] for line in cells]
        if _wanted(widths) > limit - _width(indent):
            cells = [[_short(name, row.get(name)) for name in columns] for row in rows]
            widths = [max(_width(line[i]) for line in [head, *cells]) for i in range(len(columns))]
        widths = _narrowed(columns, widths, limit - _width(indent))
    right = [_numbers([row.get(name) for row in rows]) for name in columns]
    _print_line(head, widths, right, limit, indent, [None] * len(columns))
    for row, line in zip(rows, cells, strict=True):
        colours = [_COLOURS.get(str(row.get(name))) if name in _COLOURED else None for name in columns]
        _print_line(line, widths, right, limit, indent, colours)


def _wanted(widths: Sequence[int]) -> int:
    """How wide a table is that shows enough of its last column."""
    return sum(widths[:-1]) + min(widths[-1], _LAST_ROOM) + len(_GAP) * (len(widths) - 1)


def _fitting(columns: Sequence[str], widths: Sequence[int], limit: int) -> list[int]:
    """The positions of the columns that are shown."""
    kept = list(range(len(columns)))
    for name in _SPARE:
        if _wanted([widths[i] for i in kept]) <= limit:
            break
        kept = [i for i in kept if columns[i] != name or i == len(columns) - 1]
    return kept


def _narrowed(columns: Sequence[str], widths: list[int], limit: int) -> list[int]:
    """The widths of columns whose longest texts are cut, so that the last one has room."""
    for room in _ROOMS:
        if _wanted(widths) <= limit:
            break
        last = len(columns) - 1
        widths = [w if i == last or columns[i] in ("id", "state") else min(w, room) for i, w in enumerate(widths)]
    return widths


def _numbers(values: Sequence[object]) -> bool:
    """Whether a column holds numbers, so that it is aligned at its right end."""
    given = [value for value in values if value is not None]
    return bool(given) and all(map(_is_number, given))


def _is_number(value: object) -> bool:
    if isinstance(value, str):  # a count that may be higher
        return value.endswith("+") and value[:-1].replace(".", "", 1).isdigit()
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(name: str, value: object) -> str:
    if name == "age" and isinstance(value, float):
        return brief(value)
    instant = None if name in _OWN_TEXTS else instant_of(value)
    return cell(value) if instant is None else shown(instant, _zone())


def _short(name: str, value: object) -> str:
    """The same where there is little room: a time that is cut would not say the hour."""
    instant = None if name in _OWN_TEXTS else instant_of(value)
    return _shown(name, value) if instant is None else short(instant, _zone(), datetime.now(UTC))


def _session() -> Session:
    ctx = click.get_current_context(silent=True)
    found = None if ctx is None else ctx.find_object(Session)
    return Session() if found is None else found


def _zone() -> tzinfo | None:
    return zone_of(_session().zone)


def _print_line(
    line: Sequence[str],
    widths: Sequence[int],
    right: Sequence[bool],
    limit: int | None,
    indent: str,
    colours: Sequence[str | None],
) -> None:
    parts, used = [], _width(indent)
    for i, text in enumerate(line):
        if _width(text) > widths[i]:
            text = _cut(text, widths[i])
        padding = " " * (widths[i] - _width(text))
        last = i == len(line) - 1
        padded = padding + text if right[i] else text + ("" if last else padding)
        if limit is not None and used + _width(padded) > limit:
            padded = _cut(padded, limit - used)
        elif limit is not None and not last and used + _width(padded) + len(_GAP) >= limit:
            padded = _cut(padded + " " * limit, limit - used)  # some columns may have no room
        used += _width(padded) + len(_GAP)
        colour = colours[i]
        parts.append(click.style(padded, fg=colour) if colour and use_colour() else padded)
        if limit is not None and used >= limit:
            break
    click.echo((indent + _GAP.join(parts)).rstrip(), color=use_colour())


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Names and values, one a line; None is left out."""
    given = [(name.replace("_", " "), value) for name, value in fields if value is not None]
    width = max((len(name) for name, _ in given), default=0)
    for name, value in given:
        text = _shown(name, value)
        instant = None if name in _OWN_TEXTS else instant_of(value)
        if instant is not None and sys.stdout.isatty():
            text += f"  ({distance(instant, datetime.now(UTC))})"
        if name in _COLOURED and use_colour() and text in _COLOURS:
            text = click.style(text, fg=_COLOURS[text])
        click.echo(f"{name + ':':{width + 2}}{text}", color=use_colour())


def use_colour() -> bool:
    """Whether to print colours: what ``--color`` says, else whether stdout is a terminal that wants them (NO_COLOR)."""
    wanted = _session().colour
    if wanted != "auto":
        return wanted == "always"
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def redraw(text: str) -> None:
    """Print a frame that was made by these functions in place of the last one; in a pipe, below it."""
    if sys.stdout.isatty():
        text = f"\x1b[H\x1b[2J{text}"
    sys.stdout.write(text)
    sys.stdout.flush()


def terminal_width() -> int | None:
    """The width to cut tables at; None when stdout is no terminal."""
    if not sys.stdout.isatty():
        return None
    import shutil

    return shutil.get_terminal_size().columns


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    return sum(_char_width(c) for c in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(text: str, room: int) -> str:
    if room <= 1:
        return "…"[:room]
    used, kept = 0, []
    for char in text:
        used += _char_width(char)
        if used > room - 1:
            break
        kept.append(char)
    return "".join(kept) + "…"


def reveals(command: F) -> F:
    """Adds ``--reveal``, with ``--by`` and ``--reason``."""
    return click.option("--reveal", is_flag=True, help="Also show secrets of payloads; the audit records it.")(
        acts(command)
    )


def masks_of(tx: Tx, kinds: Iterable[str]) -> ViewMasks:
    """The mask that hides the secrets of tasks of these kinds. Imported when it is first needed."""
    from scheduler.operations.masks import ViewMasks

    return ViewMasks(tx, kinds)
