"""The codec of envelopes: what goes through it comes out as it was; what is no envelope is refused with its reason."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from scheduler.transports.envelope import MAX_HEADERS, EnvelopeError, Message, decode, encode

words = some.text(some.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=50)
json_values = some.recursive(
    some.none() | some.booleans() | some.integers(-(2**53), 2**53) | some.text(some.characters(codec="utf-8")),
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
messages = some.builds(
    Message,
    schema_version=some.integers(1, 2**31 - 1),
    message_type=words | some.none(),
    correlation_id=words | some.none(),
    causation_id=words | some.none(),
    idempotency_key=words | some.none(),
    subject=words | some.none(),
    created_at=some.integers(0, 2**32).map(lambda seconds: datetime.fromtimestamp(seconds, UTC)) | some.none(),
    payload_ref=words | some.none(),
    payload_inline=json_values,
    sequence=some.integers(0, 2**62) | some.none(),
    headers=some.dictionaries(words.map(lambda text: f"x-{text}"), json_values, max_size=3),
)


@given(messages)
def test_a_message_comes_out_as_it_went_in(message: Message) -> None:
    assert decode(encode(message)) == message


def test_unknown_fields_are_kept_as_headers() -> None:
    body = {"idempotency_key": "k", "tenant": "acme", "cursor": {"page": 3}, "headers": {"traceparent": "00-ab"}}
    message = decode(msgspec.json.encode(body))
    assert message.headers == {"tenant": "acme", "cursor": {"page": 3}, "traceparent": "00-ab"}
    assert msgspec.json.decode(encode(message)) == {
        "schema_version": 1,
        "idempotency_key": "k",
        "tenant": "acme",
        "cursor": {"page": 3},
        "traceparent": "00-ab",
    }


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\xff\xfe", "no JSON"),
        (b"[1]", "no JSON object"),
        (b'"text"', "no JSON object"),
        (b'{"schema_version": 0}', "schema_version"),
        (b'{"schema_version": true}', "schema_version"),
        (b'{"schema_version": "2"}', "schema_version"),
        (b'{"idempotency_key": ""}', "idempotency_key"),
        (b'{"idempotency_key": 7}', "idempotency_key"),
        (b'{"subject": "a\\u0000b"}', "subject"),
        (b'{"message_type": "' + b"x" * 256 + b'"}', "message_type: 256 characters"),
        (b'{"sequence": -1}', "sequence"),
        (b'{"sequence": 1.5}', "sequence"),
        (b'{"created_at": "yesterday"}', "created_at"),
        (b'{"created_at": "2026-01-31T12:00:00"}', "no zone"),
        (b'{"headers": 1}', "headers"),
        (b'{"more": "' + b"x" * MAX_HEADERS + b'"}', "unknown fields"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_what_is_no_envelope_is_refused_with_its_reason(body: bytes, why: str) -> None:
    with pytest.raises(EnvelopeError, match=why):
        decode(body)


def test_the_size_is_bounded_before_anything_is_read() -> None:
    body: dict[str, Any] = {"payload_inline": "x" * 100}
    data = msgspec.json.encode(body)
    assert decode(data, len(data)).payload_inline == "x" * 100
    with pytest.raises(EnvelopeError, match=f"{len(data)} bytes, more than {len(data) - 1}"):
        decode(data, len(data) - 1)
