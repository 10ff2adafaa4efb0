"""The fleet's start: a worker starts, and no other is live. Schedules of kind start run then, once for all workers.

See docs/decisions/0351-a-fleet-starts-when-a-worker-finds-no-other.md.
"""

from __future__ import annotations

from collections.abc import Collection

from scheduler.model.recurrence import at_start
from scheduler.model.worker_states import STOPPED
from scheduler.ports import FOREVER, NEVER
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx

_WAITING = "next_at = :never AND paused = 0 AND recurrence = :at_start"
_LIVE = f"state < {STOPPED} AND lease_until BETWEEN :now AND {FOREVER} - 1"  # but the rows of executors


def note(tx: Tx, after: int, gone: Collection[int] = ()) -> None:
    """Make the schedules due if the oldest live worker started later than ``after``, and no earlier one lived then.

    Called by a worker that joins, and when others are declared dead: their leases looked alive at the join. ``gone``:
    workers whose processes are known to have ended. A schedule that was registered after that start, or has run since,
    waits for the next one.
    """
    bound = {"never": NEVER, "at_start": at_start().to_json()}
    names = f"SELECT name FROM schedd_schedules t WHERE {_WAITING} ORDER BY name {tx.dialect.lock}"
    if tx.run(names, **bound).first() is None:
        return
    # Asked under the lock: of two workers that join at once, the second sees the first.
    live = f"SELECT min(started_at) FROM schedd_workers WHERE {_LIVE} AND id NOT IN {tx.dialect.ids()}"
    started = tx.run(live, now=tx.now, ids=bind_rows(list(gone))).scalar()
    if started is None or started <= after:
        return
    earlier = "SELECT 1 FROM schedd_workers WHERE started_at < :started AND heartbeat_at > :started LIMIT 1"
    if tx.run(earlier, started=started).first() is None:
        tx.run(
            f"UPDATE schedd_schedules SET next_at = :now WHERE {_WAITING} "
            "AND anchor <= :started AND coalesce(last_slot, 0) < :started",
            now=tx.now,
            started=started,
            **bound,
        )


def note_dead(tx: Tx, dead: Collection[tuple[int, int]]) -> None:
    """:func:`note` when these have been declared dead: the last renewal of each, and the end of its lease.

    Each may have lived until its next renewal, after a third of its lease.
    """
    note(tx, max(renewed + (until - renewed) // 3 for renewed, until in dead))
