"""Checkpoints: results that an attempt records, so that the next one need not do them again. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import msgspec

from scheduler import errors
from scheduler.errors import PayloadError, PermanentError, SchedulerError
from scheduler.model.json_text import encode_json
from scheduler.model.texts import listed, storable

MAX_NAME = 255
MAX_VALUE = 1024 * 1024
INTERNAL_PREFIX = "$"  # begins the names that schedd makes
TASK_AWAIT_PREFIX = INTERNAL_PREFIX + "task:"  # begins the names of awaits of one task
CAUGHT_NOTE = "caught: the handler went on"  # the note at a recorded failure that a retry keeps
_NUMBERED = re.compile(r"#\d+\Z")


class CheckpointType(IntEnum):
    """The type of a checkpoint. Stored by number: append, never reorder."""

    STEP = 0
    SLEEP = 1
    EVENT = 2
    EMIT = 3
    SPAWN = 4
    TASK = 5

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = ("step", "sleep", "await event", "emit", "spawn", "await task")


class Recorded(NamedTuple):
    """One stored checkpoint: JSON of its value, or of the error that it raises instead."""

    type: CheckpointType
    value: str | None
    failure: str | None = None

    def result(self) -> Any:
        """Return the value, or raise the error."""
        if self.failure is not None:
            raise revived(msgspec.json.decode(self.failure))
        return None if self.value is None else msgspec.json.decode(self.value)


class CheckpointReplay:
    """The durable calls that one attempt has made, beside those that earlier attempts recorded."""

    def __init__(self) -> None:
        self.recorded: Mapping[str, Recorded] | None = None  # None: not read yet
        self.visited: dict[str, CheckpointType] = {}
        self._counts: Counter[str] = Counter()

    def visit(self, name: str, type_: CheckpointType) -> tuple[str, int]:
        """Return the name under which a call is recorded, numbered if it is a repeat, and its place in the sequence.

        A name of an event or a kind may itself end like a repeat's number. Then the first call gets a number, too.
        """
        self._counts[name] += 1
        count = self._counts[name]
        label = name if count == 1 and not _NUMBERED.search(name) else f"{name}#{count}"
        self.visited[label] = type_
        return label, len(self.visited)

    def unvisited(self) -> list[str]:
        """Recorded names that this attempt has not visited, in the order in which they were recorded."""
        return [name for name in self.recorded or () if name not in self.visited]

    def sequences(self) -> str:
        """Both sequences, for an error."""
        recorded = [f"{name} ({r.type.label})" for name, r in (self.recorded or {}).items()]
        met = [f"{name} ({type_.label})" for name, type_ in self.visited.items()]
        return f"recorded: {listed(recorded, 20) or 'nothing'}; met now: {listed(met, 20) or 'nothing'}"


def check_name(name: object, what: str = "a step's name") -> str:
    """Check a name that a handler gives. Raises PermanentError."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME:
        raise PermanentError(f"{what} is a text of 1 to {MAX_NAME} characters, not {name!r:.80}")
    if name != storable(name):
        raise PermanentError(f"{what} has a NUL or half a surrogate pair in it, which cannot be stored: {name!r:.80}")
    if name.startswith(INTERNAL_PREFIX) or _NUMBERED.search(name):
        raise PermanentError(
            f"{what} cannot begin with {INTERNAL_PREFIX} or end like #2: schedd makes such names, not {name!r:.80}"
        )
    return name


def check_event(name: object) -> str:
    """Check the name of an event. Raises PermanentError."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or name != storable(name):
        raise PermanentError(f"an event's name is a text of 1 to {MAX_NAME} characters, without NUL, not {name!r:.80}")
    return name


def encoded(value: object, what: str) -> str | None:
    """Encode a value to be recorded as JSON, None as None. Raises PermanentError if it cannot be, or is too long."""
    if value is None:
        return None
    try:
        text = encode_json(value, what)
    except PayloadError as error:
        raise PermanentError(str(error)) from None
    if len(text) > MAX_VALUE:
        raise PermanentError(f"{what} is {len(text)} bytes of JSON, over the limit of {MAX_VALUE}")
    return text


def failure_of(error: Exception) -> dict[str, Any]:
    """An error as values that fit JSON, for :func:`revived`."""
    name = type(error).__name__
    if isinstance(error, errors.TaskFailedError):
        return {"type": name, "args": [error.task_id, error.error]}
    if isinstance(error, (errors.TaskCancelledError, errors.ResultExpiredError, errors.UnknownTaskError)):
        return {"type": name, "args": [error.task_id]}
    if isinstance(error, errors.UnknownDependencyError):
        return {"type": name, "args": [list(error.parent_ids)]}
    if isinstance(error, errors.CycleError):
        return {"type": name, "args": [[str(task) for task in error.path]]}
    if isinstance(error, errors.DuplicateKeyError):
        return {"type": name, "args": [error.kind, error.key, error.existing_id]}
    return {"type": name, "args": [str(error)]}


def revived(failure: Mapping[str, Any]) -> Exception:
    """The error that :func:`failure_of` encoded; a foreign error becomes a SchedulerError with its text."""
    name, args = failure["type"], failure["args"]
    if name == "TimeoutError":
        return TimeoutError(*args)
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, SchedulerError):
        made: Exception = kind(*args)
        return made
    return SchedulerError(f"{name}: {', '.join(map(str, args))}")
