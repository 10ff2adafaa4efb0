"""Standbys of a PostgreSQL server that follow asynchronously: what was committed last is lost if one takes over."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.model.texts import listed
from scheduler.store.db.tx import Tx

WANTED = "GRANT pg_monitor TO the database user"
_MAY_LOOK = "SELECT pg_has_role('pg_read_all_stats', 'USAGE')"
# A standby is named as it names itself; one connection of a backup that is under way is none.
_ASYNCHRONOUS = (
    "SELECT coalesce(nullif(application_name, ''), 'unnamed') FROM pg_stat_replication "
    "WHERE sync_state = 'async' AND application_name NOT LIKE 'pg\\_%' ORDER BY 1"
)


def asynchronous(tx: Tx) -> list[str] | None:
    """Their names; None if the database user may not see them."""
    if not tx.run(_MAY_LOOK).scalar():
        return None
    return [name for (name,) in tx.run(_ASYNCHRONOUS)]


def describe(names: Sequence[str]) -> str:
    """What that means and what helps."""
    return (
        f"{listed(names)} follows asynchronously: a failover may lose what was committed last, and tasks with it. "
        "With synchronous_standby_names set none is lost; each commit then waits for the standby, one more round trip"
    )
