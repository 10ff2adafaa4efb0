"""The arguments that a builder was given, and those that its parents are to bring."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from scheduler.errors import ConfigError, PayloadError
from scheduler.model.registry import Kind, context_hint
from scheduler.model.task import TaskFunction
from scheduler.operations.published import PublishedKind


class Given(NamedTuple):
    """The payload that a builder was made with, by its names.

    ``parameters``: of a @task function; None for others, whose parents may have any names.
    """

    kind: Kind | PublishedKind
    parameters: tuple[str, ...] | None
    given: tuple[str, ...]

    def free(self) -> str | None:
        """The first parameter without an argument."""
        return next((name for name in self.parameters or () if name not in self.given), None)

    def check(self, name: str) -> None:
        """Raise ConfigError if no parent can have this name."""
        kind = self.kind.name
        if self.parameters is not None and name not in self.parameters:
            there = f"there are {', '.join(self.parameters)}" if self.parameters else "it has none"
            raise ConfigError(f"{kind} has no parameter {name!r} for the result of a parent: {there}")
        if name in self.given:
            raise ConfigError(f"{kind} gets {name!r} twice: as an argument, and from a parent")

    def refuse_lacking(self, lacking: frozenset[str], payload: str, names: Iterable[str]) -> None:
        """Raise PayloadError for an argument that the caller has not given and no parent of its name brings."""
        missing = lacking - frozenset(names)
        if not missing:
            return
        if self.parameters is None:
            self.kind.without(lacking - missing).decode(payload)  # says what it misses
        first = next(name for name in self.parameters or sorted(missing) if name in missing)
        source = getattr(self.kind, "source", None)
        hint = context_hint(source) if isinstance(source, TaskFunction) else ""
        raise PayloadError(
            f"payload of {self.kind.name} does not fit: missing a required argument: {first!r}{hint}; "
            f"pass it, or name a parent so: depend_on(parent, name={first!r})"
        )
