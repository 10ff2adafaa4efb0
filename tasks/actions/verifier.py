"""ActionVerifierTask: checks and stores an action that another server has signed.

Public keys of the issuers are fetched from their servers and cached in memory.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from scheduler import PermanentError, RetryPolicy, Task
from scheduler.tasks.actions.store import ActionStore
from scheduler.tasks.actions.tokens import MAX_TOKEN, Unverified, check_audience, is_signed_by, load_public_key, read
from scheduler.tasks.files.blob_store import BlobStore, Incoming, now_text
from scheduler.tasks.http.client import HttpCall, send
from scheduler.tasks.http.errors import refuse
from scheduler.tasks.http.secrets import Secrets
from scheduler.tasks.settings import filled, imported, positive, required, section

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

    from scheduler import AsyncContext


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
    reply = await send(HttpCall("GET", url, timeout=timeout, max_body=MAX_ANSWER), settings, Secrets(settings))
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


FILES = "https://cl-o.{issuer}/api/files/{file_id}"
DEFAULT_MAX_FILE = 32 * 1024 * 1024  # bytes
MAX_CLOCK_SKEW = 300.0  # seconds that the issuer's clock may be ahead, or ours behind
RELATIONS = ("following", "connected")
NO_TYPE = "application/octet-stream"
MAX_CONCURRENT_FETCHES = 4  # files that an event loop fetches at a time
_turns: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = weakref.WeakKeyDictionary()


class ActionVerifierTask(Task, timeout=900, retry=RetryPolicy(min_wait=10, max_wait=3600, max_attempts=12)):
    """Checks an action and stores it, with the files that it names.

    tn_id: the tenant that takes it. token: as it came. timeout: seconds for each request.

    In this order: whether it is well-formed and not expired; whether this server (``[actions] name``) is in its
    audience; whether its issuer is one whom the tenant follows or is connected to; its signature, by the keys at the
    issuer's ``/api/me/keys``, which are kept for a while; then the files that are not there yet are fetched, and each
    must have the id that the action says. So a stranger causes no request.

    The result is ``{"action_id", "iss", "t", "fetched": […]}``. It may run again at any time.

    Permanent failures: not an action, a signature in its second form (high s), expired, from the future, not for this
    server or of an issuer who is not permitted (``status`` 403), a signature by another key; a file that has another
    id or is larger than ``[actions] max_file``; statuses as for HttpTask. Transient failures: as for HttpTask; I/O
    errors, a full disk.

    Settings: ``[actions] name``, ``require_audience``, ``directory``, ``following``, ``connected``, ``relation``,
    ``keys``, ``files``, ``keep_keys``, ``max_file``; ``[files] blobs``; ``[http] allow``, ``ca``.
    """

    tn_id: Annotated[int, msgspec.Meta(ge=0)]
    token: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_TOKEN)]
    timeout: Annotated[float, msgspec.Meta(gt=0, le=900)] = 60.0

    async def run(self, ctx: AsyncContext) -> dict[str, Any]:
        store = ActionStore.from_settings(ctx.settings)
        action = read(self.token)
        claims = action.claims
        _timely(action)
        check_audience(action, required(ctx.settings, "actions", "name", '"bob.example"'), ctx.settings)
        await asyncio.to_thread(_permitted, ctx.settings, self.tn_id, claims.iss)
        await RING.check(action, ctx.settings, self.timeout)
        fetched = []
        for number, file_id in enumerate(claims.a):
            await ctx.report_progress(100 * number / len(claims.a), f"file {number + 1} of {len(claims.a)}")
            async with _turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(MAX_CONCURRENT_FETCHES)):
                if await self._fetch(ctx.settings, claims.iss, file_id):
                    fetched.append(file_id)
        await asyncio.to_thread(store.put, self.tn_id, action, "received")
        return {"action_id": action.action_id, "iss": claims.iss, "t": claims.t, "fetched": fetched}

    async def _fetch(self, settings: Mapping[str, Any], issuer: str, file_id: str) -> bool:
        """Get a file that is missing. Whether it was."""
        blobs = BlobStore.from_settings(settings)
        if await asyncio.to_thread(blobs.metadata, self.tn_id, file_id) is not None:
            return False
        max_file = positive(settings, "actions", "max_file", DEFAULT_MAX_FILE)
        url = filled(settings, "actions", "files", FILES, issuer=issuer, file_id=file_id)
        coming = blobs.incoming()
        try:
            reply = await send(
                HttpCall("GET", url, timeout=self.timeout, max_body=max_file), settings, Secrets(settings), coming.write
            )
            if reply.status != 200:
                what = f"{file_id} of {issuer}: {reply.status}"
                refuse(what, reply.status, reply.headers.get("retry-after"))
            if reply.truncated:
                raise PermanentError(f"{file_id} of {issuer} is larger than {max_file} bytes ([actions] max_file)")
            kind = reply.headers.get("content-type")
            await asyncio.to_thread(_keep, blobs, self.tn_id, issuer, file_id, coming, kind)
        finally:
            coming.drop()
        return True


def _keep(blobs: BlobStore, tn_id: int, issuer: str, file_id: str, coming: Incoming, content_type: str | None) -> None:
    blob = blobs.keep(coming, file_id)
    if blob is None:
        raise PermanentError(f"what {issuer} sent for {file_id} is another file")
    kind = (content_type or NO_TYPE).partition(";")[0].strip().lower()[:100]
    record = {"size": blob.size, "content_type": kind, "created": now_text(), "origin": issuer}
    blobs.add_metadata(tn_id, file_id, {"original_filename": None, **record})


def _timely(action: Unverified) -> None:
    now = time.time()
    if action.claims.exp is not None and action.claims.exp <= now:
        raise PermanentError(f"{action.action_id} has expired")
    if action.claims.iat > now + MAX_CLOCK_SKEW:
        raise PermanentError(f"{action.action_id} is from the future: iat is {action.claims.iat - now:.0f} s ahead")


def _permitted(settings: Mapping[str, Any], tn_id: int, issuer: str) -> None:
    actions = section(settings, "actions")
    relation = next((one for one in RELATIONS if issuer in (actions.get(one) or ())), None)
    if relation is None and actions.get("relation"):
        relation = imported(actions["relation"])(tn_id, issuer)
    if relation not in RELATIONS:
        raise PermanentError(f"{issuer} is neither followed by tenant {tn_id} nor connected to it", status=403)
