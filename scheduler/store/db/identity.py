"""The identity of the store: which one it is, and its epoch, which a failover or a restore that loses commits ends.

A promoted standby has a timeline of its own, and another server another system identifier. Who sees a new one first
begins an epoch: ids, of tasks and of workers, and the numbers of claims go on far above, so that nothing that was lost
shares one with what comes. Where the server does not answer (a permission, a managed server), the epoch stays as it is.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple

from scheduler.store.db.table_names import NUMBERED

log = logging.getLogger("scheduler.store")

STEP = 1_000_000_000  # ids of a new epoch begin at a multiple of it: readable, and above whatever was lost
CLAIMS = 1_000_000  # likewise of the numbers of claims
_SYSTEM = "(SELECT CAST(system_identifier AS text) FROM pg_control_system())"
_TIMELINE = "CASE WHEN NOT pg_is_in_recovery() THEN left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
_READ = "SELECT store, epoch, since, server, timeline, first_id FROM schedd_store ORDER BY epoch"
_NAME = "UPDATE schedd_store SET server = coalesce(server, %s), timeline = coalesce(timeline, %s) WHERE epoch = %s"
_BEGIN = (
    "INSERT INTO schedd_store (epoch, store, since, server, timeline, first_id) VALUES (%s, %s, %s, %s, %s, %s) "
    "ON CONFLICT (epoch) DO NOTHING"
)
_PUSH = "SELECT setval(s, (nextval(s) / %s + 1) * %s) FROM CAST(pg_get_serial_sequence(%s, %s) AS regclass) s"
_FIRST = "UPDATE schedd_store SET first_id = %s WHERE epoch = %s"
# The server refuses a statement for what it is or for whom it comes from; the connection is as good as before.
_REFUSED = ("42", "25", "0A", "55")


class Identity(NamedTuple):
    """``server``, ``timeline``: on which the epoch began (PostgreSQL), None if the server does not tell; ``since``:
    when (microseconds); ``first_ids``: the lowest task ids of epochs 2, 3 and so on."""

    store: str
    epoch: int
    since: int
    server: str | None
    timeline: str | None
    first_ids: tuple[int, ...] = ()

    def epoch_of(self, task_id: int) -> int:
        """The epoch in which this task was stored."""
        return 1 + bisect_right(self.first_ids, task_id)

    @property
    def claims_above(self) -> int:
        """The number above which the numbers of this epoch's claims are."""
        return (self.epoch - 1) * CLAIMS


class Server(NamedTuple):
    """What the server says of itself; None for what it does not tell."""

    system: str | None
    timeline: str | None

    def differs(self, known: Identity) -> bool:
        """Whether it is another one than that of the epoch, or has been promoted since."""
        pairs = (self.system, known.server), (self.timeline, known.timeline)
        return any(mine is not None and its is not None and mine != its for mine, its in pairs)

    def is_behind(self, known: Identity) -> bool:
        """Whether it was the primary before the epoch that is known."""
        if self.timeline is None or known.timeline is None or self.system != known.server:
            return False
        return self.timeline < known.timeline


def identity_in(rows: Sequence[Sequence[Any]]) -> Identity | None:
    """The identity that these rows of ``schedd_store`` tell, oldest epoch first; None without any."""
    if not rows:
        return None
    store, epoch, since, server, timeline, _ = rows[-1]
    return Identity(store, epoch, since, server, timeline, tuple(row[5] for row in rows[1:]))


def read(raw: Any) -> Identity | None:
    """What the database says (the driver's own connection); None if it has no such table yet, or lost its row."""
    try:
        return identity_in(raw.execute(_READ).fetchall())
    except Exception as error:
        if _refused(error) or "no such table" in str(error):
            return None
        raise


def ask_server(raw: Any) -> Server:
    """Ask a PostgreSQL server, on a connection in autocommit."""
    try:
        return Server(*raw.execute(f"SELECT {_SYSTEM}, {_TIMELINE}", prepare=False).fetchone())
    except Exception as error:
        if not _refused(error):
            raise
    return Server(_ask(raw, _SYSTEM), _ask(raw, _TIMELINE))


def _ask(raw: Any, what: str) -> str | None:
    try:
        found: str | None = raw.execute(f"SELECT {what}", prepare=False).fetchone()[0]
        return found
    except Exception as error:
        if not _refused(error):
            raise
        return None


def look(raw: Any, server: Server, now: int) -> Identity | None:
    """The identity of the store behind this connection to ``server``, in autocommit; begins an epoch if it is due.

    None if the database has no tables yet.
    """
    known = read(raw)
    if known is None:
        return None
    try:
        if server.differs(known):
            _begin_epoch(raw, known, server, now)
        elif (known.server is None and server.system) or (known.timeline is None and server.timeline):
            raw.execute(_NAME, (server.system, server.timeline, known.epoch))
        else:
            return known
    except Exception as error:
        if not _refused(error):
            raise
        log.debug("the identity of the store cannot be written: %s", error)
        return known
    return read(raw)


def _begin_epoch(raw: Any, last: Identity, server: Server, now: int) -> None:
    epoch = last.epoch + 1
    system, timeline = server.system or last.server, server.timeline or last.timeline
    with raw.transaction():
        # Others that see it too wait here, and then find it done.
        if not raw.execute(_BEGIN, (epoch, last.store, now, system, timeline, 0)).rowcount:
            return
        pushed = _push(raw)
        raw.execute(_FIRST, (pushed + 1, epoch))
    log.error(
        "the server has changed (system %s, timeline %s; before %s, %s): commits may have been lost; epoch %d begins, "
        "with task ids above %d",
        *(system, timeline, last.server, last.timeline, epoch, pushed),
    )


def _push(raw: Any) -> int:
    """Let all ids go on far above. Returns the number above which those of tasks are."""
    pushed = 0
    for table in NUMBERED:
        try:
            with raw.transaction():
                ((last,),) = raw.execute(_PUSH, (STEP, STEP, table, "id")).fetchall()
        except Exception as error:
            if not _refused(error):
                raise
            log.warning("the ids of %s do not go on far above, as the sequence may not be set: %s", table, error)
            ((last,),) = raw.execute(f"SELECT coalesce(max(id), 0) FROM {table}").fetchall()
        pushed = last if table == NUMBERED[0] else pushed
    return int(pushed)


def _refused(error: Exception) -> bool:
    return str(getattr(error, "sqlstate", None) or "")[:2] in _REFUSED
