"""``schedctl compare``: a run beside an earlier one."""

from __future__ import annotations

from typing import Any

import click

from scheduler.cli import exits
from scheduler.cli.options import TASK_ID, common
from scheduler.cli.output import cell, print_object, print_table
from scheduler.cli.session import Session, note, prints
from scheduler.cli.streams import say

_FIELDS = ("task", "other", "time", "other_time", "roles", "payload", "log", "truncated")


@click.command(name="compare")
@click.argument("task_id", metavar="ID", type=TASK_ID)
@click.argument("other", metavar="[OTHER]", type=TASK_ID, required=False)
@common
@prints(_FIELDS)
def compare_command(session: Session, /, task_id: int, other: int | None) -> int:
    """A task and its graph beside an earlier run: times, ends, payload, log.

    OTHER defaults to the last good run of the schedule that made the task. Without a schedule, it is the last good
    task of the same kind whose correlation and key differ only in numbers. The status is 3 if there is none.
    """
    from scheduler.client.analysis_views import comparison_view
    from scheduler.operations.analysis import beside

    with session.desk.read() as tx:
        found = beside(tx, task_id, other)
    if found is None:
        note(f"there is no earlier good run to compare task {task_id} with: name a task")
        return exits.UNKNOWN
    view: dict[str, Any] = comparison_view(found.found) | {
        "payload": [change._asdict() for change in found.payload],
        "log": found.log.lines,
    }
    if print_object(session, view):
        return exits.DONE
    say(f"task {view['task']} beside task {view['other']}, which is the left one")
    print_table([_row(role) for role in view["roles"]], ("kind", "tasks", "run_time", "attempts", "states"))
    for change in view["payload"]:
        before = "-" if change["added"] else cell(change["before"])
        say(f"payload {change['path'] or '(whole)'}: {before} > {'-' if change['removed'] else cell(change['after'])}")
    for line in view["log"]:
        say(cell(line))
    if found.log.truncated:
        note("only the last 2,000 lines of the logs are compared")
    return exits.DONE


def _row(role: dict[str, Any]) -> dict[str, Any]:
    def pair(name: str, shown: Any = cell) -> str:
        one, other = shown(role[f"other_{name}"]), shown(role[name])
        return str(one) if one == other else f"{one} > {other}"

    return {
        "kind": role["kind"] or "(removed)",
        "tasks": pair("tasks", len),
        "run_time": pair("run_time"),
        "attempts": pair("attempts"),
        "states": pair("states", lambda states: ", ".join(f"{n} {s}" for s, n in states.items()) or "-"),
    }
