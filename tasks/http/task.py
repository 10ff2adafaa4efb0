"""HttpTask: any request to the web."""

from __future__ import annotations

import base64
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import quote

import msgspec

from scheduler import RetryPolicy, Task
from scheduler.tasks.http.client import HttpCall, HttpReply, send, shown
from scheduler.tasks.http.errors import refuse
from scheduler.tasks.http.secrets import Secrets

if TYPE_CHECKING:
    from scheduler import AsyncContext

MAX_BODY = 512 * 1024
MAX_HEADERS = 16 * 1024  # characters
MAX_REFUSAL_TEXT = 200  # characters of a refusal that its error repeats
_VISIBLE = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
_UNSAFE = frozenset({"POST", "PATCH", "PUT", "DELETE"})

Method = Literal["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]


class HttpTask(Task, timeout=900, retry=RetryPolicy(min_wait=5, max_wait=3600, max_attempts=6)):
    """Sends a request and keeps the answer, bounded.

    url: ``https://`` or ``http://``, without a password. headers: may contain ``${name}`` of a secret that is bound to
    the host. body: text; json: any JSON instead of it. timeout: seconds for all of it. max_body: bytes of the answer
    that are kept. redirects: how many are followed. ok: statuses that are a success besides 2xx.

    A request that may change something carries an ``Idempotency-Key`` header, the same at each attempt.

    The result is ``{"status", "headers", "body" or "body_base64", "truncated", "url"}``.

    Transient failures: the host has no address, cannot be reached, falls silent, breaks off or takes too long; 5xx,
    408, 425, 429 (``Retry-After`` is honoured, up to a day). Permanent failures: every other status; an address that is
    not public and not in ``[http] allow``, also after a redirect; from https to http; a secret for another host.

    Settings: ``[http] allow``, ``[http] ca``, ``[http] secrets``, ``[http] secrets_dir``.
    """

    url: Annotated[str, msgspec.Meta(min_length=1, max_length=8192)]
    method: Method = "GET"
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: str | None = None
    json: Any = None
    timeout: Annotated[float, msgspec.Meta(gt=0, le=900)] = 30.0
    max_body: Annotated[int, msgspec.Meta(ge=0, le=MAX_BODY)] = 64 * 1024
    redirects: Annotated[int, msgspec.Meta(ge=0, le=20)] = 5
    ok: list[int] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.url.lower().startswith(("http://", "https://")):
            raise ValueError(f"url must begin with https:// or http://, not {self.url!r:.80}")
        if "@" in re.split("[/?#]", self.url.partition("//")[2], maxsplit=1)[0]:
            raise ValueError("a password does not belong in a URL, which is shown: use a header with a ${secret}")
        if self.body is not None and self.json is not None:
            raise ValueError("body and json exclude each other")
        for name, value in self.headers.items():
            if not name or any(c in "\r\n\0" for c in name + value) or not (name + value).isascii():
                raise ValueError(f"header {name!r} is not one line of ASCII")

    async def run(self, ctx: AsyncContext) -> dict[str, Any]:
        secrets = Secrets(ctx.settings)
        headers = {name.lower(): value for name, value in self.headers.items()}
        content = None if self.body is None else self.body.encode()
        if self.json is not None:
            content = msgspec.json.encode(self.json)
            headers.setdefault("content-type", "application/json")
        if self.method in _UNSAFE:
            headers.setdefault("idempotency-key", header_of(ctx.idempotency_key))
        call = HttpCall(self.method, self.url, headers, content, self.timeout, self.max_body, self.redirects)
        reply = await send(call, ctx.settings, secrets)
        if not (200 <= reply.status < 300 or reply.status in self.ok):
            detail = text_of(secrets.hidden_bytes(reply.body, cut=reply.truncated))[:MAX_REFUSAL_TEXT].strip()
            what = f"{secrets.hidden(shown(self.method, reply.url))} answered {reply.status}"
            refuse(f"{what}: {detail}" if detail else what, reply.status, reply.headers.get("retry-after"))
        return kept(reply, secrets)


def header_of(key: str) -> str:
    """A key as a header's value: what is not a visible character of ASCII, and %, as in URLs."""
    return quote(key, safe=_VISIBLE)


def text_of(body: bytes) -> str:
    return body.decode("utf-8", "replace").replace("\0", "\ufffd")


def kept(reply: HttpReply, secrets: Secrets) -> dict[str, Any]:
    """The answer as a result."""
    headers: dict[str, str] = {}
    room = MAX_HEADERS
    for name, value in reply.headers.items():
        room -= len(name) + len(value)
        if room >= 0 and name not in ("set-cookie", "set-cookie2"):
            headers[secrets.hidden(name)] = secrets.hidden(value)
    body = secrets.hidden_bytes(reply.body, cut=reply.truncated)
    result: dict[str, Any] = {"status": reply.status, "headers": headers}
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        result["body_base64"] = base64.b64encode(body).decode()
    else:
        result["body"] = text
    return result | {"truncated": reply.truncated, "url": secrets.hidden(reply.url)}
