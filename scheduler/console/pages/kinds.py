"""``/kinds``, ``/queues``, ``/queues/NAME``: how kinds and queues do; their caps and rates; pause and resume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from scheduler.client.json_views import fields, queue_view, time
from scheduler.config.sources import parse_duration
from scheduler.console.masks import PageTaskMasks, masked_text
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import BadInputError, Visit
from scheduler.errors import ConfigError
from scheduler.model.defaults import POOLS
from scheduler.model.rollup import BOUNDS, Histogram
from scheduler.model.secrets import is_secret_name
from scheduler.model.times import SECOND
from scheduler.operations import kinds as operations
from scheduler.operations.desk import Tx
from scheduler.operations.kinds import FAILURES, KindRecord, Numbers, Pause, QueueRecord, StatsRecord, WorkNow
from scheduler.operations.kinds import queues as read_queues
from scheduler.operations.limits import LimitInEffect
from scheduler.operations.masks import masked_schema

SHOWN = 300  # kinds, or queues, on one page
FAILED = 20  # recent failures of a kind
TIMES = ("1h", "6h", "24h", "7d")
MAX_TIME = 400 * 86_400  # seconds
SHOWN_LIMITS = ("max_concurrency", "rate_limit")
TOLD = 10  # queues that nobody serves, in sentences


class HistogramBar(NamedTuple):
    """A bucket of a histogram. ``up_to``: seconds; ``share``: of the largest, 0 to 100."""

    up_to: float
    number: int
    share: float


@page("/kinds", nav=Nav("Kinds", "k", 60))
def kinds(visit: Visit) -> RenderedPage:
    """The kinds, those with most attempts first, and the queues that have a backlog or a pause."""
    span = _span(visit)
    with visit.read() as tx:
        seen = operations.overview(tx, span, SHOWN)
    found, ordered = seen.stats, seen.names
    paused = {place: one._replace(reason=masked_text(one.reason)) for place, one in seen.pauses.items()}
    seconds = max(1.0, (found.until - found.since) / SECOND)
    rows = [
        (name, found.kinds.get(name), _shown(seen.limits[name]), paused.get(("kind", name))) for name in ordered[:SHOWN]
    ]
    context: dict[str, Any] = {
        "rows": rows,
        "left": max(0, len(ordered) - SHOWN),
        "seconds": seconds,
        "queues": [(name, *values, paused.get(("queue", name))) for name, values in sorted(seen.backlog.items())],
        **_choices(visit),
    }
    data = {
        "since": time(found.since),
        "until": time(found.until),
        "kinds": [_view(name, numbers, limits_, pause, seconds) for name, numbers, limits_, pause in rows],
        "queues": [
            {"queue": name, "due": due, "oldest_since": time(oldest), "paused": pause is not None}
            | {"oldest_age": None if oldest is None else (seen.at - oldest) / SECOND}
            for name, due, oldest, pause in context["queues"]
        ],
    }
    return RenderedPage("kinds.html", data, context, f"schedctl stats --since {context['chosen']}")


def _is_kind(visit: Visit) -> bool:
    with visit.read() as tx:
        return operations.get_kind(tx, visit.params["name"]) is not None


def _is_queue(visit: Visit) -> bool:
    with visit.read() as tx:
        return operations.is_queue(tx, visit.params["name"])


@page("/kinds/{name:path}", known=_is_kind)
def one_kind(visit: Visit) -> RenderedPage:
    """One kind: numbers, distribution, limits, recent failures, its schema."""
    name, span = visit.params["name"], _span(visit)
    with visit.read() as tx:
        seen = operations.one(tx, "kind", name, span)
        failures = _failures(tx, span, name)
    found, record, now = seen.stats, seen.record, seen.now
    if record is not None:
        record = record._replace(schema=masked_schema(record.schema))
    if record is None and not found.kinds:
        raise BadInputError(f"no worker has published a kind {name!r:.100}", 404)
    context, data = _one(visit, "kind", name, found, seen.pause)
    context |= {"limits": _shown(seen.limits), "fields": _fields(record), "record": record, "failures": failures}
    context["now"] = now
    data |= {
        "ready": now.ready,
        **_now_view(now, seen.at),
        "schema": None if record is None else record.schema,
        "limits": {o.name: o.value for o in context["limits"]},
    }
    data["failures"] = [{"task": one.task_id, "at": time(one.finished_at), "error": error} for one, error in failures]
    return RenderedPage("kind.html", data, context, f"schedctl stats --kind {name} --since {context['chosen']}")


@page("/queues/{name:path}", known=_is_queue)
def one_queue(visit: Visit) -> RenderedPage:
    """One queue: numbers, backlog, oldest ready task."""
    name, span = visit.params["name"], _span(visit)
    with visit.read() as tx:
        seen = operations.one(tx, "queue", name, span)
    found, now = seen.stats, seen.now
    context, data = _one(visit, "queue", name, found, seen.pause)
    context |= {
        "ready": [(POOLS[one.priority], one.number, one.since) for one in seen.ready],
        "limits": [],
        "failures": [],
    }
    context |= {"kinds": list(found.kinds.items()), "record": None, "fields": [], "now": now}
    data |= _now_view(now, seen.at)
    data["ready"] = [{"pool": pool, "due": due, "since": time(since)} for pool, due, since in context["ready"]]
    return RenderedPage("kind.html", data, context, f"schedctl stats --queue {name} --since {context['chosen']}")


def _failures(tx: Tx, span: int, kind: str) -> list[tuple[Any, str | None]]:
    masks = PageTaskMasks(tx, [kind])
    return [
        (one, masked_text(one.error) if task is None else masks.of(task).text(one.error))
        for one, task in operations.failures(tx, kind, span, FAILED)
    ]


def _one(
    visit: Visit, scope: str, name: str, found: StatsRecord, stopped: Pause | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    pause = None if stopped is None else stopped._replace(reason=masked_text(stopped.reason))
    seconds = max(1.0, (found.until - found.since) / SECOND)
    context: dict[str, Any] = {
        "scope": scope,
        "name": name,
        "numbers": found.total,
        "failed": sum(found.total.outcomes.get(end, 0) for end in FAILURES),
        "pause": pause,
        "seconds": seconds,
        "runs": bars(found.total.run),
        "waits": bars(found.total.wait),
        "ready": [],
        "kinds": [],
        **_choices(visit),
    }
    return context, _view(name, found.total, [], pause, seconds)


def _now_view(now: WorkNow, at: int) -> dict[str, Any]:
    """``capped``: counts that are "at least" what is said."""
    return {
        **fields(now, "running", "claimed", "retry", "suspended"),
        "oldest_ready_since": time(now.since),
        "oldest_ready_age": None if now.since is None else (at - now.since) / SECOND,
        "capped": sorted(now.capped),
    }


def bars(histogram: Histogram) -> list[HistogramBar]:
    """The buckets that are not empty."""
    most = max(histogram.buckets.values(), default=1)
    return [
        HistogramBar(BOUNDS[min(bucket, len(BOUNDS) - 1)] / SECOND, number, 100 * number / most)
        for bucket, number in sorted(histogram.buckets.items())
    ]


def _span(visit: Visit) -> int:
    try:
        seconds = parse_duration(visit.asked("over", "24h"))
    except ConfigError:
        raise BadInputError("over is a time, such as 24h") from None
    if not 60 <= seconds <= MAX_TIME:
        raise BadInputError("over is from one minute to 400 days")
    return round(seconds * SECOND)


def _choices(visit: Visit) -> dict[str, Any]:
    return {"times": TIMES, "chosen": visit.asked("over", "24h")}


def _shown(limits: list[LimitInEffect]) -> list[LimitInEffect]:
    return [one for one in limits if one.name in SHOWN_LIMITS]


def _fields(record: KindRecord | None) -> list[tuple[str, str, bool, bool]]:
    """(name, type, needed, secret) of the fields of a payload."""
    if record is None:
        return []
    schema: Mapping[str, Any] = record.schema
    if "$ref" in schema:
        schema = schema.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    needed = schema.get("required", [])
    return [
        (name, str(field.get("type") or "any"), name in needed, bool(field.get("x-secret")))
        for name, field in schema.get("properties", {}).items()
        if isinstance(field, Mapping)
    ]


def _view(
    name: str, numbers: Numbers | None, limits: list[LimitInEffect], pause: Any, seconds: float
) -> dict[str, Any]:
    numbers = numbers or Numbers()
    made: dict[str, Any] = {"name": name, "attempts": numbers.attempts, "failure_rate": numbers.failure_rate}
    for label, histogram in (("run", numbers.run), ("wait", numbers.wait)):
        made[label] = {f"p{percent}": histogram.percentile(percent) for percent in (50, 95, 99)}
    made |= {"per_second": numbers.attempts / seconds, "limits": {one.name: one.value for one in limits}}
    paused = None if pause is None else {"since": time(pause.at), "by": pause.actor, "reason": pause.reason}
    return made | {"paused": paused}


@action("/kinds/set/{name:path}", Verb.SET)
def set_kind(visit: Visit) -> ActionDone:
    """Change the cap and the rate of a kind."""
    name = visit.params["name"]
    cap, rate = visit.given("max_concurrency"), visit.given("rate_limit")
    changes: dict[str, Any] = {}
    if cap:
        changes["max_concurrency"] = None if cap == "none" else _whole(cap)
    if rate:
        changes["rate_limit"] = None if rate == "none" else rate
    if not changes:
        raise BadInputError("say what to change: max_concurrency or rate_limit; none is no limit")
    if not visit.jobs.live_settings.kind(name, **changes):
        return ActionDone("It was so already.")
    return ActionDone(f"Kind {name} is changed.", undo=("Undo: let its type say it", "/settings/reset", {"kind": name}))


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise BadInputError(f"max_concurrency is a whole number or none, not {text[:40]!r}")
    return int(text)


def fields_of(schema: Mapping[str, Any], payload: Any) -> dict[str, str]:
    """The fields that may be changed, each with its JSON type: those of the published schema that hide no secret."""
    inner = schema
    if "$ref" in schema:
        inner = schema.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    fields = inner.get("properties", {})
    hidden = {name for name, value in payload.items() if value == "***"} if isinstance(payload, dict) else set()
    return {
        name: str(field.get("type", "any")) if isinstance(field, Mapping) else "any"
        for name, field in fields.items()
        if name not in hidden and not is_secret_name(name) and not (isinstance(field, Mapping) and "x-secret" in field)
    }


@page("/queues", nav=Nav("Queues", "q", 55))
def queues(visit: Visit) -> RenderedPage:
    """The queues by name."""
    with visit.read() as tx:
        found, now = read_queues(tx, SHOWN), tx.now
    rows = [_masked(one) for one in found.rows]
    unserved = [one.unserved_text for one in rows if one.unserved is not None]
    context: dict[str, Any] = {"rows": rows, "more": found.more, "unserved": unserved, "told": TOLD}
    data = {"queues": [queue_view(one, now) for one in rows], "more": found.more}
    return RenderedPage("queues.html", data, context, "schedctl queues")


def _masked(one: QueueRecord) -> QueueRecord:
    if one.pause is None:
        return one
    return one._replace(pause=one.pause._replace(reason=masked_text(one.pause.reason)))
