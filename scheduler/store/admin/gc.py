"""Removes now what has outlived its retention, batch by batch, each batch recorded in the audit."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.store import audit
from scheduler.store.admin import retention
from scheduler.store.admin.retention import Removed
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx


def collect(database: Database, kept: Mapping[str, float]) -> Removed:
    """Remove what is over. ``kept``: seconds, as ``[retention]`` names them. Other transactions do not wait long.

    Raises StoreUnavailableError; what was committed before stays removed.
    """
    removed = Removed(more=True)
    while removed.more:
        one = database.change(lambda tx: _batch(tx, kept))
        removed = removed.plus(one)
    after: int | None = 0
    while after is not None:
        one, after = database.change(lambda tx, since=after: _rescan(tx, kept, since))  # type: ignore[misc]
        removed = removed.plus(one)
    return removed


def _batch(tx: Tx, kept: Mapping[str, float]) -> Removed:
    one = retention.purge_batch(tx, kept)
    _record(tx, one)
    return one


def _rescan(tx: Tx, kept: Mapping[str, float], after: int) -> tuple[Removed, int | None]:
    one, following = retention.rescan(tx, kept, after)
    _record(tx, one)
    return one, following


def _record(tx: Tx, removed: Removed) -> None:
    counts = {name: count for name, count in removed._asdict().items() if count and name != "more"}
    if counts:
        audit.record(tx, "cleanup", subject="store", removed=counts)
