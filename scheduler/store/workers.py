"""Workers and their leases: one row per incarnation, renewed while its loop goes round.

A claim is live while its worker's lease is. Lost means reclaimed: an expired lease that nobody reclaimed still holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
import sqlalchemy as sa

from scheduler.errors import InvalidTransitionError, UnknownWorkerError
from scheduler.model import state as st
from scheduler.model.capacity import SORTS, Capacity
from scheduler.model.outcome import AttemptEnd
from scheduler.model.registry import Kind
from scheduler.model.state import END_BIT, TaskState
from scheduler.store.claim import SUSPECT_LANE
from scheduler.store.dialect import Dialect, bind_rows, prepared
from scheduler.store.downward import BROKEN_BITS
from scheduler.store.locking import look_below
from scheduler.store.release import release
from scheduler.store.replacing import settle, unsettleable
from scheduler.store.statement import run

LIVE, DRAINING, STOPPED, DEAD = range(4)
WORKER_STATES = ("live", "draining", "stopped", "dead")
SUSPECT_TWICE = 2
DEATHS_ALONE = 3


class WorkerInfo(NamedTuple):
    """What a worker says of itself."""

    incarnation: str
    host: str
    pid: int
    version: str
    queues: Sequence[str]
    capacity: Capacity


def register(
    connection: sa.Connection, info: WorkerInfo, kinds: Iterable[Kind], now: int, lease: int, skew: int = 0
) -> int:
    """Insert the worker with a live lease (``lease`` microseconds) and the kinds it serves. Returns its id.

    ``skew``: microseconds that its machine's clock is behind the server's.
    """
    worker = connection.execute(
        prepared(
            "INSERT INTO schedd_workers (incarnation, host, pid, version, state, queues, pools, started_at, "
            "heartbeat_at, lease_until, skew) VALUES (:incarnation, :host, :pid, :version, 0, :queues, :pools, :now, "
            ":now, :until, :skew) RETURNING id"
        ),
        {
            "incarnation": info.incarnation,
            "host": info.host,
            "pid": info.pid,
            "version": info.version,
            "queues": msgspec.json.encode(list(info.queues)).decode(),
            "pools": msgspec.json.encode(info.capacity).decode(),
            "now": now,
            "until": now + lease,
            "skew": skew,
        },
    ).scalar_one()
    publish_kinds(connection, worker, kinds, now)
    return int(worker)


def publish_kinds(connection: sa.Connection, worker: int, kinds: Iterable[Kind], now: int) -> None:
    """Upsert what ``schedctl submit`` and the caps read; of two programs the newer schema version wins."""
    for kind in sorted(kinds, key=lambda k: k.name):  # one order for everybody, so that two boots cannot deadlock
        o = kind.options
        options = {
            "runs": kind.runs,
            "sort": SORTS[kind.sort],
            "queue": o.queue,
            "pool": int(o.priority),
            "retry": o.retry.to_json() if o.retry else None,
            "timeout": o.timeout,
            "max_concurrency": o.max_concurrency,
            "rate_limit": None if o.rate_limit is None else [o.rate_limit.count, o.rate_limit.period],
            "dead_letter": o.dead_letter,
            "result_ttl": o.result_ttl,
            "stall_after": o.stall_after,
            "on_stall": o.on_stall,
            "concurrency_key": kind.public_key(),
            "concurrency_key_why": kind.private_key(),  # only its program can make it
        }
        bound = {
            "name": kind.name,
            "schema": msgspec.json.encode(kind.schema()).decode(),
            "options": msgspec.json.encode(options).decode(),
            "version": o.schema_version,
            "now": now,
            "worker": worker,
        }
        connection.execute(
            prepared(
                "INSERT INTO schedd_kinds (name, schema, options, schema_version, updated_at) "
                "VALUES (:name, :schema, :options, :version, :now) ON CONFLICT (name) DO UPDATE SET "
                "schema = excluded.schema, options = excluded.options, schema_version = excluded.schema_version, "
                "updated_at = excluded.updated_at WHERE schedd_kinds.schema_version <= excluded.schema_version"
            ),
            bound,
        )
        connection.execute(
            prepared(
                "INSERT INTO schedd_worker_kinds (worker, kind, schema_version) VALUES (:worker, :name, :version) "
                "ON CONFLICT (worker, kind) DO UPDATE SET schema_version = excluded.schema_version"
            ),
            bound,
        )


def publish_capacity(connection: sa.Connection, worker: int, capacity: Capacity) -> None:
    """Write what the worker says of its slots now."""
    connection.execute(
        prepared(f"UPDATE schedd_workers SET pools = :pools WHERE id = :worker AND state < {STOPPED}"),
        {"worker": worker, "pools": msgspec.json.encode(capacity).decode()},
    )


def renew(
    connection: sa.Connection, worker: int, now: int, lease: int, state: int | None = None, skew: int = 0
) -> bool:
    """Extend the lease, and set the worker's state (and its clock's skew) if one is given. False if it was reclaimed:
    what is lost cannot be extended."""
    told = "" if state is None else ", state = :state, skew = :skew"
    bound = {"worker": worker, "now": now, "until": now + lease}
    bound |= {} if state is None else {"state": state, "skew": skew}
    done = connection.execute(
        prepared(
            f"UPDATE schedd_workers SET lease_until = :until, heartbeat_at = :now{told} "
            f"WHERE id = :worker AND state < {STOPPED}"
        ),
        bound,
    )
    return bool(done.rowcount == 1)


class Told(NamedTuple):
    """What a worker's row tells it. ``drain``: an operator wants it to claim nothing more."""

    dead: bool
    drain: bool


def told(connection: sa.Connection, worker: int) -> Told:
    """Read the worker's own row."""
    rows = run(connection, "SELECT state, drain_requested FROM schedd_workers WHERE id = :worker", {"worker": worker})
    return Told(rows[0][0] >= STOPPED, rows[0][1] is not None) if rows else Told(True, False)


def ask_to_drain(connection: sa.Connection, worker: int, now: int, *, drain: bool) -> None:
    """Ask a worker to claim nothing more, or to claim again. Raises UnknownWorkerError, InvalidTransitionError."""
    row = connection.execute(
        prepared(
            "UPDATE schedd_workers SET drain_requested = CASE WHEN :drain = 1 THEN coalesce(drain_requested, :now) END "
            "WHERE id = :worker RETURNING state"
        ),
        {"worker": worker, "now": now, "drain": int(drain)},
    ).one_or_none()
    if row is None:
        raise UnknownWorkerError(worker)
    if row.state >= STOPPED:
        raise InvalidTransitionError(f"worker {worker} is {WORKER_STATES[row.state]}: it claims nothing any more")


def stop(connection: sa.Connection, worker: int, now: int) -> None:
    """Say goodbye: this worker holds nothing any more."""
    connection.execute(
        prepared(
            "UPDATE schedd_workers SET state = :state, lease_until = :now, heartbeat_at = :now "
            f"WHERE id = :worker AND state < {STOPPED}"
        ),
        {"worker": worker, "now": now, "state": STOPPED},
    )


class Reclaimed(NamedTuple):
    """One dead worker and what it held."""

    worker: int
    label: str
    tasks: int
    poisoned: tuple[int, ...]


_NEXT_LAPSE = f"SELECT min(lease_until) FROM schedd_workers WHERE state < {STOPPED} AND id <> :spare"
_DEAD_HOLDING = (
    f"schedd_workers w WHERE w.state >= {STOPPED} AND EXISTS "
    "(SELECT 1 FROM schedd_tasks t WHERE t.worker = w.id AND t.state >= 4 AND t.state <= 5)"
)
_LOOK_FOR_DEAD = f"SELECT ({_NEXT_LAPSE}), EXISTS (SELECT 1 FROM {_DEAD_HOLDING})"


def reap(
    connection: sa.Connection,
    dialect: Dialect,
    now: int,
    *,
    known_dead: Sequence[str] = (),
    spare: int | None = None,
    lapsed: bool = True,
) -> list[Reclaimed]:
    """Declare workers dead whose lease ran out (or whose incarnation is known to be dead), and take their claims back.

    ``spare``: the caller's own worker id; ``lapsed``: leases that ran out count, too. Claims of a worker found dead
    earlier, that somebody's transaction held then, are taken back now, so nothing stays behind.
    """
    # One whose row is locked is just renewing, or stands still while it does: nobody waits for it.
    connection.execute(
        prepared(
            f"UPDATE schedd_workers SET state = {DEAD} WHERE id IN (SELECT t.id FROM schedd_workers t "
            f"WHERE t.state < {STOPPED} AND t.id <> :spare AND "
            "(t.lease_until < :before OR t.incarnation IN (SELECT value FROM "
            + ("json_each(:dead))" if dialect.name == "sqlite" else "json_array_elements_text(CAST(:dead AS json)))")
            + f") {dialect.skip_locked})"
        ),
        {
            "before": now if lapsed else 0,
            "spare": -1 if spare is None else spare,
            "dead": msgspec.json.encode(list(known_dead)).decode(),
        },
    )
    found = connection.execute(prepared(f"SELECT w.id, w.host, w.pid, w.incarnation FROM {_DEAD_HOLDING}")).fetchall()
    done = []
    for row in found:
        label = f"{row.host}:{row.pid} ({row.incarnation})"
        tasks, poisoned = _take_back(connection, dialect, row.id, label, now)
        done.append(Reclaimed(row.id, label, tasks, poisoned))
    return done


def next_lapse(connection: sa.Connection, spare: int | None) -> int:
    """When the next lease of another worker runs out; 0 if there is none."""
    ((found,),) = run(connection, f"SELECT ({_NEXT_LAPSE})", {"spare": -1 if spare is None else spare})
    return int(found or 0)


def look_for_dead(connection: sa.Connection, spare: int | None) -> tuple[int, bool]:
    """:func:`next_lapse`, and whether there is a worker found dead whose claims nobody has taken back yet."""
    ((lapse, found),) = run(connection, _LOOK_FOR_DEAD, {"spare": -1 if spare is None else spare})
    return int(lapse or 0), bool(found)


def _take_back(
    connection: sa.Connection, dialect: Dialect, worker: int, label: str, now: int
) -> tuple[int, tuple[int, ...]]:
    """Claims of a dead worker go back to be claimed; each becomes a suspect.

    A task suspect twice runs next alone, and dying alone three times makes it a dead letter; bystanders are never
    blamed. A claim that never started gets its attempt back (by moving the base: the number still grows).
    """
    rows = connection.execute(
        prepared(
            "SELECT t.id, t.claim, t.attempt, t.state, t.claimed_at, t.started_at, t.lane, t.suspect, t.deaths, "
            "t.cancel_requested, t.dead_letter, t.rerun FROM schedd_tasks t "
            "WHERE t.worker = :worker AND t.state >= 4 AND t.state <= 5 "
            f"ORDER BY t.id {dialect.skip_locked}"
        ),
        {"worker": worker},
    ).fetchall()
    tasks, attempts, poisoned = [], [], []
    error = f"lost: worker {label} died or lost its lease"
    for r in rows:
        alone = r.lane.startswith(SUSPECT_LANE)
        deaths = r.deaths + (1 if alone else 0)
        lane, text = r.lane, error
        end = AttemptEnd.LOST
        if r.rerun == 1:
            state = st.SCHEDULED  # as what replaced it meanwhile, which kills nobody as far as is known
        elif r.cancel_requested is not None:
            state = st.CANCELLED
        elif deaths >= DEATHS_ALONE:
            state = st.DEAD if r.dead_letter else st.FAILED
            text = f"killed its worker {deaths} times while running alone; last: {label}"
            poisoned.append(r.id)
        else:
            state = st.SCHEDULED
            if r.suspect + 1 >= SUSPECT_TWICE and not alone:
                lane = SUSPECT_LANE + lane
        refund = 1 if r.state == st.CLAIMED else 0
        tasks.append((r.id, state, lane, deaths, refund, text if state in (st.DEAD, st.FAILED) else None))
        attempts.append((r.id, r.claim, r.attempt, r.claimed_at, r.started_at, end.code, text))
    ends = {t[0]: END_BIT[TaskState.from_code(t[1])] for t in tasks if t[1] >= st.FIRST_TERMINAL}
    replaced = [r.id for r in rows if r.rerun]
    ends |= {i: ends.get(i, 0) | BROKEN_BITS for i in replaced}
    if ends and dialect.skip_locked:
        # Somebody's open transaction holds what waits for them: they stay claimed until a later call.
        blocked = look_below(connection, dialect, ends).blocked | unsettleable(connection, dialect, replaced)
        tasks = [t for t in tasks if t[0] not in blocked]
        attempts = [a for a in attempts if a[0] not in blocked]
        poisoned = [p for p in poisoned if p not in blocked]
    if tasks:
        _write_back(connection, dialect, worker, tasks, attempts, now)
    ended = {t[0]: TaskState.from_code(t[1]) for t in tasks if t[1] >= st.FIRST_TERMINAL}
    if ended:
        release(connection, dialect, ended.items(), now)
    if replaced:
        settle(connection, dialect, [t[0] for t in tasks], now)
    return len(tasks), tuple(poisoned)


def _write_back(
    connection: sa.Connection,
    dialect: Dialect,
    worker: int,
    tasks: Sequence[tuple[int, int, str, int, int, str | None]],
    attempts: Sequence[tuple[object, ...]],
    now: int,
) -> None:
    columns: dict[str, type] = {
        "id": int,
        "state": int,
        "lane": str,
        "deaths": int,
        "refund": int,
        "error": str,
    }
    connection.execute(
        prepared(
            "UPDATE schedd_tasks SET state = j.state, "
            "worker = NULL, lane = j.lane, deaths = j.deaths, suspect = schedd_tasks.suspect + 1, "
            "attempt_base = schedd_tasks.attempt_base + j.refund, "
            "finished_at = CASE WHEN j.state >= 6 THEN :now ELSE schedd_tasks.finished_at END, "
            "held_key = CASE WHEN j.state >= 6 THEN NULL ELSE schedd_tasks.held_key END, "
            "error = coalesce(j.error, schedd_tasks.error), "
            "error_class = CASE WHEN j.error IS NULL THEN schedd_tasks.error_class ELSE 'WorkerDied' END "
            f"FROM {dialect.rows(columns)} j WHERE schedd_tasks.id = j.id AND schedd_tasks.worker = :worker"
        ),
        {"rows": bind_rows(tasks), "now": now, "worker": worker},
    )
    columns = {
        "task_id": int,
        "claim": int,
        "number": int,
        "claimed_at": int,
        "started_at": int,
        "outcome": int,
        "error": str,
    }
    names = ", ".join(columns)
    connection.execute(
        prepared(
            f"INSERT INTO schedd_attempts (worker, finished_at, {names}) SELECT :worker, :now, {names} "
            f"FROM {dialect.rows(columns)} j WHERE true ON CONFLICT (task_id, claim) DO NOTHING"
        ),
        {"rows": bind_rows(attempts), "now": now, "worker": worker},
    )
