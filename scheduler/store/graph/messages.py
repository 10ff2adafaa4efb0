"""What a task's row says of parents that keep it from running."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.model.state import TaskState


def broken_text(parents: Sequence[tuple[int, TaskState]], ended: TaskState) -> str:
    """The sentence recorded on a task that its parents' ends ended."""
    named = ", ".join(f"task {parent} ended {state}" for parent, state in parents)
    return f"{'not run' if ended is TaskState.FAILED else 'skipped'}: {named}"


def removed_text(parent: int) -> str:
    """The same for one that waited for a retry of what is no longer there."""
    return f"not run: task {parent} was removed"
