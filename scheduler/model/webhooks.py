"""Signatures of webhooks, as https://www.standardwebhooks.com says. Pure."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Mapping, Sequence

from scheduler.errors import ConfigError

TOLERANCE = 300  # seconds that a timestamp may differ from now
_BASE64 = "whsec_"  # what a secret begins with that is a key in base64


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


def verify(keys: Sequence[bytes], headers: Mapping[str, str], data: bytes, now: float) -> str | None:
    """Check a signed body; ``headers`` with names in small letters, ``now`` in seconds. None if it is genuine.

    Else why it is not. One of several signatures, by one of several keys, is enough: secrets are replaced one by one.
    """
    names = ("webhook-id", "webhook-timestamp", "webhook-signature")
    message_id, at, given = (headers.get(name, "") for name in names)
    if not message_id or not at or not given:
        return f"it needs the headers {', '.join(names)}"
    if not at.isdecimal() or len(at) > 15 or abs(int(at) - now) > TOLERANCE:
        return f"its timestamp is more than {TOLERANCE} s from now"
    offered = [one.encode() for one in given.split()[:20]]
    for key in keys:
        wanted = signature(key, message_id, at, data).encode()
        if any(hmac.compare_digest(wanted, one) for one in offered):
            return None
    return "no signature in it is right"
