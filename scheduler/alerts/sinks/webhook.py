"""Webhook: the message as JSON, signed as https://www.standardwebhooks.com says."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.alerts.sinks.sink import Body, post
from scheduler.config.alerts import AlertSink
from scheduler.model.webhooks import key_of, signature


class Webhook:
    """POSTs the body, with ``webhook-id``, ``webhook-timestamp`` and, if there is a secret, ``webhook-signature``."""

    def __init__(self, sink: AlertSink, settings: Mapping[str, Any]) -> None:
        self._sink = sink
        self._settings = settings
        self._key = None if sink.secret is None else key_of(sink.secret)

    def deliver(self, body: Body) -> None:
        """Raises SinkError."""
        data, at = msgspec.json.encode(body), str(int(time.time()))
        headers = {"content-type": "application/json", "webhook-id": body["id"], "webhook-timestamp": at}
        if self._key is not None:
            headers["webhook-signature"] = signature(self._key, body["id"], at, data)
        post(self._sink, data, headers, self._settings)
