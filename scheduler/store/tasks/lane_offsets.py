"""Finds ready work behind dead index entries, on PostgreSQL.

While a transaction holds an old snapshot, or before vacuum has run, the ready index still lists tasks that were claimed
long ago. A scan from a lane's start reads all of them. These statements begin at a place in each lane, and search for
other lanes only between the known ones, so they read no dead entry in front of a place.
"""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.store.db.statements import Columns, run_over
from scheduler.store.db.tx import Tx
from scheduler.store.predicates import CLAIMABLE
from scheduler.store.tasks.claim import LaneHead

Lane = tuple[str, str, int]  # queue, lane, priority
Place = tuple[int, int]  # run_at, id

_LANE_COLUMNS: Columns = (("queue", str), ("lane", str), ("priority", int))
_PLACE_COLUMNS: Columns = (*_LANE_COLUMNS, ("from_at", int), ("from_id", int))
_HEADS_FROM = f"""
WITH {{rows}}
SELECT j.queue, j.lane, j.priority, h.run_at, h.id FROM j CROSS JOIN LATERAL (
  SELECT t.run_at, t.id FROM schedd_tasks t
  WHERE {CLAIMABLE} AND t.queue = j.queue AND t.priority = j.priority AND t.lane = j.lane
    AND (t.run_at, t.id) >= (j.from_at, j.from_id)
  ORDER BY t.run_at, t.id LIMIT 1) h
"""
# From one known lane to the next, as the index orders them, which Python cannot know: that depends on the collation.
# The last stretch has no end, which a comparison with NULL would not let anything pass.
_FIRST_IN = f"""
  SELECT t.queue, t.lane, t.priority, t.run_at, t.id FROM schedd_tasks t
  WHERE {CLAIMABLE} AND (t.queue, t.priority, t.lane) > (g.queue, g.priority, g.lane) {{end}}
  ORDER BY t.queue, t.priority, t.lane, t.run_at, t.id LIMIT 1
"""
_LANES_BETWEEN = f"""
WITH {{rows}}, known AS (SELECT queue, priority, lane FROM j UNION ALL SELECT '', -1, ''), gap AS (
  SELECT queue, priority, lane, lead(queue) OVER w AS to_queue, lead(priority) OVER w AS to_priority,
    lead(lane) OVER w AS to_lane
  FROM known WINDOW w AS (ORDER BY queue, priority, lane)
)
SELECT n.* FROM gap g CROSS JOIN LATERAL (
  {_FIRST_IN.format(end="AND (t.queue, t.priority, t.lane) < (g.to_queue, g.to_priority, g.to_lane)")}) n
UNION ALL
SELECT n.* FROM gap g CROSS JOIN LATERAL ({_FIRST_IN.format(end="")}) n WHERE g.to_queue IS NULL
"""


def heads_from(tx: Tx, places: Mapping[Lane, Place]) -> list[LaneHead]:
    """The first claimable task at or behind its place, of each of these lanes that has one."""
    rows = [(*lane, *place) for lane, place in places.items()]
    return [LaneHead._make(row) for row in run_over(tx, _HEADS_FROM, _PLACE_COLUMNS, rows)]


def lanes_between(tx: Tx, known: Mapping[Lane, Place]) -> list[LaneHead]:
    """Heads of lanes that are not among ``known``, one of each stretch between two of those; ask again for more."""
    return [LaneHead._make(row) for row in run_over(tx, _LANES_BETWEEN, _LANE_COLUMNS, list(known))]
