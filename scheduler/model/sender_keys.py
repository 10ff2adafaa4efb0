"""Keys of senders: each has a room of its own, so that none takes the key of another's work. Pure."""

from __future__ import annotations

import hashlib

from scheduler.model.registry import MAX_KEY

DOOR = "@door"
"""The sender whose tasks come through ``/v1/tasks``. No source can be called so."""


def sender_key(sender: str, key: str) -> str:
    """A task's key, of the key that a sender gave its message: ``orders:42``. Other pairs have other keys."""
    made = f"{sender}:{key}"
    return made if len(made) <= MAX_KEY else f"{sender}:{hashlib.sha256(key.encode()).hexdigest()}"
