"""Workers and their leases: one row per incarnation, renewed while its loop goes round.

A claim is live while its worker's lease is. Lost means reclaimed: an expired lease that no worker has reclaimed still
holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler.errors import InvalidTransitionError, UnknownWorkerError
from scheduler.model.capacity import SLOT_TYPES, Capacity
from scheduler.model.worker_states import DEAD, STOPPED, WORKER_STATES
from scheduler.ports import FOREVER, SECOND
from scheduler.store import audit
from scheduler.store.db.schema_version import VERSION
from scheduler.store.db.tx import Tx
from scheduler.store.pauses import IN_EFFECT
from scheduler.store.predicates import held

if TYPE_CHECKING:
    import sqlalchemy as sa

    from scheduler.model.registry import Kind

_AHEAD = 60 * SECOND  # of the clock: a lease that begins later is one of before it was set back
SUSPECT_TWICE = 2
DEATHS_ALONE = 3
EXECUTOR_HOST = "executor"  # of the row of an executor, which has no process and no lease


def executor_incarnation(name: str) -> str:
    """The incarnation of an executor's row among the workers."""
    return f"executor:{name}"


class WorkerInfo(NamedTuple):
    """What a worker says of itself."""

    incarnation: str
    host: str
    pid: int
    version: str
    queues: Sequence[str]
    capacity: Capacity


def register(tx: Tx, info: WorkerInfo, kinds: Iterable[Kind], lease: int, skew: int = 0) -> int:
    """Insert the worker with a live lease (``lease`` microseconds) and the kinds it serves. Returns its id.

    ``skew``: microseconds that its machine's clock is behind the server's.
    """
    worker = tx.run(
        "INSERT INTO schedd_workers (incarnation, host, pid, version, state, queues, pools, started_at, "
        "heartbeat_at, lease_until, skew) VALUES (:incarnation, :host, :pid, :version, 0, :queues, :pools, :now, "
        ":now, :until, :skew) RETURNING id",
        incarnation=info.incarnation,
        host=info.host,
        pid=info.pid,
        version=info.version,
        queues=msgspec.json.encode(list(info.queues)).decode(),
        pools=msgspec.json.encode(info.capacity).decode(),
        now=tx.now,
        until=tx.now + lease,
        skew=skew,
    ).scalar_one()
    publish_kinds(tx, worker, kinds)
    return int(worker)


def publish_kinds(tx: Tx, worker: int, kinds: Iterable[Kind]) -> None:
    """Upsert what ``schedctl submit`` and the caps read; of two programs the newer schema version wins."""
    for kind in sorted(kinds, key=lambda k: k.name):  # one order for all, so that two boots cannot deadlock
        o = kind.options
        options = {
            "runs": kind.runs,
            "built_in": kind.built_in,
            "slot_type": SLOT_TYPES[kind.slot_type],
            "queue": o.queue,
            "priority": int(o.priority),
            "retry": o.retry.to_json() if o.retry else None,
            "timeout": o.timeout,
            "max_concurrency": o.max_concurrency,
            "rate_limit": None if o.rate_limit is None else [o.rate_limit.count, o.rate_limit.period],
            "dead_letter": o.dead_letter,
            "result_ttl": o.result_ttl,
            "failed_ttl": o.failed_ttl,
            "key_retention": o.key_retention,
            **kind.published_keys(),
            "upgrades": kind.upgrades,
            "stall_after": o.stall_after,
            "on_stall": o.on_stall,
            "executor": o.executor,
            "resources": o.resources,
            **({"ranked": True} if o.ranked else {}),
            **({} if o.on_success is None else {"on_success": o.on_success}),
            "executor_options": o.executor_options,
            "concurrency_key": kind.published_key_template(),
            "concurrency_key_why": kind.why_key_is_private(),  # only its program can make it
            **({} if o.fairness_key is None else {"fairness_key": kind.published_key_template("fairness_key")}),
            **({} if o.fairness_weight == 1 else {"fairness_weight": o.fairness_weight}),
        }
        bound = {
            "name": kind.name,
            "schema": msgspec.json.encode(kind.schema()).decode(),
            "options": msgspec.json.encode(options).decode(),
            "version": o.schema_version,
            "now": tx.now,
            "worker": worker,
        }
        tx.run(
            "INSERT INTO schedd_kinds (name, schema, options, schema_version, updated_at) "
            "VALUES (:name, :schema, :options, :version, :now) ON CONFLICT (name) DO UPDATE SET "
            "schema = excluded.schema, options = excluded.options, schema_version = excluded.schema_version, "
            "updated_at = excluded.updated_at WHERE schedd_kinds.schema_version <= excluded.schema_version",
            **bound,
        )
        tx.run(
            "INSERT INTO schedd_worker_kinds (worker, kind, schema_version) VALUES (:worker, :name, :version) "
            "ON CONFLICT (worker, kind) DO UPDATE SET schema_version = excluded.schema_version",
            **bound,
        )


def publish_capacity(tx: Tx, worker: int, capacity: Capacity) -> None:
    """Write what the worker says of its slots now."""
    tx.run(
        f"UPDATE schedd_workers SET pools = :pools WHERE id = :worker AND state < {STOPPED}",
        worker=worker,
        pools=msgspec.json.encode(capacity).decode(),
    )


def renew(
    tx: Tx, worker: int, lease: int, state: int | None = None, skew: int = 0, incarnation: str | None = None
) -> bool:
    """Extend the lease, and set the worker's state (and its clock's skew) if one is given. False if it was reclaimed:
    what is lost cannot be extended; or if the id is another ``incarnation``'s, after a failover that lost commits."""
    also = "" if state is None else ", state = :state, skew = :skew"
    bound = {"worker": worker, "now": tx.now, "until": tx.now + lease, "incarnation": incarnation}
    bound |= {} if state is None else {"state": state, "skew": skew}
    done = tx.run(
        f"UPDATE schedd_workers SET lease_until = :until, heartbeat_at = :now{also} "
        f"WHERE id = :worker AND state < {STOPPED} AND incarnation = coalesce(:incarnation, incarnation)",
        **bound,
    )
    return bool(done.rowcount == 1)


def shorten_leases(tx: Tx, but: int) -> None:
    """Let leases that begin ahead of the clock begin now: it was set back. A worker that lives renews its own in time;
    without this one that has died would hold its tasks until the clock has come so far again."""
    tx.run(
        "UPDATE schedd_workers SET lease_until = :now + lease_until - heartbeat_at, heartbeat_at = :now WHERE id IN "
        f"(SELECT t.id FROM schedd_workers t WHERE t.id <> :but AND t.state < {STOPPED} "
        f"AND t.heartbeat_at > :latest AND t.lease_until < {FOREVER} {tx.dialect.skip_locked})",
        now=tx.now,
        latest=tx.now + _AHEAD,
        but=but,
    )


def renewals(tx: Tx, but: int) -> dict[str, int]:
    """When each live worker ``but`` this one last renewed its lease, by its own clock on SQLite."""
    sql = (
        "SELECT incarnation, heartbeat_at FROM schedd_workers "
        f"WHERE id <> :but AND state < {STOPPED} AND lease_until < {FOREVER}"
    )
    return dict(tx.rows(sql, but=but))


def bury(tx: Tx, incarnation: str) -> None:
    """Declare this worker dead, if the database still knows it."""
    tx.run(
        f"UPDATE schedd_workers SET state = {DEAD} WHERE incarnation = :incarnation AND state < {STOPPED}",
        incarnation=incarnation,
    )


class WorkerOrders(NamedTuple):
    """What an operator wants of a worker: to claim nothing more (``drain``), to start anew (``restart``)."""

    dead: bool
    drain: bool
    restart: bool
    pauses: str | None = None  # see Pauses.of()
    schema: str | None = None  # of the database


def commands(tx: Tx, worker: int) -> WorkerOrders:
    """Read the worker's own row."""
    paused = IN_EFFECT[tx.dialect.name]
    sql = (
        f"SELECT state, drain_requested, restart_requested, {paused}, {VERSION} FROM schedd_workers WHERE id = :worker"
    )
    rows = tx.rows(sql, worker=worker)
    if not rows:
        return WorkerOrders(True, False, False)
    ((state, drain, restart, pauses, schema),) = rows
    return WorkerOrders(state >= STOPPED, drain is not None, restart is not None, pauses, schema)


def request_drain(tx: Tx, worker: int, *, drain: bool) -> None:
    """:func:`set_drain` by hand, recorded in the audit."""
    set_drain(tx, worker, drain=drain)
    audit.record(tx, "drain" if drain else "resume", subject=f"worker {worker}")


def set_drain(tx: Tx, worker: int, *, drain: bool) -> None:
    """Ask a worker to claim nothing more, or to claim again. Raises UnknownWorkerError, InvalidTransitionError."""
    row = tx.run(
        "UPDATE schedd_workers SET drain_requested = CASE WHEN :drain = 1 THEN coalesce(drain_requested, :now) END "
        "WHERE id = :worker RETURNING state",
        worker=worker,
        now=tx.now,
        drain=int(drain),
    ).one_or_none()
    _check_alive(worker, row)


def request_restart(tx: Tx, worker: int) -> None:
    """Ask a worker to end and to start anew, and record it. Raises UnknownWorkerError, InvalidTransitionError."""
    row = tx.run(
        "UPDATE schedd_workers SET restart_requested = :now WHERE id = :worker RETURNING state",
        worker=worker,
        now=tx.now,
    ).one_or_none()
    _check_alive(worker, row)
    audit.record(tx, "restart", subject=f"worker {worker}")


def _check_alive(worker: int, row: sa.Row[tuple[int]] | None) -> None:
    if row is None:
        raise UnknownWorkerError(worker)
    if row.state >= STOPPED:
        raise InvalidTransitionError(f"worker {worker} is {WORKER_STATES[row.state]}: it claims nothing any more")


def stop(tx: Tx, worker: int) -> None:
    """Record that this worker has stopped and holds nothing."""
    tx.run(
        "UPDATE schedd_workers SET state = :state, lease_until = :now, heartbeat_at = :now "
        f"WHERE id = :worker AND state < {STOPPED}",
        worker=worker,
        now=tx.now,
        state=STOPPED,
    )


_NEXT_LAPSE = (
    f"SELECT min(lease_until) FROM schedd_workers WHERE state < {STOPPED} AND id <> :spare AND lease_until < {FOREVER}"
)
_DEAD_HOLDING = (
    f"schedd_workers w WHERE w.state >= {STOPPED} AND EXISTS "
    f"(SELECT 1 FROM schedd_tasks t WHERE t.worker = w.id AND {held('t')})"
)
_FIND_EXPIRED = f"SELECT ({_NEXT_LAPSE}), EXISTS (SELECT 1 FROM {_DEAD_HOLDING})"


def _noted_here(row: sa.Row[Any]) -> str:
    """The file of this worker that says which handlers had begun, if it is on this host; else empty."""
    import socket  # which a command that looks at workers does not need

    if row.host != socket.gethostname():
        return ""
    with suppress(msgspec.MsgspecError):  # by another version
        return msgspec.json.decode(row.pools, type=Capacity).begun
    return ""


def beside(tx: Tx, worker: int, host: str) -> list[tuple[int, str]]:
    """(id, the file that says what has begun) of the other workers of this host that have not stopped."""
    rows = tx.rows(
        f"SELECT id, pools FROM schedd_workers WHERE state < {STOPPED} AND host = :host AND id <> :worker",
        host=host,
        worker=worker,
    )
    found = []
    for other, pools in rows:
        with suppress(msgspec.MsgspecError):
            found.append((int(other), msgspec.json.decode(pools, type=Capacity).begun))
    return [(other, path) for other, path in found if path]
