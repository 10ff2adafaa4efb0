"""Uniqueness of a task type: the key that its tasks have by their own fields. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.state import LIVE, TaskState
from scheduler.model.times import span_us

_PREFIX = "unique:"
_MAX_TEXT = 200  # of a key that shows its fields; a longer one is a hash
_NAMES = tuple(state.value for state in TaskState if state in LIVE and state is not TaskState.CLAIMED)


class Unique:
    """A class option: while a task with the same fields is there, scheduling another one returns that.

    ``by``: names of fields; None: all fields. ``states``: in which states a task keeps others out (``waiting``,
    ``scheduled``, ``retry``, ``suspended``, ``running``); None: in all of them. ``period``: how long it does so after
    its success, too: seconds or timedelta; None: not at all. Raises ConfigError.
    """

    def __init__(
        self,
        *,
        by: Iterable[str] | None = None,
        states: Iterable[str] | None = None,
        period: float | timedelta | str | None = None,
    ) -> None:
        self.by = _fields(by, "Unique")
        self.states = _NAMES if states is None else _names(states, "states")
        for name in self.states:
            if name not in _NAMES:
                raise ConfigError(f"Unique: there is no state {name!r} for states; there are {', '.join(_NAMES)}")
        if not self.states:
            raise ConfigError("Unique: states names none; without it a task keeps others out while it lives")
        self.retention_us = 0 if period is None else span_us(period, "period of Unique", positive=True)
        # A success counts as long as it holds its key, which the retention says.
        codes = [TaskState(name).code for name in self.states] + [TaskState.SUCCESS.code]
        if TaskState.RUNNING.value in self.states:
            codes.append(TaskState.CLAIMED.code)
        self.mask = sum(1 << code for code in codes)

    def __repr__(self) -> str:
        return f"Unique(by={self.by!r}, states={self.states!r}, period={self.retention_us / 1_000_000:g})"


class Debounce:
    """A class option: calls with the same fields become one run, ``wait`` after the last of them, with its payload.

    ``longest``: no later than this after the first of them. ``by``: names of fields; None: all fields. Seconds or
    timedelta. While a run is under way, further calls become one more run. Raises ConfigError.
    """

    def __init__(
        self, wait: float | timedelta | str, longest: float | timedelta | str, *, by: Iterable[str] | None = None
    ) -> None:
        self.by = _fields(by, "Debounce")
        self.wait_us = span_us(wait, "wait of Debounce", positive=True)
        self.longest_us = span_us(longest, "longest of Debounce", positive=True)
        if self.longest_us < self.wait_us:
            raise ConfigError(f"Debounce: the longest delay ({longest!r}) is shorter than the wait ({wait!r})")

    def __repr__(self) -> str:
        return f"Debounce({self.wait_us / 1_000_000:g}, {self.longest_us / 1_000_000:g}, by={self.by!r})"


class DerivedKey(NamedTuple):
    """The key that a new payload makes. ``before``: the key that the payload before it made; None: unknown.

    ``states``: in which states a holder of ``text`` keeps another task out, as bits; None: in all. ``retention``: for
    how long a success keeps the key.
    """

    text: str
    before: str | None
    states: int | None
    retention: int | None

    def replaces(self, key: str | None) -> bool:
        """Whether a task with this key takes the new one: a key that a person or a sender gave stays."""
        return self.before != self.text and key != self.text and (key is None or is_derived(key))


def is_derived(key: str) -> bool:
    """Whether a key was made of the fields of a payload."""
    return key.startswith(_PREFIX) and re.search(r"~copy-\d+$", key) is None


def key_of(fields: Mapping[str, Any], by: tuple[str, ...] | None) -> str:
    """The key of a task with these fields: ``{"order_id":42}``, or a hash of that if it is long."""
    chosen = {name: fields[name] for name in (sorted(fields) if by is None else by)}
    text = msgspec.json.encode(chosen, order="sorted").decode()
    if len(text) <= _MAX_TEXT and "\\u0000" not in text:
        return f"{_PREFIX}{text}"
    import hashlib

    return f"{_PREFIX}{hashlib.sha256(text.encode()).hexdigest()}"


def check_fields(kind: str, option: Unique | Debounce, known: tuple[str, ...]) -> None:
    """Check that the type has the fields. Raises ConfigError."""
    for name in option.by or ():
        if name not in known:
            there = ", ".join(known) or "none"
            raise ConfigError(f"task type {kind}: {type(option).__name__} names a field {name!r}; there are {there}")


def _fields(by: Iterable[str] | None, what: str) -> tuple[str, ...] | None:
    names = None if by is None else _names(by, f"by of {what}")
    if names == ():
        raise ConfigError(f"{what}: by names no field; without it all fields count")
    return names


def _names(given: Iterable[str], what: str) -> tuple[str, ...]:
    names = () if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if (not names and given != ()) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{what} is a tuple of names such as ('order_id',), not {given!r}")
    return names
