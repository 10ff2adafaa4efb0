"""The options that change a stored task, or a copy of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.options import INSTANT, SPAN, Number

if TYPE_CHECKING:
    from scheduler.store.db.tx import Tx
    from scheduler.store.tasks.patch import Make, NewPayload, Patch, StoredPayload

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

    def patch(self, tx: Tx) -> Patch:
        """The change for the store, which reads payloads in this connection. Raises SchedulerError, UsageError."""
        from msgspec import UNSET

        from scheduler.model.names import check_name
        from scheduler.model.retry import RetryPolicy
        from scheduler.model.task import Priority
        from scheduler.store.tasks.patch import Patch

        policy = None if self.retry is None else RetryPolicy(max_attempts=self.retry + 1)
        new = self.params or self.payload is not None
        return Patch(
            run_at=UNSET if self.run_at is None else self.run_at,
            delay=UNSET if self.delay is None else self.delay,
            priority=UNSET if self.priority is None else int(Priority.parse(self.priority)),
            queue=UNSET if self.to_queue is None else check_name("queue", self.to_queue),
            headers=UNSET if self.headers is None else read_headers(self.headers),
            retry=UNSET if policy is None else (policy.to_json(), policy.max_attempts),
            timeout=UNSET if self.timeout is None else self.timeout,
            payload=payload_maker(tx, self.params, self.payload) if new else UNSET,
        )


def read_json(option: str, text: str) -> Any:
    """Decode an option's JSON. Raises UsageError."""
    import msgspec

    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.UsageError(f"{option} is not JSON: {error}") from None


def read_headers(text: str) -> str:
    """Check headers. Raises UsageError, PayloadError."""
    from scheduler.client.builder import encode_headers

    return encode_headers(read_json("--headers", text))


def payload_maker(tx: Tx, params: Sequence[str], payload: str | None) -> Make:
    """Makes a task's new payload: the given one, or the stored one with changed fields, checked against its kind's
    published schema. What it returns raises UnregisteredKindError, PayloadError, UsageError."""
    from scheduler.cli.payload import naming_option, read_params
    from scheduler.client.payloads import of_published, published_kind

    def make(present: StoredPayload) -> NewPayload:
        record = published_kind(tx, present.kind)
        value = None if payload is None else read_json("--payload", payload)
        with naming_option():
            return of_published(record, present, value, read_params(params) if params else None)

    return make
