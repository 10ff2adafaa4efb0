"""The types of the commands' options (ids, instants, spans, edges), and the options of every command."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.session import FORMATS, Session
from scheduler.errors import SchedulerError

if TYPE_CHECKING:
    from scheduler.operations.new_task import Edge

F = TypeVar("F", bound=Callable[..., Any])


def _store(name: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def callback(ctx: click.Context, _param: click.Parameter, value: Any) -> None:
        session = ctx.ensure_object(Session)
        if value is not None:
            setattr(session, name, value)

    return callback


def _limit(ctx: click.Context, _param: click.Parameter, value: int | None) -> None:
    if value is not None:
        ctx.ensure_object(Session).timeout = value / 1_000_000


def common(command: F) -> F:
    """Adds the options of every command; they may stand before or after the command's name."""
    command = click.option(
        "--tz",
        "zone",
        type=ZONE,
        metavar="ZONE",
        expose_value=False,
        callback=_store("zone"),
        help="Show the times of tables in this zone, such as Europe/Berlin, or local; UTC by default.",
    )(common_but_timeout(command))
    return click.option(
        "--timeout",
        type=SPAN,
        metavar="S",
        expose_value=False,
        callback=_limit,
        help="Give up a database that has not answered all within this long (30, 5m).",
    )(command)


def common_but_timeout(command: F) -> F:
    """The same for a command with its own ``--timeout`` or ``--tz``: the common ones stand before its name."""
    command = click.option(
        "--columns",
        metavar="A,B,…",
        expose_value=False,
        callback=_store("columns"),
        help="Show these columns (or fields) only, in this order.",
    )(command)
    command = click.option(
        "--color",
        "colour",
        type=click.Choice(("auto", "always", "never")),
        expose_value=False,
        callback=_store("colour"),
        help="Colours; auto: on a terminal, unless NO_COLOR is set.",
    )(command)
    command = click.option(
        "-o",
        "--output",
        type=click.Choice(FORMATS),
        expose_value=False,
        callback=_store("output"),
        help="How to print data; table by default.",
    )(command)
    return click.option(
        "--config",
        metavar="FILE",
        expose_value=False,
        callback=_store("config_path"),
        help="The configuration; else $SCHEDD_CONFIG, ./config.toml, /etc/schedd/config.toml.",
    )(command)


def acts(command: F) -> F:
    """Adds ``--by`` and ``--reason``, and records the command's changes as this actor's, made from a terminal."""

    @functools.wraps(command)
    def called(*args: Any, by: str | None, reason: str | None, **given: Any) -> Any:
        from scheduler.model.actor import MAX_NAME, MAX_REASON, Actor, acting

        for option, text, longest in (("--by", by, MAX_NAME), ("--reason", reason, MAX_REASON)):
            if text is not None and not 1 <= len(text) <= longest:
                raise click.UsageError(f"{option} is a text of 1 to {longest} characters")
        with acting(Actor(by, "cli", reason)):
            return command(*args, **given)

    by = click.option(
        "--by", metavar="NAME", help="The name of whoever does this, for the audit; by default the user's."
    )
    return by(click.option("--reason", metavar="TEXT", help="The reason, for the audit.")(called))  # type: ignore[return-value]


class _Type(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has no parameter for it
    """Turns errors of the model into usage errors."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return self.read(value)
        except (SchedulerError, ValueError, OverflowError) as error:
            return self.fail(str(error), param, ctx)

    def read(self, text: str) -> Any:
        raise NotImplementedError


class Number(click.IntRange):
    """A whole number within bounds, with an error in plainer words than click's."""

    name = "whole number"


class _TaskId(_Type):
    name = "id"

    def read(self, text: str) -> int:
        if not (text.isascii() and text.isdigit() and 0 < int(text) < 2**63):
            raise ValueError(f"{text!r} is not a task id: a whole number from 1")
        return int(text)


class _Instant(_Type):
    """Microseconds from an RFC 3339 time with its zone."""

    name = "time"

    def read(self, text: str) -> int:
        from datetime import datetime

        from scheduler.model.times import instant_us

        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a time such as 2026-01-31T02:30:00+01:00 or …Z") from None
        if found.tzinfo is None:
            raise ValueError(f"{text!r} has no time zone: end it with Z for UTC, or with an offset such as +01:00")
        return instant_us(found, "time")


class _Zone(_Type):
    """The name of a time zone, or ``local``."""

    name = "zone"

    def read(self, text: str) -> str:
        from scheduler.cli.timefmt import zone_of

        zone_of(text)
        return text


class _Span(_Type):
    """Microseconds from 90, 90s, 5m, 1h30m or 2d."""

    name = "duration"

    def read(self, text: str) -> int:
        from scheduler.config.sources import parse_duration

        return round(parse_duration(text) * 1_000_000)


class _Ago(_Type):
    """An instant, or how long ago: a negative number of microseconds."""

    name = "time"

    def read(self, text: str) -> int:
        if text[:1].isdigit() and "-" not in text and ":" not in text:
            return -int(SPAN.read(text))
        return max(1, int(INSTANT.read(text)))  # nothing is older than 1970


class _Edge(_Type):
    """``ID``, ``ID:when`` or ``ID:when:otherwise``, and before it ``NAME=``: an edge."""

    name = "[name=]id[:when]"

    def read(self, text: str) -> Edge:
        from scheduler.model.state import Otherwise, When
        from scheduler.operations.new_task import Edge

        before, equals, after = text.partition("=")
        if equals and not before:
            raise ValueError(f"{text!r} has no name before the =")
        parent, _, rest = (after if equals else text).partition(":")
        when, _, otherwise = rest.partition(":")
        given: Any = {"when": when or "success", "otherwise": otherwise or None, "name": before if equals else None}
        made = Edge(id=TASK_ID.read(parent), **given)
        try:
            made.spec  # noqa: B018  # refuses what is none
        except ValueError:
            raise ValueError(
                f"{text!r} is not ID[:when[:otherwise]]: when is {', '.join(When)}; otherwise {', '.join(Otherwise)}"
            ) from None
        return made


TASK_ID, INSTANT, SPAN, AGO, EDGE, ZONE = _TaskId(), _Instant(), _Span(), _Ago(), _Edge(), _Zone()


def read_states(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> list[Any] | None:
    """A callback: state names and short names, separated by commas, as TaskStates."""
    from scheduler.model.state import SIMPLE_NAMES, TaskState

    found: list[TaskState] = []
    for name in (part.strip() for given in value for part in given.split(",")):
        # failed is the state, Failed the short name, which means more than that
        matching = [s for s in TaskState if name == s.value]
        matching = matching or [s for s in TaskState if name.lower() in (s.value, s.simple.lower())]
        if not matching:
            raise click.BadParameter(
                f"there is no state {name!r}; there are {', '.join(TaskState)}, and {', '.join(SIMPLE_NAMES)}"
            )
        found += matching
    return found or None
