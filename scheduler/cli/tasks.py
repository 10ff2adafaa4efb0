"""``schedctl list`` and ``schedctl show``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.options import AGO, TASK_ID, Number, common
from scheduler.cli.output import cell, print_fields, print_object, print_rows, print_table, safe
from scheduler.cli.session import Session, note, note_kind, prints
from scheduler.cli.views import (
    ATTEMPT_COLUMNS,
    AUDIT_COLUMNS,
    EDGE_COLUMNS,
    ENVELOPE_FIELDS,
    LIST_COLUMNS,
    SHOW_FIELDS,
    TASK_FIELDS,
    attempt_view,
    audit_view,
    edge_view,
    task_view,
)

if TYPE_CHECKING:
    import sqlalchemy as sa

LOG_LINES = 20
_SHOWN_IF_ASKED = ("subject", "correlation")
CHILDREN = 20
ROWS = 100  # of each table: why a task does not run would be far above ten thousand of them
CHILD_COLUMNS = ("id", "kind", "state")
_NOT_SHOWN = frozenset(
    {
        "payload",
        "result",
        "error",
        "headers",
        "retry",
        "simple",
        "unmet",
        "worker_id",
        "claim",
        "attempts_used",
    }
)  # or shown apart
_USUAL = {"dead_letter": True, "rerun": False, "replay_count": 0, "schema_version": 1}  # not worth a line


def _states(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> list[Any] | None:
    from scheduler.model.state import SIMPLE_NAMES, TaskState

    found: list[TaskState] = []
    for name in (part.strip() for given in value for part in given.split(",")):
        # failed is the state, Failed the short name, which means more than that
        matching = [s for s in TaskState if name == s.value]
        matching = matching or [s for s in TaskState if name.lower() in (s.value, s.simple.lower())]
        if not matching:
            raise click.BadParameter(
                f"there is no state {name!r}; there are {', '.join(TaskState)}, and {', '.join(SIMPLE_NAMES)}"
            )
        found += matching
    return found or None


@click.command(name="list")
@click.option("--status", "states", multiple=True, callback=_states, metavar="S", help="States or short names.")
@click.option("--kind", metavar="K", help="Tasks of this kind.")
@click.option("--queue", metavar="Q", help="Tasks of this queue.")
@click.option("--key", metavar="K", help="Tasks with this key.")
@click.option("--correlation", metavar="C", help="Tasks that belong together under this id.")
@click.option("--subject", metavar="S", help="Tasks about this subject.")
@click.option("--since", type=AGO, metavar="T", help="Made since then: a time with zone, or how long ago, like 2h.")
@click.option("--limit", type=Number(1, 100_000), default=50, show_default=True, help="How many at most.")
@click.option("--cursor", type=TASK_ID, metavar="ID", help="Only tasks older than this one: the next page.")
@common
@prints(TASK_FIELDS)
def list_command(
    session: Session,
    /,
    states: list[Any] | None,
    since: int | None,
    limit: int,
    **filters: Any,
) -> None:
    """Tasks, newest first."""
    from scheduler.store.read_tasks import list_tasks

    database = session.existing()
    if since is not None and since <= 0:
        since += database.clock.now()
    with database.read() as connection:
        found, cursor = list_tasks(connection, states=states, since=since, limit=limit, **filters)
        if not found:
            note_kind(connection, filters["kind"])
    rows = [task_view(task.at(database.now())) for task in found]
    if session.output == "table" and session.columns is None:
        for row, task in zip(rows, found, strict=True):
            most = "∞" if task.max_attempts is None else task.max_attempts
            row["attempt"] = f"{task.attempts_used}/{most}"  # of the budget, which a retry by hand renews
            if row["state"] == "success":
                row["error"] = None  # an earlier attempt's
    asked = [name for name in _SHOWN_IF_ASKED if filters[name] is not None]
    columns = (*LIST_COLUMNS[:-1], *asked, LIST_COLUMNS[-1])
    print_rows(session, rows, columns)
    if cursor is not None:
        note(f"there are more: --cursor {cursor} shows the next ones")


@click.command(name="show")
@click.argument("task_id", metavar="ID", type=TASK_ID)
@common
@prints(SHOW_FIELDS)
def show_command(session: Session, /, task_id: int) -> None:
    """Everything about a task: payload, edges, attempts, result, log, and why it is not running."""
    view = view_of(session, task_id)
    if not print_object(session, view):
        print_view(view)


def view_of(session: Session, task_id: int) -> dict[str, Any]:
    """All that ``show`` tells of a task. Raises UnknownTaskError."""
    from scheduler.cli.durable_views import checkpoint_view, wait_view
    from scheduler.store import checkpoints, waits
    from scheduler.store.dead_letters import audit
    from scheduler.store.read_graph import dependencies, dependents
    from scheduler.store.read_history import attempt_log, attempts
    from scheduler.store.read_tasks import get_task
    from scheduler.store.read_workers import workers
    from scheduler.store.why import why

    database = session.existing()
    with database.read() as connection:
        now = database.now()
        task = get_task(connection, task_id)
        labels = {w.id: w.label for w in workers(connection, now)} if task.worker is not None else {}
        log = attempt_log(connection, task_id)
        return {
            **task_view(task.at(now)),
            "worker": labels.get(task.worker or 0),
            "why": why(connection, task_id, now),
            "depends_on": [edge_view(e, e.parent) for e in dependencies(connection, task_id)],
            "dependents": [edge_view(e, e.child) for e in dependents(connection, task_id)],
            "attempts": [attempt_view(a) for a in attempts(connection, task_id)],
            "children": _children(connection, task_id),
            "recorded": [checkpoint_view(c) for c in checkpoints.records(connection, task_id)],
            "waits": [] if task.state.terminal else [wait_view(w) for w in waits.records(connection, task_id)],
            "audit": [audit_view(a) for a in audit(connection, task_id)],
            "log": None if log is None else log.splitlines()[-LOG_LINES:],
        }


def _children(connection: sa.Connection, task_id: int) -> dict[str, Any]:
    """Some of the tasks that this one spawned, and how many there are."""
    from scheduler.store import children

    found, count = children.records(connection, task_id, CHILDREN)
    return {"count": count, "tasks": [{"id": c.id, "kind": c.kind, "state": c.state.value} for c in found]}


def _spawned(children: dict[str, Any]) -> str:
    count, shown = children["count"], len(children["tasks"])
    return "spawned" if count == shown else f"spawned ({shown} of {count})"


def print_view(view: dict[str, Any]) -> None:
    """The same for people."""
    from scheduler.cli.durable_views import CHECKPOINT_COLUMNS, WAIT_COLUMNS
    from scheduler.model.texts import counted

    fields: list[tuple[str, object]] = [
        (name, view[name])
        for name in TASK_FIELDS
        if name not in _NOT_SHOWN and view[name] is not None and view[name] != _USUAL.get(name)
    ]
    if view["worker"] is not None:
        fields.append(("worker", view["worker"]))
    if view["retry"] is not None:
        fields.append(("retry", view["retry"]))
    if view["headers"]:
        fields.append(("headers", view["headers"]))
    fields += [("payload", view["payload"]), ("result", view["result"]), ("error", view["error"])]
    print_fields(fields)
    click.echo()
    click.echo(f"why: {cell(view['why'])}" if view["why"] is not None else "it is running")
    edges = sorted(view["depends_on"], key=lambda edge: bool(edge["satisfied"]))  # what it waits for comes first
    for title, rows, some, columns in (
        ("depends on", view["depends_on"], edges[:ROWS], EDGE_COLUMNS),
        ("dependents", view["dependents"], view["dependents"][:ROWS], EDGE_COLUMNS),
        ("attempts", view["attempts"], view["attempts"][-ROWS:], _attempt_columns(view)),
        (_spawned(view["children"]), view["children"]["tasks"], view["children"]["tasks"], CHILD_COLUMNS),
        ("recorded", view["recorded"], view["recorded"][-ROWS:], CHECKPOINT_COLUMNS),
        ("waits for", view["waits"], view["waits"][:ROWS], WAIT_COLUMNS),
        ("audit", view["audit"], view["audit"][-ROWS:], AUDIT_COLUMNS),
    ):
        if rows:
            whole = len(some) == len(rows)
            click.echo(f"\n{title}:" if whole else f"\n{title} ({len(some)} of {len(rows)}; `-o json` has all):")
            print_table(rows if whole else some, columns, indent="  ")
    if view["log"]:
        lines = counted(len(view["log"]), "line")
        click.echo(f"\nlog (last {lines}; `schedctl logs {view['id']}` shows all):")
        for line in view["log"]:
            click.echo(f"  {safe(line)}")


def _attempt_columns(view: dict[str, Any]) -> tuple[str, ...]:
    """The usual ones; what an attempt's message said where that was not what the task says now; answers of others."""
    attempts, now = view["attempts"], view | {"message_type": view["message_type"] or view["kind"]}
    other = [name for name in ENVELOPE_FIELDS if name in now and any(a[name] != now[name] for a in attempts)]
    if any(a["status_code"] is not None for a in attempts):
        other.append("status_code")
    return (*ATTEMPT_COLUMNS[:-1], *other, ATTEMPT_COLUMNS[-1])
