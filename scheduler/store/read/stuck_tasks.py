"""Tasks and schedules that will not move by themselves, as the table of problems finds them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scheduler.model.lanes import QUARANTINE_LANE, executor_of, kind_of
from scheduler.model.problem import Problem
from scheduler.model.state import SUCCESS, WAITING, Otherwise
from scheduler.model.texts import counted, listed, rfc3339, span_text
from scheduler.model.times import SECOND
from scheduler.ports import FOREVER
from scheduler.store.db.tx import Tx
from scheduler.store.db.writable import no_writes
from scheduler.store.durable import deadlocks
from scheduler.store.inbox_held import held, held_texts
from scheduler.store.predicates import CLAIMABLE, HELD
from scheduler.store.read import shared_causes
from scheduler.store.read.alert_facts import usual_run
from scheduler.store.read.ready import CLOCK_AHEAD, cause_of, full_cap, holding, unserved_reason
from scheduler.store.read.snapshot import MAX_COUNT, Snapshot, due_ids, due_number
from scheduler.store.read.unserved import describe, left_behind, unserved_schedules
from scheduler.store.read.workers import NOT_LIVE
from scheduler.store.tasks import stalls
from scheduler.store.tasks.claim import LaneHead

if TYPE_CHECKING:
    import sqlalchemy as sa

EXAMPLES = 5  # tasks that a problem names
WAITS_LONG = 300 * SECOND  # a ready task that waits for longer wants a cause
HELD_LONG = 86_400 * SECOND  # a message that waits longer for those before it than most gaps may last
SCHEDULE_LATE = 60 * SECOND  # a schedule this late is stuck
_LANES, _FIRST = 20, 500  # lanes of one kind, and tasks of each, among which those are looked for that are too new
_ZONES = 200  # schedules whose next fire times are found again, some milliseconds
_MAX_AWAITED = 10_000  # awaited tasks among which rings are looked for
_WAIT = list(Otherwise).index(Otherwise.WAIT)


def unserved_of(seen: Snapshot) -> list[Problem]:
    """Ready tasks that no live worker would claim, by reason and kind."""
    tx, due, fleet = seen.tx, seen.due, seen.fleet
    groups: dict[tuple[str, str, int, bool, str], list[LaneHead]] = {}
    for head in due:
        suspect, executor = head.lane.startswith(QUARANTINE_LANE), executor_of(head.lane) or ""
        groups.setdefault((head.queue, kind_of(head.lane), head.priority, suspect, executor), []).append(head)
    rows: dict[str, tuple[int, list[int]]] = {}
    lanes: dict[str, list[LaneHead]] = {}
    first: dict[str, tuple[str, str]] = {}
    for (queue, kind, priority, suspect, executor), heads in sorted(groups.items()):
        reason = fleet.unserved(queue, kind, priority=priority, executor=executor or None, suspect=suspect)
        if reason is None and executor:
            continue
        ids: list[int] = []
        if reason is None:
            version, ids = _too_new(tx, heads, fleet.newest(queue, kind))
            reason = fleet.unserved(queue, kind, version)
        else:
            lanes.setdefault(reason, []).extend(heads)
        if reason is not None:
            first.setdefault(reason, (queue, kind))
            count, examples = rows.get(reason, (0, []))
            rows[reason] = (count + len(ids), (examples + ids)[:EXAMPLES])
    for reason, heads in lanes.items():  # at once, as there may be a lane for each task
        count, examples = rows[reason]
        for head in heads[:EXAMPLES]:
            examples = (examples + due_ids(tx, head, EXAMPLES))[:EXAMPLES]
        rows[reason] = (count + due_number(tx, heads), examples)
    found = []
    for reason, (count, ids) in rows.items():
        last, remedy = None, None
        if reason.startswith("no live worker serves"):
            last, remedy = left_behind(tx, fleet, *first[reason])
        text = f"{_about(count)} ready, but {reason}{'' if last is None else f'; {last}'}"
        found.append(Problem("unserved", text, count, tuple(ids), remedy=remedy))
    return found


def _too_new(tx: Tx, heads: list[LaneHead], newest: int) -> tuple[int, list[int]]:
    """Among the first of these lanes: the highest schema_version over ``newest`` (0: there is none), and its tasks."""
    found: list[tuple[int, int]] = []
    for head in heads[:_LANES]:
        rows = tx.run(
            f"SELECT schema_version, id FROM (SELECT id, schema_version FROM schedd_tasks WHERE {CLAIMABLE} "
            "AND queue = :queue AND lane = :lane AND priority = :priority AND run_at <= :now "
            f"ORDER BY run_at, id LIMIT {_FIRST}) t WHERE schema_version > :newest",
            **head._asdict(),
            now=tx.now,
            newest=newest,
        )
        found += [(row[0], row[1]) for row in rows]
    return max(found, default=(0, 0))[0], sorted(task_id for _, task_id in found)


def _about(count: int) -> str:
    return (
        f"{MAX_COUNT} tasks or more are"
        if count >= MAX_COUNT
        else f"{counted(count, 'task')} {'is' if count == 1 else 'are'}"
    )


def overdue(seen: Snapshot) -> list[Problem]:
    """Running past their timeouts."""
    tx = seen.tx
    rows = tx.run(
        f"SELECT id, started_at, timeout FROM schedd_tasks WHERE {HELD} AND worker IS NOT NULL "
        "AND timeout IS NOT NULL AND started_at + timeout < :now ORDER BY started_at",
        now=tx.now,
    ).fetchall()
    if not rows:
        return []
    longest = max(tx.now - row.started_at - row.timeout for row in rows)
    text = f"{_about(len(rows))} running past the timeout, by up to {span_text(longest)}"
    return [Problem("overdue", text, len(rows), tuple(row.id for row in rows[:EXAMPLES]))]


def stalled(seen: Snapshot) -> list[Problem]:
    """Running, by workers that are well, without a sign of life for longer than their kind allows."""
    well = {w.id for w in seen.workers if not w.lost}
    quiet = [one for one in stalls.stalled(seen.tx) if one.worker in well]
    if not quiet:
        return []
    ids = tuple(one.id for one in quiet[:EXAMPLES])
    text = f"{_about(len(quiet))} running without a heartbeat, for up to {span_text(quiet[0].quiet)}"
    return [Problem("stalled", f"{text}: {stalls.remedy('ID')}", len(quiet), ids)]


def never(tx: Tx) -> list[Problem]:
    """Waiting tasks with an edge that only a retry of its ended parent can satisfy (otherwise=wait), or nothing can."""
    state = "coalesce(p.state, o.state)"
    bit = f"CASE {state} WHEN 6 THEN 1 WHEN 7 THEN 2 WHEN 8 THEN 2 WHEN 9 THEN 4 WHEN 10 THEN 8 END"
    rows = tx.run(
        "SELECT DISTINCT e.child, e.parent, p.state FROM "
        f"(SELECT id FROM schedd_tasks WHERE state = {WAITING} ORDER BY id LIMIT {MAX_COUNT}) w "
        "JOIN schedd_edges e ON e.child = w.id LEFT JOIN schedd_tasks p ON p.id = e.parent "
        f"LEFT JOIN schedd_outcomes o ON o.task_id = e.parent WHERE e.otherwise = {_WAIT} "
        f"AND {state} >= 6 AND (e.ok & {bit}) = 0 ORDER BY e.child, e.parent"
    ).fetchall()
    hopeless = {row.child for row in rows if row.state == SUCCESS}  # a success is not retried
    found = []
    for problem, wanted, template in (
        ("success", True, "{} can never run, waiting for the failure of what has succeeded ({}): to be cancelled"),
        ("parent", False, "{} stuck until a parent is retried: {}"),
    ):
        edges = [r for r in rows if (r.child in hopeless) is wanted and (r.state == SUCCESS) is wanted]
        children = list(dict.fromkeys(row.child for row in edges))
        if children:
            parents = listed([str(i) for i in dict.fromkeys(row.parent for row in edges)])
            text = template.format(counted(len(children), "waiting task"), parents)
            act = ("cancel", children[0]) if wanted else ("retry", edges[0].parent)
            found.append(Problem(problem, text, len(children), tuple(children[:EXAMPLES]), act=act))
    return found


def after_ended_parents(seen: Snapshot) -> list[Problem]:
    """Waiting tasks that only a retry of an ended parent lets go on, or nothing does."""
    return never(seen.tx)


def rings(seen: Snapshot) -> list[Problem]:
    """Tasks that await one another, or themselves."""
    return [
        Problem("ring", deadlocks.describe(ring), len(ring), tuple(ring[:EXAMPLES]), act=("cancel", ring[0]))
        for ring in deadlocks.found(seen.tx, _MAX_AWAITED)
    ]


def capped(seen: Snapshot) -> list[Problem]:
    """Tasks that have waited long behind a cap whose holders have all run for unusually long."""
    tx, found = seen.tx, dict[str, Problem]()
    for head, row, since in seen.oldest:
        if tx.now - since <= WAITS_LONG or unserved_reason(row, seen.fleet) is not None:
            continue  # too new, or it waits for something else
        if cause_of(tx, row, seen.fleet).name != "cap":
            continue
        full = full_cap(tx, row.queue, row.lane)
        if full is None or not full.holders:
            continue
        if not all(tx.now - one.since > _unusual(tx, one.kind) for one in full.holders[:EXAMPLES]):
            continue
        first, subject = full.holders[0], full.subject.replace("its kind", f"kind {row.kind}")
        waits = f"task {row.id} ({row.kind}, queue {row.queue}) has been ready for {span_text(tx.now - since)}"
        text = f"{waits}, but {subject} is at {full.most}: {holding(full.holders, tx.now)}"
        remedy = (
            f"`schedctl logs {first.id}` tells what task {first.id} ({first.kind}) does. `schedctl cancel {first.id}` "
            f"asks it to end, `schedctl cancel --force {first.id}` ends it where its handler does not look."
        )
        count, tasks = len(due_ids(tx, head)), (row.id, first.id)
        found.setdefault(
            f"{subject} {full.most}", Problem("capped", text, count, tasks, since, remedy, ("cancel", first.id))
        )
    return list(found.values())


def _unusual(tx: Tx, kind: str) -> int:
    """From when on an attempt of this kind has run for unusually long."""
    return max(WAITS_LONG, 3 * (usual_run(tx, kind) or 0))


def failing(seen: Snapshot) -> list[Problem]:
    """Kinds of which nearly each attempt fails, by what their errors have in common."""
    found = []
    for one in shared_causes.failing(seen.tx):
        kind = shlex.quote(one.kinds[0])
        remedy = (
            f"`schedctl show {one.tasks[0]}` shows one of them. `schedctl pause --kind {kind}` holds them back until "
            f"it is mended. `schedctl resume --kind {kind}` and `schedctl retry --kind {kind}` run them again."
        )
        text = shared_causes.failing_text(one)
        found.append(Problem("failing", text, one.failed, one.tasks, one.since, remedy))
    return found


def held_messages(seen: Snapshot) -> list[Problem]:
    """Messages that have waited so long for others that no daemon can be letting them go."""
    long = [one for one in held(seen.tx) if seen.tx.now - one.since > HELD_LONG]
    texts = held_texts(long, seen.tx.now)
    return [Problem("held", text, one.number, since=one.since) for one, text in zip(long, texts, strict=True)]


_LAST_SEEN = (
    f"SELECT host, pid, heartbeat_at FROM schedd_workers WHERE lease_until < {FOREVER} "
    "ORDER BY heartbeat_at DESC LIMIT 1"
)


def idle(seen: Snapshot) -> list[Problem]:
    """No worker takes tasks."""
    reason = seen.fleet.no_worker
    if reason is None:
        return []
    if reason != NOT_LIVE:
        return [Problem("idle", f"{reason}: nothing runs", 0)]
    last = seen.tx.run(_LAST_SEEN).first()
    seen_at = last.heartbeat_at if last is not None and isinstance(last.heartbeat_at, int) else None
    remedy = "Start `schedd`, or its service."
    if last is not None and seen_at is not None:
        remedy = f"{remedy} The last worker, {last.host}:{last.pid}, was seen at {rfc3339(seen_at, exact=False)}."
    return [Problem("idle", f"{reason}: nothing runs", 0, since=seen_at, remedy=remedy)]


def writes(seen: Snapshot) -> list[Problem]:
    """The database takes no writes."""
    reason = no_writes(seen.tx)
    return [] if reason is None else [Problem("writes", reason, 0)]


def ahead(seen: Snapshot) -> list[Problem]:
    """What a clock left behind that was ahead of now: schedules, and of the newest tasks those that go on then only."""
    tx = seen.tx
    late = {"late": tx.now + SCHEDULE_LATE}
    rows = tx.run(
        "SELECT s.name, s.recurrence, s.anchor, s.next_at, t.state, t.finished_at FROM schedd_schedules s "
        "LEFT JOIN schedd_tasks t ON t.id = s.last_task WHERE s.paused = 0 AND s.next_at > :late ORDER BY s.name",
        **late,
    ).fetchall()
    names = _far_ahead(rows, tx.now + SCHEDULE_LATE) if rows else []
    found = []
    if names:
        remedy = "a clock was ahead: `schedctl cron pause` and `resume` each"
        text = f"{counted(len(names), 'schedule')} far from the next slot: {listed(names)}; {remedy}"
        found.append(Problem("ahead", text, len(names)))
    return found + tasks_ahead(tx, newest=MAX_COUNT)


def _far_ahead(rows: Iterable[sa.Row[Any]], late: int) -> list[str]:
    from scheduler.store.schedule_times import is_ahead  # recurrences, which most stores need not read

    return [row.name for row in rows if row.next_at < FOREVER and is_ahead(row, late)]


def tasks_ahead(tx: Tx, newest: int | None = None) -> list[Problem]:
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
    return [Problem("ahead", text, len(ids), ids[:EXAMPLES])]


def late_schedules(seen: Snapshot) -> list[Problem]:
    """Schedules whose fire time has passed."""
    tx = seen.tx
    rows = tx.run(
        "SELECT name, next_at FROM schedd_schedules WHERE paused = 0 AND next_at < :late ORDER BY next_at, name",
        late=tx.now - SCHEDULE_LATE,
    ).fetchall()
    if not rows:
        return []
    names = listed([row.name for row in rows])
    text = f"{counted(len(rows), 'schedule')} overdue, by up to {span_text(tx.now - rows[0].next_at)}: {names}"
    return [Problem("schedule", text, len(rows), since=rows[0].next_at)]


def other_zones(seen: Snapshot) -> list[Problem]:
    """Schedules that would fire by other rules of their zones than this machine has. The next ones are looked at."""
    tx, moved, unknown = seen.tx, list[str](), list[str]()
    rows = tx.run(
        "SELECT name, recurrence, anchor, next_at, last_slot, created_at FROM schedd_schedules WHERE paused = 0 "
        f"AND next_at >= :now AND next_at < {FOREVER} AND recurrence LIKE :zoned AND recurrence NOT LIKE :utc "
        f"ORDER BY next_at, name LIMIT {_ZONES}",
        now=tx.now,
        zoned='%"tz":"%',
        utc='%"tz":"UTC"%',
    ).fetchall()
    if not rows:
        return []
    from scheduler.store.schedule_times import by_present_rules, unknown_zone

    for row in rows:
        try:
            following = by_present_rules(row)
        except Exception:  # reported as a schedule that cannot be read
            continue
        if following is not None:
            at, right = (rfc3339(instant, exact=False) for instant in (row.next_at, following))
            moved.append(f"{row.name} (at {at} instead of {right})")
        elif (zone := unknown_zone(row.recurrence)) is not None:
            unknown.append(f"{row.name} ({zone})")
    found = []
    if moved:
        text = f"{counted(len(moved), 'schedule')} would fire by older rules of the zone: {listed(moved)}"
        found.append(Problem("zone", text, len(moved)))
    if unknown:
        text = f"{counted(len(unknown), 'schedule')} in a zone that this machine does not know: {listed(unknown)}"
        found.append(Problem("zone", text, len(unknown)))
    return found


def schedules_without_worker(seen: Snapshot) -> list[Problem]:
    """Schedules that make tasks which no worker runs."""
    found = unserved_schedules(seen.tx, seen.fleet) if seen.fleet.claiming else []  # else another line says it
    return [Problem("unserved_schedule", text, number) for text, number in describe(found)]
