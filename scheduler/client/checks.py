"""Checks of what programs pass in."""

from __future__ import annotations

from scheduler.errors import ConfigError, UnknownTaskError


def check_id(task_id: int) -> int:
    """Check a task's id. Raises UnknownTaskError for a number out of range, ConfigError for another type."""
    if not isinstance(task_id, int) or isinstance(task_id, bool):
        raise ConfigError(f"a task's id is the number that schedule() returned, not {task_id!r:.80}")
    if not 0 < task_id < 2**63:
        raise UnknownTaskError(task_id)
    return task_id
