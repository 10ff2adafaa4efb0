"""The arguments of the routes of the API: a struct for each, which says what is refused, and its JSON schema."""

from __future__ import annotations

import re
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType, inspect

from scheduler.console.answers import Refusal
from scheduler.console.inputs import check_text
from scheduler.model.bulk import ItemResult
from scheduler.model.priority import PriorityName
from scheduler.operations.new_task import Act as Act
from scheduler.operations.new_task import Args as Args
from scheduler.operations.new_task import Id as Id
from scheduler.operations.new_task import Name as Name
from scheduler.operations.new_task import NewTask, Retries, Span, Time, Weight

MAX_IDS = 1000
MAX_CHANGED = 10_000

Limit = Annotated[int, Meta(ge=1, le=500)]
Text = Annotated[str, Meta(max_length=2000)]
Ids = Annotated[list[Id], Meta(min_length=1, max_length=MAX_IDS)]


class Page(Args):
    """A page of a list; ``cursor``: as the page before it gave it."""

    limit: Limit = 50
    cursor: Id | None = None


class Tasks(Page):
    """``filter``: words such as ``state:dead kind:Mail``."""

    filter: Text = ""


class DeadLetters(Args):
    """``filter``: words such as ``kind:Mail ended:<1d``; ``each``: every task, not the causes."""

    filter: Text = ""
    limit: Limit = 50
    each: bool = False


class Most(Args):
    """How many at most."""

    limit: Limit = 50


class Workers(Args):
    """``every``: the latest that have ended, too."""

    every: bool = False


class Logs(Args):
    """What the attempts wrote; ``tail``: the last characters of each attempt's output."""

    tail: Annotated[int, Meta(ge=1, le=100_000)] = 8000


class Graph(Args):
    """The tasks that edges connect with a task; ``limit``: the nearest."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 200


class Ahead(Args):
    """``hours``: how far to look ahead; ``fires``: how many fire times of each schedule to name."""

    hours: Annotated[float, Meta(gt=0, le=168)] = 24.0
    fires: Annotated[int, Meta(ge=1, le=500)] = 10


class BulkItems(Args):
    """The tasks of a bulk behind position ``cursor``."""

    limit: Limit = 100
    cursor: Annotated[int, Meta(ge=-1, le=2**31)] = -1
    result: ItemResult | None = None


class Audit(Page):
    """Entries of the audit. ``since``, ``until``: ``2h`` ago, or a time with its zone."""

    task: Id | None = None
    action: Text = ""
    by: Text = ""
    subject: Text = ""
    via: Text = ""
    bulk: Text = ""
    since: Text = ""
    until: Text = ""


class Which(Act):
    """Which tasks: ``ids``, all or none, or those of a ``filter``, at most ``limit``. ``dry_run``: only say which, of a
    filter. ``up_to``: no task with a higher id, such as those stored after a dry run."""

    ids: Ids | None = None
    filter: Text | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_CHANGED)] = 1000
    up_to: Annotated[int, Meta(ge=0, le=2**63 - 2)] | None = None
    dry_run: bool = False


class Cancel(Which):
    """``cascade``: those that wait for their success end cancelled, too; ``force``: without waiting for handlers."""

    cascade: bool = False
    force: bool = False


class Rerun(Which):
    """``downstream``: also the tasks below them that had ended."""

    downstream: bool = True


class Retry(Rerun):
    """``rerun``: of ids, what ran on their old ends runs again, too."""

    rerun: bool = False


class Change(Which):
    """New values; what is left out stays. ``fields``: some fields of the payload; ``retry``: so many retries."""

    at: Time | UnsetType = UNSET
    after: Span | UnsetType = UNSET
    priority: PriorityName | UnsetType = UNSET
    queue: Name | UnsetType = UNSET
    payload: dict[str, Any] | UnsetType = UNSET
    fields: dict[str, Any] | UnsetType = UNSET
    headers: dict[str, Any] | UnsetType = UNSET
    retry: Retries | UnsetType = UNSET
    timeout: Span | UnsetType | None = UNSET


class Replay(Which):
    """``copy``: new tasks run, the dead letters stay; ``rerun``: as of a retry. Both are of ids."""

    copy: bool = False
    rerun: bool = False


class Purge(Act, kw_only=True):
    """Dead letters whose ``filter`` says how long ago they ended, such as ``ended:>7d``."""

    filter: Text
    limit: Annotated[int, Meta(ge=1, le=MAX_CHANGED)] = 1000
    up_to: Annotated[int, Meta(ge=0, le=2**63 - 2)] | None = None
    dry_run: bool = False


class Submit(NewTask, kw_only=True):
    """A new task of a kind that workers have published."""

    kind: Name
    payload: dict[str, Any] = msgspec.field(default_factory=dict)


class OfName(Act, kw_only=True):
    """Of this name."""

    name: Text


class OfWorker(Act, kw_only=True):
    """A worker."""

    id: Id


class Scopes(Act):
    """Queues, kinds, sources of messages, or everything."""

    queues: list[Name] = msgspec.field(default_factory=list)
    kinds: list[Name] = msgspec.field(default_factory=list)
    sources: list[Name] = msgspec.field(default_factory=list)
    everything: bool = False


class Place(Act):
    """Where a limit holds: a ``pool`` (of one ``worker``), a ``kind`` (one ``key`` of it), a fairness ``key`` of
    all kinds, or a ``queue``."""

    pool: PriorityName | None = None
    worker: Id | None = None
    kind: Name | None = None
    key: Name | None = None
    queue: Name | None = None


class SetLimits(Place):
    """``slots``, ``async_slots``: of a pool; ``weight``: of a fairness key; the others of kinds, keys and queues, null:
    no limit."""

    slots: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    async_slots: Annotated[int, Meta(ge=0, le=10_000)] | None = None
    max_concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType | None = UNSET
    rate_limit: Annotated[str, Meta(max_length=40, description='"100/min"')] | UnsetType | None = UNSET
    max_per_worker: Annotated[int, Meta(ge=1, le=1_000_000)] | UnsetType | None = UNSET
    weight: Weight | UnsetType | None = UNSET


class Emit(Act, kw_only=True):
    """An event; ``payload``: any JSON."""

    name: Name
    payload: Any = None


class Plan(Act):
    """The tasks of a bulk: ``ids``, or those of a ``filter``; nothing is changed before its start.

    ``cascade``, ``force``: of cancel; ``downstream``: of retry and rerun; ``fields``: of replay.
    """

    ids: Ids | None = None
    filter: Text | None = None
    cascade: bool = False
    force: bool = False
    downstream: bool = True
    fields: dict[str, Any] | None = None


class Start(OfName):
    """``canary``: one task goes first; ``rate``: tasks a second at most."""

    canary: bool = False
    rate: float | None = None


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a verb, or (``dry_run``) the result it would have.

    ``changed``: ids of tasks; ``requested``: running ones that are asked to end; ``dependants``: how many others ended
    or run again with them. ``kinds``: of a filter, kind -> state before -> how many. ``conflicts``: id -> the task that
    has its key; ``refused``: id -> why it stays as it is; ``stale``: tasks that ran on the old ends, ``stale_more``:
    there may be others. ``more``: the filter may choose more; ``bulk``: of its entries in the audit; ``up_to``: no task
    with a higher id was chosen.
    """

    changed: list[int]
    requested: list[int] = []
    dependants: int = 0
    kinds: dict[str, dict[str, int]] = {}
    conflicts: dict[int, int] = {}
    refused: dict[int, str | None] = {}
    stale: list[int] = []
    stale_more: bool = False
    more: bool = False
    dry_run: bool = False
    bulk: str | None = None
    up_to: int | None = None


def check_texts(value: Any) -> None:
    """Refuse characters that no database stores, wherever they are. Raises Refusal."""
    left = [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            check_text(one)
        elif isinstance(one, dict):
            left += [*one, *one.values()]
        elif isinstance(one, list):
            left += one


def _allowed(kind: type[Args], where: str, error: str) -> str:
    """The values that the argument takes, where its error does not name them."""
    if "RFC3339" in error:
        return ", such as 2026-03-01T02:30:00Z"
    fields = inspect.type_info(kind).fields  # type: ignore[attr-defined]
    if error.startswith("Expected `object`"):
        return "".join(_form(field.type) for field in fields if field.encode_name == where.partition("[")[0])
    if not error.startswith("Invalid enum value"):
        return ""
    values = [value for field in fields if field.encode_name == where for value in _values(field.type)]
    return f"; there are {', '.join(map(str, values))}" if values else ""


def _form(kind: inspect.Type) -> str:
    """The form of a list's elements, if they are objects with names of their own."""
    match kind:
        case inspect.Metadata():
            return _form(kind.type)
        case inspect.ListType(item_type=inspect.StructType(fields=fields)):
            needed = ", ".join(f'"{one.encode_name}": …' for one in fields if one.required)
            others = ", ".join(one.encode_name for one in fields if not one.required)
            more = f", which may have {others}, too" if others else ""
            return f"; each is an object such as {{{needed}}}{more}"
        case _:
            return ""


def _values(kind: inspect.Type) -> list[object]:
    """The values of an enumeration, or of those in a union."""
    match kind:
        case inspect.Metadata():
            return _values(kind.type)
        case inspect.UnionType():
            return [value for one in kind.types for value in _values(one)]
        case inspect.LiteralType():
            return list(kind.values)
        case inspect.EnumType():
            return [one.value for one in kind.cls]
        case _:
            return []


_WHERE = re.compile(r"(.*?)(?: - at `(?:key in )?`?\$\.?(.*?)`+)?", re.DOTALL)


def read_args(kind: type[Args], given: Any, of: str, *, strict: bool) -> Args:
    """Arguments of the route or tool that is called ``of``. Raises Refusal."""
    try:
        return msgspec.convert(given, kind, strict=strict)
    except msgspec.ValidationError as error:
        found = _WHERE.fullmatch(str(error))
        text, where = (found[1], found[2]) if found is not None else (str(error), None)
        fields = ", ".join(kind.__struct_fields__) or "no arguments"
        at = f"{where}: {text[:1].lower()}{text[1:]}{_allowed(kind, where, text)}" if where else text
        raise Refusal(
            422, f"{at[:300]}. {of} takes {fields}.", where=where or ("body" if strict else "query")
        ) from None
