"""Checks what must always hold in a database, for ``schedctl doctor``: of all that is live, and of the newest rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple

import sqlalchemy as sa

from scheduler.errors import StoreUnavailableError
from scheduler.model import inbox
from scheduler.model.problem import Problem
from scheduler.model.recurrence import Recurrence
from scheduler.model.redact import redact
from scheduler.model.state import FIRST_TERMINAL, SCHEDULED, WAITING, Otherwise
from scheduler.model.texts import counted, listed, rfc3339, span_text
from scheduler.model.times import SECOND
from scheduler.ports import FOREVER
from scheduler.store import inbox_held, pauses
from scheduler.store.abandoned import abandoned
from scheduler.store.broken_rows import UNREADABLE, broken_rows
from scheduler.store.db import migrate
from scheduler.store.db.database import Database
from scheduler.store.db.deadline import in_time
from scheduler.store.db.tx import Tx
from scheduler.store.durable import deadlocks, waits
from scheduler.store.placements import executors
from scheduler.store.predicates import HELD, claimable, exists, held, same
from scheduler.store.read.problems import BY_NAME, TABLE, Voice, problems
from scheduler.store.read.snapshot import Snapshot
from scheduler.store.read.stuck_tasks import never, tasks_ahead, unserved_of
from scheduler.store.read.stuck_workers import hung, of_transports
from scheduler.store.read.unserved import describe, unserved_schedules
from scheduler.store.schedule_times import by_present_rules, is_ahead
from scheduler.store.tasks.stalls import remedy, stalled

OK, NOTE, PROBLEM = "ok", "note", "problem"
SURROUNDINGS = (
    "leases",
    "cycles",
    "attempts",
    "writes",
    "workers' clocks",
)  # checks of surroundings.py
_MAX_IDS = 1000  # ids named for one kind of problem
NEWEST = 10_000  # tasks that the checks look at which no index serves
ENDS = 1_000  # waiting tasks whose edges are looked at: so many of the oldest, and of the newest
LOOKED = 10_000  # held tasks, suspended ones, awaited ones, and messages that are looked at
_WAIT = list(Otherwise).index(Otherwise.WAIT)
_PARENT = "coalesce(p.state, o.state)"
_BIT = f"CASE {_PARENT} WHEN 6 THEN 1 WHEN 7 THEN 2 WHEN 8 THEN 2 WHEN 9 THEN 4 WHEN 10 THEN 8 ELSE 0 END"
_PARENTS = "LEFT JOIN schedd_tasks p ON p.id = e.parent LEFT JOIN schedd_outcomes o ON o.task_id = e.parent"
# Conditions over the edges of one waiting task, which may have none.
_OPEN = f"coalesce(sum(CASE WHEN (e.ok & {_BIT}) = 0 THEN 1 ELSE 0 END), 0)"
_WRONG = f"(t.unmet <> {_OPEN} OR {_OPEN} = 0)"
_DECIDED = (
    f"max(CASE WHEN (e.otherwise <> {_WAIT} OR p.id IS NULL) AND {_PARENT} >= {FIRST_TERMINAL} "
    f"AND (e.ok & {_BIT}) = 0 THEN 1 ELSE 0 END) = 1"
)
_ORPHAN = f"max(CASE WHEN {_PARENT} IS NULL THEN 1 ELSE 0 END) = 1"
_LATE = 60 * SECOND
_LONG_RUN_US = 3600 * SECOND
_LATE_SETTLE = 3600 * SECOND  # a message of a task that ended so long ago should be settled
_BLOCKER_TIMEOUT_S = 0.3  # bounds the search for the transaction in the way


class DoctorFinding(NamedTuple):
    """The result of one check. ``level``: ok, note or problem; ``tasks``: some of the tasks concerned."""

    check: str
    level: str
    text: str
    tasks: tuple[int, ...] = ()


def check(tx: Tx, *, full: bool = True, seen: Snapshot | None = None) -> list[DoctorFinding]:
    """Check that the rows agree with one another. Answers even if rows are broken, and names them.

    Unless ``full``, beside more than ``NEWEST`` tasks each check looks at a bounded number of rows, and a finding says
    so: those that no index serves look at the newest ``NEWEST``. ``seen``: what has been read already.
    """
    seen = seen or Snapshot(tx)
    since = cache(lambda: None if full else _first_of_newest(tx))
    ends = cache(lambda: None if since() is None else ENDS)
    looked = cache(lambda: None if since() is None else LOOKED)
    # One search for all three faults; what shows which is searched for only if there is one.
    fine = cache(lambda: not _waiting(tx, f"{_WRONG} OR {_DECIDED} OR {_ORPHAN}", 1, ends()))
    checks: dict[str, Callable[[], DoctorFinding | list[DoctorFinding]]] = {
        "rows": lambda: _broken(tx, since()),
        "unmet counts": lambda: _finding(
            "unmet counts",
            "equal the open edges",
            "with a wrong count of open edges",
            _ready_with_open_edges(tx, since()) if fine() else wrong_counts(tx, since(), ends()),
        ),
        "edges": lambda: _finding(
            "edges",
            "none waits on a decided edge",
            "waiting on an edge that is decided",
            [] if fine() else decided(tx, ends()),
        ),
        "parents": lambda: _finding(
            "parents",
            "every edge has its parent",
            "waiting on a parent that never was",
            [] if fine() else orphans(tx, ends()),
        ),
        "waits": lambda: _finding(
            "waits",
            "none sleeps past what it awaits",
            "still waiting for what has happened",
            missed(tx, looked()),
        ),
        "awaits": lambda: _standoffs(tx, looked()),
        "claims": lambda: _claims(seen, looked()),
        "placements": lambda: _finding(
            "placements",
            "daemons place for each executor that holds tasks",
            "held for an executor that no daemon places for",
            abandoned(tx),
        ),
        "retries": lambda: _retries(tx),
        "ready tasks": lambda: _ready(seen),
        "heartbeats": lambda: _stalls(tx),
        "due times": lambda: _ahead(tx, None if since() is None else NEWEST),
        "handlers": lambda: _hung(seen),
        "keys": lambda: _keys(tx, None if since() is None else NEWEST),
        "replaced": lambda: _finding(
            "replaced",
            "nothing waits to be put in place",
            "replaced, and still what it was",
            stale(tx, since()),
        ),
        "pauses": lambda: _pauses(tx),
        "schedules": lambda: _schedules(seen),
        "schedules' tasks": lambda: _runs(seen),
        "messages": lambda: _messages(seen, looked()),
        "extent": lambda: [] if since() is None else [DoctorFinding("extent", NOTE, _extent())],
    }
    in_full = {*checks, *SURROUNDINGS}
    checks["problems"] = lambda: _others(seen, in_full)
    return answers(tx, checks)


def _first_of_newest(tx: Tx) -> int | None:
    """The lowest id of the newest ``NEWEST`` tasks; None: there are no more."""
    below = tx.run(f"SELECT id FROM schedd_tasks ORDER BY id DESC LIMIT 1 OFFSET {NEWEST}").scalar()
    return None if below is None else int(below) + 1


def _extent() -> str:
    waiting = f"the edges of the {ENDS:,} oldest and the {ENDS:,} newest waiting tasks"
    some = f"up to {LOOKED:,} held, suspended and awaited tasks and open messages"
    newest = f"rows, edges of scheduled tasks, replaced, keys and due times of the newest {NEWEST:,} tasks"
    return f"looked at: {waiting}; {some}; {newest}: `schedctl doctor --full` looks at all"


def _others(seen: Snapshot, in_full: Collection[str]) -> list[DoctorFinding]:
    """The checks of the table of problems that no check here makes in full."""
    rows = [row for row in TABLE if row.check not in in_full and Voice.DOCTOR in row.voices]
    said: dict[str, list[Problem]] = {row.check: [] for row in rows}
    for one in problems(seen, rows):
        said.get(BY_NAME[one.name].check, []).append(one)
    return [_as_status_says(name, several) for name, several in said.items()]


def _as_status_says(check: str, several: list[Problem]) -> DoctorFinding:
    if not several:
        return DoctorFinding(check, OK, "nothing to report")
    level = PROBLEM if any(BY_NAME[one.name].bad for one in several) else NOTE
    text = "; ".join(f"{one.text}: {one.remedy}" for one in several)
    return DoctorFinding(check, level, text, tuple(i for one in several for i in one.tasks))


def answers(tx: Tx, checks: dict[str, Callable[[], DoctorFinding | list[DoctorFinding]]]) -> list[DoctorFinding]:
    """Make each check. A broken row or a missing table ends the check that meets it, and no other."""
    lost = migrate.missing_tables(tx.connection)
    found: list[DoctorFinding] = []
    unchecked = []
    for name, check_one in checks.items():
        try:
            answer = check_one()
        except UNREADABLE as error:
            text = f"the check of {name} met a broken row and did not end ({type(error).__name__}: {error})"
            answer = DoctorFinding("rows", PROBLEM, text)
        except sa.exc.DBAPIError as error:
            if not any(table in str(error.orig) for table in lost):
                raise
            # PostgreSQL refuses what follows a failed statement, which may have been the driver's own.
            tx.connection.connection.rollback()
            unchecked.append(name)
            continue
        found += answer if isinstance(answer, list) else [answer]
    if unchecked:
        text = f"not checked, since {listed(lost)} is missing: {listed(unchecked, len(unchecked))}"
        found.append(DoctorFinding("checks", PROBLEM, text))
    return found


def _broken(tx: Tx, since: int | None) -> DoctorFinding:
    found = broken_rows(tx, since)
    if not found:
        return DoctorFinding("rows", OK, "each can be read")
    tasks = tuple(dict.fromkeys(one.task for one in found if one.task is not None))
    remedy = "no schedd wrote that: set it right with SQL, or delete the row (state 9 is cancelled)"
    return DoctorFinding("rows", PROBLEM, f"{listed([one.text for one in found], 20)}; {remedy}", tasks)


def _pauses(tx: Tx) -> DoctorFinding:
    found = pauses.records(tx)
    if not found:
        return DoctorFinding("pauses", OK, "nothing is paused")
    return DoctorFinding("pauses", NOTE, "; ".join(f"{one.describe()} (`{one.remedy}`)" for one in found))


def _finding(name: str, fine: str, wrong: str, ids: Sequence[int]) -> DoctorFinding:
    if not ids:
        return DoctorFinding(name, OK, fine)
    number = f"{len(ids)} tasks or more" if len(ids) >= _MAX_IDS else counted(len(ids), "task")
    return DoctorFinding(name, PROBLEM, f"{number} {wrong}: {listed([str(i) for i in ids])}", tuple(ids))


def wrong_counts(tx: Tx, since: int | None = None, ends: int | None = None) -> list[int]:
    """Waiting and scheduled tasks whose ``unmet`` is not the number of open edges, or not their state.

    ``since``: no scheduled one with an id below it; None: all. ``ends``: so many of the oldest and of the newest
    waiting ones; None: all. Once a task was claimed, its edges no longer count: a parent that is retried leaves it
    alone.
    """
    return sorted({*_waiting(tx, _WRONG, _MAX_IDS, ends), *_ready_with_open_edges(tx, since)})[:_MAX_IDS]


def decided(tx: Tx, ends: int | None = None) -> list[int]:
    """Waiting tasks with an edge that their parent's end has broken and that is not to wait for its retry.

    Nor is there a retry to wait for once the parent was removed. ``ends``: of so many; see :func:`wrong_counts`.
    """
    return _waiting(tx, _DECIDED, _MAX_IDS, ends)


def orphans(tx: Tx, ends: int | None = None) -> list[int]:
    """Waiting tasks with an edge from a parent without a row or a recorded outcome. ``ends``: of so many."""
    return _waiting(tx, _ORPHAN, _MAX_IDS, ends)


_OF_WAITING = f"SELECT id, unmet FROM schedd_tasks WHERE state = {WAITING} ORDER BY id"


def _waiting(tx: Tx, faults: str, most: int, ends: int | None) -> list[int]:
    """Waiting tasks whose edges show these faults: conditions over all edges of a task."""
    source = f"({_OF_WAITING})"
    if ends is not None:
        first, last = f"{_OF_WAITING} LIMIT {ends}", f"{_OF_WAITING} DESC LIMIT {ends}"
        source = f"(SELECT id, unmet FROM ({first}) f UNION SELECT id, unmet FROM ({last}) l)"
    # The edges of each are looked up by themselves: for a join PostgreSQL may read all edges.
    rows = tx.run(
        f"SELECT t.id FROM {source} t WHERE (SELECT CASE WHEN {faults} THEN 1 ELSE 0 END FROM schedd_edges e "
        f"{_PARENTS} WHERE {same('e.child', 't.id')}) = 1 ORDER BY t.id LIMIT {most}"
    )
    return [row[0] for row in rows]


def _ready_with_open_edges(tx: Tx, since: int | None) -> list[int]:
    """Scheduled tasks that count open edges, or have some."""
    source = "schedd_tasks"
    if since is not None:  # bounded by its number, too, or the index of what is ready would be read for it
        source = f"(SELECT * FROM schedd_tasks WHERE id >= {since} ORDER BY id DESC LIMIT {NEWEST})"
    rows = tx.run(
        f"SELECT f.id FROM (SELECT t.id, t.unmet, (SELECT count(*) FROM schedd_edges e {_PARENTS} "
        f"WHERE e.child = t.id AND (e.ok & {_BIT}) = 0) AS open FROM {source} t WHERE {claimable('t')} "
        f"AND t.state = {SCHEDULED} AND t.claimed_at IS NULL) f "
        f"WHERE f.unmet <> f.open OR f.open > 0 ORDER BY f.id + 0 LIMIT {_MAX_IDS}"
    )
    return [row[0] for row in rows]


def missed(tx: Tx, looked: int | None = None) -> list[int]:
    """Suspended tasks that should have been woken a while ago. ``looked``: of so many; None: of all."""
    return waits.missed(tx, tx.now - _LATE, _MAX_IDS, looked)


def stale(tx: Tx, since: int | None = None) -> list[int]:
    """Tasks whose deferred replacement was left over after their attempt ended. ``since``: no id below it."""
    least = "" if since is None else f"t.id >= {since} AND "
    rows = tx.run(
        "SELECT t.id FROM schedd_tasks t LEFT JOIN schedd_task_values v "
        "ON v.task_id = t.id AND v.name = 'replacement' "
        f"WHERE {least}((t.rerun > 0 AND NOT ({held('t')})) OR (t.rerun > 0) <> (v.task_id IS NOT NULL)) "
        f"ORDER BY t.id LIMIT {_MAX_IDS}"
    )
    return [row[0] for row in rows]


def unclaimed(tx: Tx) -> list[int]:
    """Held tasks whose worker has no row: no engine would ever reclaim them."""
    rows = tx.run(
        f"SELECT t.id FROM schedd_tasks t WHERE {held('t')} AND NOT EXISTS "
        f"(SELECT 1 FROM schedd_workers w WHERE w.id = t.worker) ORDER BY t.id + 0 LIMIT {_MAX_IDS}"
    )
    return [row[0] for row in rows]


def _claims(seen: Snapshot, looked: int | None) -> DoctorFinding:
    live = {w.id for w in seen.workers if not w.lost} | {one.worker for one in executors(seen.tx)}
    some = "" if looked is None else f"LIMIT {looked}"
    rows = seen.tx.run(
        f"SELECT id, worker FROM (SELECT id, worker FROM schedd_tasks WHERE {HELD} ORDER BY worker, lane {some}) h "
        "ORDER BY id"
    ).fetchall()
    loose = [row.id for row in rows if row.worker not in live]
    number = f"{looked:,} tasks or more" if len(rows) == looked else counted(len(rows), "task")
    return _finding(
        "claims",
        f"{number} held by live workers",
        "held by no live worker, which the next one takes back",
        loose[:_MAX_IDS],
    )


def _ready(seen: Snapshot) -> DoctorFinding:
    found = unserved_of(seen)
    if not found:
        return DoctorFinding("ready tasks", OK, "some live worker takes each")
    return DoctorFinding(
        "ready tasks", NOTE, "; ".join(s.text for s in found), tuple(i for s in found for i in s.tasks)
    )


def _retries(tx: Tx) -> DoctorFinding:
    found = never(tx)
    if not found:
        return DoctorFinding("retries", OK, "no task waits until what has ended is retried")
    return DoctorFinding("retries", NOTE, "; ".join(s.text for s in found), tuple(i for s in found for i in s.tasks))


def _ahead(tx: Tx, newest: int | None) -> DoctorFinding:
    found = tasks_ahead(tx, newest)
    if not found:
        return DoctorFinding("due times", OK, "none is a clock's that was ahead")
    ids = tuple(i for s in found for i in s.tasks)
    return DoctorFinding(
        "due times", NOTE, "; ".join(f"{s.text}: {listed([str(i) for i in s.tasks])}" for s in found), ids
    )


def _stalls(tx: Tx) -> DoctorFinding:
    quiet = stalled(tx)
    if not quiet:
        return DoctorFinding("heartbeats", OK, "no running task is overdue with its heartbeat")
    ids = tuple(one.id for one in quiet[:_MAX_IDS])
    text = f"{counted(len(quiet), 'task')} running without a heartbeat, for up to {span_text(quiet[0].quiet)}"
    return DoctorFinding("heartbeats", NOTE, f"{text}: {listed([str(i) for i in ids])}; {remedy('ID')}", ids)


def _hung(seen: Snapshot) -> DoctorFinding:
    found = hung(seen)
    if not found:
        return _without_timeout(seen.tx)
    return DoctorFinding(
        "handlers", PROBLEM, "; ".join(s.text for s in found), tuple(i for s in found for i in s.tasks)
    )


def _without_timeout(tx: Tx) -> DoctorFinding:
    """Handlers without a timeout are never late: only a person can judge whether they hang."""
    rows = tx.run(
        f"SELECT id FROM schedd_tasks WHERE {HELD} AND timeout IS NULL AND started_at < :before "
        f"ORDER BY started_at LIMIT {_MAX_IDS}",
        before=tx.now - _LONG_RUN_US,
    )
    ids = tuple(row[0] for row in rows)
    if not ids:
        return DoctorFinding("handlers", OK, "none hangs")
    text = f"{counted(len(ids), 'task')} running for more than {span_text(_LONG_RUN_US)} without a timeout"
    advice = "should one hang, nothing reports it; give its kind a timeout, or set [worker] default_timeout"
    return DoctorFinding("handlers", NOTE, f"{text}: {listed([str(i) for i in ids])}; {advice}", ids)


def _standoffs(tx: Tx, looked: int | None) -> DoctorFinding:
    cycles = deadlocks.found(tx, looked)
    if not cycles:
        return DoctorFinding("awaits", OK, "no tasks wait for one another")
    text = "; ".join(deadlocks.describe(cycle) for cycle in cycles)
    return DoctorFinding("awaits", PROBLEM, text, tuple(sorted(i for cycle in cycles for i in cycle)))


_TWICE = (
    "SELECT min(id) AS id FROM schedd_tasks WHERE held_key IS NOT NULL GROUP BY kind, held_key "
    f"HAVING count(*) > 1 ORDER BY 1 LIMIT {_MAX_IDS}"
)
_NEWEST_TWICE = (
    "SELECT DISTINCT (SELECT min(o.id) FROM schedd_tasks o WHERE o.held_key IS NOT NULL AND o.kind = n.kind "
    "AND o.held_key = n.held_key) AS id FROM (SELECT id, kind, held_key FROM schedd_tasks ORDER BY id DESC "
    "LIMIT {newest}) n WHERE n.held_key IS NOT NULL AND "
    + exists(
        "o.kind",
        "FROM schedd_tasks o WHERE o.held_key IS NOT NULL AND o.kind = n.kind "
        "AND o.held_key = n.held_key AND o.id <> n.id",
    )
    + f" ORDER BY 1 LIMIT {_MAX_IDS}"
)


def _keys(tx: Tx, newest: int | None) -> DoctorFinding:
    rows = tx.run(_TWICE if newest is None else _NEWEST_TWICE.format(newest=newest))
    return _finding("keys", "none is held twice", "hold a key that another one holds", [row.id for row in rows])


def _schedules(seen: Snapshot) -> DoctorFinding:
    tx = seen.tx
    rows = tx.run(
        "SELECT s.name, s.recurrence, s.anchor, s.next_at, s.last_slot, s.created_at, s.paused, t.state, t.finished_at "
        "FROM schedd_schedules s LEFT JOIN schedd_tasks t ON t.id = s.last_task ORDER BY s.name"
    ).fetchall()
    bad, late = [], []
    for row in rows:
        try:
            Recurrence.from_json(row.recurrence)
            following = by_present_rules(row)
        except Exception as error:  # an unreadable row must not keep the others from being checked
            bad.append(f"{row.name} (unreadable: {error})")
            continue
        ended = row.state is None or row.state >= FIRST_TERMINAL
        if row.next_at == FOREVER and ended and (row.finished_at or 0) < tx.now - _LATE and not row.paused:
            bad.append(f"{row.name} (its run has ended, yet it has no next slot)")
        elif following is not None and not row.paused:
            at, right = (rfc3339(instant, exact=False) for instant in (row.next_at, following))
            bad.append(
                f"{row.name} (goes on at {at}, by older rules of its zone: a worker that starts makes it {right})"
            )
        elif row.next_at < tx.now - _LATE and not row.paused:
            late.append(f"{row.name} (overdue by {span_text(tx.now - row.next_at)})")
        elif is_ahead(row, tx.now + _LATE) and not row.paused:
            at = rfc3339(row.next_at, exact=False)
            bad.append(
                f"{row.name} (goes on at {at} only, as a clock was ahead: `schedctl cron pause` and `resume` it)"
            )
    if late and not bad and not seen.workers:
        return DoctorFinding("schedules", NOTE, f"no worker is live, so these wait: {listed(late)}")
    bad += late
    if bad:
        return DoctorFinding(
            "schedules", PROBLEM, f"{counted(len(bad), 'schedule')} without a next slot: {listed(bad)}"
        )
    return DoctorFinding("schedules", OK, f"{counted(len(rows), 'schedule')}, each has its next slot")


def _runs(seen: Snapshot) -> DoctorFinding:
    found = unserved_schedules(seen.tx, seen.fleet)
    if not found:
        return DoctorFinding("schedules' tasks", OK, "none makes what no worker would run")
    return DoctorFinding("schedules' tasks", NOTE, "; ".join(text for text, _ in describe(found)))


def not_checked(database: Database, error: StoreUnavailableError) -> DoctorFinding:
    """The finding for checks that could not run for this reason."""
    reason = None
    with suppress(TimeoutError, StoreUnavailableError, RuntimeError):
        reason = in_time(database.locked_by, _BLOCKER_TIMEOUT_S)
    return DoctorFinding("checks", PROBLEM, f"not checked: {error}" + ("" if reason is None else f"; {reason}"))


def _messages(seen: Snapshot, looked: int | None) -> DoctorFinding:
    """What the daemons say of sources and sinks; messages that are held, not settled, or dead."""
    tx = seen.tx
    wrong = [one.text for one in of_transports(seen)]
    notes = inbox_held.held_texts(inbox_held.held(tx), tx.now)
    some = "" if looked is None else f"LIMIT {looked}"
    rows = tx.run(
        "SELECT i.source, i.task_id FROM (SELECT source, task_id, last_at FROM schedd_inbox WHERE receipt IS NOT NULL "
        f"ORDER BY source, holder {some}) i WHERE i.last_at < :before AND coalesce((SELECT CASE WHEN "
        f"t.state >= {FIRST_TERMINAL} AND t.finished_at < :before THEN 1 ELSE 0 END FROM schedd_tasks t "
        f"WHERE t.id = i.task_id), 1) = 1 ORDER BY i.source, i.task_id LIMIT {_MAX_IDS}",
        before=tx.now - _LATE_SETTLE,
    ).fetchall()
    ids = tuple(row.task_id for row in rows if row.task_id is not None)
    if rows:
        names = listed(list(dict.fromkeys(row.source for row in rows)))
        text = f"{counted(len(rows), 'message')} of {names} not settled, though their tasks have ended: does a daemon"
        notes.insert(0, f"{text} receive from there? They are delivered again, and settled then")
    dead = tx.run(
        f"SELECT source, error FROM schedd_inbox WHERE verdict = {inbox.DEAD} AND task_id IS NULL "
        f"ORDER BY last_at DESC LIMIT {_MAX_IDS}"
    ).fetchall()
    if dead:
        text = f"{counted(len(dead), 'message')} could become no task, and went to a dead-letter queue"
        last = f"the last one, of source {dead[0].source}: {redact(dead[0].error or 'for an unknown reason')}"
        notes.append(f"{text}: `schedctl inbox list --state dead`, `schedctl sources redrive`; {last}")
    if wrong or notes:
        return DoctorFinding("messages", PROBLEM if wrong else NOTE, "; ".join([*wrong, *notes]), ids)
    return DoctorFinding("messages", OK, "none is dead, held, or waits to be settled")
