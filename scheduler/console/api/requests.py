"""Reads a request of the API, and answers it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, partial
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response

from scheduler.app import Scheduler
from scheduler.console.answers import Refusal
from scheduler.console.api.arguments import Args, check_texts
from scheduler.console.api.table import DOCUMENT, PREFIX, ApiRoute, document, find
from scheduler.console.inputs import MAX_BODY, body_of, query_of
from scheduler.console.roles import Principal, Verb
from scheduler.console.visit import Visit
from scheduler.model.json_text import MAX_DEPTH, json_fault, too_deep

MAX_CALLS = 64  # at once that wait for a thread, of callers who are known
THREADS = 2  # calls that read or write the database at once


class ApiCall(NamedTuple):
    """A request that was read. ``route`` None: for the document that describes the others."""

    route: ApiRoute | None
    params: Mapping[str, Any]
    given: Args


class ApiCalls:
    """Answers calls: a bounded number at once, few of them at the database, so that machines keep no page waiting."""

    def __init__(self, jobs: Scheduler) -> None:
        self._jobs = jobs
        self._under_way = 0

    @cached_property
    def _limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(THREADS)

    async def answer(self, request: Request, path: str, visit: Visit) -> Response:
        """The answer to a request of someone who is known. Raises Refusal, and as operations do."""
        call = await read(request, path, visit.who)
        visit.params = call.params
        if self._under_way >= MAX_CALLS:
            raise Refusal(503, "Too many requests at once: try again in a second.", {"retry-after": "1"})
        self._under_way += 1
        try:
            return await anyio.to_thread.run_sync(partial(answer, self._jobs, visit, call), limiter=self._limiter)
        finally:
            self._under_way -= 1


def is_api(path: str) -> bool:
    """Whether a path is of the API."""
    return path == "/api" or path.startswith("/api/")


async def read(request: Request, path: str, who: Principal) -> ApiCall:
    """Read and check a request of someone who is known. Raises Refusal."""
    rest = path.removeprefix(PREFIX) if path.startswith(f"{PREFIX}/") else ""
    if rest == DOCUMENT and request.method in ("GET", "HEAD"):
        _refuse_unless(who, Verb.LOOK)
        return ApiCall(None, {}, Args())
    found = find(request.method, rest)
    if found.route is None:
        allowed = "GET" if rest == DOCUMENT else ", ".join(found.methods)
        if allowed:
            raise Refusal(405, f"{path} takes {allowed}, not {request.method}.", {"allow": allowed})
        raise Refusal(404, f"There is no such route: GET {PREFIX}{DOCUMENT} lists them.")
    _refuse_unless(who, found.route.verb)
    if found.route.method == "GET":
        return ApiCall(found.route, found.params, found.route.read(_query(request), strict=False))
    return ApiCall(found.route, found.params, found.route.read(await _body(request), strict=True))


def answer(jobs: Scheduler, visit: Visit, call: ApiCall) -> Response:
    """The answer to a call. Raises as operations do."""
    if call.route is None:
        found: Any = document(visit.prefix)
    elif call.route.method == "GET":
        found = call.route.call(visit, call.given)
    else:
        reason = getattr(call.given, "reason", None) or None
        with jobs.acting(visit.who.name, reason=reason, via="api"):
            found = call.route.call(visit, call.given)
    return Response(msgspec.json.encode(found), media_type="application/json")


def _refuse_unless(who: Principal, verb: Verb) -> None:
    if not who.may(verb):
        raise Refusal(403, f"Your role, {who.role}, does not include “{verb}”.")


def _query(request: Request) -> dict[str, str]:
    found = query_of(request)
    twice = [name for name, values in found.items() if len(values) > 1]
    if twice:
        raise Refusal(422, f"{twice[0]:.80} is given more than once: give it once.", where=twice[0][:80])
    return {name: values[0] for name, values in found.items()}


async def _body(request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "The body is an object of JSON: send it with Content-Type: application/json.")
    body = await body_of(request, MAX_BODY)
    try:
        if too_deep(body):
            raise Refusal(422, f"The body is nested more than {MAX_DEPTH} levels deep.", where="body")
        given = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise Refusal(400, f"The body is not JSON: {json_fault(body, error)}.", where="body") from None
    check_texts(given)
    return given
