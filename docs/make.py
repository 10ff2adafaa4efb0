"""Writes the pages of the reference that are made of tables in the code.

    python docs/make.py        (make man)

The pages are kept in the repository, and a test compares them.
"""

from __future__ import annotations

import inspect
import json
import re
import typing
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import click

import scheduler
from scheduler.cli.root import root
from scheduler.config.alerts import AlertRules, AlertSink
from scheduler.config.executors import ExecutorSection
from scheduler.config.messages import SinkSection, SourceSection
from scheduler.config.model import Config
from scheduler.config.sources import Section, format_duration, is_duration
from scheduler.store.read.problems import TABLE, ProblemType, Voice

REFERENCE = Path(__file__).resolve().parent / "reference"
PARTS = ("bulks", "dead_letters", "live_settings", "schedules", "workers")  # of a Scheduler
_ROLE = re.compile(r":\w+:`[~!]?(?:[^`<]*<)?(?:[\w.]*\.)?([\w]+)>?`|``([^`]+)``")
SETTINGS = re.compile(r"(?<=<!-- settings: begin -->\n).*?(?=<!-- settings: end -->)", re.DOTALL)
ENTRIES = {"alerts.sinks": AlertSink, "sources": SourceSection, "sinks": SinkSection, "executors": ExecutorSection}
HEAD = """\
# Problems

This page is made of the table of problems in `scheduler/store/read/problems.py`, by `docs/make.py`.

`schedctl status` lists problems, the worst first. `schedctl status --check` ends with status 1 if there is one. In JSON
each has its name below as `problem`, with `text`, `since`, `number`, `tasks` and `remedy`. The console's first page
shows the same sentences, each with its remedy. `schedctl why ID` says which problem a task has.

An alert fires when a problem has lasted for the time that its rule sets, a minute by default: see
[Alerts](../guides/alerts.md).
"""


API_HEAD = """\
# Every name in Python

This page is made of the docstrings of `scheduler`, by `docs/make.py`. [Python](python.md) has them by subject.
"""
OPTIONS_HEAD = """\
# Every command and option

This page is made of the help texts in `scheduler/cli/`, by `docs/make.py`. [schedctl](commands.md) has the commands by
subject, with more of their behaviour.
"""


def pages() -> dict[str, str]:
    """The name of each page below reference/, and its text."""
    return {"problems.md": problems(), "options.md": options(), "configuration.md": configuration(), "names.md": api()}


def configuration() -> str:
    """The page of the configuration, with its tables of settings made anew."""
    page = (REFERENCE / "configuration.md").read_text(encoding="utf-8")
    return SETTINGS.sub(lambda _: "\n" + "\n".join(_sections()), page)


def _sections() -> Iterator[str]:
    for name, kind in typing.get_type_hints(Config).items():
        if name in ENTRIES:
            yield from _section(f"{name}.NAME", ENTRIES[name])
        elif isinstance(kind, type) and issubclass(kind, Section):
            yield from _section(name, kind)
    yield from _section("alerts.sinks.NAME", AlertSink)


def _section(name: str, section: Any) -> Iterator[str]:
    yield f"### `[{name}]`\n"
    yield "| setting | meaning | default |"
    yield "| --- | --- | --- |"
    for row in _rows(section, section()):
        yield f"| `{row[0]}` | {row[1]} | {row[2]} |"
    yield ""


def _rows(section: type[Section], defaults: Section, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    comments = _comments(section)
    for name, kind in typing.get_type_hints(section, include_extras=True).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _rows(kind, getattr(defaults, name), f"{prefix}{name}.")
        elif typing.get_origin(kind) is dict and name in ("options", "sinks"):
            continue  # a transport's or a backend's own settings, and tables of their own
        else:
            meaning, _, default = comments[name].partition(" Default: ")
            yield prefix + name, meaning, default.rstrip(".") or _default(kind, getattr(defaults, name))


def _default(kind: object, value: object) -> str:
    if value is None:
        return "unset"
    if value in ("", (), {}):
        return "required" if value == "" else "none"
    if is_duration(kind) and isinstance(value, float):
        return f"`{format_duration(value)}`"
    text = (
        ", ".join(value) if isinstance(value, tuple) else json.dumps(value) if isinstance(value, bool) else str(value)
    )
    return f"`{text}`"


def _comments(section: type[Section]) -> dict[str, str]:
    """The comment above each setting of a section."""
    found, above = {}, []
    for line in inspect.getsource(section).splitlines():
        if line.startswith("    # "):
            above.append(line.strip().removeprefix("# "))
        elif setting := re.match(r"    (\w+): ", line):
            found[setting[1]], above = " ".join(above), []
    return found


def api() -> str:
    """The page of the names in ``scheduler.__all__``, with their docstrings."""
    names = sorted((name for name in scheduler.__all__ if not name.startswith("_")), key=str.lower)
    return "\n".join([API_HEAD, *(line for name in names for line in _name(name, getattr(scheduler, name)))])


def _name(name: str, thing: object) -> Iterator[str]:
    yield f"## {name}\n"
    if text := _docstring(thing):
        yield f"{text}\n"
    if inspect.isfunction(thing):
        yield f"`{name}{_arguments(thing)}`\n"
    if inspect.isclass(thing) and issubclass(thing, Enum):
        yield "Members: " + ", ".join(f"`{member.name}`" for member in thing) + ".\n"
    elif inspect.isclass(thing):
        yield from _members(name, thing)


def _members(name: str, thing: type) -> Iterator[str]:
    for method, function in sorted(_methods(thing).items()):
        if text := _docstring(function):
            arguments = "" if isinstance(function, property) else _arguments(function)
            yield f"### `{name}.{method}{arguments}`\n"
            yield f"{text}\n"
        if method in PARTS and isinstance(function, property) and function.fget is not None:
            part = function.fget.__globals__[function.fget.__annotations__["return"]]
            yield from _members(f"{name}.{method}", part)


def _methods(thing: type) -> dict[str, Any]:
    """The public methods and properties of a class that schedd has written."""
    found = {}
    for name in dir(thing):
        member = inspect.getattr_static(thing, name)
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if (
            not name.startswith("_")
            and getattr(function, "__module__", "").startswith("scheduler")
            and callable(function)
        ):
            found[name] = member
    return found


def _arguments(member: Any) -> str:
    """The arguments with their defaults, but for self."""
    given = inspect.signature(getattr(member, "__func__", member)).parameters.values()
    shown = [one.replace(annotation=inspect.Parameter.empty) for one in given if one.name not in ("self", "cls")]
    return str(inspect.Signature([one.replace(default=_shown(one.default)) for one in shown]))


def _shown(default: Any) -> Any:
    return _Shown() if repr(default).startswith("<") and default is not inspect.Parameter.empty else default


class _Shown:
    """A default without a name of its own."""

    def __repr__(self) -> str:
        return "…"


def _docstring(thing: Any) -> str:
    """The docstring as Markdown; empty if it is inherited, or of a value."""
    own = thing.__doc__ and (
        inspect.isroutine(thing) or isinstance(thing, type | property | classmethod | staticmethod)
    )
    text = inspect.getdoc(thing) if own else ""
    return _ROLE.sub(lambda found: f"`{found[1] or found[2]}`", text or "")


def options() -> str:
    """The page of all commands with their options."""
    ctx = click.Context(root, info_name="schedctl", **root.context_settings)
    common = ["## Options of every command\n", *_table(root, ctx, set()), ""]
    return "\n".join([OPTIONS_HEAD, *common, *_commands(root, ctx, 2)])


def _commands(group: click.Group, ctx: click.Context, level: int) -> Iterator[str]:
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        below = click.Context(command, info_name=name, parent=ctx)
        usage = " ".join([below.command_path, *command.collect_usage_pieces(below)])
        yield f"{'#' * level} {below.command_path}\n"
        yield inspect.cleandoc(command.help or "").replace("<", "&lt;") + "\n"
        if isinstance(command, click.Group):
            yield from _commands(command, below, level + 1)
            continue
        yield f"`{usage}`\n"
        rows = list(_table(command, below, set(_records(root, ctx))))
        yield from [*rows, ""] if rows else ()


def _records(command: click.Command, ctx: click.Context) -> Iterator[tuple[str, str]]:
    for parameter in command.get_params(ctx):
        if isinstance(parameter, click.Option) and (record := parameter.get_help_record(ctx)):
            yield record


def _table(command: click.Command, ctx: click.Context, without: set[tuple[str, str]]) -> Iterator[str]:
    rows = [record for record in _records(command, ctx) if record not in without and record[0] != "-h, --help"]
    if rows:
        yield "| option | meaning |"
        yield "| --- | --- |"
        yield from (f"| `{_cell(names)}` | {_cell(text)} |" for names, text in rows)


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def problems() -> str:
    """The page of the problems."""
    return "\n".join([HEAD, *(line for row in TABLE for line in _problem(row))])


def _problem(row: ProblemType) -> Iterator[str]:
    yield f"## {row.name}\n"
    yield f"{row.meaning}\n"
    yield f"- *Remedy:* {row.remedy}"
    yield f"- *Told by:* {', '.join(_voice(row, voice) for voice in row.voices)}."
    if row.after:
        yield f"- *Counts after:* {row.after:g} seconds."
    yield ""


def _voice(row: ProblemType, voice: Voice) -> str:
    if voice is Voice.DOCTOR:
        return f"`doctor` (check *{row.check}*)"
    if voice is Voice.ALERT:
        after = getattr(getattr(AlertRules(), row.rule), "after", None)
        return f"alert rule `{row.rule}`" + ("" if after is None else f" (after {after:g} s)")
    return "the console's first page" if voice is Voice.PAGE else f"`{voice.value}`"


if __name__ == "__main__":
    for name, text in pages().items():
        (REFERENCE / name).write_text(text, encoding="utf-8")
