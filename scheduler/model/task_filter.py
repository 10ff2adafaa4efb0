"""TaskFilter: which tasks, as a list of conditions that must all hold. Pure."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.model.state import TaskState
from scheduler.model.texts import ranges, rfc3339

TEXTS = ("kind", "queue", "key", "subject", "schedule", "class", "fingerprint", "type", "correlation", "fairness")
AGES = {"stored": ("before", "since"), "due": ("due_before", "due_since"), "ended": ("ended_before", "ended_since")}
FIELDS = (*TEXTS, "error", "state", "priority", "worker", "id", *AGES, "since", "until", "payload")
EXACTLY, READS, SINCE, BEFORE = "exactly", "reads", "since", "before"
_NAMES = {
    "id": "ids",
    "state": "status",
    "type": "message_type",
    "class": "error_class",
    "fairness": "fairness_key",
}
_ORDER = (
    *("ids", "up_to", "queue", "key", "correlation", "subject", "message_type", "error_class", "fingerprint"),
    *("payload", "before", "since", "ended_before", "ended_since", "kind", "status"),
)
_MISSING = object()


class Term(NamedTuple):
    """A condition: ``field`` has one of ``values``, or none of them (``exclude``).

    ``*`` in a text stands for any characters, unless ``how`` is EXACTLY. ``path``: of a field of the payload, whose
    values are texts, for READS without ``*``; for EXACTLY they are JSON values. ``state``: values of TaskState.
    ``stored``, ``due`` and ``ended``: one instant in microseconds, ``how`` SINCE or BEFORE it.
    """

    field: str
    values: Sequence[Any]
    exclude: bool = False
    path: str = ""
    how: str = ""

    @property
    def plain(self) -> bool:
        """Whether a text of this term says what it is, not what it is not or is like."""
        return not self.exclude and (self.how == EXACTLY or "*" not in "".join(self.values))


class TaskFilter(NamedTuple):
    """Which tasks: those that fit all terms. ``up_to``: no task with a higher id. ``text``: as a person wrote it."""

    terms: tuple[Term, ...] = ()
    up_to: int | None = None
    text: str = ""

    def also(self, *terms: Term) -> TaskFilter:
        """The same with these conditions, too."""
        return self._replace(terms=(*self.terms, *terms))

    def of(self, field: str) -> list[Term]:
        """The terms about a field."""
        return [term for term in self.terms if term.field == field]

    def values(self, field: str, *, exclude: bool = False) -> tuple[Any, ...]:
        """The values that a field must have."""
        return tuple(v for term in self.of(field) if term.exclude is exclude for v in term.values)

    def names(self, field: str) -> Sequence[str] | None:
        """The names that one of the terms allows this field; None: none does, or a pattern."""
        return next((term.values for term in self.of(field) if term.plain), None)

    @property
    def ids(self) -> set[int] | None:
        """The ids that it names; None: it names none."""
        named = [set(map(int, term.values)) for term in self.of("id") if not term.exclude]
        return set.intersection(*named) if named else None

    @property
    def states(self) -> frozenset[TaskState] | None:
        """The states that it asks for; None: any."""
        given = self.of("state")
        found = frozenset(TaskState)
        for term in given:
            states = set(map(TaskState, term.values))
            found = found - states if term.exclude else found & states
        return found if given else None

    @property
    def named_states(self) -> list[TaskState]:
        """The states that it names, not those that it excludes."""
        return [TaskState(value) for value in self.values("state")]

    @property
    def ended_before(self) -> bool:
        """Whether it has a bound of how late a task may have ended."""
        return any(term.how == BEFORE and not term.exclude for term in self.of("ended"))

    def chosen(self) -> dict[str, Any]:
        """What it chooses by, for the audit."""
        found: dict[str, list[Any]] = {} if self.up_to is None else {"up_to": [self.up_to]}
        payload: dict[str, Any] = {}
        for term in self.terms:
            if term.field == "payload":
                sign = "-" if term.exclude else ""
                payload[sign + term.path] = term.values[0] if len(term.values) == 1 else list(term.values)
                continue
            name = _NAMES.get(term.field, term.field)
            values = list(term.values)
            if term.field in AGES:
                name = AGES[term.field][term.how == SINCE]
                values = [rfc3339(value) for value in values]
            found.setdefault(f"-{name}" if term.exclude else name, []).extend(values)
        made: dict[str, Any] = {n: v[0] if len(v) == 1 and n != "status" else v for n, v in found.items()}
        if "ids" in made:
            made["ids"] = ranges(map(int, found["ids"]))
        if payload:
            made["payload"] = payload
        return {n: made[n] for n in sorted(made, key=lambda n: (_ORDER.index(n) if n in _ORDER else len(_ORDER), n))}

    def fits(self, payload: str | None) -> bool:
        """Whether a payload, as JSON text, has the fields that are asked for."""
        terms = self.of("payload")
        if not terms:
            return True
        try:
            value = msgspec.json.decode(payload or "null")
        except (msgspec.MsgspecError, RecursionError):
            return all(term.exclude for term in terms)  # a text of the type's own, without fields
        return all(_fits(term, value) is not term.exclude for term in terms)


def only(field: str, *values: Any) -> Term:
    """The term that a field is exactly one of these."""
    return Term(field, values, how=EXACTLY)


def in_states(states: Iterable[TaskState]) -> Term:
    """The term that a task is in one of these states."""
    return Term("state", tuple(state.value for state in sorted(states)))


def _fits(term: Term, payload: Any) -> bool:
    found = _at(payload, term.path)
    if term.how == EXACTLY:
        return any(found == one and isinstance(found, bool) == isinstance(one, bool) for one in term.values)
    same = _reads if term.how == READS else _like
    several = found if isinstance(found, list) else [found]
    return any(same(one, wanted) for one in several for wanted in term.values)


def _at(value: Any, path: str) -> Any:
    if isinstance(value, dict) and path in value:
        return value[path]
    for name in path.split("."):
        if isinstance(value, list) and name.isdigit() and int(name) < len(value):
            value = value[int(name)]
        elif isinstance(value, dict) and name in value:
            value = value[name]
        else:
            return _MISSING
    return value


def number_of(text: str) -> float | None:
    """The number that a text is."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _reads(found: Any, wanted: str) -> bool:
    if isinstance(found, bool) or found is None:
        return msgspec.json.encode(found).decode() == wanted
    if isinstance(found, int):
        return str(found) == wanted or (number_of(wanted) == found and abs(found) < 2**53)
    if isinstance(found, float):
        return number_of(wanted) == found
    return isinstance(found, str) and found == wanted


def _like(found: Any, wanted: str) -> bool:
    if isinstance(found, str) and "*" in wanted:
        return fnmatch.fnmatchcase(found, re.sub(r"([\[?])", r"[\1]", wanted))
    return _reads(found, wanted)
