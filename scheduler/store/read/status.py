"""How things stand: counts, the oldest ready task, the workers, and what is stuck."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scheduler.model import state as st
from scheduler.model.defaults import POOLS
from scheduler.model.lanes import QUARANTINE_LANE, executor_of, kind_of
from scheduler.model.state import Otherwise, TaskState
from scheduler.model.texts import counted, listed, span_text
from scheduler.model.times import SECOND
from scheduler.ports import FOREVER
from scheduler.store import pauses
from scheduler.store.broken_rows import UNREADABLE, broken_rows
from scheduler.store.db.tx import Tx
from scheduler.store.db.writable import no_writes
from scheduler.store.inbox_held import Held, held, held_texts
from scheduler.store.pauses import Pause
from scheduler.store.predicates import CLAIMABLE, HELD
from scheduler.store.read import dead_letters
from scheduler.store.read.counts import about, pools
from scheduler.store.read.explain import CLOCK_AHEAD, ready_since
from scheduler.store.read.stuck import Stuck, of_transports, of_workers
from scheduler.store.read.unserved import describe, unserved_schedules
from scheduler.store.read.workers import (
    Fleet,
    WorkerRecord,
    fleet_of,
    read_fleet,
    workers,
)
from scheduler.store.schedules import is_ahead
from scheduler.store.tasks import stalls
from scheduler.store.tasks.claim import LaneHead, lane_heads

MAX_COUNTED = 100_000  # tasks of each index that are counted
_MAX_COUNT = 10_000  # counts of what is stuck end here
_EXAMPLES = 5
HELD_LONG = 86_400 * SECOND  # a message that waits longer for those before it than most gaps may last
_LANES, _FIRST = 20, 500  # lanes of one kind, and tasks of each, among which those are looked for that are too new
_SCHEDULE_LATE = 60 * SECOND  # a schedule this late is stuck
_MAX_HEADS = 20  # lanes looked at for the oldest ready task
_WAIT = list(Otherwise).index(Otherwise.WAIT)


class PoolCount(NamedTuple):
    """Tasks of one priority: due now, later, claimed or running; and the slots that live workers have for it."""

    due: int
    later: int
    held: int
    slots: int
    async_slots: int


class ReadyTask(NamedTuple):
    """A task that only wants a worker. ``since``: microseconds."""

    id: int
    kind: str
    queue: str
    since: int


class PausedWork(NamedTuple):
    """A pause, and how many tasks are due behind it, up to a bound."""

    pause: Pause
    due: int


class Status(NamedTuple):
    """What ``schedctl status`` tells. Counts end at a number of tasks of each index, and of each priority."""

    states: dict[str, int]
    pools: dict[str, PoolCount]
    oldest: ReadyTask | None
    oldest_dead: int | None  # when the oldest dead letter died
    workers: list[WorkerRecord]
    stuck: list[Stuck]
    paused: list[PausedWork]
    capped: frozenset[str] = frozenset()  # states that may have more
    held: Sequence[Held] = ()  # messages that wait for others before them


def status(tx: Tx, most: int = MAX_COUNTED) -> Status:
    """How things stand at ``now`` (microseconds). Reads narrow indexes only.

    ``most``: tasks of each index, and of each priority, that are counted.
    """
    found = workers(tx)
    fleet = fleet_of(tx, found)
    heads = lane_heads(tx)
    due = _due_of(heads, tx.now)
    states, capped = about(tx, most)
    stuck, broken = [], any(name not in set(TaskState) for name in states)
    parts: list[Callable[[], list[Stuck]]] = [
        lambda: _writes(tx),
        lambda: _unserved(tx, due, fleet),
        lambda: _overdue(tx),
        lambda: _stalled(tx, found),
        lambda: never(tx),
        lambda: of_workers(found),
        lambda: of_transports(found, tx.now),
        lambda: _held(tx),
        lambda: _late_schedules(tx),
        lambda: _ahead(tx),
        lambda: _runs(tx, fleet),
    ]
    for part in parts:
        try:
            stuck += part()
        except UNREADABLE:
            broken = True
    if broken:
        rows = broken_rows(tx)
        text = f"{listed([one.text for one in rows])}: `schedctl doctor` tells what to do"
        stuck.append(
            Stuck("broken", text, len(rows), tuple(one.task for one in rows if one.task is not None)[:_EXAMPLES])
        )
    return Status(
        states,
        _pools(tx, fleet, heads, most),
        _oldest(tx, due),
        dead_letters.oldest(tx),
        found,
        stuck,
        paused_work(tx, due),
        capped,
        held(tx),
    )


def _held(tx: Tx) -> list[Stuck]:
    """Messages that have waited so long for others that no daemon can be letting them go."""
    long = [one for one in held(tx) if tx.now - one.since > HELD_LONG]
    return [Stuck("held", text, one.number) for one, text in zip(long, held_texts(long, tx.now), strict=True)]


def paused_work(tx: Tx, due: list[LaneHead]) -> list[PausedWork]:
    """What is paused, and how many of the due lanes' tasks wait behind each pause."""
    found = []
    for pause in pauses.records(tx):
        behind = [head for head in due if pause.holds(head.queue, kind_of(head.lane))]
        found.append(PausedWork(pause, sum(len(_due_ids(tx, head)) for head in behind[:_MAX_HEADS])))
    return found


def _pools(tx: Tx, fleet: Fleet, heads: list[LaneHead], most: int) -> dict[str, PoolCount]:
    ready, held = pools(tx, heads, most), {0: 0, 1: 0, 2: 0}
    for row in tx.run(f"SELECT priority, count(*) AS n FROM schedd_tasks WHERE {HELD} GROUP BY priority"):
        held[row.priority] = row.n
    slots = {name: [w.capacity.pools[name] for w in fleet.claiming] for name in POOLS}
    return {
        name: PoolCount(
            ready.due[priority],
            ready.later[priority],
            held[priority],
            sum(s for s, _ in slots[name]),
            sum(a for _, a in slots[name]),
        )
        for priority, name in enumerate(POOLS)
    }


def _oldest(tx: Tx, due: list[LaneHead]) -> ReadyTask | None:
    found = []
    for head in due[:_MAX_HEADS]:
        row = tx.run(
            f"SELECT id, kind, queue, run_at FROM schedd_tasks WHERE {CLAIMABLE} "
            "AND queue = :queue AND lane = :lane AND priority = :priority ORDER BY run_at, id LIMIT 1",
            **head._asdict(),
        ).first()
        if row is not None:
            found.append(ReadyTask(row.id, row.kind, row.queue, ready_since(tx, row.id, row.run_at)))
    return min(found, key=lambda r: (r.since, r.id), default=None)


def _due(tx: Tx) -> list[LaneHead]:
    return _due_of(lane_heads(tx), tx.now)


def _due_of(heads: list[LaneHead], now: int) -> list[LaneHead]:
    return sorted((h for h in heads if h.run_at <= now), key=lambda h: h.run_at)


def unserved(tx: Tx) -> list[Stuck]:
    """Ready tasks that no live worker would claim, by reason and kind."""
    return _unserved(tx, _due(tx), read_fleet(tx))


def _unserved(tx: Tx, due: list[LaneHead], fleet: Fleet) -> list[Stuck]:
    groups: dict[tuple[str, str, int, bool, str], list[LaneHead]] = {}
    for head in due:
        suspect, executor = head.lane.startswith(QUARANTINE_LANE), executor_of(head.lane) or ""
        groups.setdefault((head.queue, kind_of(head.lane), head.priority, suspect, executor), []).append(head)
    rows: dict[str, tuple[int, list[int]]] = {}
    for (queue, kind, priority, suspect, executor), heads in sorted(groups.items()):
        reason = fleet.unserved(queue, kind, priority=None if suspect else priority, executor=executor or None)
        if reason is None and executor:
            continue
        if reason is None:
            version, ids = _too_new(tx, heads, fleet.newest(queue, kind))
            reason = fleet.unserved(queue, kind, version)
        elif rows.get(reason, (0, []))[0] < _MAX_COUNT:  # more are not counted
            ids = [i for head in heads for i in _due_ids(tx, head)]
        else:
            ids = []
        if reason is not None:
            count, examples = rows.get(reason, (0, []))
            rows[reason] = (count + len(ids), (examples + ids)[:_EXAMPLES])
    return [
        Stuck("unserved", f"{_about(count)} ready, but {reason}", count, tuple(ids))
        for reason, (count, ids) in rows.items()
    ]


def _due_ids(tx: Tx, head: LaneHead) -> list[int]:
    rows = tx.run(
        f"SELECT id FROM schedd_tasks WHERE {CLAIMABLE} AND queue = :queue AND lane = :lane "
        f"AND priority = :priority AND run_at <= :now ORDER BY run_at, id LIMIT {_MAX_COUNT}",
        **head._asdict(),
        now=tx.now,
    )
    return [row[0] for row in rows]


def _too_new(tx: Tx, heads: list[LaneHead], newest: int) -> tuple[int, list[int]]:
    """Among the first of these lanes: the highest schema_version over ``newest`` (0: there is none), and its tasks."""
    found: list[tuple[int, int]] = []
    for head in heads[:_LANES]:
        rows = tx.run(
            "SELECT schema_version, id FROM (SELECT id, schema_version FROM schedd_tasks WHERE state >= 1 "
            "AND state <= 3 AND queue = :queue AND lane = :lane AND priority = :priority AND run_at <= :now "
            f"ORDER BY run_at, id LIMIT {_FIRST}) t WHERE schema_version > :newest",
            **head._asdict(),
            now=tx.now,
            newest=newest,
        )
        found += [(row[0], row[1]) for row in rows]
    return max(found, default=(0, 0))[0], sorted(task_id for _, task_id in found)


def _about(count: int) -> str:
    return (
        f"{_MAX_COUNT} tasks or more are"
        if count >= _MAX_COUNT
        else f"{counted(count, 'task')} {'is' if count == 1 else 'are'}"
    )


def _overdue(tx: Tx) -> list[Stuck]:
    rows = tx.run(
        f"SELECT id, started_at, timeout FROM schedd_tasks WHERE {HELD} AND worker IS NOT NULL "
        "AND timeout IS NOT NULL AND started_at + timeout < :now ORDER BY started_at",
        now=tx.now,
    ).fetchall()
    if not rows:
        return []
    longest = max(tx.now - row.started_at - row.timeout for row in rows)
    text = f"{_about(len(rows))} running past the timeout, by up to {span_text(longest)}"
    return [Stuck("overdue", text, len(rows), tuple(row.id for row in rows[:_EXAMPLES]))]


def _stalled(tx: Tx, found: list[WorkerRecord]) -> list[Stuck]:
    """Running, by workers that are well, without a sign of life for longer than their kind allows."""
    well = {w.id for w in found if not w.lost}
    quiet = [one for one in stalls.stalled(tx) if one.worker in well]
    if not quiet:
        return []
    ids = tuple(one.id for one in quiet[:_EXAMPLES])
    text = f"{_about(len(quiet))} running without a heartbeat, for up to {span_text(quiet[0].quiet)}"
    return [Stuck("stalled", f"{text}: {stalls.remedy('ID')}", len(quiet), ids)]


def never(tx: Tx) -> list[Stuck]:
    """Waiting tasks with an edge that only a retry of its ended parent can satisfy (otherwise=wait), or nothing can."""
    state = "coalesce(p.state, o.state)"
    bit = f"CASE {state} WHEN 6 THEN 1 WHEN 7 THEN 2 WHEN 8 THEN 2 WHEN 9 THEN 4 WHEN 10 THEN 8 END"
    rows = tx.run(
        "SELECT DISTINCT e.child, e.parent, p.state FROM "
        f"(SELECT id FROM schedd_tasks WHERE state = {st.WAITING} ORDER BY id LIMIT {_MAX_COUNT}) w "
        "JOIN schedd_edges e ON e.child = w.id LEFT JOIN schedd_tasks p ON p.id = e.parent "
        f"LEFT JOIN schedd_outcomes o ON o.task_id = e.parent WHERE e.otherwise = {_WAIT} "
        f"AND {state} >= 6 AND (e.ok & {bit}) = 0 ORDER BY e.child, e.parent"
    ).fetchall()
    hopeless = {row.child for row in rows if row.state == st.SUCCESS}  # a success is not retried
    found = []
    for problem, wanted, template in (
        ("success", True, "{} can never run, waiting for the failure of what has succeeded ({}): to be cancelled"),
        ("parent", False, "{} stuck until a parent is retried: {}"),
    ):
        edges = [r for r in rows if (r.child in hopeless) is wanted and (r.state == st.SUCCESS) is wanted]
        children = list(dict.fromkeys(row.child for row in edges))
        if children:
            parents = listed([str(i) for i in dict.fromkeys(row.parent for row in edges)])
            text = template.format(counted(len(children), "waiting task"), parents)
            found.append(Stuck(problem, text, len(children), tuple(children[:_EXAMPLES])))
    return found


def _writes(tx: Tx) -> list[Stuck]:
    reason = no_writes(tx.connection)
    return [] if reason is None else [Stuck("writes", reason, 0)]


def _ahead(tx: Tx) -> list[Stuck]:
    """What a clock left behind that was ahead of now: schedules, and of the newest tasks those that go on then only."""
    late = {"late": tx.now + _SCHEDULE_LATE}
    rows = tx.run(
        "SELECT s.name, s.recurrence, s.anchor, s.next_at, t.state, t.finished_at FROM schedd_schedules s "
        "LEFT JOIN schedd_tasks t ON t.id = s.last_task WHERE s.paused = 0 AND s.next_at > :late ORDER BY s.name",
        **late,
    ).fetchall()
    names = [row.name for row in rows if row.next_at < FOREVER and is_ahead(row, tx.now + _SCHEDULE_LATE)]
    found = []
    if names:
        remedy = "a clock was ahead: `schedctl cron pause` and `resume` each"
        text = f"{counted(len(names), 'schedule')} far from the next slot: {listed(names)}; {remedy}"
        found.append(Stuck("ahead", text, len(names)))
    return found + tasks_ahead(tx, newest=_MAX_COUNT)


def tasks_ahead(tx: Tx, newest: int | None = None) -> list[Stuck]:
    """Tasks that a clock ahead of now has made or retried, and that are due by that clock only.

    ``newest``: how many tasks are read, those with the highest ids; None: all.
    """
    source = "schedd_tasks"
    if newest is not None:
        source = (
            f"(SELECT id, state, run_at, created_at, claimed_at FROM schedd_tasks ORDER BY id DESC LIMIT {newest}) n"
        )
    rows = tx.run(
        f"SELECT id FROM {source} WHERE {CLAIMABLE} AND run_at > :late "
        f"AND run_at < {FOREVER} AND (created_at > :late OR claimed_at > :late) ORDER BY id",
        late=tx.now + CLOCK_AHEAD,
    ).fetchall()
    if not rows:
        return []
    ids = tuple(row.id for row in rows)
    text = f"{counted(len(ids), 'task')} due far ahead, as a clock was: `schedctl cancel` and `retry` run each now"
    return [Stuck("ahead", text, len(ids), ids[:_EXAMPLES])]


def _late_schedules(tx: Tx) -> list[Stuck]:
    rows = tx.run(
        "SELECT name, next_at FROM schedd_schedules WHERE paused = 0 AND next_at < :late ORDER BY next_at, name",
        late=tx.now - _SCHEDULE_LATE,
    ).fetchall()
    if not rows:
        return []
    names = listed([row.name for row in rows])
    text = f"{counted(len(rows), 'schedule')} overdue, by up to {span_text(tx.now - rows[0].next_at)}: {names}"
    return [Stuck("schedule", text, len(rows))]


def _runs(tx: Tx, fleet: Fleet) -> list[Stuck]:
    found = unserved_schedules(tx, fleet) if fleet.claiming else []  # else another line says it
    return [Stuck("unserved_schedule", text, number) for text, number in describe(found)]
