"""The options that change a stored task, or a copy of one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.options import INSTANT, SPAN, Number

if TYPE_CHECKING:
    from scheduler.operations.changes import Changes

F = TypeVar("F", bound=Callable[..., Any])


def change_options(queue: str) -> Callable[[F], F]:
    """Adds the options of a change; they arrive as the fields of :class:`ChangesGiven`. ``queue``: that option's
    name."""
    options = (
        click.option("--in", "delay", type=SPAN, metavar="5m", help="Not before this long from now."),
        click.option("--at", "run_at", type=INSTANT, metavar="T", help="Not before this time (with its zone)."),
        click.option("--priority", type=click.Choice(("high", "medium", "low"), case_sensitive=False), help="Level."),
        click.option(queue, "to_queue", metavar="Q", help="The namespace whose workers may run it."),
        click.option("-P", "params", multiple=True, metavar="NAME=TEXT | NAME:=JSON", help="A field of the payload."),
        click.option("--payload", metavar="JSON", help="Another payload, whole."),
        click.option("--headers", metavar="JSON", help="Other headers: an object."),
        click.option("--retry", type=Number(0), metavar="N", help="Retry up to N times after failures."),
        click.option("--timeout", type=SPAN, metavar="S", help="The longest one attempt may run."),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@dataclass
class ChangesGiven:
    """Changes on the command line. Times and spans are microseconds."""

    delay: int | None
    run_at: int | None
    priority: str | None
    to_queue: str | None
    params: tuple[str, ...]
    payload: str | None
    headers: str | None
    retry: int | None
    timeout: int | None

    def check(self, *, required: bool = True) -> None:
        """Refuse options that exclude each other, or are no JSON. Raises UsageError."""
        from scheduler.cli.payload import read_params

        if required and not any(getattr(self, name) not in (None, ()) for name in self.__dataclass_fields__):
            raise click.UsageError("say what to change: --in, --at, --priority, --to-queue, -P, --payload, …")
        if self.delay is not None and self.run_at is not None:
            raise click.UsageError("--in and --at exclude each other")
        if self.params and self.payload is not None:
            raise click.UsageError("-P and --payload exclude each other")
        if self.timeout == 0:
            raise click.UsageError("--timeout must be more than 0")
        read_params(self.params)
        if self.payload is not None:
            read_json("--payload", self.payload)

    def changes(self) -> Changes:
        """The same as programs say it. Raises SchedulerError, UsageError."""
        from datetime import timedelta

        from scheduler.cli.payload import read_params
        from scheduler.model.retry import RetryPolicy
        from scheduler.model.times import to_datetime

        made: Changes = {}
        if self.run_at is not None:
            made["at"] = to_datetime(self.run_at)
        if self.delay is not None:
            made["after"] = timedelta(microseconds=self.delay)
        if self.priority is not None:
            made["priority"] = self.priority
        if self.to_queue is not None:
            made["queue"] = self.to_queue
        if self.params:
            made["fields"] = read_params(self.params)
        if self.payload is not None:
            made["payload"] = read_json("--payload", self.payload)
        if self.headers is not None:
            made["headers"] = read_json("--headers", self.headers)
        if self.retry is not None:
            made["retry"] = RetryPolicy(max_attempts=self.retry + 1)
        if self.timeout is not None:
            made["timeout"] = timedelta(microseconds=self.timeout)
        return made


def read_json(option: str, text: str) -> Any:
    """Decode an option's JSON. Raises UsageError."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.UsageError(f"{option} is not JSON: {error}") from None
