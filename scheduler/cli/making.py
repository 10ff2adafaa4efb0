"""The options of a new task, and storing it: shared by ``run`` and ``submit``."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.changes import read_json
from scheduler.cli.options import EDGE, INSTANT, SPAN, Number
from scheduler.cli.output import print_object
from scheduler.cli.session import Session, note, note_no_worker
from scheduler.cli.streams import say
from scheduler.model.catchup import CATCHUPS, OVERLAPS
from scheduler.model.defaults import POOLS

if TYPE_CHECKING:
    from scheduler.model.spec import EdgeSpec, TaskSpec
    from scheduler.operations.desk import Desk
    from scheduler.operations.kinds import KindRecord

F = TypeVar("F", bound=Callable[..., Any])
_TEXTS = {"key": 255, "correlation": 255, "subject": 255, "message_type": 255, "causation": 255, "payload_ref": 2000}
_AS_GIVEN = (
    *("run_at", "delay", "timeout", "correlation", "subject", "message_type", "causation", "sequence", "payload_ref"),
    *("max_duration", "max_delay", "conflict"),
)
_MAX_JITTER = 24 * 3_600 * 1_000_000

_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--depend-on",
        "edges",
        type=EDGE,
        multiple=True,
        metavar="ID[:when]",
        help="Wait for this task's success, or failure or finished; ID:when:otherwise says what happens else.",
    ),
    click.option("--in", "delay", type=SPAN, metavar="5m", help="Not before this long from now."),
    click.option("--at", "run_at", type=INSTANT, metavar="T", help="Not before this time (with its zone)."),
    click.option("--cron", metavar="EXPR", help="Again and again: a cron expression of five fields."),
    click.option("--tz", metavar="ZONE", help="The zone of --cron; else [schedules] timezone."),
    click.option("--starts", type=INSTANT, metavar="T", help="With --cron: never before this time (with its zone)."),
    click.option("--ends", type=INSTANT, metavar="T", help="With --cron: never after this time."),
    click.option("--jitter", type=SPAN, metavar="5m", help="With --cron: due up to this long after each fire time."),
    click.option("--retry", type=Number(0), metavar="N", help="Retry up to N times after failures."),
    click.option("--priority", type=click.Choice(POOLS, case_sensitive=False), help="The pool that runs it first."),
    click.option("--key", metavar="K", help="Your name for it: the same kind and key is the same task."),
    click.option(
        "--conflict",
        type=click.Choice(("keep", "replace", "reject")),
        help="If the key is held: keep its task (the default), replace that, or end with status 4.",
    ),
    click.option("--queue", metavar="Q", help="The namespace whose workers may run it."),
    click.option("--timeout", type=SPAN, metavar="S", help="The longest one attempt may run."),
    click.option("--correlation", metavar="C", help="An id that tasks which belong together share."),
    click.option("--subject", metavar="S", help="The subject of the task."),
    click.option("--headers", metavar="JSON", help="An object that travels beside the payload."),
    click.option("--message-type", metavar="M", help="The type of the message, if it is not the kind."),
    click.option("--causation", metavar="C", help="The cause of the task."),
    click.option("--sequence", type=Number(-(2**63), 2**63 - 1), metavar="N", help="A number for the handler."),
    click.option("--payload-ref", metavar="URI", help="The address of data that is too large to store."),
    click.option("--max-duration", type=SPAN, metavar="1h", help="Cancel it once it has lived this long."),
    click.option("--max-delay", type=SPAN, metavar="1h", help="Cancel it after this long without progress."),
    click.option("--catch-up", type=click.Choice(CATCHUPS), help="With --cron: which missed fire times run."),
    click.option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="With --cron: what happens at a fire time while the last run is under way.",
    ),
    click.option("--executor", metavar="NAME", help="Run it as a job of [executors.NAME]; local: in a worker."),
    click.option("--resources", metavar="cpu=2,…", help="Its needs there: cpu, memory, gpu, disk (memory=4G)."),
)


def make_options(command: F) -> F:
    """Adds the options of a new task; they arrive as the fields of :class:`TaskOptionsGiven`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def made_fields(given: Mapping[str, Any]) -> tuple[str, str]:
    """The fields that :func:`schedule` prints with these options."""
    return ("id" if given["cron"] is None else "schedule"), "created"


@dataclass
class TaskOptionsGiven:
    """The options of a new task on the command line. Times and spans are microseconds."""

    edges: tuple[EdgeSpec, ...] = ()
    delay: int | None = None
    run_at: int | None = None
    cron: str | None = None
    tz: str | None = None
    starts: int | None = None
    ends: int | None = None
    jitter: int | None = None
    retry: int | None = None
    priority: str | None = None
    key: str | None = None
    conflict: str | None = None
    queue: str | None = None
    timeout: int | None = None
    correlation: str | None = None
    subject: str | None = None
    headers: str | None = None
    message_type: str | None = None
    causation: str | None = None
    sequence: int | None = None
    payload_ref: str | None = None
    max_duration: int | None = None
    max_delay: int | None = None
    catch_up: str | None = None
    overlap: str | None = None
    executor: str | None = None
    resources: str | None = None

    def check(self) -> None:
        """Refuse options that exclude each other. Raises UsageError."""
        if self.delay is not None and self.run_at is not None:
            raise click.UsageError("--in and --at exclude each other")
        if self.cron is None and self.tz is not None:
            raise click.UsageError("--tz belongs to --cron")
        for name in ("starts", "ends", "jitter", "catch_up", "overlap"):
            if self.cron is None and getattr(self, name) is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} belongs to --cron")
        if self.jitter is not None and self.jitter > _MAX_JITTER:
            raise click.UsageError("--jitter is at most 24h")
        if self.cron is not None and (self.delay is not None or self.run_at is not None or self.edges):
            raise click.UsageError("--cron goes with neither --in, --at nor --depend-on: each run is a new task")
        for name, longest in _TEXTS.items():
            value = getattr(self, name)
            if value is not None and not 1 <= len(value) <= longest:
                raise click.UsageError(f"--{name.replace('_', '-')} is a text of 1 to {longest} characters")
        for name in ("max_duration", "max_delay"):
            if getattr(self, name) == 0:
                raise click.UsageError(f"--{name.replace('_', '-')} must be more than 0")
        if self.conflict is not None and self.key is None:
            raise click.UsageError("--conflict belongs to --key")
        if self.cron is not None and self.conflict not in (None, "replace"):
            raise click.UsageError("--conflict replace is the only one that goes with --cron")
        if self.timeout == 0:
            raise click.UsageError("--timeout must be more than 0")
        seen: dict[int, EdgeSpec] = {}
        for edge in self.edges:
            if seen.setdefault(edge.parent, edge) != edge:
                raise click.UsageError(f"--depend-on names {edge.parent} twice with different conditions")

    def _placing(self, options: Mapping[str, Any]) -> dict[str, str | None]:
        """Where it runs: as the kind says, or as was given. Raises ConfigError."""
        from scheduler.model.resources import parse_executor, read_resources

        made = {name: options.get(name) for name in ("executor", "resources", "executor_options")}
        if self.executor is not None:
            chosen = parse_executor(self.executor)
            if chosen != made["executor"]:
                made |= {"executor": chosen, "executor_options": None}
        if self.resources is not None:
            made["resources"] = read_resources(self.resources).to_json()
        return made

    def spec(self, kind: str, payload: dict[str, Any], record: KindRecord | None) -> TaskSpec:
        """The task to store: the kind's options, and over them what was given. Raises SchedulerError."""
        from scheduler.model.names import check_name
        from scheduler.model.retry import RetryPolicy
        from scheduler.model.task import Priority
        from scheduler.operations.published import encode_headers, encode_payload, lane_of, refuse_own_keys, usual_task

        self.check()
        refuse_own_keys(record)
        made = usual_task(kind, record)
        options = record.options if record is not None else {}
        made.payload, made.lane = encode_payload(kind, payload), lane_of(kind, payload, record)
        if self.retry is not None:
            policy = RetryPolicy(max_attempts=self.retry + 1)
            made.retry, made.max_attempts = policy.to_json(), policy.max_attempts
        if self.queue is not None:
            made.queue = check_name("queue", self.queue)
        if self.priority is not None:
            made.priority = int(Priority.parse(self.priority))
        if self.headers is not None:
            made.headers = encode_headers(read_json("--headers", self.headers))
        if self.key is not None:
            made.key, made.key_retention = self.key, options.get("key_retention")
        for name in _AS_GIVEN:
            value = getattr(self, name)
            if value is not None:
                setattr(made, name, value)
        for name, value in self._placing(options).items():
            setattr(made, name, value)
        made.edges = list({edge.parent: edge for edge in self.edges}.values())
        return made


def schedule(
    session: Session, given: TaskOptionsGiven, kind: str, payload: dict[str, Any], record: KindRecord | None
) -> None:
    """Store the task or the recurring schedule, print its id or name, and note if no worker would run it."""
    from scheduler.operations import tasks

    spec = given.spec(kind, payload, record)
    desk = session.making()
    if given.cron is not None:
        _register(session, desk, given, spec)
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


def _register(session: Session, desk: Desk, given: TaskOptionsGiven, spec: TaskSpec) -> None:
    import msgspec

    from scheduler.model.recurrence import cron
    from scheduler.operations import schedules

    name = spec.key or f"{spec.kind}-cli-{hashlib.sha256(spec.payload.encode()).hexdigest()[:12]}"
    recurrence = msgspec.structs.replace(
        cron(given.cron or "", given.tz or session.config.schedules.timezone).named(name),
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
        replace=spec.conflict == "replace",
        jitter=given.jitter or 0,
    )
    fresh = schedules.register(desk, wanted)
    if not fresh:
        note(f"there was a schedule {name!r} already; it is updated")
    if not print_object(session, {"schedule": name, "created": fresh}):
        say(name)
