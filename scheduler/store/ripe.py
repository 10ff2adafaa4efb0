"""Children that a turn's successes make ready, read before they are written, so that the turn claims what it releases.

Only on SQLite, where nobody comes between a turn's statements. What is released and claimed by two statements is found
twice, written twice, and enters and leaves the ready index; of a graph in layers that is each task.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.model.state import END_BIT, TaskState
from scheduler.store.claim import READ_NAMES, LaneHead
from scheduler.store.dialect import Dialect, bind_rows
from scheduler.store.statement import Columns, run, run_over

MOST = 1024  # dependents that are read, payloads and all: of many more a turn claims but few
Lane = tuple[str, str, int]
_Row = tuple[Any, ...]  # as a claim reads it, then _MORE
_MORE = ("t.run_at", "t.queue", "t.lane", "t.pool", "CASE WHEN d.whole THEN t.unmet - d.n END")
_ID, _RUN_AT, _LEFT = itemgetter(0), itemgetter(-5), itemgetter(-1)
_BY_TIME, _LANE_OF, _ID_AND_LEFT = itemgetter(-5, 0), itemgetter(-4, -3, -2), itemgetter(0, -1)
_READ = f"""
SELECT {READ_NAMES.format(t="t.")}, {", ".join(_MORE)}
FROM (SELECT child, count(*) AS n, min(ok & :bit) AS whole FROM schedd_edges WHERE parent IN {{ids}} GROUP BY child) d
JOIN schedd_tasks t ON t.id = d.child WHERE t.state = {st.WAITING} LIMIT :most
"""
_COUNT_DOWN = "WITH {rows} UPDATE schedd_tasks SET unmet = j.unmet FROM j WHERE schedd_tasks.id = j.id"
_LEFT_COLUMNS: Columns = (("id", int), ("unmet", int))
_SCHEDULE = f"UPDATE schedd_tasks SET state = {st.SCHEDULED}, unmet = 0 WHERE id IN {{ids}} AND state = {st.WAITING}"


class Ripe:
    """Tasks that nothing keeps from running any more, all due, which the transaction still has to write: by a claim
    that takes them, or by :meth:`schedule`. ``scheduled``: how many the latter has written."""

    def __init__(self, connection: sa.Connection, dialect: Dialect, rows: list[_Row], now: int) -> None:
        """Those that are not due by ``now`` are written at once."""
        self._connection = connection
        self._dialect = dialect
        self.scheduled = 0
        if max(map(_RUN_AT, rows), default=now) > now:
            self._write([row for row in rows if _RUN_AT(row) > now])
            rows = [row for row in rows if _RUN_AT(row) <= now]
        rows.sort(key=_BY_TIME)
        self._lanes: dict[Lane, list[_Row]] = {}
        lanes = set(map(_LANE_OF, rows))
        if len(lanes) == 1:  # mostly
            self._lanes = dict.fromkeys(lanes, rows)
        else:
            for row in rows:
                self._lanes.setdefault(_LANE_OF(row), []).append(row)

    def __len__(self) -> int:
        return sum(map(len, self._lanes.values()))

    def join(self, due: Collection[LaneHead], serves: Callable[[LaneHead], bool]) -> list[LaneHead]:
        """The ``due`` lanes, and those of these tasks that this worker serves. Where others are due, too, they are
        written, so that the claim finds all in their order."""
        known = {(head.queue, head.lane, head.pool): head for head in due}
        for lane, rows in list(self._lanes.items()):
            head = LaneHead(*lane, _RUN_AT(rows[0]), _ID(rows[0]))
            if lane in known:
                self._write(self._lanes.pop(lane))
            if serves(head):
                known[lane] = min(known.get(lane, head), head)
        return sorted(known.values(), key=itemgetter(0, 2, 1))

    def take(self, lane: Lane, most: int) -> Sequence[_Row]:
        """The first ones of this lane, which the caller writes. Their first columns are those that a claim reads."""
        rows = self._lanes.get(lane, [])
        self._lanes[lane] = rows[most:]
        return rows[:most]

    def schedule(self) -> None:
        """Write all that are left."""
        self._write([*chain.from_iterable(self._lanes.values())])
        self._lanes.clear()

    def _write(self, rows: Sequence[_Row]) -> None:
        if rows:
            bound = {"ids": bind_rows([_ID(row) for row in rows])}
            run(self._connection, _SCHEDULE.format(ids=self._dialect.ids()), bound)
            self.scheduled += len(rows)


def release_ripe(connection: sa.Connection, dialect: Dialect, succeeded: Collection[int], now: int) -> Ripe | None:
    """Meet the edges of tasks that have just succeeded; what becomes ready and is due by ``now`` is not written yet.

    In a transaction that has written: what is read stays so until it ends.
    None, and nothing is done, if one of these edges breaks, or too much waits for them to be read.
    """
    bound = {"ids": bind_rows([*succeeded]), "bit": END_BIT[TaskState.SUCCESS], "most": MOST + 1}
    rows = run(connection, _READ.format(ids=dialect.ids()), bound)
    left = [_LEFT(row) for row in rows]
    if len(rows) > MOST or None in left:
        return None
    if max(left, default=0) > 0:
        run_over(connection, _COUNT_DOWN, _LEFT_COLUMNS, [_ID_AND_LEFT(row) for row in rows if _LEFT(row) > 0], {})
        rows = [row for row in rows if _LEFT(row) <= 0]
    return Ripe(connection, dialect, rows, now)
