"""Upkeep of a store: remove what is over, check and repair it, bring its schema forward, copy it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from scheduler.build import running
from scheduler.errors import ConfigError, StoreUnavailableError
from scheduler.model.state import TaskState
from scheduler.model.texts import rfc3339
from scheduler.operations.desk import Desk
from scheduler.ports import SystemClock
from scheduler.store.admin import retention, transfer
from scheduler.store.admin.doctor import NOTE as NOTE
from scheduler.store.admin.doctor import OK as OK
from scheduler.store.admin.doctor import PROBLEM as PROBLEM
from scheduler.store.admin.doctor import DoctorFinding as DoctorFinding
from scheduler.store.admin.doctor import check, not_checked
from scheduler.store.admin.doctor_repair import repair as _repair
from scheduler.store.admin.export import export as export
from scheduler.store.admin.export import load as _load
from scheduler.store.admin.gc import collect
from scheduler.store.admin.retention import Removed as Removed
from scheduler.store.admin.surroundings import check_surroundings
from scheduler.store.admin.transfer import TableSummary as TableSummary
from scheduler.store.admin.would_remove import would_clean, would_remove
from scheduler.store.db import backup as maintenance
from scheduler.store.db.backup import health as health
from scheduler.store.db.backup import upgrade_plan as upgrade_plan
from scheduler.store.db.database import Database
from scheduler.store.db.migrate import MissingTablesError
from scheduler.store.read.kinds import unknown_kind
from scheduler.store.read.snapshot import Snapshot


class Cleaned(NamedTuple):
    """``freed``: bytes that went back to the file system; ``unknown``: a sentence about a kind that nothing knows."""

    removed: Removed
    freed: int
    unknown: str | None


class Checked(NamedTuple):
    """``repaired``: a line for each kind of repair; None: nothing was repaired since a table is missing."""

    findings: list[DoctorFinding]
    repaired: list[str] | None


class Upgraded(NamedTuple):
    """The revisions before and after, and the copy that was made of an older SQLite file.

    ``older``: live workers of older programs, which go on with this schema.
    """

    before: str | None
    after: str | None
    copy: Path | None
    older: list[str]


def gc(desk: Desk, kept: Mapping[str, float], *, dry_run: bool = False, every: bool = False) -> Removed:
    """Remove now what has outlived its retention (seconds by name), as workers do bit by bit.

    ``dry_run``: count it, as far as the oldest of each sort tell, or (``every``) all.
    """
    if dry_run:
        with desk.read() as tx:
            return would_remove(tx, kept, every=every)
    return collect(desk.database, kept)


def clean(
    desk: Desk,
    states: Iterable[TaskState],
    age: int,
    *,
    kind: str | None = None,
    queue: str | None = None,
    dry_run: bool = False,
    every: bool = False,
) -> Removed:
    """Remove tasks that ended so longer ago than ``age`` microseconds, whatever their retention; how many.

    ``dry_run`` and ``every``: as :func:`gc` has them. Raises ConfigError for states that are no ends.
    """
    chosen = retention.Chosen(frozenset(states), age, kind, queue)
    live = [state for state in chosen.states if not state.terminal]
    if live:
        raise ConfigError(f"only tasks that have ended can be removed; {live[0]} ones have not")
    if dry_run:
        with desk.read() as tx:
            return would_clean(tx, chosen, every=every)
    return Removed(retention.clean(desk.database, chosen))


def clean_up(
    desk: Desk,
    kept: Mapping[str, float],
    *,
    older_than: int | None = None,
    states: Collection[TaskState] | None = None,
    kind: str | None = None,
    queue: str | None = None,
    dry_run: bool = False,
    every: bool = False,
) -> Cleaned:
    """:func:`gc`, or with ``older_than`` :func:`clean`, and give the space back to the file system."""
    if older_than is None:
        removed = gc(desk, kept, dry_run=dry_run, every=every)
    else:
        ended = states or [state for state in TaskState if state.terminal]
        removed = clean(desk, ended, older_than, kind=kind, queue=queue, dry_run=dry_run, every=every)
    unknown = None
    if kind is not None and not removed.tasks:
        with desk.read() as tx:
            unknown = unknown_kind(tx, kind)
    return Cleaned(removed, 0 if dry_run else maintenance.shrink(desk.database), unknown)


def repair(desk: Desk, *, counts: bool = True) -> list[str]:
    """Mend what no worker comes to by itself, in one transaction. Returns a line for each kind of repair."""
    return desk.write(lambda tx: _repair(tx, counts=counts))


def doctor(desk: Desk, *, full: bool = False) -> list[DoctorFinding]:
    """Check what must always hold. Raises StoreUnavailableError."""
    desk.database.look()
    with desk.read() as tx:
        seen = Snapshot(tx)
        return [*check_surroundings(desk.database, tx, running(), seen), *check(tx, full=full, seen=seen)]


def examine(desk: Desk, *, full: bool = False, mend: bool = False, counts: bool = True) -> Checked:
    """:func:`doctor` for a store that may be damaged, after :func:`repair` if ``mend``."""
    database = desk.database
    reading = database.read
    repaired: list[str] | None = []
    try:
        database.look()
    except MissingTablesError:
        reading, repaired = database.read_damaged, None
    if mend and repaired is not None:
        repaired = repair(desk, counts=counts) or ["nothing that this could repair"]
    found: list[DoctorFinding] = []
    reached = False
    try:
        with reading() as tx:
            reached = True
            seen = Snapshot(tx)
            found += check_surroundings(database, tx, running(), seen)
            found += check(tx, full=full, seen=seen)
    except StoreUnavailableError as error:
        if not reached:
            raise
        found.append(not_checked(database, error))
    return Checked(found, repaired)


def upgrade(database: Database, *, beside: bool = False) -> Upgraded:
    """Bring a database to this program's schema; makes a SQLite database that is not there yet."""
    before = maintenance.health(database).revision
    copy = maintenance.upgrade(database, beside=beside)
    after = maintenance.health(database).revision
    return Upgraded(before, after, copy, [] if before in (None, after) else maintenance.older_workers(database))


def backup(desk: Desk, target: Path | None = None) -> tuple[Path, int]:
    """Copy a SQLite database while it is in use, by default beside itself. Returns where, and how many bytes."""
    database = desk.database
    if target is None:
        stamp = rfc3339(database.clock.now(), exact=False).replace("-", "").replace(":", "")
        path = database.path or Path("-")  # no file of ours: refused below
        target = path.with_name(f"{path.name}-{stamp}.backup")
    return target, maintenance.backup(database, target)


def copy(desk: Desk, url: str, progress: transfer.Progress) -> list[TableSummary]:
    """Copy the whole store into an empty database. Raises SchedulerError; refused while workers live."""
    target = Database(url, SystemClock(), auto_migrate=True)
    try:
        return transfer.copy(desk.database, target, progress)
    finally:
        target.dispose()


def load(database: Database, lines: Iterable[bytes], progress: transfer.Progress) -> list[TableSummary]:
    """Fill an empty store with an export: all of it, or nothing."""
    maintenance.upgrade(database)
    return _load(database, lines, progress)
