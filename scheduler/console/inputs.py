"""Inputs: what a request brings, each part of it bounded: its query, its form, and which kind of answer it wants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import parse_qs, quote

import anyio
from starlette.requests import Request

from scheduler.console.answers import Refusal, listed_values, own_path

MAX_BODY = 1024 * 1024
MAX_PUBLIC_BODY = 16 * 1024  # of a form of someone who is not known yet
MAX_FIELDS = 11_000  # of a form: as many rows as a bulk takes may be ticked
FORM_SECONDS = 10.0  # that a form may take to arrive
MAX_QUERY = 32 * 1024  # characters
MAX_QUERY_FIELDS = 200
MAX_WANTED = 1500  # characters of a query that outlasts a log-in
_FORM = "application/x-www-form-urlencoded"


def accepts_json(request: Request) -> bool:
    """Whether an answer is wanted as JSON, whatever its path says."""
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


def asks_for_json(request: Request) -> bool:
    """Whether an error is wanted as JSON. The suffix of a path may be part of a name, too."""
    if accepts_json(request):
        return True
    return str(request.scope["path"]).endswith(".json") and "text/html" not in request.headers.get("accept", "")


def check_text(*texts: str) -> None:
    """Refuse what no database stores, and nothing has in it: NUL, and halves of surrogate pairs. Raises Refusal."""
    for text in texts:
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            raise Refusal(400, "A text has a NUL or half a surrogate pair in it, which cannot be stored.")


def query_of(request: Request) -> dict[str, list[str]]:
    """The query. Raises Refusal."""
    text = request.scope["query_string"].decode("latin-1")
    if len(text) > MAX_QUERY:
        raise Refusal(414, f"A query has at most {MAX_QUERY:,} characters.")
    try:
        found = parse_qs(
            text, keep_blank_values=False, max_num_fields=MAX_QUERY_FIELDS, encoding="utf-8", errors="replace"
        )
    except ValueError:
        raise Refusal(400, f"A query has at most {MAX_QUERY_FIELDS} fields.") from None
    _check_fields(found)
    return found


def _check_fields(fields: Mapping[str, list[str]]) -> None:
    for name, values in fields.items():
        check_text(name, *values)


def wanted_page(request: Request, path: str) -> str:
    """The page to go to after a log-in: the one that was asked for; empty for the first one."""
    if request.method != "GET" or path in ("/", "/login"):
        return ""
    query = request.scope["query_string"].decode("latin-1")
    return own_path(quote(path, safe="/:@") + (f"?{query}" if query and len(query) <= MAX_WANTED else ""))


async def form_of(request: Request, most: int) -> Mapping[str, list[str]]:
    """The form, of ``most`` bytes. Raises Refusal."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = await body_of(request, most)
    fields = _fields(kind, body) if body else {}
    _check_fields(fields)
    return fields


async def body_of(request: Request, most: int) -> bytes:
    """The body, of ``most`` bytes. Raises Refusal."""
    body = bytearray()
    try:
        with anyio.fail_after(FORM_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise Refusal(413, f"The body has more than {most // 1024} KiB.")
    except TimeoutError:
        raise Refusal(408, "The body did not arrive in time.") from None
    return bytes(body)


def _fields(kind: str, body: bytes) -> Mapping[str, list[str]]:
    try:
        if kind == _FORM:
            return parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=MAX_FIELDS)
        if kind == "application/json":
            given = json.loads(body)
            if isinstance(given, dict):
                return {str(name): listed_values(value) for name, value in given.items()}
    except (ValueError, RecursionError):
        pass
    raise Refusal(415, f"A form is {_FORM}, or an object of application/json.")
