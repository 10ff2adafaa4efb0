"""What a task has recorded and waits for, as the dicts that ``-o json`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.cli.output import seconds, time
from scheduler.cli.views import decoded
from scheduler.model.checkpoint import Sort

if TYPE_CHECKING:
    from scheduler.store.checkpoints import CheckpointRecord
    from scheduler.store.waits import WaitRecord

CHECKPOINT_COLUMNS = ("name", "sort", "recorded_at", "seconds", "size", "value", "error", "note")
WAIT_COLUMNS = ("name", "event", "task", "items", "open", "since", "until")


def checkpoint_view(checkpoint: CheckpointRecord) -> dict[str, Any]:
    """Something that a task has recorded; ``value`` is there if it is short, that of a sleep is when it ends."""
    took = None if checkpoint.started_at is None else checkpoint.at - checkpoint.started_at
    value, failure = decoded(checkpoint.value), decoded(checkpoint.failure)
    return {
        "name": checkpoint.name,
        "sort": checkpoint.sort.label,
        "claim": checkpoint.claim,
        "started_at": time(checkpoint.started_at),
        "recorded_at": time(checkpoint.at),
        "seconds": seconds(took),
        "size": checkpoint.size,
        "value": time(value) if checkpoint.sort is Sort.SLEEP else value,
        "error": None if failure is None else f"{failure['type']}: {', '.join(map(str, failure['args']))}",
        "note": checkpoint.note,
    }


def wait_view(wait: WaitRecord) -> dict[str, Any]:
    """What a task waits for: an event, a task, or ``items`` tasks of which ``open`` have not ended."""
    return {
        "name": wait.name,
        "event": wait.event,
        "task": wait.task,
        "items": wait.items,
        "open": wait.open,
        "since": time(wait.at),
        "until": time(wait.until),
    }
