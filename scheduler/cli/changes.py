"""The options that change a stored task, or a copy of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.derived import options_of, read_options, spelled
from scheduler.cli.payload import read_json, read_params
from scheduler.operations.new_task import NewTask, check_together, policy_of

if TYPE_CHECKING:
    from scheduler.operations.changes import Changes

F = TypeVar("F", bound=Callable[..., Any])
_FIELDS = ("after", "at", "priority", "queue", "headers", "retry", "timeout")


def change_options(queue: str) -> Callable[[F], F]:
    """Adds the options of a change, for :func:`take_changes`. ``queue``: that option's name."""

    def decorate(command: F) -> F:
        command = click.option("--payload", metavar="JSON", help="Another payload, whole.")(command)
        command = click.option(
            "-P", "params", multiple=True, metavar="NAME=TEXT | NAME:=JSON", help="A field of the payload."
        )(command)
        return options_of(NewTask, _FIELDS, {"queue": queue})(command)

    return decorate


def take_changes(given: dict[str, Any], *, required: bool = True) -> Changes:
    """Take the changes out of the options given. Raises UsageError, ConfigError."""
    queue, params, payload = given.pop("new_queue"), given.pop("params"), given.pop("payload")
    task = read_options(NewTask, {**{name: given.pop(name) for name in _FIELDS if name != "queue"}, "queue": queue})
    check_together(task, spelled)
    if params and payload is not None:
        raise click.UsageError("-P and --payload exclude each other")
    made: Any = {name: value for name in _FIELDS if (value := getattr(task, name)) is not None}
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
