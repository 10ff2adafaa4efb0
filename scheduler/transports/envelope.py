"""The envelope: a message's fields as JSON, and their way to the columns of a task and back. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

from scheduler.errors import SchedulerError
from scheduler.model.json_text import MAX_DEPTH, json_fault, too_deep
from scheduler.model.texts import storable

MAX_SIZE = 1_048_576  # bytes of an envelope that is read, unless the source says less
MAX_TEXT = 255  # characters of an id, a type or a subject, as those of a task
MAX_REF = 2000  # characters of a payload's URI
MAX_HEADERS = 16_384  # bytes of unknown fields and headers that are kept
NEWEST_SCHEMA = 2**31 - 1
TOO_DEEP = f"the message is no JSON that is taken: it is nested deeper than {MAX_DEPTH} levels"


class EnvelopeError(SchedulerError):
    """A message that is no envelope, or one whose fields are not valid. It will not become one by being sent again."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message: the envelope's fields. Times are aware.

    ``payload_inline``: any JSON value, None if the data is elsewhere: at ``payload_ref``, a URI. ``headers``: unknown
    fields of the envelope, and the transport's, which a task keeps as its headers. ``sequence``: of the subject.
    """

    schema_version: int = 1
    message_type: str | None = None
    correlation_id: str | None = None
    causation_id: str | None = None
    idempotency_key: str | None = None
    subject: str | None = None
    created_at: datetime | None = None
    payload_ref: str | None = None
    payload_inline: Any = None
    sequence: int | None = None
    headers: Mapping[str, Any] = {}


_KNOWN = frozenset(Message.__struct_fields__)
_TEXTS = ("message_type", "correlation_id", "causation_id", "idempotency_key", "subject", "payload_ref")


def encode(message: Message) -> bytes:
    """The envelope as JSON. Fields without a value are left out; headers become fields of their own, as they came."""
    known = {
        name: value
        for name, value in ((name, getattr(message, name)) for name in Message.__struct_fields__ if name != "headers")
        if value is not None
    }
    return msgspec.json.encode({**{k: v for k, v in message.headers.items() if k not in _KNOWN}, **known})


def decode(body: bytes, max_size: int = MAX_SIZE) -> Message:
    """Read an envelope. Raises EnvelopeError: too large, no JSON object, or a field that is not valid."""
    if len(body) > max_size:
        raise EnvelopeError(f"the message has {len(body):,} bytes, more than {max_size:,}")
    fields = json_of(body)
    if not isinstance(fields, dict):
        raise EnvelopeError(f"the message is no JSON object, but {type(fields).__name__}")
    return from_fields(fields)


def json_of(body: bytes) -> Any:
    """The value of a JSON text. Raises EnvelopeError."""
    if not body:
        raise EnvelopeError("the message has no body")
    try:
        if not too_deep(body):
            return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EnvelopeError(f"the message is no JSON: {json_fault(body, error)}") from None
    except RecursionError:
        pass
    raise EnvelopeError(TOO_DEEP)


def from_fields(fields: Mapping[str, Any]) -> Message:
    """A message of the fields of an envelope. Raises EnvelopeError."""
    made: dict[str, Any] = {}
    for name in _TEXTS:
        value = fields.get(name)
        if value is not None:
            made[name] = _text(name, value)
    if fields.get("schema_version") is not None:
        made["schema_version"] = _whole("schema_version", fields["schema_version"], 1, NEWEST_SCHEMA)
    if fields.get("sequence") is not None:
        made["sequence"] = _whole("sequence", fields["sequence"], 0, 2**62)
    if fields.get("created_at") is not None:
        made["created_at"] = _time(fields["created_at"])
    made["payload_inline"] = fields.get("payload_inline")
    made["headers"] = _headers(fields)
    return Message(**made)


def _headers(fields: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in fields.items() if name not in _KNOWN}
    own = fields.get("headers")
    if own is not None and not isinstance(own, dict):
        raise EnvelopeError("headers: expected an object")
    found = {**(own or {}), **found}
    if found and len(msgspec.json.encode(found)) > MAX_HEADERS:
        raise EnvelopeError(f"unknown fields and headers have more than {MAX_HEADERS:,} bytes")
    return found


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise EnvelopeError(f"{name}: expected a text, not empty")
    if value != storable(value):
        raise EnvelopeError(f"{name}: it has a NUL or half a surrogate pair in it, which cannot be stored")
    most = MAX_REF if name == "payload_ref" else MAX_TEXT
    if len(value) > most:
        raise EnvelopeError(f"{name}: {len(value):,} characters, more than {most:,}")
    return value


def _whole(name: str, value: Any, least: int, most: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise EnvelopeError(f"{name}: expected a whole number of at least {least}")
    return value


def _time(value: Any) -> datetime:
    try:
        made = msgspec.convert(value, datetime)
    except (msgspec.ValidationError, ValueError):
        raise EnvelopeError("created_at: expected a time such as 2026-01-31T12:00:00Z") from None
    if made.tzinfo is None:
        raise EnvelopeError("created_at: the time has no zone; end it with Z or +01:00")
    try:
        return made.astimezone(UTC)
    except OverflowError:
        raise EnvelopeError("created_at: not within the years 1 to 9999 in UTC") from None
