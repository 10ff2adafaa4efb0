"""All texts and numbers of a delivery, looked at in one place: what may be stored, and what only spoils its message."""

from __future__ import annotations

import hashlib

import msgspec

from scheduler.model.texts import storable
from scheduler.model.times import LAST
from scheduler.transports.envelope import MAX_HEADERS, MAX_TEXT, EnvelopeError
from scheduler.transports.ports import Delivery, dedupe_id

MAX_REASON = 2000  # characters
UNKNOWN = "!"  # begins the key of a message that has none


def checked_key(found: str, what: str) -> str:
    """An idempotency key. Raises EnvelopeError, which names where it was found."""
    if not found:
        raise EnvelopeError(f"its {what}, the idempotency key, is empty")
    if len(found) > MAX_TEXT:
        raise EnvelopeError(f"its {what}, the idempotency key, has more than {MAX_TEXT} characters")
    if found != storable(found):
        raise EnvelopeError(f"its {what}, the idempotency key, has a NUL or half a surrogate pair in it")
    return found


def key_of_unknown(delivery: Delivery) -> str:
    """The key of what is noted of a message whose own key cannot be had. Any database takes it."""
    if delivery.message_id and delivery.message_id == storable(delivery.message_id):
        return UNKNOWN + dedupe_id(delivery.message_id)
    return UNKNOWN + digest(delivery.message_id.encode("utf-8", "surrogatepass"), delivery.body)


def digest(*parts: bytes) -> str:
    """One text for several parts; other parts give another, however they are cut."""
    made = hashlib.sha256()
    for part in parts:
        made.update(b"%d:" % len(part) + part)
    return made.hexdigest()


def stored_form(delivery: Delivery) -> Delivery:
    """The delivery as the store and the log may have it: no character, size or number in it that these refuse.

    An id that cannot be stored is left out, since what took its place could be another message's.
    """
    found: dict[str, str] = {}
    size = 0
    for name, value in delivery.headers.items():
        if isinstance(name, str) and isinstance(value, str) and (name, value) == (storable(name), storable(value)):
            size += len(msgspec.json.encode((name, value)))
            if size > MAX_HEADERS:
                break
            found[name] = value
    own = delivery.message_id
    sent, attempts = delivery.sent_at, delivery.attempts
    return Delivery(
        message_id=own[:MAX_TEXT] if own == storable(own) else "",
        body=delivery.body,
        receipt=delivery.receipt,
        attempts=attempts if attempts is not None and 0 <= attempts < 2**31 else None,
        sent_at=sent if sent is not None and 0 <= sent <= LAST else None,
        headers=found,
        content_type=delivery.content_type,
        unreadable=delivery.unreadable,
        former_key=delivery.former_key,
    )


def as_reason(text: str) -> str:
    """A reason as one line of printable text, which goes into the store, logs and headers of transports."""
    line = " ".join("".join(c if c.isprintable() else " " for c in storable(text)).split())
    return line if len(line) <= MAX_REASON else line[: MAX_REASON - 1] + "…"
