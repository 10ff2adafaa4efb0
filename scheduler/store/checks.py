"""What must always hold in a database, checked by full reads: for ``schedctl doctor``, not every minute."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import NamedTuple

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.model.recurrence import Recurrence
from scheduler.model.state import Otherwise
from scheduler.model.texts import counted, listed, rfc3339, span_text
from scheduler.model.times import SECOND
from scheduler.ports import FOREVER
from scheduler.store import horizon, migrate, row_locks, standoffs, waits
from scheduler.store.database import Database
from scheduler.store.dialect import prepared
from scheduler.store.read_status import never, unserved
from scheduler.store.read_workers import LOST, read_fleet, workers
from scheduler.store.schedules import is_ahead
from scheduler.store.stalls import stalled
from scheduler.store.unserved import said_of, unserved_schedules

OK, NOTE, PROBLEM = "ok", "note", "problem"
_MOST = 1000  # of one sort of problem
_WAIT = list(Otherwise).index(Otherwise.WAIT)
_PARENT = "coalesce(p.state, o.state)"
_BIT = f"CASE {_PARENT} WHEN 6 THEN 1 WHEN 7 THEN 2 WHEN 8 THEN 2 WHEN 9 THEN 4 WHEN 10 THEN 8 ELSE 0 END"
_PARENTS = "LEFT JOIN schedd_tasks p ON p.id = e.parent LEFT JOIN schedd_outcomes o ON o.task_id = e.parent"
_LOW_SPACE = 200 * 1024 * 1024
_SKEW = SECOND  # a clock that is off by more is worth knowing
_OFFSET = 5 * SECOND  # and by more than this a problem
_LATE = 60 * SECOND


class Finding(NamedTuple):
    """One thing looked at. ``level``: ok, note (worth knowing), problem; ``tasks``: some that it is about."""

    check: str
    level: str
    text: str
    tasks: tuple[int, ...] = ()


def check(connection: sa.Connection, now: int) -> list[Finding]:
    """Check what the rows must agree on."""
    return [
        _finding(
            "unmet counts",
            "equal the open edges",
            "with a wrong count of open edges",
            wrong_counts(connection),
        ),
        _finding("edges", "none waits on a decided edge", "waiting on an edge that is decided", decided(connection)),
        _finding("parents", "every edge has its parent", "waiting on a parent that never was", orphans(connection)),
        _finding(
            "waits",
            "none sleeps past what it awaits",
            "still waiting for what has happened",
            overslept(connection, now),
        ),
        _standoffs(connection),
        _claims(connection, now),
        _retries(connection),
        _ready(connection, now),
        _stalls(connection, now),
        _keys(connection),
        _finding("replaced", "nothing waits to be put in place", "replaced, and still what it was", stale(connection)),
        _schedules(connection, now),
        _runs(connection, now),
    ]


def _finding(name: str, fine: str, wrong: str, ids: Sequence[int]) -> Finding:
    if not ids:
        return Finding(name, OK, fine)
    number = f"{len(ids)} tasks or more" if len(ids) >= _MOST else counted(len(ids), "task")
    return Finding(name, PROBLEM, f"{number} {wrong}: {listed([str(i) for i in ids])}", tuple(ids))


def wrong_counts(connection: sa.Connection) -> list[int]:
    """Waiting and scheduled tasks whose ``unmet`` is not the number of open edges, or not their state.

    Once a task was claimed, its edges no longer count: a parent that is retried leaves it alone.
    """
    rows = connection.execute(
        prepared(
            "SELECT f.id FROM (SELECT t.id, t.state, t.unmet, (SELECT count(*) FROM schedd_edges e "
            f"{_PARENTS} WHERE e.child = t.id AND (e.ok & {_BIT}) = 0) AS open "
            "FROM schedd_tasks t WHERE t.state = 0 OR (t.state = 1 AND t.claimed_at IS NULL)) f "
            "WHERE f.unmet <> f.open OR (f.state = 0 AND f.open = 0) OR (f.state = 1 AND f.open > 0) "
            f"ORDER BY f.id LIMIT {_MOST}"
        )
    )
    return [row[0] for row in rows]


def decided(connection: sa.Connection) -> list[int]:
    """Waiting tasks with an edge that their parent's end has broken and that is not to wait for its retry.

    Nor is there a retry to wait for once the parent was removed.
    """
    rows = connection.execute(
        prepared(
            f"SELECT DISTINCT e.child FROM schedd_tasks t JOIN schedd_edges e ON e.child = t.id {_PARENTS} "
            f"WHERE t.state = 0 AND (e.otherwise <> {_WAIT} OR p.id IS NULL) AND {_PARENT} >= {st.FIRST_TERMINAL} "
            f"AND (e.ok & {_BIT}) = 0 ORDER BY e.child LIMIT {_MOST}"
        )
    )
    return [row[0] for row in rows]


def overslept(connection: sa.Connection, now: int) -> list[int]:
    """Suspended tasks that should have been woken a while ago."""
    return waits.overslept(connection, now - _LATE, now, _MOST)


def orphans(connection: sa.Connection) -> list[int]:
    """Waiting tasks with an edge from a parent that nobody remembers."""
    rows = connection.execute(
        prepared(
            f"SELECT DISTINCT e.child FROM schedd_tasks t JOIN schedd_edges e ON e.child = t.id {_PARENTS} "
            f"WHERE t.state = 0 AND {_PARENT} IS NULL ORDER BY e.child LIMIT {_MOST}"
        )
    )
    return [row[0] for row in rows]


def stale(connection: sa.Connection) -> list[int]:
    """What replaces a task is put in its place when its attempt ends: nothing is left over of that."""
    rows = connection.execute(
        prepared(
            "SELECT t.id FROM schedd_tasks t LEFT JOIN schedd_task_values v "
            "ON v.task_id = t.id AND v.name = 'replacement' "
            "WHERE (t.rerun > 0 AND NOT (t.state >= 4 AND t.state <= 5)) OR (t.rerun > 0) <> (v.task_id IS NOT NULL) "
            f"ORDER BY t.id LIMIT {_MOST}"
        )
    )
    return [row[0] for row in rows]


def unclaimed(connection: sa.Connection) -> list[int]:
    """Held tasks whose worker has no row: nobody would ever take them back."""
    rows = connection.execute(
        prepared(
            "SELECT t.id FROM schedd_tasks t WHERE t.state >= 4 AND t.state <= 5 AND NOT EXISTS "
            f"(SELECT 1 FROM schedd_workers w WHERE w.id = t.worker) ORDER BY t.id LIMIT {_MOST}"
        )
    )
    return [row[0] for row in rows]


def _claims(connection: sa.Connection, now: int) -> Finding:
    live = {w.id for w in workers(connection, now) if w.state != LOST}
    rows = connection.execute(
        prepared("SELECT id, worker FROM schedd_tasks WHERE state >= 4 AND state <= 5 ORDER BY id")
    ).fetchall()
    loose = [row.id for row in rows if row.worker not in live]
    return _finding(
        "claims",
        f"{counted(len(rows), 'task')} held by live workers",
        "held by no live worker",
        loose[:_MOST],
    )


def _ready(connection: sa.Connection, now: int) -> Finding:
    found = unserved(connection, now)
    if not found:
        return Finding("ready tasks", OK, "some live worker takes each")
    return Finding("ready tasks", NOTE, "; ".join(s.text for s in found), tuple(i for s in found for i in s.tasks))


def _retries(connection: sa.Connection) -> Finding:
    found = never(connection)
    if not found:
        return Finding("retries", OK, "no task waits until what has ended is retried")
    return Finding("retries", NOTE, "; ".join(s.text for s in found), tuple(i for s in found for i in s.tasks))


def _stalls(connection: sa.Connection, now: int) -> Finding:
    quiet = stalled(connection, now)
    if not quiet:
        return Finding("heartbeats", OK, "no running task is overdue with its heartbeat")
    ids = tuple(one.id for one in quiet[:_MOST])
    text = f"{counted(len(quiet), 'task')} running without a heartbeat, for up to {span_text(quiet[0].quiet)}"
    return Finding("heartbeats", NOTE, f"{text}: {listed([str(i) for i in ids])}", ids)


def _standoffs(connection: sa.Connection) -> Finding:
    rings = standoffs.found(connection)
    if not rings:
        return Finding("awaits", OK, "no tasks wait for one another")
    text = "; ".join(standoffs.said(ring) for ring in rings)
    return Finding("awaits", PROBLEM, text, tuple(sorted(i for ring in rings for i in ring)))


def _keys(connection: sa.Connection) -> Finding:
    rows = connection.execute(
        prepared(
            "SELECT min(id) AS id FROM schedd_tasks WHERE held_key IS NOT NULL GROUP BY kind, held_key "
            f"HAVING count(*) > 1 ORDER BY 1 LIMIT {_MOST}"
        )
    )
    return _finding("keys", "none is held twice", "hold a key that another one holds", [row.id for row in rows])


def _schedules(connection: sa.Connection, now: int) -> Finding:
    rows = connection.execute(
        prepared(
            "SELECT s.name, s.recurrence, s.anchor, s.next_at, s.paused, t.state, t.finished_at "
            "FROM schedd_schedules s LEFT JOIN schedd_tasks t ON t.id = s.last_task ORDER BY s.name"
        )
    ).fetchall()
    bad = []
    for row in rows:
        try:
            Recurrence.from_json(row.recurrence)
        except Exception as error:  # whatever an unreadable row brings, the others are to be checked too
            bad.append(f"{row.name} (unreadable: {error})")
            continue
        ended = row.state is None or row.state >= st.FIRST_TERMINAL
        if row.next_at >= FOREVER and ended and (row.finished_at or 0) < now - _LATE and not row.paused:
            bad.append(f"{row.name} (its run has ended, yet it has no next slot)")
        elif row.next_at < now - _LATE and not row.paused:
            bad.append(f"{row.name} (overdue by {span_text(now - row.next_at)})")
        elif is_ahead(row, now + _LATE) and not row.paused:
            at = rfc3339(row.next_at, exact=False)
            bad.append(
                f"{row.name} (goes on at {at} only, as a clock was ahead: `schedctl cron pause` and `resume` it)"
            )
    if bad:
        return Finding("schedules", PROBLEM, f"{counted(len(bad), 'schedule')} without a next slot: {listed(bad)}")
    return Finding("schedules", OK, f"{counted(len(rows), 'schedule')}, each has its next slot")


def _runs(connection: sa.Connection, now: int) -> Finding:
    found = unserved_schedules(connection, read_fleet(connection, now))
    if not found:
        return Finding("schedules' tasks", OK, "none makes what nobody would run")
    return Finding("schedules' tasks", NOTE, "; ".join(text for text, _ in said_of(found)))


def check_surroundings(database: Database, connection: sa.Connection, version: str) -> list[Finding]:
    """Check what lies around the rows: schema, clock, doorbell, disk, versions of the workers."""
    found = [Finding("schema", OK, f"revision {migrate.current(connection)}, schedd {version}")]
    found.append(_clock(database.offset))
    seen = workers(connection, database.now())
    skewed = [f"{w.label} by {span_text(abs(w.skew))}" for w in seen if abs(w.skew) > _SKEW]
    if skewed:
        found.append(Finding("workers' clocks", NOTE, f"are off (which times do not depend on): {listed(skewed)}"))
    others = sorted({w.version for w in seen} - {version})
    if others:
        found.append(Finding("versions", NOTE, f"workers also run version {listed(others)}"))
    path = database.path
    if path is not None:
        bell = database.bell_directory
        assert bell is not None
        usable = os.access(bell, os.W_OK | os.X_OK) if bell.exists() else os.access(path.absolute().parent, os.W_OK)
        said = f"{bell} is writable" if usable else f"{bell} cannot be written: idle workers poll instead"
        found.append(Finding("doorbell", OK if usable else PROBLEM, said))
        free = shutil.disk_usage(path.absolute().parent).free
        level = PROBLEM if free < _LOW_SPACE else OK
        found.append(Finding("disk", level, f"{free // 2**20} MiB free beside the database"))
    else:
        found += [_horizon(connection), _locks(connection)]
    return found


def _horizon(connection: sa.Connection) -> Finding:
    holders = horizon.holders(connection)
    if not holders:
        return Finding("old snapshots", OK, f"no transaction is open for {span_text(horizon.LONG)}")
    text = "; ".join(f"{one.text} ({one.remedy})" for one in holders)
    return Finding("old snapshots", NOTE, f"what has died meanwhile cannot be removed: {text}")


def _locks(connection: sa.Connection) -> Finding:
    waiting = row_locks.blocked(connection)
    if not waiting:
        return Finding("locks", OK, "no session waits for another one's")
    return Finding("locks", NOTE, f"{'; '.join(waiting)} (SELECT pg_terminate_backend(...) ends a session)")


def _clock(offset: int) -> Finding:
    if not offset:
        return Finding("clock", OK, "one machine's")
    level = PROBLEM if abs(offset) > _OFFSET else NOTE if abs(offset) > _SKEW else OK
    side = "behind" if offset > 0 else "ahead of"
    return Finding("clock", level, f"this machine's clock is {span_text(abs(offset))} {side} the server's")
