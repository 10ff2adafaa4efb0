"""Sessions of the console's visitors: all consoles of a store share them, and a log-out ends them everywhere."""

from __future__ import annotations

from scheduler.store.db.tx import Tx


def begin(tx: Tx, session: str, user: str, lasting: int) -> None:
    """Store a session of ``lasting`` microseconds, and remove those that are over. ``session``: the hash of its id."""
    tx.run("DELETE FROM schedd_console_sessions WHERE until <= :now", now=tx.now)
    tx.run(
        'INSERT INTO schedd_console_sessions (id, "user", created_at, until) VALUES (:id, :user, :now, :until)',
        id=session,
        user=user,
        now=tx.now,
        until=tx.now + lasting,
    )


def user_of(tx: Tx, session: str) -> str | None:
    """Whose session it is; None if there is none, or it is over."""
    found: str | None = tx.run(
        'SELECT "user" FROM schedd_console_sessions WHERE id = :id AND until > :now', id=session, now=tx.now
    ).scalar()
    return found


def end(tx: Tx, session: str) -> None:
    """End a session."""
    tx.run("DELETE FROM schedd_console_sessions WHERE id = :id", id=session)
