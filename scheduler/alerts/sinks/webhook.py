"""Webhook: the message as JSON, signed as https://www.standardwebhooks.com says."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.alerts.sinks.sink import Body, post
from scheduler.config.alerts import AlertSink
from scheduler.errors import ConfigError

_BASE64 = "whsec_"  # what a secret begins with that is a key in base64


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


def key_of(secret: str) -> bytes:
    """The key of a secret: its bytes, or what it encodes after ``whsec_``. Raises ConfigError."""
    if not secret.startswith(_BASE64):
        return secret.encode()
    try:
        return base64.b64decode(secret.removeprefix(_BASE64), validate=True)
    except binascii.Error:
        raise ConfigError(f"the secret of a webhook begins with {_BASE64}, and is no base64 after that") from None


def signature(key: bytes, message_id: str, at: str, data: bytes) -> str:
    """``v1,`` and the HMAC-SHA256 of id, timestamp and body, in base64."""
    made = hmac.new(key, f"{message_id}.{at}.".encode() + data, hashlib.sha256).digest()
    return f"v1,{base64.b64encode(made).decode()}"
