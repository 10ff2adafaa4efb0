"""What all sinks share: their protocol, their error, and a request that keeps to the address rules of ``[http]``."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any, Protocol

from scheduler.config.alerts import AlertSink
from scheduler.errors import ConfigError, SchedulerError
from scheduler.tasks.http.client import Call, send
from scheduler.tasks.http.errors import Refused, Unreachable
from scheduler.tasks.http.secrets import HIDDEN, Secrets, forms_of

MAX_ANSWER = 2000  # bytes of an answer that are read
MAX_SHOWN = 200  # characters of it that an error shows
SHORTEST_HIDDEN = 6  # of a URL's parts: a shorter one is no secret
Body = Mapping[str, Any]  # of a message: see messages.compose


class SinkError(SchedulerError):
    """A message did not arrive; the text says why, without secrets."""


class Sink(Protocol):
    """Delivers one message. The same one may come again, with the same ``id``."""

    def deliver(self, body: Body) -> None:
        """Raises SinkError."""
        ...


def post(sink: AlertSink, data: bytes, headers: Mapping[str, str], settings: Mapping[str, Any], path: str = "") -> None:
    """POST to the sink's URL; ``path`` is added to it. Raises SinkError unless the answer is 2xx."""
    assert sink.url is not None
    url = sink.url.rstrip("/") + path if path else sink.url
    if sink.token is not None:
        headers = {**headers, "authorization": f"Bearer {sink.token}"}
    call = Call("POST", url, headers, data, sink.timeout, MAX_ANSWER)
    try:
        reply = asyncio.run(send(call, settings, Secrets(settings)))
    except (SchedulerError, Unreachable, Refused, OSError) as error:
        raise SinkError(hidden(str(error) or type(error).__name__, sink)) from None
    if not 200 <= reply.status < 300:
        detail = " ".join(reply.body.decode("utf-8", "replace").split())[:MAX_SHOWN]
        raise SinkError(hidden(f"{_host(url)} answered {reply.status}: {detail}".rstrip(": "), sink))


def require_client() -> None:
    """Raises ConfigError if the HTTP client is not installed."""
    from importlib.util import find_spec

    if find_spec("httpx2") is None:
        raise ConfigError("alert sinks over HTTP need httpx2: pip install 'schedd[http]'")


def hidden(text: str, sink: AlertSink) -> str:
    """A text without the sink's secrets: its secret, its token, and of its URL all but the host."""
    if sink.url is not None:
        scheme, _, rest = sink.url.partition("://")
        host, slash, path = rest.partition("/")
        text = text.replace(sink.url, f"{scheme}://{host}{slash}…" if path else sink.url)
        for part in sorted(re.split(r"[/?&=#]", path), key=len, reverse=True):
            if len(part) >= SHORTEST_HIDDEN:
                text = text.replace(part, "…")
    for secret in filter(None, (sink.secret, sink.token)):
        for form in sorted(forms_of(secret), key=len, reverse=True):
            text = text.replace(form, HIDDEN)
    return text


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]
