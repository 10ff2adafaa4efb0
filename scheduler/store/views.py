"""What the console keeps: saved views, which are filters of a page that a person, or everybody, has under a name; and
sessions, which all consoles of a store share, so that a log-out ends them everywhere."""

from __future__ import annotations

from typing import NamedTuple

from scheduler.errors import ConfigError
from scheduler.model.texts import storable
from scheduler.store import audit
from scheduler.store.db.tx import Tx

EVERYBODY = ""
MAX_NAME = 80
MAX_QUERY = 4_000
MAX_VIEWS = 200  # of one owner on one page


class SavedView(NamedTuple):
    """``query``: what the page is asked for, as its URL has it. ``owner``: "" for a view that everybody sees."""

    owner: str
    page: str
    name: str
    query: str
    updated_at: int


def save(tx: Tx, page: str, name: str, query: str, owner: str = EVERYBODY) -> None:
    """Store a view under this name, in place of one that is there.

    Raises ConfigError for texts that cannot be stored, and for more than 200 views of one owner.
    """
    for what, text, least, most in (
        ("page", page, 1, MAX_NAME),
        ("name", name, 1, MAX_NAME),
        ("query", query, 0, MAX_QUERY),
        ("owner", owner, 0, 255),
    ):
        if not isinstance(text, str) or not least <= len(text) <= most or text != storable(text):
            raise ConfigError(f"a view's {what} is a text of {least} to {most} characters, not {text!r:.80}")
    there = {view.name: view.query for view in saved_views(tx, page, owner) if view.owner == owner}
    if name not in there and len(there) >= MAX_VIEWS:
        raise ConfigError(f"there are {MAX_VIEWS} views of this page already: delete some")
    tx.run(
        "INSERT INTO schedd_views (owner, page, name, query, updated_at) VALUES (:owner, :page, :name, :query, :now) "
        "ON CONFLICT (owner, page, name) DO UPDATE SET query = excluded.query, updated_at = excluded.updated_at",
        owner=owner,
        page=page,
        name=name,
        query=query,
        now=tx.now,
    )
    if owner == EVERYBODY:  # what others see is recorded
        audit.record(tx, "view saved", subject=f"view {page} {name}", before=there.get(name), after=query)


def delete(tx: Tx, page: str, name: str, owner: str = EVERYBODY) -> bool:
    """Forget a view. Returns whether there was one."""
    gone = tx.run(
        "DELETE FROM schedd_views WHERE owner = :owner AND page = :page AND name = :name",
        owner=owner,
        page=page,
        name=name,
    ).rowcount
    if gone and owner == EVERYBODY:
        audit.record(tx, "view deleted", subject=f"view {page} {name}")
    return bool(gone)


def saved_views(tx: Tx, page: str, owner: str = EVERYBODY) -> list[SavedView]:
    """The views of a page that ``owner`` sees: their own, and everybody's; by name."""
    rows = tx.run(
        "SELECT owner, page, name, query, updated_at FROM schedd_views "
        "WHERE page = :page AND owner IN ('', :owner) ORDER BY name, owner",
        page=page,
        owner=owner,
    )
    return [SavedView(*row) for row in rows]


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
