"""The gateway: jobs without a database speak to it over HTTP. A small ASGI application, served by uvicorn.

It keeps nothing of jobs: a token is checked by its key, and whether the claim still is by the store. So every daemon's
gateway answers every job, before and after a restart.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from scheduler.app import Scheduler
from scheduler.backoff import LogOnce
from scheduler.config.model import Config
from scheduler.engine.gateway import messages
from scheduler.errors import ConfigError, SchedulerError
from scheduler.executors.gateway_work import GatewayWork, JobKey, NotHeldError, NotItsOwnError
from scheduler.http_server import Bodies, Crowded, HttpServer, TooLarge, bears, headers_of, respond
from scheduler.model.placement import job_token
from scheduler.model.spec import plain

THREADS = 8  # transactions at a time
BODIES_BYTES = 256 * 1024 * 1024  # of all bodies that are here or arrive
STORE_TIMEOUT_S = 8.0  # that one may take: less than a job waits for its answer
RETRY_AFTER_S = 1
_JOB = re.compile(rf"{messages.PATH}/([a-z][a-z0-9_-]*)/(\d{{1,18}})/(\d{{1,18}})/([a-z]+)")

log = logging.getLogger("scheduler.gateway")

Reply = tuple[int, bytes, Mapping[str, str]]
_encode = msgspec.json.Encoder(enc_hook=plain).encode


class JobGateway:
    """Serves between :meth:`start` and :meth:`stop`. ``ring``: see :class:`GatewayWork`. Raises ConfigError."""

    def __init__(self, config: Config, jobs: Scheduler, ring: Callable[[], None]) -> None:
        section = config.gateway
        if section.listen is None or section.secret is None:
            raise ConfigError("a gateway needs [gateway] listen and secret")
        self._section = section
        self._secret = section.secret
        self._jobs = jobs
        self._work = GatewayWork(config, jobs, ring)
        self._server = HttpServer(self, section.listen, "gateway", section.cert, section.key)
        self._bodies = Bodies(max(BODIES_BYTES, 2 * section.max_body))
        self._threads = ThreadPoolExecutor(THREADS, "schedd-gateway")
        self._logged = LogOnce()

    @property
    def url(self) -> str:
        """Where it answers, once started."""
        return self._server.url

    def start(self) -> None:
        """Take the address and serve, in threads. Raises ConfigError if the address cannot be had."""
        self._server.start()
        log.info("the gateway of jobs is open at %s", self.url)

    def stop(self) -> None:
        """Take nothing more; requests under way are answered."""
        self._server.stop()
        self._threads.shutdown(wait=False)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """The ASGI application."""
        if scope["type"] != "http":
            return
        try:
            status, body, headers = await self._answer(scope, receive)
        except TooLarge:
            status, body, headers = _error(413, f"more than {self._section.max_body:,} bytes: see [gateway] max_body")
        except Crowded:
            status, body, headers = _away("too many and too long bodies at once")
        except TimeoutError:
            status, body, headers = _error(408, "the body did not arrive in time")
        except Exception:
            log.exception("the gateway: unexpected error")
            status, body, headers = _error(500, "unexpected error: see the daemon's log")
        await respond(send, status, body, headers)

    async def _answer(self, scope: Any, receive: Any) -> Reply:
        if scope["path"] == "/livez":
            return 200, b'{"ok": true}', {}
        found = _JOB.fullmatch(scope["path"])
        if found is None:
            return _error(404, "there is nothing here")
        if scope["method"] != "POST":
            return _error(405, "post it")
        headers = headers_of(scope)
        key, what = JobKey(found[1], int(found[2]), int(found[3])), found[4]
        store = self._work.store()
        if store is None:
            return _away("the store is not known yet")
        # A token is refused before the body is read, and no thread waits for a sender that takes its time.
        if not bears(job_token(self._secret, store, *key), headers):
            return _error(401, "no right token for this claim", {"www-authenticate": "Bearer"})
        async with self._bodies.read(receive, self._section.max_body, headers) as body:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._do, key, what, body)

    def _do(self, key: JobKey, what: str, body: bytes) -> Reply:
        try:
            with self._jobs.database.within(STORE_TIMEOUT_S):
                answer = self._asked(key, what, body)
        except NotHeldError as error:
            return _error(409, str(error))
        except NotItsOwnError as error:
            return _error(403, str(error))
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: no UTF-8, too
            return _error(400, str(error))
        except SchedulerError as error:
            if self._logged.is_new(str(error)):
                log.warning("the gateway: %s", error)
            return _away("the store cannot be reached")
        self._logged.clear()
        return 200, _encode(answer), {}

    def _asked(self, key: JobKey, what: str, body: bytes) -> Any:
        work, decode = self._work, msgspec.json.decode
        if what == messages.LOOK:
            return work.look(key)
        if what == messages.ATTACH:
            return work.attach(key, decode(body, type=messages.Attach))
        if what == messages.SYNC:
            return work.sync(key, decode(body, type=messages.Sync))
        if what == messages.LOAD:
            return work.load(key, decode(body, type=messages.GatewayLoad))
        raise ValueError(f"a job asks for {messages.LOOK}, {messages.ATTACH}, {messages.SYNC} or {messages.LOAD}")


def _error(status: int, text: str, headers: Mapping[str, str] | None = None) -> Reply:
    return status, msgspec.json.encode({"error": text}), headers or {}


def _away(text: str) -> Reply:
    return _error(503, text, {"retry-after": str(RETRY_AFTER_S)})
