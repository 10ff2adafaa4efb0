"""Public keys of the issuers of actions, fetched from their servers and cached in memory."""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler import PermanentError
from scheduler.tasks.actions.tokens import Unverified, is_signed_by, load_public_key
from scheduler.tasks.http.client import Call, send
from scheduler.tasks.http.errors import refuse
from scheduler.tasks.http.secrets import Secrets
from scheduler.tasks.settings import filled, section

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

KEYS = "https://cl-o.{issuer}/api/me/keys"
KEY_TTL = 3600.0  # seconds
MISSING_KEY_TTL = 60.0  # seconds in which a key that is missing is not asked for again
MAX_ANSWER = 64 * 1024  # bytes of an answer
MAX_ISSUERS = 10_000
MAX_KEYS = 50


class Key(NamedTuple):
    """``expires``: seconds since 1970; what was signed later is not accepted."""

    key_id: str
    public: EllipticCurvePublicKey
    expires: float | None


class Fetched(NamedTuple):
    keys: tuple[Key, ...]
    at: float  # monotonic


class KeyRing:
    """The keys of issuers. One for a process; its event loops may use it at a time."""

    def __init__(self) -> None:
        self._kept: dict[str, Fetched] = {}  # by URL
        self._locks: weakref.WeakKeyDictionary[Any, dict[str, asyncio.Lock]] = weakref.WeakKeyDictionary()

    def clear(self) -> None:
        self._kept.clear()

    async def check(self, action: Unverified, settings: Mapping[str, Any], timeout: float) -> None:
        """See that an action was signed by its issuer. A key that is not known yet is asked for once more.

        Raises PermanentError if it was not; what else went wrong with the issuer's server as for HttpTask.
        """
        url = filled(settings, "actions", "keys", KEYS, issuer=action.claims.iss)
        kept = float(section(settings, "actions").get("keep_keys") or KEY_TTL)
        loop = self._locks.setdefault(asyncio.get_running_loop(), {})
        async with loop.setdefault(url, asyncio.Lock()):
            known = self._kept.get(url)
            now = time.monotonic()
            if known is not None and now - known.at < kept:
                if _signed(action, known):
                    return
                if now - known.at < MISSING_KEY_TTL:
                    raise _refused(action)
            known = Fetched(await _fetch(url, action.claims.iss, settings, timeout), time.monotonic())
            while len(self._kept) >= MAX_ISSUERS:
                self._kept.pop(next(iter(self._kept)), None)
            self._kept[url] = known
        if len(loop) > MAX_ISSUERS:
            self._locks.pop(asyncio.get_running_loop(), None)
        if not _signed(action, known):
            raise _refused(action)


def _signed(action: Unverified, known: Fetched) -> bool:
    return any(
        (key.expires is None or action.claims.iat <= key.expires)
        and (action.key_id is None or action.key_id == key.key_id)
        and is_signed_by(action.token, key.public)
        for key in known.keys
    )


def _refused(action: Unverified) -> PermanentError:
    return PermanentError(f"the signature of {action.action_id} is not by a key of {action.claims.iss}")


async def _fetch(url: str, issuer: str, settings: Mapping[str, Any], timeout: float) -> tuple[Key, ...]:
    reply = await send(Call("GET", url, timeout=timeout, max_body=MAX_ANSWER), settings, Secrets(settings))
    if reply.status != 200:
        refuse(f"the keys of {issuer}: {reply.status}", reply.status, reply.headers.get("retry-after"))
    try:
        listed = msgspec.json.decode(reply.body, type=dict[str, Any]).get("keys")
    except msgspec.MsgspecError:
        listed = None
    if not isinstance(listed, list):
        raise PermanentError(f"the keys of {issuer}: the answer has no keys")
    made = []
    for entry in listed[:MAX_KEYS]:
        if not isinstance(entry, dict) or not isinstance(entry.get("publicKey"), str):
            continue
        public = load_public_key(entry["publicKey"])
        expires = entry.get("expiresAt")
        if public is not None and (expires is None or isinstance(expires, int | float)):
            made.append(Key(str(entry.get("keyId")), public, expires))
    return tuple(made)


RING = KeyRing()
