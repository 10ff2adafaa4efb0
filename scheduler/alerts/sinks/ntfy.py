"""ntfy: a text, with its title, priority, tags and link in headers."""

from __future__ import annotations

from collections.abc import Mapping
from email.header import Header
from typing import Any

from scheduler.alerts.sinks.sink import Body, post
from scheduler.config.alerts import AlertSink

_PRIORITIES = {"critical": "urgent", "warning": "high"}
_TAGS = {"critical": "rotating_light", "warning": "warning"}


class Ntfy:
    """POSTs the text to the topic's URL."""

    def __init__(self, sink: AlertSink, settings: Mapping[str, Any]) -> None:
        self._sink = sink
        self._settings = settings

    def deliver(self, body: Body) -> None:
        """Raises SinkError."""
        over = body["event"] == "recovered"
        headers = {
            "content-type": "text/plain; charset=utf-8",
            "title": _header(body["title"]),
            "priority": "default" if over else _PRIORITIES[body["severity"]],
            "tags": "white_check_mark" if over else _TAGS[body["severity"]],
            "x-schedd-message": body["id"],
        }
        if body["url"] is not None:
            headers["click"] = _header(body["url"])
        post(self._sink, body["text"].encode(), headers, self._settings)


def _header(text: str) -> str:
    """One line of ASCII; other characters as RFC 2047 encodes them, which ntfy reads."""
    line = " ".join(text.split())
    return line if line.isascii() else Header(line, "utf-8", maxlinelen=10_000).encode()
