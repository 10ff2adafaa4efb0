"""GatewayClient: a job's questions to the gateways of daemons, over HTTP."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Sequence
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from scheduler.engine.gateway import messages
from scheduler.engine.placed import NotMineError, PlacedClaim
from scheduler.errors import PayloadError, SchedulerError, StoreUnavailableError
from scheduler.model.spec import plain

TIMEOUT_S = 10.0  # until an answer that did not come counts as lost
MAX_IDLE = 4  # connections kept open: the engine's, and those of reads
_REFUSED, _OVER, _TOO_LARGE, _AWAY = 401, 409, 413, frozenset({404, 408, 429, *range(500, 600)})
_MAX_SHOWN = 500  # characters of an answer that an error shows

T = TypeVar("T")
_encoder = msgspec.json.Encoder(enc_hook=plain)


class GatewayClient:
    """Asks for one claim. ``urls``: of gateways; after a failure the next one is asked. From any thread.

    Each question may raise StoreUnavailableError: it may have been answered, or not, so it is asked again;
    NotMineError: the claim is over, or the token is not good for it; PayloadError: too long for the gateway.
    """

    def __init__(self, urls: Sequence[str], claim: PlacedClaim, token: str, timeout: float = TIMEOUT_S) -> None:
        self._urls = list(urls)
        self._path = f"{messages.PATH}/{claim.executor}/{claim.task_id}/{claim.number}"
        self._headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        self._timeout = timeout
        self._mutex = threading.Lock()
        self._at = 0  # which URL is asked
        self._idle: list[tuple[int, http.client.HTTPConnection]] = []

    def look(self) -> messages.Terms:
        """What the claim is of."""
        return self._ask(messages.LOOK, {}, messages.Terms)

    def attach(self, message: messages.Attach) -> messages.Attached:
        """Take the claim over."""
        return self._ask(messages.ATTACH, message, messages.Attached)

    def sync(self, message: messages.Sync) -> messages.Synced:
        """Have something written, and hear of a cancel."""
        return self._ask(messages.SYNC, message, messages.Synced)

    def load(self, message: messages.GatewayLoad) -> messages.Loaded:
        """Read something for the handler."""
        return self._ask(messages.LOAD, message, messages.Loaded)

    def close(self) -> None:
        with self._mutex:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _ask(self, what: str, message: Any, answer: type[T]) -> T:
        at, connection = self._take()
        try:
            connection.request("POST", f"{urlsplit(self._urls[at]).path.rstrip('/')}{self._path}/{what}",
                               _encoder.encode(message), self._headers)  # fmt: skip
            response = connection.getresponse()
            status, body = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self._next(at)
            why = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise StoreUnavailableError(f"the gateway {self._urls[at]} does not answer: {why}") from None
        self._give_back(at, connection, response.will_close)
        if status == http.HTTPStatus.OK:
            try:
                return msgspec.json.decode(body, type=answer)
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                self._next(at)
                raise StoreUnavailableError(f"{self._urls[at]} answers like no gateway: {error}") from None
        text = f"the gateway {self._urls[at]} says {status}: {_text(body)}"
        if status in (_REFUSED, _OVER):
            raise NotMineError(text)
        if status == _TOO_LARGE:
            raise PayloadError(text)
        if status in _AWAY:
            self._next(at)
            raise StoreUnavailableError(text)
        raise SchedulerError(text)

    def _take(self) -> tuple[int, http.client.HTTPConnection]:
        with self._mutex:
            at = self._at
            for place, (of, connection) in enumerate(self._idle):
                if of == at:
                    del self._idle[place]
                    return at, connection
        parts = urlsplit(self._urls[at])
        assert parts.hostname is not None, "the configuration has checked that"
        make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return at, make(parts.hostname, parts.port, timeout=self._timeout)

    def _give_back(self, at: int, connection: http.client.HTTPConnection, closing: bool) -> None:
        with self._mutex:
            if not closing and len(self._idle) < MAX_IDLE:
                self._idle.append((at, connection))
                return
        connection.close()

    def _next(self, at: int) -> None:
        """Ask another gateway from now on, on new connections."""
        with self._mutex:
            if self._at == at:
                self._at = (at + 1) % len(self._urls)
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()


def _text(body: bytes) -> str:
    try:
        return str(msgspec.json.decode(body)["error"])[:_MAX_SHOWN]
    except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError):
        return body.decode(errors="replace")[:_MAX_SHOWN]
