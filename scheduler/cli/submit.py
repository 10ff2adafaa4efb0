"""``schedctl submit`` and ``schedctl run``: make tasks without importing task modules."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.echo import say
from scheduler.cli.options import INSTANT, SPAN, acts, common_but_timeout
from scheduler.cli.output import print_object
from scheduler.cli.session import Session, note, note_no_worker, prints
from scheduler.cli.task_options import options_of, read_options, spelled
from scheduler.model.catchup import CATCHUPS, MAX_JITTER, OVERLAPS
from scheduler.operations.new_task import PlacedTask
from scheduler.ports import SECOND

if TYPE_CHECKING:
    from scheduler.model.spec import TaskSpec
    from scheduler.operations.desk import Desk
    from scheduler.operations.kinds import KindRecord


COMMAND_KIND = "CommandTask"
F = TypeVar("F", bound=Callable[..., Any])

_TIMES: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--cron",
        metavar="EXPR",
        help="Again and again: a cron expression of five fields; @reboot: at the fleet's start.",
    ),
    click.option("--every", type=SPAN, metavar="10m", help="Again and again: an interval from the first registration."),
    click.option("--fixed-delay", is_flag=True, help="With --every: count from the end of each run."),
    click.option("--run-on-startup", is_flag=True, help="With --cron or --every: run once now if it is new."),
    click.option("--tz", metavar="ZONE", help="The zone of --cron; else [schedules] timezone."),
    click.option("--starts", type=INSTANT, metavar="T", help="Of a schedule: never before this time (with its zone)."),
    click.option("--ends", type=INSTANT, metavar="T", help="Of a schedule: never after this time."),
    click.option("--jitter", type=SPAN, metavar="5m", help="Of a schedule: due up to this long after each fire time."),
    click.option("--catch-up", type=click.Choice(CATCHUPS), help="Of a schedule: which missed fire times run."),
    click.option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="Of a schedule: what happens at a fire time while the last run is under way.",
    ),
)


def make_options(command: F) -> F:
    """Adds the options of a new task, and of a schedule; :func:`read` takes what arrives."""
    for option in reversed(_TIMES):
        command = option(command)
    return options_of(PlacedTask)(command)


def made_fields(given: Mapping[str, Any]) -> tuple[str, str]:
    """The fields that :func:`schedule` prints with these options."""
    return ("id" if given["cron"] is None and given["every"] is None else "schedule"), "created"


@dataclass
class Times:
    """The options of a schedule on the command line. Times and spans are microseconds."""

    cron: str | None = None
    every: int | None = None
    fixed_delay: bool = False
    run_on_startup: bool = False
    tz: str | None = None
    starts: int | None = None
    ends: int | None = None
    jitter: int | None = None
    catch_up: str | None = None
    overlap: str | None = None

    @property
    def recurs(self) -> bool:
        """Whether it is a schedule."""
        return self.cron is not None or self.every is not None

    def check(self, task: PlacedTask) -> None:
        """Refuse options that exclude each other. Raises UsageError."""
        if self.cron is not None and self.every is not None:
            raise click.UsageError("--cron and --every exclude each other")
        if self.cron is None and self.tz is not None:
            raise click.UsageError("--tz belongs to --cron")
        if self.every is None and self.fixed_delay:
            raise click.UsageError("--fixed-delay belongs to --every")
        which = "--cron" if self.every is None else "--every"
        if not self.recurs:
            for name in ("starts", "ends", "jitter", "catch_up", "overlap", "run_on_startup"):
                if getattr(self, name) not in (None, False):
                    raise click.UsageError(f"{spelled(name)} belongs to --cron or --every")
            return
        if self.jitter is not None and self.jitter > MAX_JITTER:
            raise click.UsageError("--jitter is at most 24h")
        if task.after is not None or task.at is not None or task.depends_on:
            raise click.UsageError(f"{which} goes with neither --in, --at nor --depend-on: each run is a new task")
        if task.conflict not in (None, "replace"):
            raise click.UsageError(f"--conflict replace is the only one that goes with {which}")


def read(given: Mapping[str, Any]) -> tuple[PlacedTask, Times]:
    """The options of a new task, and when it recurs. Raises UsageError."""
    task = read_options(PlacedTask, given)
    times = Times(**{one.name: given[one.name] for one in fields(Times) if one.name in given})
    times.check(task)
    return task, times


def schedule(
    session: Session, given: PlacedTask, times: Times, kind: str, payload: dict[str, Any], record: KindRecord | None
) -> None:
    """Store the task or the recurring schedule, print its id or name, and note if no worker would run it."""
    from scheduler.operations import tasks
    from scheduler.operations.published import new_task

    spec = new_task(kind, payload, record, given, spelled)
    desk = session.making()
    if times.recurs:
        _register(session, desk, times, spec)
        no_worker, unserved = tasks.served(desk, spec)
    else:
        made, no_worker, unserved = tasks.submit(desk, spec)
        if not made.created:
            done = "it is replaced" if spec.conflict == "replace" else "nothing new was stored"
            note(f"task {int(made)} holds the key {spec.key!r} already; {done}")
        if not print_object(session, {"id": int(made), "created": made.created}):
            say(int(made))
    note_no_worker(no_worker)
    if unserved is not None:
        note(unserved)


def _register(session: Session, desk: Desk, given: Times, spec: TaskSpec) -> None:
    import msgspec

    from scheduler.model.recurrence import at_start, cron, every
    from scheduler.operations import schedules

    name = spec.key or f"{spec.kind}-cli-{hashlib.sha256(spec.payload.encode()).hexdigest()[:12]}"
    if given.every is not None:
        recurrence = every(given.every / SECOND, "fixed_delay" if given.fixed_delay else "fixed_rate")
    elif given.cron == "@reboot":
        recurrence = at_start()
    else:
        recurrence = cron(given.cron or "", given.tz or session.config.schedules.timezone)
    recurrence = msgspec.structs.replace(
        recurrence.named(name),
        start_us=given.starts,
        end_us=given.ends,
    )
    task = msgspec.structs.replace(spec, key=None)
    wanted = schedules.ScheduleSpec(
        name,
        recurrence,
        task,
        given.catch_up or "skip",
        given.overlap or "allow",
        run_on_startup=given.run_on_startup,
        replace=spec.conflict == "replace",
        jitter=given.jitter or 0,
    )
    fresh = schedules.register(desk, wanted)
    if not fresh:
        note(f"there was a schedule {name!r} already; it is updated")
    if not print_object(session, {"schedule": name, "created": fresh}):
        say(name)


@click.command(name="submit")
@click.argument("kind")
@click.option("-P", "params", multiple=True, metavar="NAME=TEXT | NAME:=JSON", help="A field of the payload.")
@make_options
@acts
@common_but_timeout
@prints(made_fields)
def submit_command(session: Session, /, kind: str, params: tuple[str, ...], **given: Any) -> None:
    """Schedule a task of a kind that workers have registered; prints its id.

    The payload is checked against the kind's schema. -P to=me@example.com gives a text, -P count:=3 any JSON.
    """
    from scheduler.cli.task_options import naming_option, read_params
    from scheduler.model.names import check_text
    from scheduler.operations.published import get_published

    check_text(kind, "a kind")
    payload = read_params(params)
    options, times = read(given)
    with session.desk.read() as tx:
        record = get_published(tx, kind)
    with naming_option():
        schedule(session, options, times, kind, payload, record)


@click.command(name="run", context_settings={"allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--cwd", metavar="DIR", help="Run in this directory; by default in the one that the daemon's configuration names."
)
@click.option(
    "--env", "environment", multiple=True, metavar="NAME=VALUE", help="Set a variable, beside the daemon's environment."
)
@click.option("--shell", is_flag=True, help="COMMAND is one text for /bin/sh -c.")
@make_options
@acts
@common_but_timeout
@prints(made_fields)
def run_command(
    session: Session,
    /,
    command: tuple[str, ...],
    cwd: str | None,
    environment: tuple[str, ...],
    shell: bool,
    **given: Any,
) -> None:
    """Schedule a command, without a shell; prints the task's id.

    schedctl run --in 5m --retry 2 -- rsync -a /srv/photos backup:

    The daemon must serve CommandTask and allow commands ([command] enabled = true).
    """
    import os

    if shell and len(command) != 1:
        raise click.UsageError("with --shell COMMAND is one text: quote it")
    payload: dict[str, Any] = {"argv": list(command)}
    if shell:
        payload["shell"] = True
    if environment:
        payload["env"] = dict(_pair(text) for text in environment)
    if cwd is not None:
        payload["cwd"] = os.path.abspath(cwd)
    schedule(session, *read(given), COMMAND_KIND, payload, command_kind(session))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.UsageError(f"--env {text!r} is not NAME=VALUE")
    return name, value


def command_kind(session: Session) -> KindRecord | None:
    """The published kind of CommandTask; None if no worker ever served it: the task then waits for one."""
    from scheduler.operations.kinds import get_kind

    with session.database.read() as tx:
        return get_kind(tx, COMMAND_KIND)
