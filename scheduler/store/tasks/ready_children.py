"""SQLite fast path: claims newly ready children in the same write that unblocks them.

On SQLite no other writer comes between a cycle's statements. Two statements, one to release and one to claim, would
find and write each child twice, and put it into the ready index and remove it again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

from scheduler.model.state import END_BIT, SCHEDULED, WAITING, TaskState
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.statements import Columns, run, run_over
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.claim import READ_NAMES, LaneHead

MAX_CHILDREN = 1024  # dependents read with their payloads: of more than these a cycle claims few
Lane = tuple[str, str, int]
_Row = tuple[Any, ...]  # as a claim reads it, then _MORE
_MORE = ("t.run_at", "t.queue", "t.lane", "t.priority", "CASE WHEN d.whole THEN t.unmet - d.n END")
_ID, _RUN_AT, _LEFT = itemgetter(0), itemgetter(-5), itemgetter(-1)
_BY_TIME, _LANE_OF, _ID_AND_LEFT = itemgetter(-5, 0), itemgetter(-4, -3, -2), itemgetter(0, -1)
_READ = f"""
SELECT {READ_NAMES.format(t="t.")}, {", ".join(_MORE)}
FROM (SELECT child, count(*) AS n, min(ok & :bit) AS whole FROM schedd_edges WHERE parent IN {{ids}} GROUP BY child) d
JOIN schedd_tasks t ON t.id = d.child WHERE t.state = {WAITING} LIMIT :most
"""
_COUNT_DOWN = "WITH {rows} UPDATE schedd_tasks SET unmet = j.unmet FROM j WHERE schedd_tasks.id = j.id"
_LEFT_COLUMNS: Columns = (("id", int), ("unmet", int))
_SCHEDULE = f"UPDATE schedd_tasks SET state = {SCHEDULED}, unmet = 0 WHERE id IN {{ids}} AND state = {WAITING}"


class ReadyChildren:
    """Due tasks without open edges, which the transaction has yet to write.

    A claim takes and writes them, or :meth:`schedule` does. ``scheduled``: how many :meth:`schedule` has written.
    """

    def __init__(self, tx: Tx, rows: list[_Row]) -> None:
        """Keep the due rows; write those that are not due by ``now`` at once."""
        self._tx = tx
        self.scheduled = 0
        if max(map(_RUN_AT, rows), default=tx.now) > tx.now:
            self._write([row for row in rows if _RUN_AT(row) > tx.now])
            rows = [row for row in rows if _RUN_AT(row) <= tx.now]
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

    def ids(self) -> list[int]:
        """The tasks' ids."""
        return [_ID(row) for rows in self._lanes.values() for row in rows]

    def merge(self, due: Collection[LaneHead], serves: Callable[[LaneHead], bool]) -> list[LaneHead]:
        """The ``due`` lanes and the lanes of these tasks that this worker serves.

        Writes the tasks of lanes where others are due, too, so that the claim finds all in order.
        """
        known = {(head.queue, head.lane, head.priority): head for head in due}
        for lane, rows in list(self._lanes.items()):
            head = LaneHead(*lane, _RUN_AT(rows[0]), _ID(rows[0]))
            if lane in known:
                self._write(self._lanes.pop(lane))
            if serves(head):
                known[lane] = min(known.get(lane, head), head)
        return sorted(known.values(), key=itemgetter(0, 2, 1))

    def take(self, lane: Lane, most: int) -> Sequence[_Row]:
        """Take the lane's first tasks; the caller writes them. A row starts with the claim's columns."""
        rows = self._lanes.get(lane, [])
        self._lanes[lane] = rows[most:]
        return rows[:most]

    def schedule(self) -> None:
        """Write the tasks that no claim took."""
        self._write([*chain.from_iterable(self._lanes.values())])
        self._lanes.clear()

    def _write(self, rows: Sequence[_Row]) -> None:
        if rows:
            bound = {"ids": bind_rows([_ID(row) for row in rows])}
            run(self._tx.connection, _SCHEDULE.format(ids=self._tx.dialect.ids()), bound)
            self.scheduled += len(rows)


def release_and_collect(tx: Tx, succeeded: Collection[int]) -> ReadyChildren | None:
    """Satisfy the edges of tasks that have just succeeded; collect the due children unwritten.

    The transaction must hold the write lock, so that the rows that it reads stay as they are. Returns None and does
    nothing if an edge breaks, or too many tasks wait.
    """
    bound = {"ids": bind_rows([*succeeded]), "bit": END_BIT[TaskState.SUCCESS], "most": MAX_CHILDREN + 1}
    rows = tx.rows(_READ.format(ids=tx.dialect.ids()), **bound)
    left = [_LEFT(row) for row in rows]
    if len(rows) > MAX_CHILDREN or None in left:
        return None
    if max(left, default=0) > 0:
        run_over(tx, _COUNT_DOWN, _LEFT_COLUMNS, [_ID_AND_LEFT(row) for row in rows if _LEFT(row) > 0])
        rows = [row for row in rows if _LEFT(row) <= 0]
    return ReadyChildren(tx, rows)
