"""Sessions: a cookie with a random id. Only its hash is kept, so a log-out ends it for good."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping

import anyio.to_thread
from starlette.requests import Request

from scheduler.operations import console
from scheduler.operations.desk import Desk
from scheduler.ports import SECOND

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
        value = self._sealed(secrets.token_urlsafe(32), user)
        await self._store(_hash(value), user)
        return value

    async def user(self, request: Request) -> str | None:
        """Who the cookie of a request belongs to."""
        value = self._presented(request)
        return None if value is None else await self._find(_hash(value))

    async def end(self, request: Request) -> None:
        """End the session of a request, also for copies of its cookie."""
        value = self._presented(request)
        if value is not None:
            await self._remove(_hash(value))

    def _presented(self, request: Request) -> str | None:
        value = request.cookies.get(COOKIE)
        return value if value is not None and self._is_ours(value) else None

    def _sealed(self, value: str, user: str) -> str:
        return value

    def _is_ours(self, value: str) -> bool:
        """Whether a cookie may be one that was given out; says so without a look at the store."""
        return True

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
    """Sessions in the store: they outlast a restart of the console, and all consoles of the store share them.

    ``keys``: of each user a secret that all consoles have. It signs the user's cookies, so that one that is made up is
    refused unread: else each would cost a read of the store.
    """

    def __init__(self, desk: Desk, keys: Callable[[], Mapping[str, str]]) -> None:
        super().__init__()
        self._desk = desk
        self._keys = keys

    def _sealed(self, value: str, user: str) -> str:
        return f"{value}.{_mark(self._keys().get(user, ''), value)}"  # "": of a user who was just removed

    def _is_ours(self, value: str) -> bool:
        head, _, mark = value.partition(".")
        given = mark.encode("utf-8", "replace")
        return any(hmac.compare_digest(given, _mark(key, head).encode()) for key in self._keys().values())

    async def _store(self, session: str, user: str) -> None:
        lasting = round(SESSION_SECONDS * SECOND)
        await anyio.to_thread.run_sync(console.begin, self._desk, session, user, lasting)

    async def _find(self, session: str) -> str | None:
        known = self._known_user(session)
        if known is not None:
            return known
        user = await anyio.to_thread.run_sync(console.user_of, self._desk, session)
        if user is not None:
            self._remember(session, user, LOOKED_UP_SECONDS)
        return user

    async def _remove(self, session: str) -> None:
        self._known.pop(session, None)
        await anyio.to_thread.run_sync(console.end, self._desk, session)


def _mark(key: str, value: str) -> str:
    return hmac.new(key.encode(), f"session {value}".encode("utf-8", "replace"), hashlib.sha256).hexdigest()


def _hash(value: str) -> str:
    return hashlib.sha256(value.encode("utf-8", "replace")).hexdigest()
