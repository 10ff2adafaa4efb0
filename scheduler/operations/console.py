"""Rows of the console's own: sessions that outlast a restart, and saved views.

``session``: the hash of its id. Views are filters under a name, of one person or of everybody.
"""

from __future__ import annotations

from scheduler.operations.desk import Desk
from scheduler.store import views
from scheduler.store.views import saved_views as saved_views


def begin(desk: Desk, session: str, user: str, lasting: int) -> None:
    """Store a session of ``lasting`` microseconds, and remove those that are over. Raises StoreUnavailableError."""
    desk.database.change(lambda tx: views.begin(tx, session, user, lasting))


def user_of(desk: Desk, session: str) -> str | None:
    """The user whose session it is; None if there is none, or it is over. Raises StoreUnavailableError."""
    with desk.read() as tx:
        return views.user_of(tx, session)


def end(desk: Desk, session: str) -> None:
    """End a session. Raises StoreUnavailableError."""
    desk.database.change(lambda tx: views.end(tx, session))


def save_view(desk: Desk, page: str, name: str, query: str, owner: str, *, shared: bool = False) -> None:
    """Keep a filter of a page under a name; ``shared``: for everybody. Raises ConfigError."""
    desk.database.change(lambda tx: views.save(tx, page, name, query, views.EVERYBODY if shared else owner))


def forget_view(desk: Desk, page: str, name: str, owner: str, *, shared: bool = False) -> bool:
    """Forget a view. Returns False if there is none."""
    return desk.database.change(lambda tx: views.delete(tx, page, name, views.EVERYBODY if shared else owner))
