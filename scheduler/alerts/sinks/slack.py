"""Slack, Mattermost, Rocket.Chat: a text for an incoming webhook."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.alerts.messages import plain_text
from scheduler.alerts.sinks.sink import Body, post
from scheduler.config.alerts import AlertSink

_SIGNS = {"critical": ":rotating_light:", "warning": ":warning:"}


class Slack:
    """POSTs ``{"text": …}``."""

    def __init__(self, sink: AlertSink, settings: Mapping[str, Any]) -> None:
        self._sink = sink
        self._settings = settings

    def deliver(self, body: Body) -> None:
        """Raises SinkError."""
        sign = ":white_check_mark:" if body["event"] == "recovered" else _SIGNS[body["severity"]]
        text = f"{sign} *{_escaped(body['title'])}*\n{_escaped(plain_text(body))}"
        data = msgspec.json.encode({"text": text})
        post(self._sink, data, {"content-type": "application/json"}, self._settings)


def _escaped(text: str) -> str:
    """No error's text may mention a channel or make a link."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
