"""A task that is still to be stored, as the builder hands it to the store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from scheduler.model.state import Otherwise, When


class EdgeSpec(msgspec.Struct, gc=False):
    """Wait for ``parent``: a stored task's id, or, with ``local``, a position in the same batch."""

    parent: int
    when: When
    otherwise: Otherwise
    local: bool = False


class TaskSpec(msgspec.Struct, gc=False):  # a large batch has many, and no cycles among them
    """All that is known of a task when it is scheduled. Times and spans are microseconds.

    ``delay``: due that long after the transaction's own now; ``run_at``: due then. The later one counts.
    """

    kind: str
    payload: str
    lane: str
    queue: str = "default"
    pool: int = 1
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
    schedule: str | None = None
    slot: int | None = None
    missed: int | None = None
    missed_since: int | None = None
    result_ttl: int | None = None
    max_duration: int | None = None
    max_delay: int | None = None
    edges: Sequence[EdgeSpec] = ()


class Draft(NamedTuple):
    """A task that a handler wants to spawn: its kind, and what makes its specification, complete."""

    kind: str
    finish: Callable[[], TaskSpec]


class TaskId(int):
    """The id of a scheduled task; ``created`` is False when a key's holder was returned instead."""

    __slots__ = ()
    created = True

    def __new__(cls, value: int, created: bool = True) -> TaskId:
        return int.__new__(cls if created else _Held, value)


class _Held(TaskId):
    __slots__ = ()
    created = False


def plain(value: object) -> int:
    """For msgspec's encoders, which take no subclass of int by themselves: a TaskId is the number that it is."""
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
