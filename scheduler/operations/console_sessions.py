"""Sessions of the console that outlast a restart. ``session``: the hash of its id."""

from __future__ import annotations

from scheduler.operations.desk import Desk
from scheduler.store import console_sessions as store


def begin(desk: Desk, session: str, user: str, lasting: int) -> None:
    """Store a session of ``lasting`` microseconds, and remove those that are over. Raises StoreUnavailableError."""
    desk.database.change(lambda tx: store.begin(tx, session, user, lasting))


def user_of(desk: Desk, session: str) -> str | None:
    """The user whose session it is; None if there is none, or it is over. Raises StoreUnavailableError."""
    with desk.read() as tx:
        return store.user_of(tx, session)


def end(desk: Desk, session: str) -> None:
    """End a session. Raises StoreUnavailableError."""
    desk.database.change(lambda tx: store.end(tx, session))
