"""The filter language of /tasks: ``state:dead kind:Mail -queue:etl payload.to:*@example.com since:2h``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import NamedTuple

from scheduler.client.tasks import parse_states
from scheduler.config.sources import parse_duration
from scheduler.console.visit import BadInputError
from scheduler.errors import ConfigError, SchedulerError
from scheduler.model.task import Priority
from scheduler.model.times import SECOND, instant_us
from scheduler.operations.search import FIELDS, Term

MAX_TERMS = 20
MAX_VALUES = 50
MAX_LENGTH = 1000
_FIELD = re.compile(r"(-?)([a-z_]+)((?:\.[^:\s]+)?):(.*)", re.DOTALL)
_ALIASES = {
    "status": "state",
    "error_class": "class",
    "message_type": "type",
    "subject": "subject",
    "corr": "correlation",
    "is": "state",
}
_GROUPS = {"stuck": "waiting,scheduled,retry,suspended", "live": "claimed,running", "ended": ""}


class Filter(NamedTuple):
    """A parsed filter. ``text``: as it is shown in the field and in the URL."""

    text: str
    terms: tuple[Term, ...]

    def values(self, field: str, *, exclude: bool = False) -> tuple[str, ...]:
        """The values that a field must have, for the form."""
        return tuple(v for t in self.terms if t.field == field and t.exclude is exclude for v in t.values)

    def command(self) -> str | None:
        """The ``schedctl list`` that shows the same; None if no command can."""
        words = []
        options = {"kind": "--kind", "queue": "--queue", "key": "--key", "correlation": "--correlation"}
        options |= {"subject": "--subject", "type": "--message-type", "worker": "--worker"}
        for term in self.terms:
            if term.exclude or any("*" in value for value in term.values):
                return None
            if term.field == "state":
                words += [word for value in term.values for word in ("--status", value)]
            elif term.field == "payload":
                words += [word for value in term.values for word in ("--field", f"{term.path}={value}")]
            elif term.field in ("since", "until"):
                words += [f"--{term.field}", _written(self.text, term.field)]
            elif term.field in options and (len(term.values) == 1 or term.field in ("kind", "queue")):
                words += [options[term.field], ",".join(term.values)]
            else:
                return None
        return shlex.join(["schedctl", "list", *words])


def _written(text: str, field: str) -> str:
    return next(
        (word.partition(":")[2] for word in words_of(text) if word.partition(":")[0] == field),
        "",
    )


def words_of(text: str) -> list[str]:
    """The words of a filter; quotes hold one together. Raises BadInputError."""
    words: list[str] = []
    current, quote, began = "", "", False
    for char in text:
        if quote:
            if char == quote:
                quote = ""
            else:
                current += char
        elif char in "\"'":
            quote, began = char, True
        elif char.isspace():
            if current or began:
                words.append(current)
            current, began = "", False
        else:
            current += char
    if quote:
        raise BadInputError(f"a {quote} is missing at the end of the filter")
    if current or began:
        words.append(current)
    return words


def parse(text: str, now: int, hidden: Callable[[str], bool]) -> Filter:
    """Read a filter. ``now``: for ``since:2h``; ``hidden``: whether a payload's field is masked.

    Raises BadInputError that says what is wrong, and what there is.
    """
    if len(text) > MAX_LENGTH:
        raise BadInputError(f"a filter has at most {MAX_LENGTH} characters")
    terms = [_term(word, now, hidden) for word in words_of(text)]
    if len(terms) > MAX_TERMS:
        raise BadInputError(f"a filter has at most {MAX_TERMS} terms")
    return Filter(" ".join(map(quoted, words_of(text))), tuple(terms))


def quoted(word: str) -> str:
    """A word as it stands in a filter."""
    if not any(char.isspace() or char in "\"'" for char in word):
        return word
    mark = "'" if '"' in word else '"'
    head, sign, rest = word.partition(":")
    return f"{head}:{mark}{rest}{mark}" if sign else f"{mark}{word}{mark}"


def _term(word: str, now: int, hidden: Callable[[str], bool]) -> Term:
    found = _FIELD.fullmatch(word)
    if found is None:
        bare = word.removeprefix("-")
        if bare.isascii() and bare.isdigit():
            return Term("id", (str(int(bare)),), word.startswith("-"))
        return Term("error", (bare,), word.startswith("-"))
    sign, name, path, rest = found.groups()
    field = _ALIASES.get(name, name)
    if field not in FIELDS or (path and field != "payload"):
        raise BadInputError(f"there is no field {name}{path}; there are {', '.join(FIELDS)}, and payload.NAME")
    if not rest:
        raise BadInputError(f"{name}{path}: has no value")
    values = tuple(value for value in rest.split(",") if value) if field != "error" else (rest,)
    if not values or len(values) > MAX_VALUES:
        raise BadInputError(f"{name}: takes 1 to {MAX_VALUES} values, with commas between them")
    return Term(field, _values(field, path[1:], values, now, hidden), bool(sign), path[1:])


def _values(field: str, path: str, values: Sequence[str], now: int, hidden: Callable[[str], bool]) -> tuple[str, ...]:
    try:
        if field == "state":
            return tuple(state.value for state in parse_states(list(values)))
        if field == "priority":
            return tuple(Priority.parse(value).label for value in values)
        if field in ("since", "until"):
            if len(values) > 1:
                raise BadInputError(f"{field}: takes one time")
            return (str(instant(values[0], now)),)
        if field in ("id", "worker"):
            if not all(value.isascii() and value.isdigit() and len(value) < 19 for value in values):
                raise BadInputError(f"{field}: takes numbers")
            return tuple(values)
        if field == "payload":
            if not path:
                raise BadInputError("say which field of the payload: payload.NAME:value")
            if hidden(path):
                raise BadInputError(f"payload.{path} is masked: searching it would show it", 403)
        return tuple(values)
    except SchedulerError as error:
        raise BadInputError(str(error)) from None


def instant(text: str, now: int) -> int:
    """An instant: how long ago (``2h``), or RFC 3339 with its zone. Raises BadInputError."""
    try:
        return now - round(parse_duration(text) * SECOND)
    except ConfigError:
        pass
    try:
        return instant_us(datetime.fromisoformat(text), "a time")
    except (ValueError, SchedulerError):
        raise BadInputError(
            f"{text!r:.60} is neither how long ago, such as 2h, nor a time with its zone, such as 2026-01-31T02:30Z"
        ) from None


def compose(parts: Iterable[tuple[str, str]], rest: str = "") -> str:
    """A filter from the fields of its form and the words that the form has no field for."""
    words = [quoted(f"{field}:{value}") for field, value in parts if value]
    return " ".join([*words, *map(quoted, words_of(rest))])
