"""What a parent's end does to its children, by the truth table of ``model/state.py``."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from scheduler.model.state import END_BIT, SCHEDULED, WAITING, EdgeVerdict, Otherwise, TaskState, When, edge_verdict
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.durable import waits
from scheduler.store.graph import spawned
from scheduler.store.graph.cancel_cascade import cancel_below
from scheduler.store.graph.descendants import tasks_below
from scheduler.store.graph.parents import broken_text, removed_text
from scheduler.store.predicates import bind_parents, from_parents, state_of

MAX_CHILDREN = 50_000  # that one statement releases (PostgreSQL) or ends: each statement has a time limit
_WHENS = tuple(When)
_OTHERWISES = tuple(Otherwise)

_MET = "(ok & :bit) <> 0"
_MEET = f"""
UPDATE schedd_tasks SET unmet = schedd_tasks.unmet - d.n,
  state = CASE WHEN schedd_tasks.unmet - d.n <= 0 THEN {SCHEDULED} ELSE schedd_tasks.state END
FROM (SELECT child, CAST(count(*) AS integer) AS n FROM schedd_edges
      WHERE {{parents}} AND {_MET} GROUP BY child) d
WHERE schedd_tasks.id = d.child AND schedd_tasks.state = {WAITING}
RETURNING schedd_tasks.state
"""
# How many edges of a child are met is looked up in sorted arrays: by a join PostgreSQL compared each with each where it
# expected few, for they were newer than its statistics, or nothing waited when it made those.
_MET_CHILDREN = "ARRAY(SELECT child FROM d ORDER BY child)"
_MET_OF_IT = f"(ARRAY(SELECT n FROM d ORDER BY child))[width_bucket(t.id, {_MET_CHILDREN})]"
# So many children at once. A million in one statement took longer than an answer is waited for.
_MEET_PG = f"""
WITH d AS MATERIALIZED (SELECT child, CAST(count(*) AS integer) AS n
  FROM (SELECT child FROM schedd_edges WHERE {{parents}} AND child + 0 > :after AND {_MET} OFFSET 0) e
  GROUP BY child ORDER BY child LIMIT {{most}}),
met AS (UPDATE schedd_tasks t SET unmet = t.unmet - {_MET_OF_IT},
  state = CASE WHEN t.unmet - {_MET_OF_IT} <= 0 THEN {SCHEDULED} ELSE t.state END
  WHERE t.id = ANY({_MET_CHILDREN}) AND t.state = {WAITING}
  RETURNING t.state)
SELECT (SELECT count(*) FROM met WHERE state = {SCHEDULED}), count(*), max(child) FROM d
"""
# No join: of one PostgreSQL expects the wrong number of rows, and reads all that waits, or compares each with each.
_BROKEN = f"""
SELECT parent, child, on_end, otherwise FROM schedd_edges
WHERE {{parents}} AND {{broken}} AND {state_of("schedd_edges.child")} = {WAITING} ORDER BY child, parent
"""
_NEVER_ON_SUCCESS = "ok IN (0, 2, 4, 6, 8, 10, 12, 14)"
_LOCK = f"SELECT t.id FROM schedd_tasks t WHERE {{among}} AND t.state = {WAITING} ORDER BY t.id FOR UPDATE OF t"
_EDGES = "SELECT parent, child, on_end, otherwise FROM schedd_edges WHERE {parents} AND ok < 15 ORDER BY parent"
_End = tuple[int, int, str, int]  # a task, its state, why, and the parent that brought it about
_END = f"""
UPDATE schedd_tasks SET state = j.state, error = j.error, error_class = 'DependencyFailed',
  ended_by = j.parent, finished_at = :now, held_key = NULL
FROM {{rows}} j WHERE schedd_tasks.id = j.id AND schedd_tasks.state = {WAITING}
RETURNING schedd_tasks.id, schedd_tasks.state
"""


def release(tx: Tx, ends: Iterable[tuple[int, TaskState]], *, unbroken: bool = False, awaited: bool = True) -> int:
    """Meet or break the edges of tasks that have just ended, and so on down. Returns how many became ready.

    Children that can no longer run are ended here, and then they are parents that have ended in their turn; so are the
    tasks that the handlers of cancelled ones spawned, and what a cascading cancel takes along. Tasks that
    await any of them are woken. ``unbroken``: none of these ends breaks an edge of something that waits; ``awaited``:
    a task may await one of them. Both are about ``ends`` only.
    """
    ready = 0
    frontier = dict(ends)
    cancelled = [task_id for task_id, state in frontier.items() if state is TaskState.CANCELLED]
    if cancelled:
        frontier |= dict.fromkeys(cancel_below(tx, cancelled), TaskState.CANCELLED)
    while frontier:
        # Broken edges first: a child that another edge makes ready in the same moment must not start.
        # Of what a cancelled one spawned only what waits for itself fails with it: the rest ends cancelled, too.
        cancelled = [task_id for task_id, state in frontier.items() if state is TaskState.CANCELLED]
        ended = {} if unbroken else _break(tx, frontier, deep=not cancelled)
        if cancelled:
            ended |= dict.fromkeys(spawned.cancel(tx, cancelled), TaskState.CANCELLED)
        if awaited:
            ready += waits.tasks_ended(tx, list(frontier))
        for bit in sorted({END_BIT[state] for state in frontier.values()}):
            ids = [task_id for task_id, state in frontier.items() if END_BIT[state] == bit]
            ready += _meet(tx, ids, bit)
        frontier, unbroken, awaited = ended, False, True  # neither is known of the next level
    return ready


def _meet(tx: Tx, ids: Sequence[int], bit: int) -> int:
    """Count down what waits for these, which have ended so. Returns how many became ready."""
    bound = bind_parents(tx.dialect, ids) | {"bit": bit}
    parents = from_parents(tx.dialect)
    if tx.dialect.name == "sqlite":
        return sum(1 for row in tx.rows(_MEET.format(parents=parents), **bound) if row[0] == SCHEDULED)
    meet = _MEET_PG.format(parents=parents, most=MAX_CHILDREN)
    ready, met, last = 0, MAX_CHILDREN, 0
    while met == MAX_CHILDREN:
        ((some, met, last),) = tx.rows(meet, **bound, after=last)
        ready += some
    return ready


def break_only(tx: Tx, ends: Mapping[int, TaskState], removed: Collection[int]) -> None:
    """End what edges on these ended parents break; satisfied edges are counted already. ``removed``: those of them
    that are no longer there, so that no child can wait for their retry."""
    ended = _break(tx, ends, removed)
    release(tx, ended.items())


def parents_removed(tx: Tx, ends: Mapping[int, TaskState]) -> None:
    """End what waits for these tasks to be retried (*otherwise* wait): they were, or are about to be, removed.

    ``ends``: how each of them ended.
    """
    if not ends:
        return
    rows = tx.run(
        "SELECT e.parent, e.child, e.on_end, e.otherwise FROM schedd_edges e "
        f"WHERE {from_parents(tx.dialect, 'e.parent')} AND e.otherwise = {_OTHERWISES.index(Otherwise.WAIT)} "
        f"AND {state_of('e.child')} = {WAITING} ORDER BY e.child, e.parent DESC",
        **bind_parents(tx.dialect, ends),
    ).fetchall()
    waits = [
        row
        for row in rows
        if edge_verdict(ends[row.parent], _WHENS[row.on_end], _OTHERWISES[row.otherwise]) is EdgeVerdict.WAIT
    ]
    if waits:
        first = {row.child: row.parent for row in waits}
        texts = [(child, TaskState.FAILED.code, removed_text(parent), parent) for child, parent in first.items()]
        release(tx, _end(tx, texts).items())


def _break(
    tx: Tx, ends: Mapping[int, TaskState], removed: Collection[int] = (), *, deep: bool = True
) -> dict[int, TaskState]:
    """End what edges on these ended parents break; ``deep``: and so on down."""
    successes = [i for i, state in ends.items() if state is TaskState.SUCCESS]
    others = [i for i, state in ends.items() if state is not TaskState.SUCCESS]
    verdicts: dict[int, list[tuple[EdgeVerdict, int]]] = {}
    for ids, broken in ((successes, _NEVER_ON_SUCCESS), (others, "ok < 15")):
        if not ids:
            continue
        sql = _BROKEN.format(parents=from_parents(tx.dialect), broken=broken)
        for parent, child, on_end, otherwise in tx.rows(sql, **bind_parents(tx.dialect, ids)):
            verdict = edge_verdict(ends[parent], _WHENS[on_end], _OTHERWISES[otherwise])
            waits_in_vain = verdict is EdgeVerdict.WAIT and parent in removed
            if verdict in (EdgeVerdict.FAIL, EdgeVerdict.SKIP) or waits_in_vain:
                verdicts.setdefault(child, []).append((verdict, parent))
    if not verdicts:
        return {}
    first = [_ended(child, found, ends) for child, found in verdicts.items()]
    return _end(tx, _all_below(tx, first) if deep else first)


def _all_below(tx: Tx, rows: list[_End]) -> list[_End]:
    """Rows of :func:`_end` for these waiting tasks, and for those below that end because of them.

    At once, not level by level: the parents' cycle waits for it, however long a chain is. What is stored below one of
    them meanwhile is found by the next search below what has ended.
    """
    down = tasks_below(tx, [row[0] for row in rows])
    if len(down) == len(rows):
        return rows
    ended = _judge_below(tx, rows, set(down))
    if tx.dialect.name == "postgresql":  # only what ends is waited for; then its edges stay as they are
        bound = {"ids": tx.dialect.bind_ids([row[0] for row in ended])}
        locked = {row[0] for row in tx.rows(_LOCK.format(among=tx.dialect.among("t.id")), **bound)}
        ended = _judge_below(tx, rows, locked)
    return ended


def _judge_below(tx: Tx, rows: list[_End], waiting: set[int]) -> list[_End]:
    """These, as far as they are among the ``waiting`` ones, and those of the others that end because of them."""
    edges: dict[int, list[tuple[int, int, int]]] = {}
    sql = _EDGES.format(parents=from_parents(tx.dialect))
    for parent, *edge in tx.rows(sql, **bind_parents(tx.dialect, waiting)):
        edges.setdefault(parent, []).append(tuple(edge))
    level = [row for row in rows if row[0] in waiting]
    ended = list(level)
    ends = {row[0]: TaskState.from_code(row[1]) for row in level}
    while level:
        verdicts: dict[int, list[tuple[EdgeVerdict, int]]] = {}
        for parent, *_ in sorted(level):
            for child, on_end, otherwise in edges.get(parent, ()):
                verdict = edge_verdict(ends[parent], _WHENS[on_end], _OTHERWISES[otherwise])
                if verdict in (EdgeVerdict.FAIL, EdgeVerdict.SKIP) and child in waiting and child not in ends:
                    verdicts.setdefault(child, []).append((verdict, parent))
        level = [_ended(child, found, ends) for child, found in verdicts.items()]
        ends |= {row[0]: TaskState.from_code(row[1]) for row in level}
        ended += level
    return ended


def _ended(child: int, found: Sequence[tuple[EdgeVerdict, int]], ends: Mapping[int, TaskState]) -> _End:
    # Failing weighs more than skipping, and a parent that is gone fails what waits for its retry.
    verdicts = {v for v, _ in found}
    verdict = next(v for v in (EdgeVerdict.FAIL, EdgeVerdict.WAIT, EdgeVerdict.SKIP) if v in verdicts)
    parents = [parent for v, parent in found if v is verdict]
    if verdict is EdgeVerdict.WAIT:
        return child, TaskState.FAILED.code, removed_text(parents[0]), parents[0]
    state = TaskState.FAILED if verdict is EdgeVerdict.FAIL else TaskState.SKIPPED
    return child, state.code, broken_text([(p, ends[p]) for p in parents[:10]], state), parents[0]


def _end(tx: Tx, rows: Sequence[_End]) -> dict[int, TaskState]:
    source = tx.dialect.rows({"id": int, "state": int, "error": str, "parent": int})
    ended: dict[int, TaskState] = {}
    for at in range(0, len(rows), MAX_CHILDREN):
        bound = {"rows": bind_rows(rows[at : at + MAX_CHILDREN]), "now": tx.now}
        ended |= {found: TaskState.from_code(code) for found, code in tx.rows(_END.format(rows=source), **bound)}
    return ended
