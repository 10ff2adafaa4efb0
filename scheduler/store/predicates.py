"""Asking for a few rows by their index, whatever the planner thinks it knows of the table; on both databases.

Once a wide fan-out has been analysed, PostgreSQL's statistics say that nearly all edges have one parent. So of
``parent = <a value that is not known yet>`` it expected nearly all, and read the whole table, in each cycle. Of a range
between two such values it expects the same small part always; that they are one and the same it does not see.
"""

from __future__ import annotations

from collections.abc import Collection

from scheduler.model import state as st
from scheduler.store.db.dialect import Dialect


def same(column: str, value: str) -> str:
    """The condition that ``column``, the first one of an index, is ``value``, which the planner does not know."""
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

    The range that they lie in is for the planner only, which is why it is not told its ends.
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


def lives(task: str) -> str:
    """Whether ``task`` has not ended."""
    return f"{state_of(task)} < {st.FIRST_TERMINAL}"


# Whether retention has looked at a success, ``{}``, since its result's time was over, and nothing needed that: one that
# is not there is gone then, and not None.
IS_GONE = "coalesce({0}.kept_until > {0}.result_until, false)"
