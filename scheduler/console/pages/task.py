"""``/tasks/ID``: why a task does not run, what it has been through, what it waits for, what it wrote."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.responses import RedirectResponse, Response

from scheduler.client.json_views import (
    attempt_view,
    audit_view,
    checkpoint_view,
    children_view,
    edge_view,
    fields,
    task_view,
    time,
    wait_view,
)
from scheduler.console.drawing import draw_timeline
from scheduler.console.masks import PageTaskMasks, TaskMask, masked
from scheduler.console.render import RenderedPage
from scheduler.console.routes import page
from scheduler.console.visit import Visit, asked_instant
from scheduler.errors import UnknownTaskError
from scheduler.model.state import TaskState
from scheduler.model.task_filter import Term
from scheduler.model.trace import parse_traceparent
from scheduler.operations.analysis import task_at, timeline
from scheduler.operations.desk import Tx
from scheduler.operations.details import (
    AttemptRecord,
    TaskDetails,
    TaskRecord,
    any_with,
    attempt_logs,
    attempts,
    dependents,
    details,
    ends,
    get_task,
    removed_at,
    why_chain,
)
from scheduler.operations.filter import quoted
from scheduler.operations.search import search
from scheduler.operations.verbs import task_verbs

ROWS = 50  # of each table
FEW = 10  # tasks that are offered instead of one that is not there
LOG_LINES = 400
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b-\x1f\x7f]")


class AttemptRow(NamedTuple):
    """An attempt, and what its envelope had that is another one by now."""

    record: AttemptRecord
    error: str | None
    trace_id: str | None
    ran: int | None
    waited: int | None


def plain_log(text: str) -> str:
    """What an attempt wrote, without escapes."""
    return _ESCAPES.sub("", text.replace("\r\n", "\n"))


def log_text(mask: TaskMask, text: str) -> str:
    """What an attempt wrote, as it is shown: without escapes, secrets masked."""
    return mask.text(plain_log(text)) or ""


def mask_of(tx: Tx, found: TaskRecord, tried: Sequence[AttemptRecord] = ()) -> TaskMask:
    """The mask that hides the secrets of a task, also those that its earlier attempts had."""
    return PageTaskMasks(tx, [found.kind]).of(found, *(one.envelope.payload for one in tried))


@page("/tasks/{id:int}")
def task(visit: Visit) -> RenderedPage:
    """One task."""
    task_id = visit.params["id"]
    with visit.read() as tx:
        try:
            found = get_task(tx, task_id)
        except UnknownTaskError:
            return _gone(tx, task_id)
        at = asked_instant(visit, tx.now)
        if at is not None:
            return _past(tx, found, at)
        return _page(visit, tx, found)


def _past(tx: Tx, found: TaskRecord, at: int) -> RenderedPage:
    """How the task stood at a past instant, as far as it is recorded."""
    past = task_at(tx, found.id, at)
    state = None if past.state is None else past.state.value
    data = {"id": found.id, "at": time(at), "existed": past.existed, "state": state, "attempt": past.attempt}
    return RenderedPage("task_past.html", data, {"task": found, "past": past}, live=False)


def _gone(tx: Tx, task_id: int) -> RenderedPage:
    """A task that retention removed, whose outcome is remembered. Raises UnknownTaskError."""
    state = ends(tx, [task_id])[task_id]
    at = removed_at(tx, task_id)
    removed = None if at is None else time(at)
    data = {"id": task_id, "state": None if state is None else state.value, "removed": True, "removed_at": removed}
    return RenderedPage(
        "task_gone.html",
        data,
        {"id": task_id, "state": state, "removed_at": at},
        f"schedctl show {task_id}",
        live=False,
    )


def _page(visit: Visit, tx: Tx, found: TaskRecord) -> RenderedPage:
    task_id, now = found.id, tx.now
    seen = details(tx, found, children=ROWS, entries=ROWS)
    shown = seen.task
    mask = mask_of(tx, found, seen.attempts)
    tried = [_attempt(one, mask) for one in seen.attempts]
    seen.depends_on.sort(key=lambda edge: (edge.satisfied, edge.parent))
    log = attempt_logs(tx, task_id)
    past = timeline(tx, task_id)
    copies = search(tx, [Term("correlation", (found.correlation,))], limit=ROWS).tasks
    payload, result = mask.payload(shown.payload), mask.json(shown.result_text)
    chain = why_chain(tx, found)
    context: dict[str, Any] = {
        "task": shown,
        "payload": payload,
        "result": result,
        "headers": mask.value(found.headers),
        "error": mask.text(found.error),
        "chain": [one._replace(why=mask.text(one.why)) for one in chain],
        "attempts": list(reversed(tried))[:ROWS],
        "attempt_count": len(tried),
        "parents": seen.depends_on[:ROWS],
        "parent_count": len(seen.depends_on),
        "dependents": seen.dependents[:ROWS],
        "dependent_count": len(seen.dependents),
        "children": seen.children,
        "child_count": seen.child_count,
        "checkpoints": [_masked_step(checkpoint_view(one), mask) for one in seen.recorded[-ROWS:]],
        "checkpoint_count": len(seen.recorded),
        "waits": seen.waits,
        "drawing": draw_timeline(past, now, found.id),
        "marks": past.marks,
        "spans": past.spans,
        "worker": seen.worker,
        "related": [one for one in copies if one.id != task_id],
        "stack": mask.text(seen.stack),
        "stands": seen.standing,
        "audit": seen.audit,
        "masked": masked,
        "log": [(claim, tail(log_text(mask, text))) for claim, text in log[-1:]],
        "logs": [claim for claim, _ in log],
        "by_claim": {one.record.claim: one.record for one in tried},
        "trace_url": visit.site.settings.trace_url,
        "actions": actions_of(found),
        "verbs": [f"verb_{name}.html" for name, one in task_verbs().items() if found.state in one.states],
        "at": now,
        "own_fields": _fields(payload),
    }
    data = _data(mask, seen, chain, tried, log)
    data["payload"], data["result"] = payload, result
    return RenderedPage("task.html", data, context, f"schedctl show {task_id}")


def _attempt(record: AttemptRecord, mask: TaskMask) -> AttemptRow:
    trace = None if record.trace is None else parse_traceparent(record.trace)
    return AttemptRow(
        record,
        mask.text(record.error),
        None if trace is None else f"{trace.trace_id:032x}",
        None if record.started_at is None else record.finished_at - record.started_at,
        None if record.started_at is None or record.claimed_at is None else record.started_at - record.claimed_at,
    )


def _masked_step(view: dict[str, Any], mask: TaskMask) -> dict[str, Any]:
    return {**view, "value": mask.value(view["value"]), "error": mask.text(view["error"])}


def _fields(payload: Any) -> list[str]:
    """The fields of a payload that may be patched: what is masked is never sent back."""
    return [name for name, value in payload.items() if value != "***"] if isinstance(payload, dict) else []


def tail(text: str) -> str:
    """The last lines of a log."""
    lines = text.splitlines()
    return "\n".join(lines[-LOG_LINES:])


def actions_of(found: TaskRecord) -> frozenset[str]:
    """The verbs that make sense in the task's state."""
    state = found.state
    if state in (TaskState.CLAIMED, TaskState.RUNNING):
        return frozenset({"cancel"})
    if not state.terminal:
        soon = {"retry"} if state in (TaskState.RETRY, TaskState.SCHEDULED) else set()
        return frozenset({"cancel", "patch", *soon} - ({"patch"} if state is TaskState.SUSPENDED else set()))
    if state is TaskState.SUCCESS:
        return frozenset({"rerun", "copy"})
    return frozenset({"retry", "copy", *({"replay"} if state is TaskState.DEAD else set())})


def _data(
    mask: TaskMask,
    seen: TaskDetails,
    chain: Sequence[Any],
    tried: Sequence[AttemptRow],
    log: Sequence[tuple[int, str]],
) -> dict[str, Any]:
    view = task_view(seen.task)
    view |= {"headers": mask.value(view["headers"]), "error": mask.text(view["error"])}
    return {
        **view,
        "why": mask.text(chain[0].why) if chain else None,
        "chain": [{"id": one.id, "kind": one.kind, "state": one.state, "why": mask.text(one.why)} for one in chain],
        "depends_on": [edge_view(edge, edge.parent) for edge in seen.depends_on],
        "dependents": [edge_view(edge, edge.child) for edge in seen.dependents],
        "attempts": [_masked_attempt(attempt_view(one.record), mask, one.record.envelope.payload) for one in tried],
        "children": children_view(seen.children, seen.child_count),
        "recorded": [_masked_step(checkpoint_view(one), mask) for one in seen.recorded],
        "waits": [wait_view(one) for one in seen.waits],
        "audit": [masked(audit_view(one)) for one in seen.audit],
        "log": [line for _, text in log[-1:] for line in tail(log_text(mask, text)).splitlines()],
    }


def _masked_attempt(view: dict[str, Any], mask: TaskMask, payload: str | None) -> dict[str, Any]:
    return {**view, "error": mask.text(view["error"]), "payload": mask.payload(payload)}


@page("/tasks/{id:int}/log")
def log(visit: Visit) -> RenderedPage:
    """What the attempts wrote, whole."""
    task_id = visit.params["id"]
    with visit.read() as tx:
        found = get_task(tx, task_id)
        tried = attempts(tx, task_id)
        mask = mask_of(tx, found, tried)
        texts = [(claim, log_text(mask, text)) for claim, text in attempt_logs(tx, task_id)]
        by_claim = {one.claim: one for one in tried}
    data = [{"claim": claim, "text": text} for claim, text in texts]
    context: Mapping[str, Any] = {"task": found, "texts": texts, "by_claim": by_claim}
    return RenderedPage("task_log.html", data, context, f"schedctl logs {task_id}")


@page("/tasks/{id:int}/cancel")
def cancel_plan(visit: Visit) -> RenderedPage:
    """What cancelling would end, before it is done."""
    task_id = visit.params["id"]
    with visit.read() as tx:
        found = get_task(tx, task_id)
        below = dependents(tx, task_id)
    plans = {
        cascade: visit.jobs.cancel_tasks(ids=[task_id], cascade=cascade, dry_run=True) for cascade in (False, True)
    }
    data = {"id": task_id, "plain": plans[False].dependants, "cascade": plans[True].dependants}
    context = {"task": found, "plain": plans[False], "cascade": plans[True], "dependents": below[:ROWS]}
    return RenderedPage("task_cancel.html", data, context, f"schedctl cancel {task_id} --dry-run", live=False)


def _with_fields(*fields: tuple[str, str]) -> Callable[[Visit], bool]:
    """Says whether a task has what a visit's path names: pairs of a field and a parameter."""

    def known(visit: Visit) -> bool:
        with visit.read() as tx:
            return any_with(tx, *(Term(field, (visit.params[name],)) for field, name in fields))

    return known


@page("/k/{kind}/{key:path}", known=_with_fields(("key", "key"), ("kind", "kind")))
def by_key(visit: Visit) -> RenderedPage | Response:
    """A deep link for log lines: the newest task of a kind with a key; without one, what there is instead."""
    kind, key = visit.params["kind"], visit.params["key"]
    exact = Term("key", (key.replace("*", ""),))
    with visit.read() as tx:
        found = search(tx, [exact, Term("kind", (kind,))], limit=1).tasks
        if not found:
            return _no_key(visit, kind, key, search(tx, [exact], limit=FEW).tasks, _newest(tx, kind))
    return RedirectResponse(f"{visit.prefix}/tasks/{found[0].id}{'.json' if visit.json else ''}", 303)


def _newest(tx: Tx, kind: str) -> Sequence[TaskRecord]:
    return search(tx, [Term("kind", (kind,))], limit=FEW).tasks


def _no_key(
    visit: Visit, kind: str, key: str, others: Sequence[TaskRecord], newest: Sequence[TaskRecord]
) -> RenderedPage:
    """No stored task of the kind has the key: how long one is kept, the key elsewhere, and the kind's newest."""
    config = visit.site.config
    data = {
        "kind": kind,
        "key": key,
        "id": None,
        "same_key": [fields(one, "id", "kind", "state") for one in others],
        "newest": [fields(one, "id", "key", "state") for one in newest],
    }
    kept = None if config is None else config.retention
    context = {"kind": kind, "key": key, "others": others, "newest": newest, "kept": kept}
    return RenderedPage(
        "key_gone.html", data, context, f"schedctl list --kind {shlex.quote(kind)}", live=False, status=404
    )


@page("/c/{text:path}", known=_with_fields(("correlation", "text")))
def by_correlation(visit: Visit) -> Response:
    """A deep link: the tasks that belong together."""
    return _filtered(visit, "correlation")


@page("/s/{text:path}", known=_with_fields(("subject", "text")))
def by_subject(visit: Visit) -> Response:
    """A deep link: the tasks about a subject."""
    return _filtered(visit, "subject")


def _filtered(visit: Visit, field: str) -> Response:
    from scheduler.console.render import query_text

    word = quoted(f"{field}:{visit.params['text']}")
    return RedirectResponse(f"{visit.prefix}/tasks{'.json' if visit.json else ''}{query_text(q=word)}", 303)
