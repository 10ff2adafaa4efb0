"""What becomes of a message that has come from a source."""

from __future__ import annotations

from scheduler.model.spec import MAX_KEY
from scheduler.model.state import StoredEnum

INBOX = "schedd.inbox"
"""The queue of tasks that stand for messages which could not be read."""

UNREADABLE = "messages.unreadable"
"""The kind of dead tasks that stand for messages of a source without a dead-letter queue."""


class InboxState(StoredEnum):
    """The state of a message. Stored by position: append, never reorder."""

    OPEN = "open"  # its task is stored, and its end settles the message
    DONE = "done"  # its task is stored, or has ended; the message is acknowledged
    DEAD = "dead"  # it could not become a task
    HELD = "held"  # it waits for messages of its subject that come before it
    LATE = "late"  # a later message of its subject went ahead; it became no task


OPEN, DONE, DEAD, HELD, LATE = range(5)


DOOR = "@door"
"""The sender whose tasks come through ``/v1/tasks``. No source can be called so."""


def sender_key(sender: str, key: str) -> str:
    """A task's key, of the key that a sender gave its message: ``orders:42``. Other pairs have other keys."""
    made = f"{sender}:{key}"
    if len(made) <= MAX_KEY:
        return made
    import hashlib

    return f"{sender}:{hashlib.sha256(key.encode()).hexdigest()}"
