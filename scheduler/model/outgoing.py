"""Messages that go out: each is a task of the kind of its sink, on a queue for all of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.errors import ConfigError, PayloadError
from scheduler.model.json_text import encode_json
from scheduler.model.names import check_name, check_whole
from scheduler.model.retry import MAX_COUNT
from scheduler.model.spec import MAX_KEY, MAX_PAYLOAD, TaskSpec
from scheduler.model.texts import rfc3339, storable

OUTBOX = "schedd.outbox"
"""The queue of messages that go out."""

PREFIX = "sinks."
MAX_REF = 2000  # characters of a payload's URI
_TEXTS = ("message_type", "correlation_id", "causation_id", "subject")
ROOM = 4096  # bytes of a task's payload that are kept for the envelope around a result


def sink_kind(sink: str) -> str:
    """The kind of the tasks of a sink, which may be given as ``shop`` or ``sinks.shop``. Raises ConfigError."""
    if not isinstance(sink, str) or not sink.removeprefix(PREFIX):
        raise ConfigError(f"a sink is named as in [sinks.NAME], not {sink!r:.80}")
    return check_name("sink", PREFIX + sink.removeprefix(PREFIX))


def outgoing_spec(
    sink: str,
    key: str,
    message: Mapping[str, Any],
    *,
    now: int,
    headers: Mapping[str, Any] | None = None,
    group: str | None = None,
    delay: int = 0,
    result_of: int | None = None,
    keyed: bool = False,
) -> TaskSpec:
    """The task of a message: its envelope's fields, and ``key``, by which its receiver knows it again.

    ``headers``: further fields. ``group``: messages of one group go out one after the other. ``result_of``: the task
    whose result is the payload, if that is too long to be copied. ``keyed``: a message of this key that is stored
    already keeps this one out. ``now``, ``delay``: microseconds. Raises PayloadError, ConfigError.
    """
    kind = sink_kind(sink)
    if headers is not None and not isinstance(headers, Mapping):
        raise PayloadError(f"headers must be a mapping, not {headers!r:.80}")
    given = {name: value for name, value in {**(headers or {}), **message}.items() if value is not None}
    for name, text, longest in (
        *(("key", key, MAX_KEY), ("group", group, MAX_KEY)),
        *((name, given.get(name), MAX_KEY) for name in _TEXTS),
        ("payload_ref", given.get("payload_ref"), MAX_REF),
    ):
        if text is not None:
            _check(name, text, longest)
    check_whole(given.get("schema_version", 1), "schema_version", 1, MAX_COUNT)
    check_whole(given.get("sequence", 0), "sequence", -(2**63), 2**63 - 1)
    fields = {"schema_version": 1, "created_at": rfc3339(now), **given, "idempotency_key": key}
    payload = {"key": key, "message": fields, "group": group, "result_of": result_of}
    made = {name: value for name, value in payload.items() if value is not None}
    if isinstance(given.get("payload_inline"), msgspec.Raw):  # a task's result
        text = msgspec.json.encode(made).decode()
    else:
        text = encode_json(made, f"a message to {kind}")
    if len(text) > MAX_PAYLOAD:
        raise PayloadError(
            f"a message to {kind} is {len(text):,} bytes, over the limit of {MAX_PAYLOAD:,}; "
            "store the data elsewhere and pass its place as payload_ref"
        )
    return TaskSpec(
        kind=kind,
        payload=text,
        lane=kind,
        queue=OUTBOX,
        max_attempts=None,
        delay=delay,
        message_type=given.get("message_type"),
        correlation=given.get("correlation_id"),
        causation=given.get("causation_id"),
        subject=given.get("subject") if group is None else group,
        key=key if keyed else None,
    )


def _check(name: str, text: object, longest: int) -> None:
    if not isinstance(text, str) or not 1 <= len(text) <= longest:
        raise PayloadError(f"{name} of a message is a text of 1 to {longest:,} characters, not {text!r:.80}")
    if text != storable(text):
        raise PayloadError(f"{name} of a message has a NUL or half a surrogate pair in it: {text!r:.80}")


def success_spec(
    sink: str, key: str, fields: Mapping[str, Any], result: str | None, task_id: int, now: int
) -> TaskSpec:
    """The message that tells of a task's success: its result is the payload."""
    if result is not None and len(result) > MAX_PAYLOAD - ROOM:
        return outgoing_spec(sink, key, fields, now=now, result_of=task_id)
    payload = None if result is None else msgspec.Raw(result.encode())
    return outgoing_spec(sink, key, {**fields, "payload_inline": payload}, now=now)
