"""Checkpoints and waits of a task, as the dicts that ``-o json`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scheduler.cli.output import seconds, time
from scheduler.cli.views import decoded
from scheduler.model.checkpoint import CheckpointType

if TYPE_CHECKING:
    from scheduler.store.durable.checkpoints import CheckpointRecord
    from scheduler.store.durable.waits import WaitRecord

CHECKPOINT_COLUMNS = ("name", "sort", "recorded_at", "seconds", "size", "value", "error", "note")
WAIT_COLUMNS = ("name", "event", "task", "items", "open", "since", "until")


def checkpoint_view(checkpoint: CheckpointRecord) -> dict[str, Any]:
    """One checkpoint; it has its ``value`` if that is short. The value of a sleep is its end."""
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
        "value": time(value) if checkpoint.sort is CheckpointType.SLEEP else value,
        "error": None if failure is None else f"{failure['type']}: {', '.join(map(str, failure['args']))}",
        "note": checkpoint.note,
    }


def wait_view(wait: WaitRecord) -> dict[str, Any]:
    """One wait of a task: for an event, a task, or ``items`` tasks, ``open`` of them not ended."""
    return {
        "name": wait.name,
        "event": wait.event,
        "task": wait.task,
        "items": wait.items,
        "open": wait.open,
        "since": time(wait.at),
        "until": time(wait.until),
    }
