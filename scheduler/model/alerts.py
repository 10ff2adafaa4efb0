"""Alerts as they are kept: their keys and phases, silences, and what is remembered of messages. Pure.

Instants and spans are microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from typing import Any, NamedTuple


class AlertKey(NamedTuple):
    """What identifies an alert: its rule; the kind, queue or schedule; the fingerprint. "" for none."""

    rule: str
    kind: str = ""
    fingerprint: str = ""


class AlertPhase(IntEnum):
    """Where an alert is. Stored: append, never reorder."""

    PENDING = 1
    FIRING = 2
    RECOVERING = 3


class AlertEvent(StrEnum):
    """What a message says of its alerts."""

    FIRED = "fired"
    GREW = "grew"
    REPEATED = "repeated"
    RECOVERED = "recovered"
    FLOODED = "flooded"
    TEST = "test"


class Alert(NamedTuple):
    """An alert that is not ok. ``since``: when its phase began; ``looks``: how many have confirmed it since.

    ``began``: when the condition was first seen; ``step``: the highest of the rule's steps that a message has named;
    ``notified_at``: when the last message about it was made, None: none was.
    """

    key: AlertKey
    phase: AlertPhase
    since: int
    looks: int
    began: int
    number: int = 0
    text: str = ""
    detail: Mapping[str, Any] = {}
    fired_at: int | None = None
    notified_at: int | None = None
    step: int = 0


class Silence(NamedTuple):
    """Of what no message is made until then. ``rule`` "*": of any; ``kind``, ``fingerprint`` None: of any."""

    rule: str
    kind: str | None
    fingerprint: str | None
    until: int

    def covers(self, key: AlertKey, now: int) -> bool:
        """Whether it silences this alert now."""
        return (
            now < self.until
            and self.rule in ("*", key.rule)
            and self.kind in (None, key.kind)
            and self.fingerprint in (None, key.fingerprint)
        )


class Memory(NamedTuple):
    """``sent``: when the last hour's messages were made; ``flooded_at``: the last report of held-back messages."""

    sent: tuple[int, ...] = ()
    flooded_at: int | None = None
