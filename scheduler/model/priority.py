"""Priorities of tasks."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal

from scheduler.errors import ConfigError

PriorityName = Literal["high", "medium", "low"]


class Priority(IntEnum):
    """The priority of a task, and the pool that serves it first."""

    HIGH = 0
    MEDIUM = 1
    LOW = 2

    @classmethod
    def parse(cls, value: object) -> Priority:
        """From a Priority or its name in any case. Raises ConfigError."""
        if isinstance(value, Priority):
            return value
        if isinstance(value, str) and value.upper() in cls.__members__:
            return cls[value.upper()]
        raise ConfigError(f"priority must be high, medium or low, not {value!r}")

    @property
    def label(self) -> str:
        return self.name.lower()
