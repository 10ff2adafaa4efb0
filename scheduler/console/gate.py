"""Gate: the ASGI app. One way for every request: limits, host, who asks, route and verb, origin, body, answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response

from scheduler import __version__
from scheduler.app import Scheduler
from scheduler.client.bulks import BulkRunner
from scheduler.config.model import Config, ConsoleSection
from scheduler.console import pages, routes
from scheduler.console.answers import Refusal, here, html, in_the_way, own_path, refusal_of, static, status_of, twin_of
from scheduler.console.api import requests
from scheduler.console.auth import ConsoleAuth, LinkAuth, TooManyAttemptsError, WrongCredentialsError
from scheduler.console.inputs import (
    MAX_BODY,
    MAX_PUBLIC_BODY,
    accepts_json,
    asks_for_json,
    check_text,
    form_of,
    query_of,
    wanted_page,
)
from scheduler.console.live import Snapshots
from scheduler.console.render import ActionDone, RenderedPage, dump, render
from scheduler.console.roles import Principal, Verb
from scheduler.console.security import (
    Failures,
    Peer,
    Peers,
    Signer,
    host_allowed,
    hosts_of,
    same_origin,
    security_headers,
)
from scheduler.console.sessions import COOKIE
from scheduler.console.visit import PREFERENCES, BadInputError, Preferences, Site, Visit
from scheduler.errors import ConfigError, SchedulerError, StoreUnavailableError
from scheduler.model.redact import redact
from scheduler.model.times import to_datetime
from scheduler.model.zoned import zone_of
from scheduler.operations.desk import ReadTooLongError

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_MARK = "_is_coroutine"  # that asyncio.iscoroutinefunction looks for before Python 3.12
F = TypeVar("F", bound=Callable[..., Any])

MAX_REQUESTS = 64  # at once that wait for a thread, of visitors who are known
THREADS = 4  # requests that read or write the database at once
FLASH, FLASH_SECONDS = "schedd_flash", 60.0
MAX_FLASH = 3500  # characters of the cookie; its name and attributes are beside it
ERROR = "error.html"
TOO_MANY = "Too many failed attempts: wait a minute."
_NO_VERBS = Principal("", "", frozenset())

UNDER_WSGI = (
    "the console is an ASGI app, and was called as a WSGI app: Flask and Django's WSGI cannot mount it; run  schedctl "
    "console  beside the program, or serve both by an ASGI server, the program through a2wsgi.WSGIMiddleware"
)

logger = logging.getLogger("scheduler.console")


def asynchronous(function: F) -> F:
    """Mark a plain function that returns an awaitable: servers ask whether an app's ``__call__`` is a coroutine's."""
    if sys.version_info >= (3, 12):
        inspect.markcoroutinefunction(function)
    else:
        vars(function)[_MARK] = getattr(asyncio.coroutines, _MARK)
    return function


def make_gate(
    jobs: Scheduler, auth: ConsoleAuth, settings: ConsoleSection | None = None, config: Config | None = None
) -> Gate:
    """Make the console's ASGI app. Raises ConfigError."""
    return Gate(Site(jobs, settings if settings is not None else ConsoleSection(), config), auth)


class Gate:
    """The console as an ASGI app. Every answer, streams too, goes through :meth:`answer`."""

    def __init__(self, site: Site, auth: ConsoleAuth, *, standalone: bool = False) -> None:
        pages.load()
        self._bulks: BulkRunner | None = None
        self._starting_bulks = threading.Lock()
        self.site, self.auth = site._replace(wake_bulks=self._wake_bulks), auth
        self.settings = site.settings
        self.peers = Peers(self.settings.trusted_proxies)
        self.failures = Failures()
        self.snapshots = Snapshots(site.jobs.database)
        self._standalone = standalone
        self._hosts = hosts_of(self.settings.listen, self.settings.hosts)
        self._headers = security_headers(self.settings.frame_ancestors)
        self._flashes = Signer()
        self._has_api = site.config is not None and site.config.api.enabled
        self._calls = requests.ApiCalls(site.jobs)
        self._requests = 0

    def _wake_bulks(self) -> None:
        """Have the thread that runs bulks look at once; it begins with the first bulk."""
        with self._starting_bulks:
            if self._bulks is None:
                self._bulks = BulkRunner(self.site.jobs.desk)
                self._bulks.start()
        self._bulks.wake()

    def close(self) -> None:
        """Stop what the console does in the background, and close its connection."""
        with self._starting_bulks:
            if self._bulks is not None:
                self._bulks.stop()
                self._bulks = None
        self.snapshots.close()

    @cached_property
    def _limiter(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(THREADS)

    @asynchronous
    def __call__(self, scope: Scope, receive: Receive, send: Send | None = None) -> Awaitable[None]:
        if send is None:
            raise ConfigError(UNDER_WSGI)  # (environ, start_response)
        return self._serve(scope, receive, send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":  # there is no WebSocket here
            await send({"type": "websocket.close", "code": 1008})
            return
        with suppress(ClientDisconnect):
            response = await self.answer(Request(scope, receive))
            await self._finish(response)(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                if not self.settings.read_only:
                    self._wake_bulks()  # for those that programs start
                await send({"type": "lifespan.startup.complete"})
            else:
                self.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    def _finish(self, response: Response) -> Response:
        for name, value in self._headers.items():
            response.headers.setdefault(name, value)
        return response

    # One request

    async def answer(self, request: Request) -> Response:
        """The answer to a request, whatever happens."""
        peer = self.peers.of(request.scope)
        prefix = self._prefix(request, peer)
        path = self._path(request)
        wants_json = requests.is_api(path) or asks_for_json(request)
        visit = Visit(self.site, _NO_VERBS, path, {}, {}, {}, self._preferences(request), prefix, wants_json)
        visit.wanted = wanted_page(request, path)
        try:
            return await self._answer(request, peer, prefix, path, visit)
        except (Refusal, BadInputError, ReadTooLongError, SchedulerError) as error:
            stuck = isinstance(error, ReadTooLongError | StoreUnavailableError)
            return self._refused(visit, refusal_of(error, await self._in_the_way(visit) if stuck else None))
        except ClientDisconnect:
            raise
        except Exception:
            logger.exception("the console failed at %s", path)
            return self._refused(visit, Refusal(500, "The console has failed here; its log says how."))

    async def _in_the_way(self, visit: Visit) -> str | None:
        """Whose lock is in the way; only for those who may look, as it names users of the database."""
        if not visit.may(Verb.LOOK):
            return None
        return await anyio.to_thread.run_sync(in_the_way, self.site.jobs)

    async def _answer(self, request: Request, peer: Peer, prefix: str, path: str, visit: Visit) -> Response:
        self._check_host(request)
        check_text(path)
        if self._has_api and requests.is_api(path):
            return await self._call(request, peer, path, visit)
        asked = routes.resolve(request.method, path)
        route = asked.route
        public = route is not None and route.verb is Verb.PUBLIC
        if "t" in request.query_params and isinstance(self.auth, LinkAuth) and request.method == "GET":
            return await self._log_in(request, peer, prefix, request.query_params["t"], path)
        who = _NO_VERBS if public else await self._who(request, peer)
        visit.who = who
        if route is None:
            if asked.elsewhere:
                raise Refusal(405, f"There is no {request.method} here.")
            raise Refusal(404, "There is no such page.")
        if not who.may(route.verb):
            raise Refusal(403, f"Your role, {who.role}, does not include “{route.verb}”.")
        form: Mapping[str, list[str]] = {}
        if route.method == "POST":
            self._check_origin(request)
            form = await form_of(request, MAX_PUBLIC_BODY if public else MAX_BODY)
        query = query_of(request)
        last_event = request.headers.get("last-event-id")

        def visit_of(found: routes.Match) -> Visit:
            return Visit(
                self.site,
                who,
                found.path,
                found.params,
                query,
                form,
                visit.preferences,
                prefix,
                found.twin or accepts_json(request),
                last_event,
            )

        made = visit_of(asked)
        if asked.path.startswith("/static/"):
            return static(asked.params["name"], request.headers.get("if-none-match"))
        if asked.path in ("/login", "/login/link", "/logout") and route.method == "POST":
            return await self._session(asked.path, request, peer, made)
        if route.asynchronous:
            response: Response = await route.endpoint(made)
            return response
        if route.method == "POST":
            return await self._in_thread(partial(self._act, request, made, route))
        named = None if asked.named is None else visit_of(asked.named)
        return await self._in_thread(partial(self._show, request, made, route, named))

    async def _call(self, request: Request, peer: Peer, path: str, visit: Visit) -> Response:
        """The answer to a machine. A browser's cookie is no word on who asks here."""
        visit.who = await self._who(request, peer)
        if visit.who.session:
            raise self._unknown()
        if request.method == "POST" and {"origin", "sec-fetch-site"} & set(request.headers):
            self._check_origin(request)
        try:
            return await self._calls.answer(request, path, visit)
        finally:
            if request.method == "POST":
                self.snapshots.forget()

    def _unknown(self) -> Refusal:
        challenge = self.auth.challenge
        return Refusal(
            401, f"Who are you? {self.auth.wants}".rstrip(), {"www-authenticate": challenge} if challenge else {}
        )

    async def _in_thread(self, work: Callable[[], Response]) -> Response:
        if self._requests >= MAX_REQUESTS:
            return Response("too many requests at once\n", 503, {"retry-after": "1"})
        self._requests += 1
        try:
            return await anyio.to_thread.run_sync(work, limiter=self._limiter)
        finally:
            self._requests -= 1

    def _check_host(self, request: Request) -> None:
        named = self.settings.hosts or self._standalone
        if named and not host_allowed(request.headers.get("host", ""), self._hosts):
            raise Refusal(421, "This console is not known by that name: add it to [console] hosts.")

    def _prefix(self, request: Request, peer: Peer) -> str:
        if peer.trusted:
            given = request.headers.get("x-forwarded-prefix", "").rstrip("/")
            if given.startswith("/") and not given.startswith("//") and given == quote(given, safe="/~-._"):
                return given
        return str(request.scope.get("root_path", "")).rstrip("/") or (self.settings.prefix or "").rstrip("/")

    def _path(self, request: Request) -> str:
        path, root = str(request.scope["path"]), str(request.scope.get("root_path", "")).rstrip("/")
        for prefix in (root, (self.settings.prefix or "").rstrip("/")):
            if prefix and (path == prefix or path.startswith(f"{prefix}/")):
                path = path[len(prefix) :]
                break
        return path or "/"

    async def _who(self, request: Request, peer: Peer) -> Principal:
        try:
            who = await self.auth.identify(request, peer)
        except TooManyAttemptsError:
            raise Refusal(429, TOO_MANY, {"retry-after": "5"}) from None
        except WrongCredentialsError:
            self._count_failure(peer)
            who = None
        if who is None:
            raise self._unknown()
        return who.limited({Verb.LOOK}) if self.settings.read_only else who

    def _count_failure(self, peer: Peer) -> None:
        """Count wrong credentials of a client. What is right is taken all the same: others may have its address."""
        if self.failures.refuses(peer.client):
            raise Refusal(429, TOO_MANY, {"retry-after": "60"})
        self.failures.add(peer.client)

    def _check_origin(self, request: Request) -> None:
        """Refuse what a page of another site sends. A bearer token is never sent by a browser by itself."""
        if request.headers.get("authorization", "").lower().startswith("bearer "):
            return
        if not same_origin(request.headers, request.headers.get("host", "")):
            raise Refusal(403, "This came from another site, or from a browser that does not say from where.")

    # Pages and verbs; in a thread

    def _show(self, request: Request, visit: Visit, route: routes.Route, named: Visit | None) -> Response:
        """``named``: the visit of what has the whole path as its name, if there is such a thing."""
        if named is not None and route.known is not None and route.known(named):
            visit = named
        if "fragment" in visit.query and not visit.json:
            return self._fragment(request, visit, route)
        found = route.endpoint(visit)
        if isinstance(found, Response):
            return found
        if visit.json:
            return Response(dump(found.data), found.status, media_type="application/json")
        flash = self._flash(request)
        response = html(self._rendered(visit, found, flash), found.status)
        if flash:
            response.delete_cookie(FLASH, visit.prefix or "/")
        return response

    def _fragment(self, request: Request, visit: Visit, route: routes.Route) -> Response:
        """What changes of a page, if it has changed."""
        query = "&".join(f"{name}={value}" for name, values in sorted(visit.query.items()) for value in values)
        key = (visit.path, query, visit.who.verbs, visit.preferences, visit.prefix)

        def make() -> str:
            found = route.endpoint(visit)
            return "" if isinstance(found, Response) else self._rendered(visit, found, None, fragment=True)

        snapshot = self.snapshots.get(key, make)
        tag = f'"{snapshot.tag}"'
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers={"etag": tag})
        return html(snapshot.body, headers={"etag": tag})

    def _act(self, request: Request, visit: Visit, route: routes.Route) -> Response:
        reason = visit.given("reason") or None
        if visit.path == "/preferences":
            found = route.endpoint(visit)
            return found if isinstance(found, Response) else Response(status_code=204)
        try:
            with self.site.jobs.acting(visit.who.name, reason=reason, via="page"):
                done = route.endpoint(visit)
        except (SchedulerError, BadInputError) as error:
            if visit.json or isinstance(error, ReadTooLongError):
                raise
            status = error.status if isinstance(error, BadInputError) else status_of(error)
            if status == 404 or not visit.given("next"):
                raise
            done = ActionDone(redact(str(error)), ok=False)
        self.snapshots.forget()
        if isinstance(done, Response):
            return done
        if isinstance(done, RenderedPage):
            if visit.json:
                return Response(dump(done.data), media_type="application/json")
            return html(self._rendered(visit, done, None))
        if visit.json:
            return Response(dump({"done": done.message, "data": done.data}), media_type="application/json")
        to = done.to if done.to is not None else own_path(visit.given("next")) or "/"
        response = RedirectResponse(visit.prefix + to, 303)
        response.set_cookie(
            FLASH, self._sealed(done), max_age=int(FLASH_SECONDS),
            path=visit.prefix or "/", httponly=True, samesite="strict",
            secure=request.scope["scheme"] == "https",
        )  # fmt: skip
        return response

    def _sealed(self, done: ActionDone) -> str:
        """The note for the next page, as much of it as a cookie holds: browsers drop one of more than 4 KiB."""
        text = done.message[:1500]
        while True:
            note = {"text": text, "ok": done.ok, "undo": done.undo}
            sealed = self._flashes.seal("flash", note, FLASH_SECONDS)
            if len(sealed) <= MAX_FLASH or not text:
                return sealed
            text = text[: len(text) * 3 // 4]

    def _flash(self, request: Request) -> Mapping[str, Any] | None:
        sealed = request.cookies.get(FLASH)
        return None if sealed is None else self._flashes.open("flash", sealed)

    def _rendered(
        self, visit: Visit, page: RenderedPage, flash: Mapping[str, Any] | None, *, fragment: bool = False
    ) -> str:
        return render(page.template, self._context(visit, page, flash), fragment=fragment)

    def _context(self, visit: Visit, page: RenderedPage, flash: Mapping[str, Any] | None) -> dict[str, Any]:
        now = to_datetime(self.site.jobs.database.now())
        context: dict[str, Any] = {
            "visit": visit,
            "me": visit.who,
            "may": visit.may,
            "prefix": visit.prefix,
            "prefs": visit.preferences,
            "zone": zone_of(visit.preferences.zone),
            "now_at": now,
            "nav": routes.navigation(),
            "label": self.settings.label,
            "read_only": self.settings.read_only,
            "version": __version__,
            "command": page.command,
            "live": page.live,
            "flash": flash,
            "everything_paused": None if page.template == ERROR else visit.everything_paused(),
            "auth": self.auth,
            "here": here(visit),
            "twin": twin_of(visit),
        }
        return context | dict(page.context)

    # Sessions and refusals

    async def _session(self, path: str, request: Request, peer: Peer, visit: Visit) -> Response:
        if path == "/logout":
            response: Response = RedirectResponse(f"{visit.prefix}/login", 303)
            response.delete_cookie(COOKIE, visit.prefix or "/")
            if self.auth.sessions is not None:
                await self.auth.sessions.end(request)
            return response
        if path == "/login/link":
            printed = isinstance(self.auth, LinkAuth) and self.auth.print_link()
            text = "A new link is in the terminal, or in the daemon's log." if printed else "Wait some seconds."
            return self._refused(visit, Refusal(401, text))
        return await self._log_in(request, peer, visit.prefix, visit.given("token"), visit.given("next"))

    async def _log_in(self, request: Request, peer: Peer, prefix: str, given: str, to: str) -> Response:
        who = self.auth.log_in(given)
        sessions = self.auth.sessions
        if who is None or sessions is None:
            self._count_failure(peer)
            raise Refusal(401, "That is not valid, or no longer.")
        response = RedirectResponse(prefix + (own_path(to) or "/"), 303)
        response.set_cookie(
            COOKIE, await sessions.begin(who.name), path=prefix or "/", httponly=True, samesite="strict",
            secure=request.scope["scheme"] == "https",
        )  # fmt: skip
        return response

    def _preferences(self, request: Request) -> Preferences:
        return Preferences.read(request.cookies.get(PREFERENCES), self.settings.zone)

    def _refused(self, visit: Visit, refused: Refusal) -> Response:
        if visit.json:
            where = {} if refused.where is None else {"where": refused.where}
            body = dump({"error": refused.text, "status": refused.status, **where})
            return Response(body, refused.status, refused.headers, "application/json")
        context = {"status": refused.status, "text": refused.text, "to": visit.wanted}
        page = RenderedPage(ERROR, None, context, live=False)
        try:
            body_text = self._rendered(visit, page, None)
        except Exception:
            logger.exception("the page of an error could not be rendered")
            return Response(refused.text + "\n", refused.status, refused.headers, "text/plain")
        return html(body_text, refused.status, refused.headers)
