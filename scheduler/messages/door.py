"""The door: takes messages of push sources, and tasks, over HTTP. A small ASGI application, served by uvicorn."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from scheduler.app import Scheduler
from scheduler.client.builder import TaskBuilder
from scheduler.config.model import Config
from scheduler.errors import (
    ConfigError,
    DuplicateKeyError,
    PayloadError,
    SchedulerError,
    StoreUnavailableError,
    UnregisteredKindError,
)
from scheduler.http_server import STRANGER_TIMEOUT, Bodies, Crowded, HttpServer, TooLarge, bears, headers_of, respond
from scheduler.messages.group_commit import Busy, PushedIntake
from scheduler.messages.intake import Intake
from scheduler.messages.reading import OwnKindError, refuse_own, refuse_results
from scheduler.model.inbox import DOOR, sender_key
from scheduler.model.json_text import MAX_DEPTH, json_fault, too_deep
from scheduler.model.names import check_text
from scheduler.model.spec import MAX_KEY
from scheduler.model.webhooks import key_of, verify
from scheduler.store import door_keys
from scheduler.transports.ports import Answer, Auth, PushSource, Request, Unreadable

SOURCES, TASKS = "/v1/sources/", "/v1/tasks"
BODIES_BYTES = 64 * 1024 * 1024  # of all bodies that are here or arrive, and the same of those not known to be signed

log = logging.getLogger("scheduler.door")


class PostedTask(msgspec.Struct, forbid_unknown_fields=True):
    """What is posted to ``/v1/tasks``. ``delay``: seconds."""

    kind: str
    payload: dict[str, Any] = {}
    key: str | None = None
    queue: str | None = None
    delay: float | None = None
    correlation: str | None = None
    subject: str | None = None
    headers: dict[str, Any] | None = None


class Door:
    """Listens between :meth:`start` and :meth:`stop`. ``url``: where it answers, once started."""

    def __init__(self, config: Config, jobs: Scheduler, pushed: Mapping[str, tuple[PushSource, Intake]]) -> None:
        self._settings = config.door
        self._jobs = jobs
        self._sources: Mapping[str, tuple[PushSource, PushedIntake]] = _intakes(pushed)
        self._server = HttpServer(self, config.door.listen or "", "door")
        self._places: asyncio.Semaphore | None = None
        self._keys_are_own = False
        most = max(BODIES_BYTES, 4 * config.door.max_body)
        self._bodies, self._unsigned = Bodies(most), Bodies(most, STRANGER_TIMEOUT)

    def start(self) -> None:
        """Take the address and serve, in a thread. Raises ConfigError if the address cannot be had."""
        with suppress(StoreUnavailableError):  # the first caller's request does it then
            self._own_keys()
        self._server.start()
        for _, intake in self._sources.values():
            intake.start()
        log.info("the door is open at %s", self.url)

    @property
    def url(self) -> str:
        """Where it answers, once started."""
        return self._server.url

    def stop(self) -> None:
        """Take nothing more; requests under way are answered."""
        self._server.stop()
        for _, intake in self._sources.values():
            intake.stop()

    def replace(self, pushed: Mapping[str, tuple[PushSource, Intake]], changed: Collection[str]) -> None:
        """Serve other sources from now on: without those that have changed, with ``pushed``.

        What an old one has taken is answered.
        """
        made = _intakes(pushed)
        for _, intake in made.values():
            intake.start()
        ended = [one for name, one in self._sources.items() if name in changed]
        self._sources = {**{n: one for n, one in self._sources.items() if n not in changed}, **made}
        for _, intake in ended:
            intake.stop()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            return
        if self._places is None:
            self._places = asyncio.Semaphore(self._settings.max_requests)
        try:
            answer = await self._answer(scope, receive)
        except TooLarge:
            answer = _error(413, f"the body has more than {self._settings.max_body:,} bytes")
        except Crowded:
            answer = _error(503, "too many and too long bodies at once", {"retry-after": "1"})
        except TimeoutError:
            answer = _error(408, "the body did not arrive in time")
        except Exception:
            log.exception("the door: unexpected error")
            answer = _error(500, "unexpected error: see the daemon's log")
        await respond(send, answer.status, answer.body, answer.headers)

    async def _answer(self, scope: Any, receive: Any) -> Answer:
        path, headers = scope["path"], headers_of(scope)
        if path == "/livez":
            return Answer(status=200, body=b'{"ok": true}')
        name = path.removeprefix(SOURCES) if path.startswith(SOURCES) else None
        serving = None if name is None else self._sources.get(name)
        if serving is None and path != TASKS:
            return _error(404, "there is nothing here")
        if scope["method"] != "POST":
            return _error(405, "post it")
        # A bearer is refused before its body is read. A place is taken once the sender is known and the body is here.
        auth = Auth(token=self._settings.token) if serving is None else serving[0].auth
        known = bears(auth.token, headers)
        if not known and (serving is None or auth.secret is None):
            return _error(401, "no right token", {"www-authenticate": "Bearer"})
        bodies = self._bodies if known else self._unsigned
        async with bodies.read(receive, self._settings.max_body, headers) as body:
            if not known:
                assert auth.secret is not None
                wrong = verify([key_of(auth.secret)], headers, body, time.time())
                if wrong is not None:
                    return _error(401, wrong)
            assert self._places is not None
            async with self._places:
                if name is None or serving is None:
                    return await asyncio.to_thread(self._submit, body)
                return await self._deliver(name, serving, Request(headers=headers, body=body))

    async def _deliver(self, name: str, serving: tuple[PushSource, PushedIntake], request: Request) -> Answer:
        source, intake = serving
        try:
            deliveries = await asyncio.to_thread(source.accept, request)
        except Unreadable as error:
            return _error(error.status, str(error))
        try:
            verdicts = await asyncio.wrap_future(intake.put(deliveries))
        except Busy as error:
            return _error(503, str(error), {"retry-after": str(error.after)})
        except SchedulerError as error:
            log.warning("source %s: %s", name, error)
            return _error(503, "the store cannot be reached", {"retry-after": "5"})
        return source.answer(verdicts)

    def _submit(self, body: bytes) -> Answer:
        """Store a task; 201 only after the commit, 200 if another one holds its key."""
        if too_deep(body):
            return _error(400, f"it is nested deeper than {MAX_DEPTH} levels")
        try:
            wanted = msgspec.json.decode(body, type=PostedTask)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
            return _error(400, json_fault(body, error))
        allowed = self._settings.kinds
        if "*" not in allowed and wanted.kind not in allowed:
            return _error(403, f"tasks of kind {wanted.kind[:80]} are not taken here")
        try:
            builder = self._jobs.task(wanted.kind, wanted.payload)
            refuse_own(builder._kind, allowed, "kinds in [door]")
            refuse_results(builder._kind, wanted.payload)
            for name in ("queue", "correlation", "subject", "headers"):
                value = getattr(wanted, name)
                if value is not None:
                    getattr(builder, name)(value)
            if wanted.delay is not None:
                builder.after(wanted.delay)
            if wanted.key is not None:
                check_text(wanted.key, "a key", MAX_KEY)
                builder.key(wanted.key if self._settings.shared_keys else sender_key(DOOR, wanted.key))
                before = None if self._settings.shared_keys else self._before(builder, wanted.key)
                if before is not None:
                    return Answer(status=200, body=msgspec.json.encode({"id": before, "created": False}))
            made = builder.schedule()
        except UnregisteredKindError as error:
            return _error(404, str(error))
        except DuplicateKeyError as error:
            return _error(409, str(error))
        except OwnKindError as error:
            return _error(403, str(error))
        except (PayloadError, ConfigError) as error:
            return _error(422, str(error))
        except SchedulerError as error:
            log.warning("the door: %s", error)
            return _error(503, "the store cannot be reached", {"retry-after": "5"})
        body = msgspec.json.encode({"id": int(made), "created": made.created})
        return Answer(status=201 if made.created else 200, body=body)

    def _own_keys(self) -> None:
        """Note since when the door's keys are its own."""
        if not self._keys_are_own and self._settings.token is not None:
            self._jobs.database.change(door_keys.begin)
            self._keys_are_own = True

    def _before(self, builder: TaskBuilder[Any], key: str) -> int | None:
        """The task that an older program has made of the same request."""
        spec = builder._spec
        self._own_keys()
        with self._jobs.database.read() as tx:
            return door_keys.former(tx, spec, key)


def _intakes(pushed: Mapping[str, tuple[PushSource, Intake]]) -> dict[str, tuple[PushSource, PushedIntake]]:
    return {name: (source, PushedIntake(source, intake)) for name, (source, intake) in pushed.items()}


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status=status, body=msgspec.json.encode({"error": text}), headers=headers or {})
