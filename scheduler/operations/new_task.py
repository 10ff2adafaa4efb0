"""The options of a new task, each checked once, whether a builder, ``schedctl``, the API or an agent gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, Literal, get_args

import msgspec
from msgspec import Meta

from scheduler.errors import ConfigError, PayloadError
from scheduler.model import lanes
from scheduler.model.actor import MAX_REASON
from scheduler.model.json_text import encode_json
from scheduler.model.names import check_name, check_text
from scheduler.model.parent_names import HEADER, MAX_NAME
from scheduler.model.priority import Priority, PriorityName
from scheduler.model.resources import parse_executor, parse_options, parse_resources, read_resources
from scheduler.model.retry import DEFAULT_RETRY, RetryPolicy
from scheduler.model.spec import MAX_KEY, EdgeSpec, TaskSpec
from scheduler.model.state import DEFAULT_OTHERWISE, Otherwise, OtherwiseName, When, WhenName
from scheduler.model.task import TaskOptions
from scheduler.model.times import SECOND, instant_us, span_us

MAX_HEADERS = 16 * 1024
MAX_URI = 2000
MAX_EDGES = 1000
Conflict = Literal["keep", "replace", "reject"]
Growth = Literal["exponential", "linear", "fixed"]
Id = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Name = Annotated[str, Meta(min_length=1, max_length=MAX_KEY)]
Span = Annotated[float, Meta(ge=0, description="seconds")] | Annotated[str, Meta(max_length=40, description='"5m"')]
Weight = Annotated[float, Meta(ge=lanes.WEIGHTS[0], le=lanes.WEIGHTS[1])]
FairnessKey = Annotated[str, Meta(min_length=1, max_length=lanes.MAX_FAIRNESS_KEY)]
Time = Annotated[datetime, Meta(tz=True)]
Retries = Annotated[int, Meta(ge=0)]


def _says(text: str, metavar: str | None = None) -> Meta:
    """The help of an option; ``metavar``: its value in the help of a command."""
    return Meta(description=text, extra={"metavar": metavar})


class Edge(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """A task to wait for. ``name``: the field of the payload that its result is."""

    id: Id
    when: WhenName = "success"
    otherwise: OtherwiseName | None = None
    name: Annotated[str, Meta(min_length=1, max_length=MAX_NAME)] | None = None

    @property
    def spec(self) -> EdgeSpec:
        """As it is stored. Raises ValueError for conditions that there are not."""
        end = When(self.when)
        return EdgeSpec(self.id, end, DEFAULT_OTHERWISE[end] if self.otherwise is None else Otherwise(self.otherwise))


class Args(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """No arguments."""


class Act(Args):
    """A change; ``reason``: for the audit."""

    reason: Annotated[str, Meta(max_length=MAX_REASON)] | None = None


class NewTask(Act, kw_only=True):
    """The options of a new task; those that are None are as its kind says."""

    depends_on: Annotated[list[Edge], Meta(max_length=MAX_EDGES), _says("Wait for these tasks.")] = []
    after: Annotated[Span | None, _says("Not before this long from now.", "5m")] = None
    at: Annotated[Time | None, _says("Not before this time (with its zone).", "T")] = None
    retry: Annotated[Retries | None, _says("Retry up to N times after failures.", "N")] = None
    retry_wait: Annotated[Span | None, _says("Wait this long before the first retry.", "10s")] = None
    retry_max_wait: Annotated[Span | None, _says("Wait at most this long before a retry.", "1h")] = None
    retry_strategy: Annotated[Growth | None, _says("How the waits grow; else exponential.")] = None
    retry_factor: Annotated[float | None, _says("With exponential waits: from one to the next; else 2.", "X")] = None
    retry_jitter: Annotated[float | None, _says("Wait longer by up to this share, at random; else 0.1.", "X")] = None
    priority: Annotated[PriorityName | None, _says("The pool that runs it first.")] = None
    key: Annotated[Name | None, _says("Your name for it: the same kind and key is the same task.", "K")] = None
    conflict: Annotated[Conflict | None, _says("With a held key: keep its task (default), replace it, refuse.")] = None
    key_retention: Annotated[Span | None, _says("How long after its success the key stays taken.", "24h")] = None
    rank: Annotated[int | None, _says("From 33, the first, to -33, for kinds with ranks.", "N")] = None
    fairness_key: Annotated[FairnessKey | None, _says("Keys of a kind take turns, such as customers.", "K")] = None
    fairness_weight: Annotated[Weight | None, _says("How much its turns weigh beside others'; else 1.", "W")] = None
    queue: Annotated[Name | None, _says("The namespace whose workers may run it.", "Q")] = None
    timeout: Annotated[Span | None, _says("The longest one attempt may run.", "S")] = None
    correlation: Annotated[Name | None, _says("An id that tasks which belong together share.", "C")] = None
    subject: Annotated[Name | None, _says("The subject of the task.", "S")] = None
    headers: Annotated[dict[str, Any] | None, _says("An object that travels beside the payload.", "JSON")] = None
    message_type: Annotated[Name | None, _says("The type of the message, if it is not the kind.", "M")] = None
    causation: Annotated[Name | None, _says("The cause of the task.", "C")] = None
    sequence: Annotated[int | None, _says("A number for the handler.", "N")] = None
    payload_ref: Annotated[str | None, _says("The address of data that is too large to store.", "URI")] = None
    max_duration: Annotated[Span | None, _says("Cancel it once it has lived this long.", "1h")] = None
    max_delay: Annotated[Span | None, _says("Cancel it after this long without progress.", "1h")] = None


class PlacedTask(NewTask, kw_only=True):
    """The same with the place where it runs, for those who have the database itself."""

    executor: Annotated[str | None, _says("Run it as a job of [executors.NAME]; local: in a worker.", "NAME")] = None
    executor_options: Annotated[dict[str, Any] | None, _says("An object of the executor's own options.", "JSON")] = None
    resources: Annotated[str | None, _says("Its needs there: cpu, memory, gpu, disk (memory=4G).", "cpu=2,…")] = None


_RETRIES = ("retry_wait", "retry_max_wait", "retry_strategy", "retry_factor", "retry_jitter")
BELONGS: Mapping[str, str] = {
    **dict.fromkeys(_RETRIES, "retry"),
    **dict.fromkeys(("conflict", "key_retention"), "key"),
    "executor_options": "executor",
}
"""Options that mean nothing without another one."""


def encode_headers(headers: Mapping[str, Any]) -> str:
    """Headers as JSON text. Raises PayloadError."""
    if not isinstance(headers, Mapping):
        raise PayloadError(f"headers must be a mapping, not {headers!r:.80}")
    if HEADER in headers:
        raise PayloadError(f"the header {HEADER} is schedd's own: depend_on(parent, name=…) sets it")
    text = encode_json(dict(headers), "headers")
    if len(text) > MAX_HEADERS:
        raise PayloadError(f"headers are {len(text)} bytes of JSON, over the limit of {MAX_HEADERS}")
    return text


def _sequence(number: object) -> int:
    if not isinstance(number, int) or isinstance(number, bool) or not -(2**63) <= number < 2**63:
        raise PayloadError(f"sequence must be a 64-bit whole number, not {number!r}")
    return number


def _conflict(conflict: object) -> str:
    if conflict not in get_args(Conflict):
        raise ConfigError(f"conflict must be keep, replace or reject, not {conflict!r}")
    return str(conflict)


# option -> the field of the spec, and what makes its value. Others need more than that.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "after": ("delay", partial(span_us, what="after")),
    "at": ("run_at", partial(instant_us, what="at")),
    "priority": ("priority", lambda level: int(Priority.parse(level))),
    "queue": ("queue", partial(check_name, "queue")),
    "headers": ("headers", encode_headers),
    **{
        name: (name, partial(check_text, what=name)) for name in ("correlation", "causation", "subject", "message_type")
    },
    "sequence": ("sequence", _sequence),
    "payload_ref": ("payload_ref", partial(check_text, what="payload_ref", longest=MAX_URI)),
    **{name: (name, partial(span_us, what=name, positive=True)) for name in ("timeout", "max_duration", "max_delay")},
    "key": ("key", partial(check_text, what="a key", longest=MAX_KEY)),
    "conflict": ("conflict", _conflict),
    "key_retention": ("key_retention", partial(span_us, what="retention")),
    "resources": (
        "resources",
        lambda given: (read_resources(given) if isinstance(given, str) else parse_resources(given)).to_json(),
    ),
}


def set_option(made: TaskSpec, name: str, value: Any) -> None:
    """Set an option of a new task that hangs on no other. Raises ConfigError, PayloadError, InvalidScheduleError."""
    field, check = _FIELDS[name]
    setattr(made, field, check(value))


def set_rank(made: TaskSpec, rank: int, *, ranked: bool) -> None:
    """Raises ConfigError."""
    made.lane = lanes.with_rank(lanes.check_rank(rank, made.kind, ranked=ranked), made.lane)


def set_fairness(made: TaskSpec, key: str | None = None, weight: float | None = None) -> None:
    """Whose turn it takes, and how much that weighs; None: as before. Raises PayloadError, ConfigError."""
    key, weight = (
        None if key is None else lanes.check_fairness_key(key),
        None if weight is None else lanes.check_weight(weight),
    )
    made.lane = lanes.fair_lane(made.lane, key, weight)


def set_retry(made: TaskSpec, policy: RetryPolicy | None) -> None:
    """None: one attempt."""
    made.retry, made.max_attempts = (None, 1) if policy is None else (policy.to_json(), policy.max_attempts)


def set_executor(made: TaskSpec, name: str | None, options: Mapping[str, Any] | None) -> None:
    """Where it runs; without ``options`` those of its kind count, if that names the same executor.

    Raises ConfigError.
    """
    chosen = parse_executor(name)
    if options is not None:
        made.executor_options = msgspec.json.encode(parse_options(options)).decode()
    elif chosen != made.executor:
        made.executor_options = None
    made.executor = chosen


def policy_of(given: NewTask) -> RetryPolicy | None:
    """The policy of so many retries; None: none. Raises ConfigError."""
    if not given.retry:
        return None
    usual = DEFAULT_RETRY
    first = usual.min_wait if given.retry_wait is None else span_us(given.retry_wait, "retry_wait") / SECOND
    longest = given.retry_max_wait
    return RetryPolicy(
        first,
        max(first, usual.max_wait) if longest is None else span_us(longest, "retry_max_wait") / SECOND,
        given.retry + 1,
        usual.factor if given.retry_factor is None else given.retry_factor,
        usual.jitter if given.retry_jitter is None else given.retry_jitter,
        given.retry_strategy or usual.strategy,
    )


def check_together(given: NewTask, spelled: Callable[[str], str] = str) -> None:
    """Refuse options that exclude each other. ``spelled``: the name of an option. Raises ConfigError."""
    if given.after is not None and given.at is not None:
        raise ConfigError(f"{spelled('after')} and {spelled('at')} exclude each other")
    for name, other in BELONGS.items():
        if getattr(given, name, None) is not None and getattr(given, other) is None:
            raise ConfigError(f"{spelled(name)} belongs to {spelled(other)}")
    seen: dict[int, EdgeSpec] = {}
    named: dict[str, int] = {}
    for edge in given.depends_on:
        if seen.setdefault(edge.id, edge.spec) != edge.spec:
            raise ConfigError(f"{spelled('depends_on')} names {edge.id} twice with different conditions")
        if edge.name is not None and (other_id := named.setdefault(edge.name, edge.id)) != edge.id:
            raise ConfigError(f"{spelled('depends_on')} names two tasks {edge.name!r}: {other_id} and {edge.id}")


def parents_of(edges: Sequence[Edge]) -> frozenset[str]:
    """The names of parents, whose results complete the payload."""
    return frozenset(edge.name for edge in edges if edge.name is not None)


def set_options(made: TaskSpec, given: NewTask, kind: TaskOptions, spelled: Callable[[str], str] = str) -> None:
    """Give a new task of this kind the options. Raises ConfigError, PayloadError, InvalidScheduleError."""
    check_together(given, spelled)
    for name in _FIELDS.keys() & set(given.__struct_fields__):
        if (value := getattr(given, name)) is not None:
            set_option(made, name, value)
    if given.key is not None and given.key_retention is None:
        made.key_retention = kind.key_retention
    if given.retry is not None:
        set_retry(made, policy_of(given))
    if given.rank is not None:
        set_rank(made, given.rank, ranked=kind.ranked)
    if given.fairness_key is not None or given.fairness_weight is not None:
        set_fairness(made, given.fairness_key, given.fairness_weight)
    if isinstance(given, PlacedTask) and given.executor is not None:
        set_executor(made, given.executor, given.executor_options)
    made.edges = list({edge.id: edge.spec for edge in given.depends_on}.values())
    at = {edge.parent: position for position, edge in enumerate(made.edges)}
    made.parent_names = {one.name: at[one.id] for one in given.depends_on if one.name is not None} or None
