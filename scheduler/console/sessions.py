"""Sessions: a cookie with a random id. Only its hash is kept, so a log-out ends it for good."""

from __future__ import annotations

import hashlib
import secrets
import time

import anyio.to_thread
from starlette.requests import Request

from scheduler.ports import SECOND
from scheduler.store import console_sessions
from scheduler.store.db.database import Database

COOKIE = "schedd_session"
SESSION_SECONDS = 12 * 3600.0
LOOKED_UP_SECONDS = 2.0  # for which a session that another console may have ended is taken for good
MAX_SESSIONS = 10_000  # that are remembered


class Sessions:
    """Sessions in this process's memory."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}  # hash -> user, until (monotonic)

    async def begin(self, user: str) -> str:
        """Begin a session. Returns the value of its cookie."""
        value = secrets.token_urlsafe(32)
        await self._store(_hash(value), user)
        return value

    async def user(self, request: Request) -> str | None:
        """Who the cookie of a request belongs to."""
        value = request.cookies.get(COOKIE)
        return None if value is None else await self._find(_hash(value))

    async def end(self, request: Request) -> None:
        """End the session of a request, also for copies of its cookie."""
        value = request.cookies.get(COOKIE)
        if value is not None:
            await self._remove(_hash(value))

    def _remember(self, session: str, user: str, seconds: float) -> None:
        now = time.monotonic()
        if len(self._known) >= MAX_SESSIONS:
            self._known = {key: one for key, one in self._known.items() if one[1] > now}
        if len(self._known) < MAX_SESSIONS:
            self._known[session] = user, now + seconds

    def _known_user(self, session: str) -> str | None:
        user, until = self._known.get(session, ("", 0.0))
        return user if until > time.monotonic() else None

    async def _store(self, session: str, user: str) -> None:
        self._remember(session, user, SESSION_SECONDS)

    async def _find(self, session: str) -> str | None:
        return self._known_user(session)

    async def _remove(self, session: str) -> None:
        self._known.pop(session, None)


class StoredSessions(Sessions):
    """Sessions in the store: they outlast a restart of the console, and all consoles of the store share them."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database

    async def _store(self, session: str, user: str) -> None:
        lasting = round(SESSION_SECONDS * SECOND)
        await anyio.to_thread.run_sync(
            self._database.change, lambda tx: console_sessions.begin(tx, session, user, lasting)
        )

    async def _find(self, session: str) -> str | None:
        known = self._known_user(session)
        if known is not None:
            return known
        user = await anyio.to_thread.run_sync(self._read, session)
        if user is not None:
            self._remember(session, user, LOOKED_UP_SECONDS)
        return user

    def _read(self, session: str) -> str | None:
        with self._database.read() as tx:
            return console_sessions.user_of(tx, session)

    async def _remove(self, session: str) -> None:
        self._known.pop(session, None)
        await anyio.to_thread.run_sync(self._database.change, lambda tx: console_sessions.end(tx, session))


def _hash(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()
