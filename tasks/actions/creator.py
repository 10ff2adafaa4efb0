"""ActionCreatorTask: makes and signs an action."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from scheduler import PermanentError, RetryPolicy, Task
from scheduler.tasks.actions.store import ActionStore
from scheduler.tasks.actions.tokens import (
    ACTION_ID,
    DOMAIN,
    MAX_ATTACHMENTS,
    MAX_AUDIENCES,
    Claims,
    load_private_key,
    named_audience,
    read,
    sign,
)
from scheduler.tasks.files.blob_store import FILE_ID, BlobStore
from scheduler.tasks.settings import required

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scheduler import Context

MAX_LIFETIME = 100 * 366 * 86_400.0  # seconds


class ActionCreatorTask(Task, timeout=60, retry=RetryPolicy(min_wait=5, max_wait=600, max_attempts=5)):
    """Signs an action (ES384, a key on P-384) and stores it.

    tn_id: the tenant whose action it is. type: what it is, the claim ``t``. content: any JSON, ``c``. parent: the id of
    the action that it refers to, ``p``. attachments: ids of the tenant's files, ``a``; after them come those that the
    tasks name as ``file_id`` in their results that this one depends on. expires_in: seconds, for ``exp``; None: never.
    audience: domains of the servers it is for, ``aud``; None: those of ``[actions] audience``. Others refuse it.

    ``iss`` is ``[actions] name``, ``iat`` when the task was scheduled. The id is ``a1~`` and the SHA-256 of the token.
    What is signed is recorded before it is stored, so another attempt makes the same action.

    The result is ``{"action_id", "token", "attachments"}``.

    Permanent failures: no key, or not one on P-384; no audience, unless ``[actions] require_audience`` is false; a file
    that the tenant does not have; a missing setting. Transient failures: I/O errors, a full disk.

    Settings: ``[actions] name``, ``key_file``, ``directory``, ``audience``, ``require_audience``; ``[files] blobs`` if
    there are attachments.
    """

    tn_id: Annotated[int, msgspec.Meta(ge=0)]
    type: Annotated[str, msgspec.Meta(min_length=1, max_length=100)]
    content: Any = None
    parent: str | None = None
    attachments: list[str] = msgspec.field(default_factory=list)
    expires_in: Annotated[float, msgspec.Meta(gt=0, le=MAX_LIFETIME)] | None = None
    audience: list[str] | None = None

    def __post_init__(self) -> None:
        if self.parent is not None and not ACTION_ID.match(self.parent):
            raise ValueError(f"parent must be an action id (a1~ and 43 characters), not {self.parent!r}")
        for file_id in self.attachments:
            if not FILE_ID.match(file_id):
                raise ValueError(f"attachments must be file ids (f1~ and 43 characters), not {file_id!r}")
        if self.audience is not None and not isinstance(self.audience, (list, tuple)):
            raise ValueError(f"audience must be a list of domains, such as ['bob.example'], not {self.audience!r:.80}")
        for domain in self.audience or ():
            if not DOMAIN.match(domain):
                raise ValueError(f"audience must be domains in lower case, such as bob.example, not {domain!r}")
        if (count := len(self.audience or ())) > MAX_AUDIENCES:
            raise ValueError(f"audience has {count} domains, more than {MAX_AUDIENCES}")

    def run(self, ctx: Context) -> dict[str, Any]:
        store = ActionStore.from_settings(ctx.settings)
        # With what: a replay with another payload must not bring what was signed of this one.
        digest = hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:16]
        token: str = ctx.step(f"sign {digest}", self._sign, ctx)
        action = read(token)
        store.put(self.tn_id, action, "own")
        return {"action_id": action.action_id, "token": token, "attachments": list(action.claims.a)}

    def _sign(self, ctx: Context) -> str:
        name = required(ctx.settings, "actions", "name", '"alice.example"')
        if not DOMAIN.match(name):
            raise PermanentError(f"[actions] name must be a domain in lower case, not {name!r}")
        made = int(ctx.created_at.timestamp())
        claims = Claims(
            iss=name,
            iat=made,
            t=self.type,
            c=self.content,
            p=self.parent,
            a=self._files(ctx),
            exp=None if self.expires_in is None else int(made + self.expires_in),
            aud=named_audience(self.audience or (), ctx.settings),
        )
        token: str = sign(claims, load_private_key(signing_key(ctx.settings)))
        read(token)  # what we would not accept from others we do not send
        return token

    def _files(self, ctx: Context) -> tuple[str, ...]:
        results = ctx.results()
        found = [r.get("file_id") for _, r in sorted(results.items()) if isinstance(r, dict)]
        files = tuple(dict.fromkeys([*self.attachments, *(one for one in found if isinstance(one, str))]))
        if len(files) > MAX_ATTACHMENTS:
            raise PermanentError(f"{len(files)} attachments are more than {MAX_ATTACHMENTS}")
        if files:
            blobs = BlobStore.from_settings(ctx.settings)
            for file_id in files:
                if not FILE_ID.match(file_id) or blobs.metadata(self.tn_id, file_id) is None:
                    raise PermanentError(f"tenant {self.tn_id} has no file {file_id}")
        return files


def signing_key(settings: Mapping[str, Any]) -> bytes:
    """The private key, as it is in its file. Raises PermanentError."""
    path = required(settings, "actions", "key_file", '"/etc/schedd/actions.pem"')
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise PermanentError(f"the signing key ([actions] key_file) cannot be read: {error.strerror}") from None
