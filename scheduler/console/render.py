"""Renders pages: templates, and how times, spans, states and JSON are shown."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime, tzinfo
from functools import cache
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context
from markupsafe import Markup

from scheduler.model.texts import counted, rfc3339, span_text
from scheduler.model.times import SECOND, to_datetime
from scheduler.ports import FOREVER

MAX_SHOWN = 20_000  # characters of one value on a page


class RenderedPage(NamedTuple):
    """A page: a template with what it shows, the same as ``data`` for ``.json``, and the command that says the same.

    ``live``: it is looked at again while it is open.
    """

    template: str
    data: Any
    context: Mapping[str, Any] = {}
    command: str | None = None
    live: bool = True
    status: int = 200


class ActionDone(NamedTuple):
    """What a verb did, in a sentence. ``to``: the path of the page that shows it; None: the page that it came from.

    ``undo``: (label, path, fields) of a POST that takes it back, offered for a while. ``data``: for callers of JSON.
    """

    message: str
    to: str | None = None
    undo: tuple[str, str, Mapping[str, str]] | None = None
    data: Any = None
    ok: bool = True


@cache
def environment() -> Environment:
    """The templates."""
    made = Environment(
        loader=PackageLoader("scheduler.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        when=when,
        ago=ago,
        span=span,
        seconds=seconds_text,
        count=count_text,
        rate=rate_text,
        plural=plural,
        pretty=pretty,
        rfc3339=rfc3339,
        path=lambda text: quote(str(text), safe="/"),
    )
    made.globals.update(query=query_text)
    return made


def _moment(value: int | datetime) -> datetime:
    return value if isinstance(value, datetime) else to_datetime(value)


@pass_context
def when(context: Context, value: int | datetime | None, exact: bool = False) -> Markup:
    """An instant in the visitor's zone: the time alone for today, else with its date. The exact one is in the title."""
    if value is None or (isinstance(value, int) and value >= FOREVER):
        return Markup('<span class="none">–</span>')
    moment = _moment(value)
    zone: tzinfo = context["zone"]
    local, today = moment.astimezone(zone), context["now_at"].astimezone(zone)
    shown = f"{local:%Y-%m-%d %H:%M:%S}" + (f".{local:%f}"[:4] if exact else "")
    if not exact:
        if local.date() == today.date():
            shown = f"{local:%H:%M:%S}"
        elif abs((local - today).days) < 300:
            shown = f"{local:%d %b %H:%M}"
        else:
            shown = f"{local:%Y-%m-%d}"
    utc = moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    title = f"{local:%Y-%m-%d %H:%M:%S}.{local:%f}"[:-3] + f" {local:%Z}"
    return Markup('<time datetime="{}" title="{}">{}</time>').format(utc, title, shown)


@pass_context
def ago(context: Context, value: int | datetime | None) -> Markup:
    """How long ago an instant was, or in how long it is, roughly; the exact one is in the title."""
    if value is None or (isinstance(value, int) and value >= FOREVER):
        return Markup('<span class="none">–</span>')
    moment = _moment(value)
    passed = (context["now_at"] - moment).total_seconds()
    text = rough(abs(passed))
    relative = f"in {text}" if passed < -0.5 else f"{text} ago"
    zone: tzinfo = context["zone"]
    local = moment.astimezone(zone)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        f"{local:%Y-%m-%d %H:%M:%S %Z}",
        relative,
    )


def rough(seconds: float) -> str:
    """A span in one unit: ``12 s``, ``3 min``, ``5 h``, ``2 d``. It changes seldom, so that pages do, too."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size or (size < 86_400 and seconds >= size * 1.5):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def span(us: int | None) -> str:
    """A span in microseconds, in words."""
    return "–" if us is None else span_text(us)


def seconds_text(value: float | None) -> str:
    """Seconds as ``12 ms``, ``1.25 s``, ``3 min 20 s``."""
    if value is None:
        return "–"
    if value < 0.0995:
        return f"{value * 1000:.3g} ms"
    if value < 60:
        return f"{value:.3g} s"
    return span_text(round(value * SECOND))


def plural(number: int, noun: str) -> str:
    """``1 task``, ``20 000 tasks``."""
    return f"{count_text(number)} {noun}{'' if number == 1 else 's'}"


def count_text(number: int | None, capped: bool = False) -> str:
    """A number with thin spaces between thousands; ``capped``: there are at least so many."""
    if number is None:
        return "–"
    return f"{number:,}".replace(",", "\u202f") + ("+" if capped else "")


def rate_text(value: float) -> str:
    """A rate or a mean: three digits, whole from 100 on, never with an exponent."""
    if value >= 100:
        return count_text(round(value))
    return "< 0.1" if 0 < value < 0.1 else f"{value:.3g}"


def pretty(value: Any) -> str:
    """A value as indented JSON, cut where it is very long."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False, default=str)
    return (
        text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}\n… {counted(len(text) - MAX_SHOWN, 'character')} more"
    )


def query_text(**values: Any) -> str:
    """``?a=1&b=2`` of what is neither None nor empty."""
    kept = {name: value for name, value in values.items() if value not in (None, "", False)}
    return f"?{urlencode(kept, doseq=True)}" if kept else ""


def dump(value: Any) -> bytes:
    """A page's data as JSON."""
    return (json.dumps(value, indent=1, ensure_ascii=False, default=_plain) + "\n").encode()


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z")
    if hasattr(value, "__struct_fields__"):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, set | frozenset):
        return sorted(value)
    if hasattr(value, "total_seconds"):
        return value.total_seconds()
    return str(value)


def render(template: str, context: Mapping[str, Any], *, fragment: bool = False) -> str:
    """A page; ``fragment``: only the part of it that changes while it is open."""
    layout = "fragment.html" if fragment else "base.html"
    return environment().get_template(template).render({**context, "layout": layout})
