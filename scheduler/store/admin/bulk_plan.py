"""Plans bulks: which tasks are in the scope, which of them a verb would change, and what else that concerns.

Of a bulk with a canary: how the task that goes first ended, or what keeps it from ever running.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.errors import ConfigError, UnknownTaskError
from scheduler.model.bulk import MAX_TASKS, VERBS, BulkOptions, BulkVerb, ItemResult
from scheduler.model.state import FIRST_TERMINAL, HELD, LIVE, RUNNING, SCHEDULED, TERMINAL, TaskState
from scheduler.model.task_filter import TaskFilter, in_states
from scheduler.store import bulks
from scheduler.store.bulks import BulkRecord
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.graph import spawned
from scheduler.store.graph.cancel_cascade import below
from scheduler.store.graph.descendants import all_below, ended_below, tasks_below
from scheduler.store.read.choose import chosen_tasks, highest_id
from scheduler.store.read.ready import out_of_reach
from scheduler.store.read.tasks import ends
from scheduler.store.read.workers import fleet_of, workers
from scheduler.store.tasks import keys

if TYPE_CHECKING:
    import sqlalchemy as sa

_PAGE = 2_000
_SHOWN = 50  # ids that a plan names for each reason
_FAILED_STATES = (TaskState.FAILED, TaskState.DEAD)
_CHANGEABLE = frozenset({TaskState.WAITING, TaskState.SCHEDULED, TaskState.RETRY})
# The states in which a verb changes a task, and those that are chosen where the filter names none.
CHANGES: dict[str, tuple[frozenset[TaskState], frozenset[TaskState]]] = {
    "cancel": (LIVE, LIVE),
    "retry": (TERMINAL - {TaskState.SUCCESS} | {TaskState.RETRY}, frozenset(_FAILED_STATES)),
    "rerun": (TERMINAL, TERMINAL),
    "replay": (frozenset({TaskState.DEAD}), frozenset({TaskState.DEAD})),
    "purge": (frozenset({TaskState.DEAD}), frozenset({TaskState.DEAD})),
    "uncancel": (frozenset({TaskState.CANCELLED}), frozenset({TaskState.CANCELLED})),
    "change": (_CHANGEABLE, _CHANGEABLE),
}
_ROWS = (
    "SELECT t.id, t.kind, t.state, t.key, t.finished_at, t.run_at, t.error, t.ended_by FROM schedd_tasks t "
    "WHERE {among} ORDER BY t.id {lock}"
)


class BulkPlan(NamedTuple):
    """What a bulk would do. ``ids``: its scope, in the order in which it is done.

    ``will``: how many of them it would change; ``kinds``: kind -> state -> how many of those. ``passed``: reason ->
    how many stay as they are, and ``examples``: reason -> some of them. ``dependants``: how many other tasks may end,
    or run again, because of it. ``more``: the filter chose more than one bulk takes. ``up_to``:
    no task with a higher id is.
    """

    verb: str
    ids: list[int]
    will: int
    kinds: dict[str, dict[str, int]]
    passed: dict[str, int]
    examples: dict[str, list[int]]
    dependants: int
    more: bool
    up_to: int

    def shown(self) -> dict[str, Any]:
        """The same as it is stored."""
        given = self._asdict()
        del given["ids"], given["verb"]
        return given


def plan(
    database: Database,
    verb: BulkVerb,
    wanted: TaskFilter,
    options: BulkOptions = BulkOptions(),  # noqa: B008  # immutable
) -> BulkPlan:
    """Read what a bulk would do, in transactions of a page each. Raises ConfigError."""
    if verb not in VERBS:
        raise ConfigError(f"there is no bulk {verb!r:.80}; there are {', '.join(VERBS)}")
    _, usual = CHANGES[verb]
    if not wanted.named_states and wanted.ids is None:
        wanted = wanted.also(in_states(usual))
    ids: list[int] = []
    below_id: int | None = None
    more, up_to = True, wanted.up_to
    while more and len(ids) <= MAX_TASKS:
        with database.read() as tx:
            up_to = highest_id(tx) if up_to is None else up_to
            page, below_id = chosen_tasks(tx, wanted._replace(up_to=up_to), below_id, _PAGE)
        ids += [row.id for row in page]
        more = below_id is not None
    more, ids = more or len(ids) > MAX_TASKS, ids[:MAX_TASKS]
    if verb != "cancel":
        ids.reverse()  # parents are mostly older than what waits for them, and their children come back with them
    return _planned(database, verb, ids, options, more, up_to or 0)


def _planned(database: Database, verb: str, ids: list[int], options: BulkOptions, more: bool, up_to: int) -> BulkPlan:
    kinds: dict[str, dict[str, int]] = {}
    passed: dict[str, list[int]] = {}
    also: set[int] = set()
    will: list[int] = []
    for begin in range(0, len(ids), _PAGE):
        some = ids[begin : begin + _PAGE]
        with database.read() as tx:
            rows = rows_of(tx, some)
            reasons = _reasons(tx, verb, rows)
            for task_id in some:
                row = rows.get(task_id)
                reason = "is not there" if row is None else reasons.get(task_id)
                if row is None or reason is not None:
                    passed.setdefault(reason or "", []).append(task_id)
                    continue
                will.append(task_id)
                states = kinds.setdefault(row.kind, {})
                state = TaskState.from_code(row.state).value
                states[state] = states.get(state, 0) + 1
            also |= dependants_of(tx, verb, [i for i in some if i not in reasons], options)
    return BulkPlan(
        verb,
        ids,
        len(will),
        kinds,
        {reason: len(found) for reason, found in passed.items()},
        {reason: found[:_SHOWN] for reason, found in passed.items()},
        len(also.difference(ids)),
        more,
        up_to,
    )


def rows_of(tx: Tx, ids: Sequence[int], lock: str = "") -> dict[int, sa.Row[Any]]:
    """What a bulk needs of each of these tasks, by id. ``lock``: SQL for the SELECT."""
    sql = _ROWS.format(among=tx.dialect.among("t.id"), lock=lock)
    return {row.id: row for row in tx.run(sql, ids=tx.dialect.bind_ids(ids))}


def _reasons(tx: Tx, verb: str, rows: dict[int, sa.Row[Any]]) -> dict[int, str]:
    """Why these tasks would be passed over."""
    changes, _ = CHANGES[verb]
    found = {
        row.id: f"is {TaskState.from_code(row.state)}"
        for row in rows.values()
        if TaskState.from_code(row.state) not in changes
    }
    if verb in ("cancel", "purge"):
        return found
    keyed = [
        keys.EndedTask(row.id, row.kind, row.key, row.finished_at)
        for row in rows.values()
        if row.key is not None and row.state >= FIRST_TERMINAL and row.id not in found
    ]
    if keyed:
        refused = keys.others(tx, keyed)
        found |= {task_id: of_key(other.completed) for task_id, other in refused.items()}
    return found


def of_key(completed: bool) -> str:
    """Why a task whose key another one has is passed over."""
    return "another task has completed under its key since" if completed else "another task has its key"


def dependants_of(tx: Tx, verb: str, ids: Sequence[int], options: BulkOptions) -> set[int]:
    """The other tasks that may end, or run again, when a verb changes these."""
    if not ids or verb == "change":
        return set()
    if verb == "cancel":
        found = spawned.below(tx, ids) | set(tasks_below(tx, ids))
        return found | set(below(tx, ids, through_held=True)) if options.cascade else found
    if verb == "rerun":
        return set(all_below(tx, ids)) if options.downstream else set()
    if verb == "purge":
        return set(tasks_below(tx, ids)).difference(ids)
    return set(ended_below(tx, ids)) if options.downstream else set()


_ROW = (
    "SELECT id, kind, schema_version, queue, priority, lane, state, worker FROM schedd_tasks "
    f"WHERE id = :id AND state >= {SCHEDULED} AND state <= {RUNNING}"
)


class Canary(NamedTuple):
    """``end``: None while it has not ended, nor is removed. ``hindered``: why it does not run, and the remedy."""

    task_id: int
    end: TaskState | None
    hindered: str | None

    def describe(self) -> str:
        """Why the rest of its bulk was left alone."""
        if self.hindered is not None:
            return f"the canary, task {self.task_id}, waits: {self.hindered}"
        return f"the canary, task {self.task_id}, has not ended" if self.end is None else "the canary did not succeed"


def canary_of(tx: Tx, bulk: BulkRecord) -> Canary | None:
    """The task that went first; None: none has, or others have followed it."""
    if not bulk.options.canary or bulk.done != 1:
        return None
    task_id = bulks.items(tx, bulk.name, result=ItemResult.DONE, limit=1)[0][0].task_id
    try:
        end = ends(tx, [task_id])[task_id]
    except UnknownTaskError:
        return Canary(task_id, None, "it has been removed")
    return Canary(task_id, end, None if end is not None else _hindrance(tx, task_id))


def _hindrance(tx: Tx, task_id: int) -> str | None:
    """A pause, or that no live worker serves it; None if some worker may run it, or other tasks are before it."""
    row = tx.run(_ROW, id=task_id).first()
    if row is None:
        return None
    found, held = workers(tx), TaskState.from_code(row.state) in HELD
    if held and any(worker.id == row.worker and worker.alive for worker in found):
        return None
    cause = out_of_reach(tx, row, fleet_of(tx, found))
    if cause is None:
        return None
    words = cause.words.removeprefix(", but ")
    return words if cause.name == "paused" or cause.remedy in words else f"{words}. {cause.remedy}"
