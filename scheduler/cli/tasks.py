"""``schedctl list``, ``schedctl show`` and ``schedctl why``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli.columns import (
    ATTEMPT_COLUMNS,
    AUDIT_COLUMNS,
    EDGE_COLUMNS,
    ENVELOPE_FIELDS,
    LIST_COLUMNS,
    LIST_FIELDS,
    PLACEMENT_COLUMNS,
    SCREEN_COLUMNS,
    SHOW_FIELDS,
    TASK_FIELDS,
    task_view,
)
from scheduler.cli.echo import say
from scheduler.cli.filters import filter_options, filter_text, note_kinds, task_filter
from scheduler.cli.options import AGO, TASK_ID, Number, common
from scheduler.cli.output import (
    cell,
    masks_of,
    print_fields,
    print_object,
    print_rows,
    print_table,
    reveals,
    terminal_width,
)
from scheduler.cli.polling import watchable
from scheduler.cli.session import Session, note, note_queue, prints

if TYPE_CHECKING:
    from scheduler.operations.details import TaskRecord

PAGE = 1000  # tasks that `list -o jsonl` holds at a time
WINDOW = 1_000_000  # tasks that `list` looks at where no index leads to those asked for, in one transaction
_SHOWN_IF_ASKED = ("subject", "correlation", "schedule")
ROWS = 100  # of each table: why a task does not run would be far above ten thousand of them
_PAST = ("id", "kind", "at", "state", "phase", "since", "attempt")
_WHY = ("id", "kind", "state", "why")
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


@click.command(name="list")
@filter_text
@filter_options(without=("limit",))
@click.option("--worker", type=Number(1, 2**63 - 1), metavar="ID", help="Tasks that this worker holds.")
@click.option(
    "--since", type=AGO, metavar="T", help="Made since this time (with its zone), or this long ago, such as 2h."
)
@click.option("--until", type=AGO, metavar="T", help="Made before this time, likewise.")
@click.option("--limit", type=Number(1, 100_000), default=50, show_default=True, help="At most this many.")
@click.option("--cursor", type=TASK_ID, metavar="ID", help="Only tasks older than this one: the next page.")
@click.option("--all", "every", is_flag=True, help=f"Look at all tasks, not at the newest {WINDOW:,} only.")
@reveals
@common
@prints(LIST_FIELDS, only_reads=True)
@watchable
def list_command(
    session: Session,
    /,
    text: str,
    since: int | None,
    until: int | None,
    worker: int | None,
    limit: int,
    cursor: int | None,
    every: bool,
    reveal: bool,
    **filters: Any,
) -> None:
    """Tasks, newest first.

    Filters that no index serves, such as a kind or a queue without a state, look at the newest tasks only. The
    command says where it stopped if there are older ones.
    """
    from scheduler.model.task_filter import BEFORE, SINCE, Term, only
    from scheduler.operations.search import Window, search

    wanted = task_filter(session, text, filters, bare=True)
    store = session.reader
    for at, how in ((since, SINCE), (until, BEFORE)):
        if at is not None:
            wanted = wanted.also(Term("stored", (at + store.clock.now() if at <= 0 else at,), how=how))
    if worker is not None:
        wanted = wanted.also(only("worker", worker))
    left, window = limit, Window(WINDOW)
    collected: list[TaskRecord] = []
    asked = [name for name in _SHOWN_IF_ASKED if wanted.of(name)]
    on_screen = terminal_width() is not None
    usual = SCREEN_COLUMNS if on_screen else LIST_COLUMNS
    columns = (*usual[:-1], *asked, usual[-1])
    in_pages = session.output == "jsonl"  # lines can be printed page by page, so that no more is held than one
    stopped = False
    while left and not stopped:
        page = min(left, PAGE) if in_pages else left
        with store.read() as tx:
            found = search(tx, wanted, limit=page, cursor=cursor, window=window, broken=note)
        cursor = found.cursor
        left -= len(found.tasks)
        collected += found.tasks
        if in_pages:
            print_rows(session, _list_rows(session, found.tasks, store.now(), reveal=reveal), columns)
            collected.clear()
        if found.bound and every:
            window = Window(WINDOW)
        stopped = cursor is None or (found.bound and not every)
    if left == limit:
        with store.read() as tx:
            note_kinds(tx, wanted)
            for queue in wanted.names("queue") or ():
                note_queue(tx, queue)
    if not in_pages:
        if on_screen and "schedule" not in columns and any(one.schedule is not None for one in collected):
            columns = (*columns[:-1], "schedule", columns[-1])
        print_rows(session, _list_rows(session, collected, store.now(), reveal=reveal), columns)
    if cursor is None:
        return
    if left:
        note(
            f"looked at {window.looked:,} tasks, down to {cursor}, and there are older ones: --cursor {cursor} looks "
            "on from there, --all at all of them"
        )
    else:
        note(f"stopped at {limit}, there are more: --cursor {cursor} shows the next ones")


def _list_rows(session: Session, found: list[TaskRecord], now: int, *, reveal: bool) -> list[dict[str, Any]]:
    rows = [task_view(task.at(now)) | {"age": max(0, now - task.created_at) / 1_000_000} for task in found]
    if reveal:
        from scheduler.operations.masks import note_reveal

        note_reveal(session.desk, found)
    else:
        with session.reader.read() as tx:
            hidden = masks_of(tx, {task.kind for task in found})
            rows = [hidden.view(task, row) for task, row in zip(found, rows, strict=True)]
    if session.output == "table" and session.columns is None:
        for row, task in zip(rows, found, strict=True):
            row["attempt"] = _of_budget(task.attempts_used, task.max_attempts)
            if row["state"] == "success":
                row["error"] = None  # an earlier attempt's
    return rows


def _of_budget(used: int, most: int | None) -> str:
    """``1/3``: attempts used of the budget, which a retry by hand renews; ``1/1 +1``: and so many more, since a task
    whose worker dies runs again."""
    if most is None:
        return f"{used}/∞"
    return f"{min(used, most)}/{most}" + (f" +{used - most}" if used > most else "")


@click.command(name="show")
@click.argument("ids", metavar="ID…", type=TASK_ID, nargs=-1, required=True)
@reveals
@click.option(
    "--at", type=AGO, metavar="T", help="The tasks at this time (with its zone), or this long ago, such as 2h."
)
@common
@prints(lambda given: SHOW_FIELDS if given["at"] is None else _PAST, only_reads=True)
@watchable
def show_command(session: Session, /, ids: tuple[int, ...], at: int | None, reveal: bool) -> None:
    """Everything about tasks: payload, edges, attempts, result, log, and the reason why one is not running.

    With --at you see them at a past time, as far as it is recorded. For several tasks -o json prints a list. Fields
    that the kind marks as secret are hidden.
    """
    if at is not None:
        _show_at(session, ids, at)
        return
    views = [view_of(session, task_id, reveal=reveal) for task_id in ids]
    if len(views) > 1 and session.output != "table":
        print_rows(session, views)
        return
    for number, view in enumerate(views):
        if number:
            say()
        if not print_object(session, view):
            print_view(view)


def _show_at(session: Session, ids: tuple[int, ...], at: int) -> None:
    from scheduler.client.analysis import past_task_view
    from scheduler.operations.analysis import task_at
    from scheduler.operations.details import get_task

    with session.existing().read() as tx:
        instant = tx.now + at if at <= 0 else at
        rows = [past_task_view(task_at(tx, i, instant), get_task(tx, i).kind) for i in ids]
    print_rows(session, rows, _PAST)


@click.command(name="why")
@click.argument("ids", metavar="ID…", type=TASK_ID, nargs=-1, required=True)
@common
@prints(_WHY)
@watchable
def why_command(session: Session, /, ids: tuple[int, ...]) -> None:
    """Why tasks do not run, or how they ended."""
    from scheduler.operations.details import get_task, reason

    rows = []
    with session.desk.read() as tx:
        for task_id in ids:
            task = get_task(tx, task_id)
            state = task.at(tx.now).state.value
            row = {"id": task_id, "kind": task.kind, "state": state, "why": reason(tx, task)}
            rows.append(masks_of(tx, [task.kind]).view(task, row))
    print_rows(session, rows, whole=True)


def view_of(session: Session, task_id: int, *, reveal: bool = False) -> dict[str, Any]:
    """All that ``show`` prints of a task; without its secrets, unless ``reveal``. Raises UnknownTaskError."""
    from scheduler.client.json_views import whole_task_view
    from scheduler.operations.details import get_task
    from scheduler.operations.masks import note_reveal

    if reveal:
        with session.desk.read() as tx:
            task = get_task(tx, task_id)
        note_reveal(session.desk, [task])
    with session.reader.read() as tx:
        task = get_task(tx, task_id)
        view = whole_task_view(tx, task)
        return view if reveal else masks_of(tx, [task.kind]).view(task, view)


def _spawned(children: dict[str, Any]) -> str:
    count, shown = children["count"], len(children["tasks"])
    return "spawned" if count == shown else f"spawned ({shown} of {count})"


def print_view(view: dict[str, Any]) -> None:
    """The same for people."""
    from scheduler.cli.columns import CHECKPOINT_COLUMNS, WAIT_COLUMNS
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
    say()
    say(f"why: {cell(view['why'])}" if view["why"] is not None else view["runs"] or "it is running")
    edges = sorted(view["depends_on"], key=lambda edge: bool(edge["satisfied"]))  # what it waits for comes first
    for title, rows, some, columns in (
        ("depends on", view["depends_on"], edges[:ROWS], EDGE_COLUMNS),
        ("dependents", view["dependents"], view["dependents"][:ROWS], EDGE_COLUMNS),
        ("attempts", view["attempts"], view["attempts"][-ROWS:], _attempt_columns(view)),
        (_spawned(view["children"]), view["children"]["tasks"], view["children"]["tasks"], CHILD_COLUMNS),
        ("placements", view["placements"], view["placements"][-ROWS:], PLACEMENT_COLUMNS),
        ("recorded", view["recorded"], view["recorded"][-ROWS:], CHECKPOINT_COLUMNS),
        ("waits for", view["waits"], view["waits"][:ROWS], WAIT_COLUMNS),
        ("audit", view["audit"], view["audit"][-ROWS:], AUDIT_COLUMNS),
    ):
        if rows:
            whole = len(some) == len(rows)
            say(f"\n{title}:" if whole else f"\n{title} ({len(some)} of {len(rows)}; `-o json` has all):")
            print_table(rows if whole else some, columns, indent="  ")
    if view["stack"]:
        say("\nit hangs in:" if view["standing"] is None else f"\nit stands, since {view['standing']['since']}, in:")
        for line in view["stack"]:
            say(f"  {line}")
    if view["log"]:
        lines = counted(len(view["log"]), "line")
        say(f"\nlog (last {lines}; `schedctl logs {view['id']}` shows all):")
        for line in view["log"]:
            say(f"  {line}")


def _attempt_columns(view: dict[str, Any]) -> tuple[str, ...]:
    """The usual columns; envelope fields that the task has changed since; status codes of other services."""
    attempts, now = view["attempts"], view | {"message_type": view["message_type"] or view["kind"]}
    other = [name for name in ENVELOPE_FIELDS if name in now and any(a[name] != now[name] for a in attempts)]
    if any(a["status_code"] is not None for a in attempts):
        other.append("status_code")
    if any(a["trace_id"] is not None for a in attempts):
        other.append("trace_id")
    return (*ATTEMPT_COLUMNS[:-1], *other, ATTEMPT_COLUMNS[-1])
