"""Checks what surrounds the rows, for ``schedctl doctor``: schema, server, files, clock and workers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from scheduler.model.texts import listed, span_text
from scheduler.model.times import SECOND
from scheduler.store.admin.doctor import NOTE, OK, PROBLEM, DoctorFinding, answers
from scheduler.store.db import horizon, migrate, pg_blockers
from scheduler.store.db.database import Database
from scheduler.store.db.sqlite_files import open_to_others
from scheduler.store.db.tx import Tx
from scheduler.store.db.writable import no_writes
from scheduler.store.read.snapshot import Snapshot
from scheduler.store.read.workers import clock_text, failing_text, far_text, orphans_text

_LOW_SPACE = 200 * 1024 * 1024
_SKEW_NOTE = SECOND  # a clock that is off by more is a note
_SKEW_PROBLEM = 5 * SECOND  # and by more than this a problem
_MAY_LOOK = "SELECT pg_has_role('pg_read_all_stats', 'USAGE')"
# A standby is named as it names itself; one connection of a backup that is under way is none.
_ASYNCHRONOUS = (
    "SELECT coalesce(nullif(application_name, ''), 'unnamed') FROM pg_stat_replication "
    "WHERE sync_state = 'async' AND application_name NOT LIKE 'pg\\_%' ORDER BY 1"
)


def check_surroundings(database: Database, tx: Tx, version: str, seen: Snapshot | None = None) -> list[DoctorFinding]:
    """Check what surrounds the rows: schema, clock, notifier, disk, versions of the workers. ``seen``: read already."""
    seen = seen or Snapshot(tx)
    return answers(
        tx,
        {
            "schema": lambda: _schema(tx, version),
            "writes": lambda: _writes(tx),
            "clock": lambda: _clock(database.offset),
            "workers": lambda: _workers(seen, version),
            "surroundings": lambda: _place(database, tx),
        },
    )


def _schema(tx: Tx, version: str) -> DoctorFinding:
    revision, lost = migrate.current(tx.connection), migrate.missing_tables(tx.connection)
    if lost:
        return DoctorFinding("schema", PROBLEM, migrate.lacks(lost, revision))
    unmade = migrate.missing_indexes(tx.connection) if revision == migrate.HEAD else []
    if unmade:
        text = f"indexes are missing or not whole: {listed(unmade)}; `schedctl db upgrade` makes them"
        return DoctorFinding("schema", PROBLEM, text)
    return DoctorFinding("schema", OK, f"revision {revision}, schedd {version}")


def _workers(seen: Snapshot, version: str) -> list[DoctorFinding]:
    found = []
    workers, now = seen.workers, seen.tx.now
    early = any(w.heartbeat_at > now + _SKEW_PROBLEM for w in workers)
    off = [text for w in workers if (text := clock_text(w, now, _SKEW_NOTE)) is not None]
    if off:
        found.append(DoctorFinding("workers' clocks", PROBLEM if early else NOTE, "; ".join(off)))
    far = [text for text in map(far_text, workers) if text is not None]
    if far:
        found.append(DoctorFinding("leases", PROBLEM, "; ".join(far)))
    failing = [text for text in map(failing_text, workers) if text is not None]
    if failing:
        found.append(DoctorFinding("cycles", PROBLEM, "; ".join(failing)))
    beside = [text for text in map(orphans_text, workers) if text is not None]
    if beside:
        found.append(
            DoctorFinding("attempts", NOTE, "; ".join(beside), tuple(i for w in workers for i in w.orphaned_tasks))
        )
    others = sorted({w.version for w in workers} - {version})
    if others:
        found.append(DoctorFinding("versions", NOTE, f"workers also run version {listed(others)}"))
    return found


def _place(database: Database, tx: Tx) -> list[DoctorFinding]:
    """What lies beside a SQLite file, or happens on a PostgreSQL server."""
    found = []
    path = database.path
    if path is not None:
        directory = database.socket_directory
        assert directory is not None
        present = directory.exists()
        usable = os.access(directory if present else path.absolute().parent, os.W_OK | os.X_OK if present else os.W_OK)
        detail = f"{directory} is writable" if usable else f"{directory} cannot be written: idle workers poll instead"
        found.append(DoctorFinding("notifications", OK if usable else PROBLEM, detail))
        found.append(_readers(path, directory))
        free = shutil.disk_usage(path.absolute().parent).free
        level = PROBLEM if free < _LOW_SPACE else OK
        found.append(DoctorFinding("disk", level, f"{free // 2**20} MiB free beside the database"))
    else:
        found += [_horizon(tx), _locks(tx), _standbys(tx)]
    return found


def _readers(path: Path, directory: Path) -> DoctorFinding:
    seen = open_to_others(path, directory)
    if not seen:
        return DoctorFinding("file modes", OK, "none of the database's is open to all users")
    return DoctorFinding("file modes", NOTE, f"any user of this machine may use {listed(seen)}: `chmod o-rwx`")


def _writes(tx: Tx) -> DoctorFinding:
    reason = no_writes(tx)
    return (
        DoctorFinding("writes", OK, "the database takes them")
        if reason is None
        else DoctorFinding("writes", PROBLEM, reason)
    )


def _horizon(tx: Tx) -> DoctorFinding:
    holders = horizon.holders(tx.connection)
    if not holders:
        return DoctorFinding("old snapshots", OK, f"no transaction is open for {span_text(horizon.MIN_AGE)}")
    text = "; ".join(f"{one.text} ({one.remedy})" for one in holders)
    return DoctorFinding("old snapshots", NOTE, f"rows that have died since then cannot be removed: {text}")


def _locks(tx: Tx) -> DoctorFinding:
    waiting = pg_blockers.blocked(tx.connection)
    if not waiting:
        return DoctorFinding("locks", OK, "no session waits for another one's")
    return DoctorFinding("locks", NOTE, f"{'; '.join(waiting)} (SELECT pg_terminate_backend(...) ends a session)")


def _standbys(tx: Tx) -> DoctorFinding:
    """A standby that follows asynchronously loses commits when it takes over."""
    if not tx.run(_MAY_LOOK).scalar():
        return DoctorFinding(
            "standbys", NOTE, "whether one follows is not known: GRANT pg_monitor TO the database user"
        )
    names = [name for (name,) in tx.run(_ASYNCHRONOUS)]
    if not names:
        return DoctorFinding("standbys", OK, "none follows asynchronously")
    text = (
        f"{listed(names)} follows asynchronously: a failover may lose what was committed last, and tasks with it. "
        "With synchronous_standby_names set none is lost; each commit then waits for the standby, one more round trip"
    )
    return DoctorFinding("standbys", NOTE, text)


def _clock(offset: int) -> DoctorFinding:
    if not offset:
        return DoctorFinding("clock", OK, "one machine's")
    level = PROBLEM if abs(offset) > _SKEW_PROBLEM else NOTE if abs(offset) > _SKEW_NOTE else OK
    side = "behind" if offset > 0 else "ahead of"
    return DoctorFinding("clock", level, f"this machine's clock is {span_text(abs(offset))} {side} the server's")
