"""TaskSpec: a new task, as the builder passes it to the store; and TaskId."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple

import msgspec

from scheduler.errors import ConfigError, UnknownTaskError
from scheduler.model.state import Otherwise, When
from scheduler.model.typed import R_co

MAX_PAYLOAD = 128 * 1024
MAX_KEY = 255


class EdgeSpec(msgspec.Struct, gc=False):
    """Wait for ``parent``: a stored task's id, or, with ``local``, a position in the same batch."""

    parent: int
    when: When
    otherwise: Otherwise
    local: bool = False


class TaskSpec(msgspec.Struct, gc=False):  # a large batch has many, and no cycles among them
    """A new task. Times and spans are microseconds.

    ``unique_states``: the states in which the key's holder keeps this task out, as bits; None: in all. ``debounce``:
    how long after the first call at most it is due, when a call replaces another one.
    ``executor``: that places it; ``resources``, ``executor_options``: JSON. ``lane``: without the executor's mark.
    ``delay``: due that long after the transaction's now; ``run_at``: due at that time. The later one counts.
    ``parent_names``: name -> the position in ``edges`` of the parent with this name.
    """

    kind: str
    payload: str
    lane: str
    queue: str = "default"
    priority: int = 1
    run_at: int = 0
    delay: int = 0
    max_attempts: int | None = 1
    retry: str | None = None
    timeout: int | None = None
    dead_letter: bool = True
    payload_ref: str | None = None
    schema_version: int = 1
    message_type: str | None = None
    correlation: str | None = None
    causation: str | None = None
    subject: str | None = None
    sequence: int | None = None
    headers: str | None = None
    key: str | None = None
    conflict: str = "keep"
    key_retention: int | None = None
    unique_states: int | None = None
    debounce: int | None = None
    schedule: str | None = None
    slot: int | None = None
    slot_tz: str | None = None
    missed: int | None = None
    missed_since: int | None = None
    result_ttl: int | None = None
    failed_ttl: int | None = None
    max_duration: int | None = None
    max_delay: int | None = None
    executor: str | None = None
    resources: str | None = None
    executor_options: str | None = None
    edges: Sequence[EdgeSpec] = ()
    parent_names: dict[str, int] | None = None


# As copy.copy() does, without looking for how.
copied: Callable[[TaskSpec], TaskSpec] = TaskSpec.__copy__  # type: ignore[attr-defined]


class Draft(NamedTuple):
    """A task that a handler spawns: its kind, and the function that makes its complete spec."""

    kind: str
    finish: Callable[[], TaskSpec]


class TaskId(int, Generic[R_co]):
    """The id of a scheduled task; ``created`` is False when a key's holder was returned instead.

    ``created_at``: when it was stored (microseconds), for a task without a key in PostgreSQL: it tells the task from
    another one that got its id after a failover that lost commits. None for others. For type checkers a ``TaskId[R]``
    is the id of a task whose handler returns an R.
    """

    created = True
    created_at: int | None = None

    def __new__(cls, value: int, created: bool = True) -> TaskId[Any]:
        return int.__new__(cls if created else _Held, value)

    def at(self, created_at: int) -> TaskId[R_co]:
        """The same id, with the time at which the task was stored."""
        self.created_at = created_at
        return self


class _Held(TaskId[R_co]):
    created = False


def is_another(task_id: int, created_at: int | None) -> bool:
    """Whether a caller was given this id for another task than the one that was stored then."""
    known = task_id.created_at if isinstance(task_id, TaskId) else None
    return known is not None and created_at is not None and known != created_at


def plain(value: object) -> int:
    """Convert a TaskId to an int, for msgspec's encoders, which take no subclass of int."""
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


def check_id(task_id: int) -> int:
    """Check a task's id. Raises UnknownTaskError for a number out of range, ConfigError for another type."""
    if not isinstance(task_id, int) or isinstance(task_id, bool):
        raise ConfigError(f"a task's id is the number that schedule() returned, not {task_id!r:.80}")
    if not 0 < task_id < 2**63:
        raise UnknownTaskError(task_id)
    return task_id
