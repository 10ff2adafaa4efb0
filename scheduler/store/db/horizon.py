"""Who keeps PostgreSQL from removing what has died: old transactions, prepared ones, replication slots, standbys."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from scheduler.model.texts import counted, span_text
from scheduler.ports import SECOND
from scheduler.store.db.dialect import prepared

if TYPE_CHECKING:
    import sqlalchemy as sa

MIN_AGE = 300 * SECOND  # microseconds from which a transaction is reported
MANY = 100_000  # transactions that a slot or a standby, which have no time, may lag behind


class VacuumBlocker(NamedTuple):
    """``text``: the session, and since when; ``remedy``: what ends it."""

    text: str
    remedy: str


# A transaction with an id of its own holds back as much as one with a snapshot. Those of other databases hold nothing
# back here; of other users' sessions only a member of pg_read_all_stats sees more than that they are there.
_SESSIONS = """
SELECT pid, coalesce(nullif(application_name, ''), 'no name') AS name, usename, state,
  CAST(extract(epoch FROM clock_timestamp() - xact_start) * 1000000 AS bigint) AS age
FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
  AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
  AND xact_start <= clock_timestamp() - CAST(:long AS float) * interval '1 microsecond' ORDER BY xact_start LIMIT 3
"""
_PREPARED = """
SELECT gid, CAST(extract(epoch FROM clock_timestamp() - prepared) * 1000000 AS bigint) AS age FROM pg_prepared_xacts
WHERE database = current_database() AND prepared <= clock_timestamp() - CAST(:long AS float) * interval '1 microsecond'
ORDER BY prepared LIMIT 3
"""
_SLOTS = """
SELECT slot_name AS name, age(xmin) AS age FROM pg_replication_slots WHERE xmin IS NOT NULL AND age(xmin) >= :many
"""
_STANDBYS = """
SELECT pid, coalesce(nullif(application_name, ''), 'no name') AS name, age(backend_xmin) AS age
FROM pg_stat_replication WHERE backend_xmin IS NOT NULL AND age(backend_xmin) >= :many
"""


def holders(connection: sa.Connection, long: int | None = None, many: int | None = None) -> list[VacuumBlocker]:
    """Those that have done so for ``long`` microseconds, or for ``many`` transactions. Only for PostgreSQL."""
    bound = {"long": MIN_AGE if long is None else long, "many": MANY if many is None else many}
    found = [
        VacuumBlocker(
            f"session {row.pid} ({row.name}, user {row.usename}, {row.state}) has a transaction open for "
            f"{span_text(row.age)}",
            f"SELECT pg_terminate_backend({row.pid}), or set idle_in_transaction_session_timeout",
        )
        for row in connection.execute(prepared(_SESSIONS), {"long": bound["long"]})
    ]
    found += [
        VacuumBlocker(
            f"the prepared transaction {row.gid!r} waits for {span_text(row.age)}",
            "COMMIT PREPARED or ROLLBACK PREPARED",
        )
        for row in connection.execute(prepared(_PREPARED), {"long": bound["long"]})
    ]
    found += [
        VacuumBlocker(
            f"the replication slot {row.name!r} is {counted(row.age, 'transaction')} behind",
            "its reader has to catch up, or pg_drop_replication_slot",
        )
        for row in connection.execute(prepared(_SLOTS), {"many": bound["many"]})
    ]
    found += [
        VacuumBlocker(
            f"the standby of session {row.pid} ({row.name}) is {counted(row.age, 'transaction')} behind",
            "end the long query there",
        )
        for row in connection.execute(prepared(_STANDBYS), {"many": bound["many"]})
    ]
    return found
