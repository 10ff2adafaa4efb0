"""NatsConnection: a connection to NATS for callers that are no coroutines."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from scheduler.errors import ConfigError
from scheduler.transports.ports import TransportError, require

T = TypeVar("T")
CONNECT_TIMEOUT, ANSWER_S = 5.0, 10.0  # seconds to reach one server, and for one answer
PING_EVERY = 20  # seconds; two that are not answered end the connection
GIVEN_UP = "nats: the connection was given up"
_SCHEMES = ("nats://", "tls://")

log = logging.getLogger("scheduler.messages")


class NatsConnection:
    """A connection, made when it is needed, on an event loop in a thread of its own; both end with :meth:`close`.

    What the client raises comes out as TransportError. A connection that was lost is not made again by the client: what
    waits for an answer fails at once, and the next call connects.
    """

    def __init__(self, url: str, what: str) -> None:
        require("nats", "nats", f"the {what}")
        self._urls = [one.strip() for one in url.split(",")]
        if not all(one.startswith(_SCHEMES) for one in self._urls):
            raise ConfigError(f"{what}: url has to begin with nats:// or tls://")
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._trouble: Exception | None = None  # the last one that the client reported

    def ask(self, work: Callable[[Any], Awaitable[T]], wait: float = 0.0) -> T:
        """Raises TransportError. ``wait``: seconds that ``work`` waits for messages, beside its answers."""
        import nats.errors

        limit = wait + CONNECT_TIMEOUT * 2 * len(self._urls) + ANSWER_S * 2
        try:
            with self._lock:
                loop = self._running()
                waiting = asyncio.run_coroutine_threadsafe(self._bounded(work, limit), loop)
            return waiting.result()
        except TimeoutError:
            raise TransportError(f"nats: no answer within {limit:g} s") from None
        except (nats.errors.Error, OSError) as error:
            raise TransportError(f"nats: {text_of(self._trouble or error)}") from None
        except concurrent.futures.CancelledError:
            raise TransportError(GIVEN_UP) from None

    async def _bounded(self, work: Callable[[Any], Awaitable[T]], limit: float) -> T:
        self._trouble = None
        async with asyncio.timeout(limit):
            client = self._client
            if client is None or not client.is_connected:
                client = await self._connect()
                if self._loop is not asyncio.get_running_loop():  # closed meanwhile
                    await client.close()
                    raise TransportError(GIVEN_UP)
                self._client = client
            return await work(client)

    async def _connect(self) -> Any:
        import nats

        return await nats.connect(
            self._urls, allow_reconnect=False, max_reconnect_attempts=1, reconnect_time_wait=0,
            connect_timeout=CONNECT_TIMEOUT, ping_interval=PING_EVERY, error_cb=self._note, name="schedd",
        )  # fmt: skip

    async def _note(self, error: Exception) -> None:
        self._trouble = error

    def _running(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(loop,), name="schedd-nats", daemon=True).start()
            self._loop = loop
        return self._loop

    def close(self) -> None:
        """Returns at once. What waits for an answer fails; the next call would connect again."""
        with self._lock:
            loop, self._loop = self._loop, None
            client, self._client = self._client, None
            if loop is not None:
                asyncio.run_coroutine_threadsafe(_end(client), loop)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _end(client: Any) -> None:
    """Close a connection, end what waits, also a receive of another thread, and stop the loop."""
    loop = asyncio.get_running_loop()
    try:
        if client is not None:
            async with asyncio.timeout(1.0):
                await client.close()
    except Exception as error:  # it is given up either way
        log.debug("closing the connection failed: %s", error)
    others = [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]
    for one in others:
        one.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    loop.call_soon(loop.stop)


def text_of(error: Exception) -> str:
    """What an error of the client says."""
    text = getattr(error, "description", None) or str(error) or type(error).__name__
    return str(text).removeprefix("nats: ")


def check_names(what: str, **names: str | None) -> None:
    """Raises ConfigError for names of streams, consumers and subjects with characters that they cannot have."""
    for setting, text in names.items():
        if text is None:
            continue
        wrong = set(text) & set("*>" if setting in ("subject", "dead") else "*>./\\")
        if not text or wrong or any(c.isspace() or not c.isprintable() for c in text):
            raise ConfigError(f"{what}: {text!r:.80} is not a name that NATS takes for {setting}")
