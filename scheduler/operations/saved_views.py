"""Saved views: filters under a name, of one person or of everybody."""

from __future__ import annotations

from scheduler.operations.desk import Desk
from scheduler.store import views as store
from scheduler.store.views import views as views


def save(desk: Desk, page: str, name: str, query: str, owner: str, *, shared: bool = False) -> None:
    """Keep a filter of a page under a name; ``shared``: for everybody. Raises ConfigError."""
    desk.database.change(lambda tx: store.save(tx, page, name, query, store.EVERYBODY if shared else owner))


def forget(desk: Desk, page: str, name: str, owner: str, *, shared: bool = False) -> bool:
    """Forget a view. Returns False if there is none."""
    return desk.database.change(lambda tx: store.delete(tx, page, name, store.EVERYBODY if shared else owner))
