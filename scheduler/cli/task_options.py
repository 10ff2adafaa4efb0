"""Options of tasks, made of the fields of a struct of the desk: of new tasks, and of changes of stored ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

import click
import msgspec

from scheduler.cli.options import EDGE, INSTANT, SPAN, Number
from scheduler.errors import PayloadError
from scheduler.model.times import to_datetime
from scheduler.operations.new_task import NewTask, check_together, policy_of

if TYPE_CHECKING:
    from scheduler.operations.changes import Changes


_SHOWN = 60


F = TypeVar("F", bound=Callable[..., Any])
S = TypeVar("S", bound=msgspec.Struct)
_SPELLED = {"after": "--in", "depends_on": "--depend-on", "payload": "-P"}
_EDGES = {
    "multiple": True,
    "metavar": "[NAME=]ID[:when]",
    "help": "Wait for this task's success, or failure or finished; ID:when:otherwise says what happens else. With "
    "NAME= its result is the field NAME of the payload.",
}
_CHANGED = ("after", "at", "priority", "queue", "headers", "retry", "timeout")


def read_params(params: Sequence[str]) -> dict[str, Any]:
    """``name=text`` and ``name:=json`` as a dict. Raises UsageError."""
    payload: dict[str, Any] = {}
    for given in params:
        name, equals, text = given.partition("=")
        as_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise click.UsageError(f"-P {given!r} is neither NAME=TEXT nor NAME:=JSON")
        if name in payload:
            raise click.UsageError(f"-P gives {name} twice")
        payload[name] = _json(name, text) if as_json else text
    return payload


def read_json(option: str, text: str) -> Any:
    """Decode an option's JSON. Raises UsageError."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        from scheduler.model.json_text import json_fault

        raise click.UsageError(f"{option} is not JSON: {json_fault(text, error)}") from None


def _json(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        from scheduler.model.json_text import json_fault

        raise click.UsageError(f"-P {name}:={text[:_SHOWN]}: not JSON: {json_fault(text, error)}") from None


@contextmanager
def naming_option() -> Iterator[None]:
    """Says of a field that got a text and wants another type how ``-P`` gives that."""
    from scheduler.operations.published import MisfitError

    try:
        yield
    except MisfitError as error:
        if error.text is None:
            raise
        name, text = error.text
        raise PayloadError(f"{error} (-P {name}:={text[:_SHOWN]} gives it as JSON)") from None


class _Kind(NamedTuple):
    """``read``: the field's value of what click read; ``more``: for click."""

    type: Any = None
    read: Callable[[str, Any], Any] = lambda _, value: value
    more: Mapping[str, Any] = {}


def spelled(name: str) -> str:
    """The option of a field."""
    return _SPELLED.get(name) or f"--{name.replace('_', '-')}"


def options_of(
    struct: type[msgspec.Struct], only: Collection[str] = (), renamed: Mapping[str, str] = MappingProxyType({})
) -> Callable[[F], F]:
    """Adds an option for each field that says what it means; :func:`read_options` makes the struct of what arrives.

    ``renamed``: other names of options; what they are given arrives as ``new_FIELD``.
    """

    def decorate(command: F) -> F:
        for field in reversed(msgspec.structs.fields(struct)):
            name = field.name
            said = next((one for one in getattr(field.type, "__metadata__", ()) if one.description), None)
            if said is None or (only and name not in only):
                continue
            kind = _kind_of(field.type)
            usual = {"metavar": (said.extra or {}).get("metavar"), "help": said.description}
            names = (renamed[name], f"new_{name}") if name in renamed else (spelled(name), name)
            command = click.option(*names, type=kind.type, **{**usual, **kind.more})(command)
        return command

    return decorate


def read_options(struct: type[S], given: Mapping[str, Any]) -> S:
    """The struct of what click has read. Raises UsageError."""
    read = {
        field.name: _kind_of(field.type).read(spelled(field.name), given[field.name])
        for field in msgspec.structs.fields(struct)
        if given.get(field.name) not in (None, ())
    }
    return struct(**read)


def _kind_of(annotation: Any) -> _Kind:
    parts, bounds = [annotation], dict[str, Any]()
    found = set[Any]()
    while parts:
        one = parts.pop()
        if get_origin(one) is Annotated:
            meta = get_args(one)[1]
            bounds |= {"min": meta.ge, "max": meta.le}
            parts.append(one.__origin__)
        elif get_origin(one) is Literal:
            return _Kind(click.Choice(get_args(one), case_sensitive=False))
        elif get_origin(one) is None:
            found.add(one)
        elif get_origin(one) is dict:
            return _Kind(read=read_json)
        elif get_origin(one) is list:
            return _Kind(EDGE, lambda _, edges: list(edges), _EDGES)
        else:
            parts += get_args(one)
    if {float, str} <= found:
        return _Kind(SPAN, lambda _, us: timedelta(microseconds=us))
    if datetime in found:
        return _Kind(INSTANT, lambda _, us: to_datetime(us))
    if int in found:
        return _Kind(Number(**bounds) if any(bound is not None for bound in bounds.values()) else int)
    return _Kind(float if float in found else None)


def change_options(queue: str) -> Callable[[F], F]:
    """Adds the options of a change, for :func:`take_changes`. ``queue``: that option's name."""

    def decorate(command: F) -> F:
        command = click.option("--payload", metavar="JSON", help="Another payload, whole.")(command)
        command = click.option(
            "-P", "params", multiple=True, metavar="NAME=TEXT | NAME:=JSON", help="A field of the payload."
        )(command)
        return options_of(NewTask, _CHANGED, {"queue": queue})(command)

    return decorate


def take_changes(given: dict[str, Any], *, required: bool = True) -> Changes:
    """Take the changes out of the options given. Raises UsageError, ConfigError."""
    queue, params, payload = given.pop("new_queue"), given.pop("params"), given.pop("payload")
    task = read_options(NewTask, {**{name: given.pop(name) for name in _CHANGED if name != "queue"}, "queue": queue})
    check_together(task, spelled)
    if params and payload is not None:
        raise click.UsageError("-P and --payload exclude each other")
    made: Any = {name: value for name in _CHANGED if (value := getattr(task, name)) is not None}
    if "retry" in made:
        made["retry"] = policy_of(task)
    if params:
        made["fields"] = read_params(params)
    if payload is not None:
        made["payload"] = read_json("--payload", payload)
    if required and not made:
        raise click.UsageError("say what to change: --in, --at, --priority, --to-queue, -P, --payload, …")
    changes: Changes = made
    return changes
