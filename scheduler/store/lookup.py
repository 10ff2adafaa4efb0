"""Asking for a few rows by their index, whatever the planner thinks it knows of the table; on both databases.

Once a wide fan-out has been analysed, PostgreSQL's statistics say that nearly all edges have one parent. So of
``parent = <a value that is not known yet>`` it expected nearly all, and read the whole table, at each turn. Of a range
between two such values it expects the same small part always; that they are one and the same it does not see.
"""

from __future__ import annotations

from scheduler.model import state as st


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


def lives(task: str) -> str:
    """Whether ``task``, a column of the statement, is a task that has not ended. Looked up by its id alone: where the
    statistics know of nothing that waits, PostgreSQL would begin with all that does."""
    return f"(SELECT x.state FROM schedd_tasks x WHERE x.id = {task}) < {st.FIRST_TERMINAL}"
