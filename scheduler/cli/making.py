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
from scheduler.ports import SECOND

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
        metavar="[NAME=]ID[:when]",
        help="Wait for this task's success, or failure or finished; ID:when:otherwise says what happens else. With "
        "NAME= its result is the field NAME of the payload.",
    ),
    click.option("--in", "delay", type=SPAN, metavar="5m", help="Not before this long from now."),
    click.option("--at", "run_at", type=INSTANT, metavar="T", help="Not before this time (with its zone)."),
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
    click.option("--retry", type=Number(0), metavar="N", help="Retry up to N times after failures."),
    click.option("--retry-wait", type=SPAN, metavar="10s", help="With --retry: wait this long, doubled each time."),
    click.option("--retry-max-wait", type=SPAN, metavar="1h", help="With --retry: wait at most this long."),
    click.option("--priority", type=click.Choice(POOLS, case_sensitive=False), help="The pool that runs it first."),
    click.option("--key", metavar="K", help="Your name for it: the same kind and key is the same task."),
    click.option(
        "--conflict",
        type=click.Choice(("keep", "replace", "reject")),
        help="If the key is held: keep its task (the default), replace that, or end with status 4.",
    ),
    click.option("--key-retention", type=SPAN, metavar="24h", help="How long after its success the key stays taken."),
    click.option("--rank", type=int, metavar="N", help="From 33, the first, to -33, for kinds with ranks."),
    click.option("--fairness-key", metavar="K", help="Its turn: keys of a kind take turns, such as customers."),
    click.option("--fairness-weight", type=float, metavar="W", help="How much its turns weigh beside others'; else 1."),
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
    click.option("--catch-up", type=click.Choice(CATCHUPS), help="Of a schedule: which missed fire times run."),
    click.option(
        "--overlap",
        type=click.Choice(OVERLAPS),
        help="Of a schedule: what happens at a fire time while the last run is under way.",
    ),
    click.option("--executor", metavar="NAME", help="Run it as a job of [executors.NAME]; local: in a worker."),
    click.option("--executor-options", metavar="JSON", help="An object of the executor's own options."),
    click.option("--resources", metavar="cpu=2,…", help="Its needs there: cpu, memory, gpu, disk (memory=4G)."),
)


def make_options(command: F) -> F:
    """Adds the options of a new task; they arrive as the fields of :class:`TaskOptionsGiven`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def made_fields(given: Mapping[str, Any]) -> tuple[str, str]:
    """The fields that :func:`schedule` prints with these options."""
    return ("id" if given["cron"] is None and given["every"] is None else "schedule"), "created"


@dataclass
class TaskOptionsGiven:
    """The options of a new task on the command line. Times and spans are microseconds."""

    edges: tuple[tuple[str | None, EdgeSpec], ...] = ()
    delay: int | None = None
    run_at: int | None = None
    cron: str | None = None
    every: int | None = None
    fixed_delay: bool = False
    run_on_startup: bool = False
    tz: str | None = None
    starts: int | None = None
    ends: int | None = None
    jitter: int | None = None
    retry: int | None = None
    retry_wait: int | None = None
    retry_max_wait: int | None = None
    priority: str | None = None
    key: str | None = None
    conflict: str | None = None
    key_retention: int | None = None
    rank: int | None = None
    fairness_key: str | None = None
    fairness_weight: float | None = None
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
    executor_options: str | None = None
    resources: str | None = None

    def check(self) -> None:
        """Refuse options that exclude each other. Raises UsageError."""
        if self.delay is not None and self.run_at is not None:
            raise click.UsageError("--in and --at exclude each other")
        if self.cron is not None and self.every is not None:
            raise click.UsageError("--cron and --every exclude each other")
        if self.cron is None and self.tz is not None:
            raise click.UsageError("--tz belongs to --cron")
        if self.every is None and self.fixed_delay:
            raise click.UsageError("--fixed-delay belongs to --every")
        for name in ("starts", "ends", "jitter", "catch_up", "overlap", "run_on_startup"):
            if not self.recurs and getattr(self, name) not in (None, False):
                raise click.UsageError(f"--{name.replace('_', '-')} belongs to --cron or --every")
        for name in ("retry_wait", "retry_max_wait"):
            if self.retry is None and getattr(self, name) is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} belongs to --retry")
        if self.key is None and self.key_retention is not None:
            raise click.UsageError("--key-retention belongs to --key")
        if self.executor is None and self.executor_options is not None:
            raise click.UsageError("--executor-options belongs to --executor")
        if self.jitter is not None and self.jitter > _MAX_JITTER:
            raise click.UsageError("--jitter is at most 24h")
        if self.recurs and (self.delay is not None or self.run_at is not None or self.edges):
            which = "--cron" if self.every is None else "--every"
            raise click.UsageError(f"{which} goes with neither --in, --at nor --depend-on: each run is a new task")
        for name, longest in _TEXTS.items():
            value = getattr(self, name)
            if value is not None and not 1 <= len(value) <= longest:
                raise click.UsageError(f"--{name.replace('_', '-')} is a text of 1 to {longest} characters")
        for name in ("max_duration", "max_delay"):
            if getattr(self, name) == 0:
                raise click.UsageError(f"--{name.replace('_', '-')} must be more than 0")
        if self.conflict is not None and self.key is None:
            raise click.UsageError("--conflict belongs to --key")
        if self.recurs and self.conflict not in (None, "replace"):
            which = "--cron" if self.every is None else "--every"
            raise click.UsageError(f"--conflict replace is the only one that goes with {which}")
        if self.timeout == 0:
            raise click.UsageError("--timeout must be more than 0")
        seen: dict[int, EdgeSpec] = {}
        for _, edge in self.edges:
            if seen.setdefault(edge.parent, edge) != edge:
                raise click.UsageError(f"--depend-on names {edge.parent} twice with different conditions")
        named: dict[str, int] = {}
        for given, edge in self.edges:
            if given is not None and named.setdefault(given, edge.parent) != edge.parent:
                raise click.UsageError(f"--depend-on names two tasks {given!r}: {named[given]} and {edge.parent}")

    @property
    def recurs(self) -> bool:
        """Whether it is a schedule."""
        return self.cron is not None or self.every is not None

    @property
    def names(self) -> frozenset[str]:
        """The names of parents, whose results complete the payload."""
        return frozenset(name for name, _ in self.edges if name is not None)

    def _placing(self, options: Mapping[str, Any]) -> dict[str, str | None]:
        """Where it runs: as the kind says, or as was given. Raises ConfigError."""
        from scheduler.model.resources import parse_executor, read_resources

        made = {name: options.get(name) for name in ("executor", "resources", "executor_options")}
        if self.executor is not None:
            chosen = parse_executor(self.executor)
            if chosen != made["executor"]:
                made |= {"executor": chosen, "executor_options": None}
        if self.executor_options is not None:
            import msgspec

            from scheduler.model.resources import parse_options

            given = parse_options(read_json("--executor-options", self.executor_options))
            made["executor_options"] = msgspec.json.encode(given).decode()
        if self.resources is not None:
            made["resources"] = read_resources(self.resources).to_json()
        return made

    def spec(self, kind: str, payload: dict[str, Any], record: KindRecord | None) -> TaskSpec:
        """The task to store: the kind's options, and over them what was given. Raises SchedulerError."""
        from scheduler.model.lanes import check_fairness_key, check_rank, check_weight, fair_lane, with_rank
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
            if self.retry_wait is not None:
                longest = max(policy.max_wait, self.retry_wait / SECOND)
                policy = RetryPolicy(self.retry_wait / SECOND, longest, self.retry + 1)
            if self.retry_max_wait is not None:
                policy = RetryPolicy(policy.min_wait, self.retry_max_wait / SECOND, self.retry + 1)
            made.retry, made.max_attempts = policy.to_json(), policy.max_attempts
        if self.queue is not None:
            made.queue = check_name("queue", self.queue)
        if self.priority is not None:
            made.priority = int(Priority.parse(self.priority))
        if self.rank is not None:
            made.lane = with_rank(check_rank(self.rank, kind, ranked=bool(options.get("ranked"))), made.lane)
        if self.fairness_key is not None:
            made.lane = fair_lane(made.lane, check_fairness_key(self.fairness_key))
        if self.fairness_weight is not None:
            made.lane = fair_lane(made.lane, weight=check_weight(self.fairness_weight))
        if self.headers is not None:
            made.headers = encode_headers(read_json("--headers", self.headers))
        if self.key is not None:
            retention = self.key_retention
            made.key, made.key_retention = self.key, options.get("key_retention") if retention is None else retention
        for name in _AS_GIVEN:
            value = getattr(self, name)
            if value is not None:
                setattr(made, name, value)
        for name, value in self._placing(options).items():
            setattr(made, name, value)
        made.edges = list({edge.parent: edge for _, edge in self.edges}.values())
        at = {edge.parent: position for position, edge in enumerate(made.edges)}
        made.parent_names = {name: at[edge.parent] for name, edge in self.edges if name is not None} or None
        return made


def schedule(
    session: Session, given: TaskOptionsGiven, kind: str, payload: dict[str, Any], record: KindRecord | None
) -> None:
    """Store the task or the recurring schedule, print its id or name, and note if no worker would run it."""
    from scheduler.operations import tasks

    spec = given.spec(kind, payload, record)
    desk = session.making()
    if given.recurs:
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
