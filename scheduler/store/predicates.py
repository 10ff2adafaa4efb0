"""Conditions with names: of states, and of a few rows asked for by their index, whatever the planner knows.

Once a wide fan-out has been analysed, PostgreSQL's statistics say that nearly all edges have one parent. So of
``parent = <a value that is not known yet>`` it expected nearly all, and read the whole table, in each cycle. Of a range
between two such values it expects the same small part always; that they are one and the same it does not see.
"""

from __future__ import annotations

from collections.abc import Collection

from scheduler.model.state import CLAIMED, FAILED, FIRST_TERMINAL, RUNNING, SCHEDULED, SUSPENDED
from scheduler.store.db.dialect import Dialect


def claimable(task: str = "") -> str:
    """The condition that a task may be claimed, in the words of its index. ``task``: the table's alias, if any."""
    state = f"{task}.state" if task else "state"
    return f"{state} >= {SCHEDULED} AND {state} <= {SUSPENDED}"


def held(task: str = "") -> str:
    """The condition that a worker has claimed a task, in the words of its index. ``task``: the table's alias."""
    state = f"{task}.state" if task else "state"
    return f"{state} >= {CLAIMED} AND {state} <= {RUNNING}"


def ended_as(state: int | str, task: str = "", *, since: str = "0", before: str | None = None) -> str:
    """The condition that a task ended in this unsuccessful state, in an order that its index has: (state, finished_at).

    ``since``, ``before``: of its end. Compared as rows: of ``state =`` SQLite may believe, once it has counted, that
    nearly all rows of the index have it, so it would read and sort them for the first ten.
    """
    t = f"{task}." if task else ""
    top = f"({state}, {before})" if before else f"({state} + 1, 0)"
    ended = f"({t}state, {t}finished_at)"
    return f"{ended} >= ({state}, {since}) AND {ended} < {top} AND {t}state >= {FAILED}"


def same(column: str, value: str) -> str:
    """The condition that ``column``, the first one of an index, is ``value``, which the planner does not know.

    Of an index whose other columns are asked for, too, it is for the last of these, and the others are given by ``=``:
    a range of the first would read all entries that agree in it.
    """
    return f"{column} >= {value} AND {column} <= {value}"


def exists(column: str, rows: str) -> str:
    """Whether there is one of these ``rows``, "FROM … WHERE …", looked for in the order of ``column``'s index.

    ``OFFSET 0`` keeps PostgreSQL from making a join of it, which it may carry out by comparing each with each.
    """
    return f"EXISTS (SELECT 1 {rows} ORDER BY {column} LIMIT 1 OFFSET 0)"


def is_parent(task: str) -> str:
    """Whether edges lead from ``task``, a column of the statement."""
    return exists("e.parent", f"FROM schedd_edges e WHERE {same('e.parent', task)}")


def from_parents(dialect: Dialect, column: str = "parent") -> str:
    """The condition that an edge leads from one of the tasks that :func:`bind_parents` has bound.

    The range that they lie in is for the planner only, so its ends are not among the conditions.
    """
    if dialect.name == "sqlite":
        return dialect.among(column)
    within = f"{column} >= (SELECT CAST(:low AS bigint)) AND {column} <= (SELECT CAST(:high AS bigint))"
    return f"{dialect.among(column)} AND {within}"


def bind_parents(dialect: Dialect, ids: Collection[int]) -> dict[str, object]:
    """Tasks as :func:`from_parents` reads them."""
    ordered = sorted(ids)
    return {"ids": dialect.bind_ids(ordered), "low": min(ordered, default=0), "high": max(ordered, default=0)}


def state_of(task: str) -> str:
    """The state of ``task``, a column of the statement. Looked up by its id alone: where the statistics know of nothing
    that waits, PostgreSQL would begin a join with all that does."""
    return f"(SELECT x.state FROM schedd_tasks x WHERE x.id = {task})"


def recorded(task: str) -> str:
    """How ``task``, a column of the statement, ended, if retention has removed it since."""
    return f"(SELECT y.state FROM schedd_outcomes y WHERE y.task_id = {task})"


def is_live(task: str) -> str:
    """Whether ``task`` has not ended."""
    return f"{state_of(task)} < {FIRST_TERMINAL}"


CLAIMABLE, HELD = claimable(), held()
IS_HELD = f"BETWEEN {CLAIMED} AND {RUNNING}"  # after a column that is no part of an index there
# Whether retention has looked at a success, ``{}``, since its result's time was over, and nothing needed that: one that
# is not there is gone then, and not None.
IS_GONE = "coalesce({0}.kept_until > {0}.result_until, false)"
