"""The one language for "which tasks": ``state:dead kind:Mail -queue:etl error:Timeout* ended:<1h customer=42``.

A filter is words that must all hold. Pages, ``schedctl`` and programs read it here; the options and keywords that say
the same come here, too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from scheduler.config.sources import parse_duration
from scheduler.errors import ConfigError, SchedulerError
from scheduler.model.priority import Priority
from scheduler.model.spec import check_id
from scheduler.model.state import parse_states
from scheduler.model.task_filter import AGES, BEFORE, EXACTLY, FIELDS, READS, SINCE, TaskFilter, Term, in_states, only
from scheduler.model.texts import storable
from scheduler.model.times import SECOND, instant_us, span_us

if TYPE_CHECKING:
    from scheduler.operations.desk import Desk
    from scheduler.store.db.plain_reader import StoreReader

MAX_TERMS = 20
MAX_VALUES = 50
MAX_LENGTH = 1000
_FIELD = re.compile(r"(-?)([a-z_]+)((?:\.[^:\s=]+)?):(.*)", re.DOTALL)
_PAYLOAD = re.compile(r"(-?)([^:=\s]+)(:?)=(.*)", re.DOTALL)
_ALIASES = {
    "status": "state",
    "error_class": "class",
    "message_type": "type",
    "corr": "correlation",
    "is": "state",
    "fairness_key": "fairness",
}
_TEXTS = (
    *("kind", "queue", "key", "correlation", "subject", "message_type", "error_class", "fingerprint"),
    "fairness_key",
)


class FilterError(ConfigError):
    """A filter that cannot be read. ``masked``: it asks for a field that is hidden."""

    def __init__(self, text: str, *, masked: bool = False) -> None:
        super().__init__(text)
        self.masked = masked


class Marks(TypedDict, total=False):
    """Which tasks, by what they have: all that is given must hold, and None is not given.

    ``kind``: one or several. ``correlation`` also means the task with this id and none of its own; ``message_type`` is
    the kind where none was given. ``payload``: field -> value, ``a.b`` is field b of object a. ``ids``: one of these.
    ``error_class`` and ``fingerprint``: of the last failure. ``fairness_key``: whose turns they take. ``up_to``: no
    task with a higher id, such as those that were stored after a plan was made: its ``up_to``.
    """

    ids: Iterable[int] | None
    up_to: int | None
    error_class: str | None
    fingerprint: str | None
    fairness_key: str | None
    kind: str | Iterable[str] | None
    queue: str | None
    key: str | None
    correlation: str | None
    subject: str | None
    message_type: str | None
    payload: Mapping[str, Any] | None


class Conditions(Marks, total=False):
    """:class:`Marks`, and ages: ``older_than`` and ``newer_than``, longer ago than this, or since (seconds, timedelta
    or "2h"). Verbs on ended tasks (retry, rerun, replay, purge) count from the end, others from when a task was stored.
    """

    older_than: float | timedelta | str | None
    newer_than: float | timedelta | str | None


class Filters(Conditions, total=False):
    """:class:`Conditions`, and ``status``: states or short names. Verbs want one condition at least."""

    status: str | Iterable[str] | None


Chosen = str | Filters | TaskFilter


def _shown(path: str) -> bool:
    return False


def words_of(text: str) -> list[str]:
    """The words of a filter; quotes hold one together. Raises FilterError."""
    words: list[str] = []
    current, quote, began, kept = "", "", False, False
    for char in text:
        if quote:
            if char != quote or kept:
                current += char
            if char == quote:
                quote = ""
        elif char in "\"'":
            quote, began, kept = char, True, current.endswith(":=")  # a text of JSON keeps its quotes
            current += char if kept else ""
        elif char.isspace():
            if current or began:
                words.append(current)
            current, began = "", False
        else:
            current += char
    if quote:
        raise FilterError(f"a {quote} is missing at the end of the filter")
    if current or began:
        words.append(current)
    return words


def quoted(word: str) -> str:
    """A word as it stands in a filter."""
    if not any(char.isspace() or char in "\"'" for char in word):
        return word
    mark = "'" if '"' in word else '"'
    head, sign, rest = word.partition(":")
    return f"{head}:{mark}{rest}{mark}" if sign else f"{mark}{word}{mark}"


def compose(parts: Iterable[tuple[str, str]], rest: str = "") -> str:
    """A filter from fields with their values, and further words."""
    words = [quoted(f"{field}:{value}") for field, value in parts if value]
    return " ".join([*words, *map(quoted, words_of(rest))])


def parse(text: str, now: int, hidden: Callable[[str], bool] = _shown, *, bare: bool = True) -> TaskFilter:
    """Read a filter. ``now``: what ages count from; ``hidden``: whether a payload's field is masked from who asks.

    ``bare``: whether a word without a field is looked for in errors. Raises FilterError that says what is wrong, and
    what there is.
    """
    if not isinstance(text, str):
        raise FilterError(f"a filter is a text, not {text!r:.80}")
    if len(text) > MAX_LENGTH:
        raise FilterError(f"a filter has at most {MAX_LENGTH} characters")
    words = words_of(text)
    if len(words) > MAX_TERMS:
        raise FilterError(f"a filter has at most {MAX_TERMS} terms")
    terms = tuple(_term(word, now, hidden, bare) for word in words)
    return TaskFilter(terms, text=" ".join(map(quoted, words)))


def read_filter(
    database: StoreReader,
    text: str,
    given: Mapping[str, Any],
    *,
    fields: Iterable[str] = (),
    ended: bool = False,
    bare: bool = False,
) -> TaskFilter:
    """The filter of a text and of the keywords or options that say the same, which are :class:`Filters`.

    ``fields``: words NAME=TEXT or NAME:=JSON. ``ended``: ``older_than`` and ``newer_than`` count from the tasks' ends.
    A program sees whole payloads, so that it may ask for every field. Raises ConfigError, also if nothing is asked for.
    """
    database.look()  # opening reads the server's clock
    now = database.now()
    wanted = parse(text, now, bare=bare)
    words = (_other(word, _shown, bare) for word in fields)
    terms = (*wanted.terms, *_terms(given, now, ended), *words)
    return wanted._replace(terms=terms, up_to=_watermark(given.get("up_to")))


def read_chosen(desk: Desk, asked: Chosen | None, given: Filters, *, ended: bool = False) -> TaskFilter:
    """The same of a verb that needs to be told which tasks: a text or :class:`Filters`, and keywords."""
    if isinstance(asked, TaskFilter):
        return asked
    text, more = (asked, given) if isinstance(asked, str) else ("", {**(asked or {}), **given})
    wanted = read_filter(desk.database, text, more, ended=ended)
    if not wanted.terms:
        raise ConfigError(f"say which tasks: by {', '.join(sorted(Filters.__optional_keys__))}")
    return wanted


def is_filter(text: str) -> bool:
    """Whether a text is a filter and not the name of a state."""
    return any(sign in text for sign in ":= ")


def check_filters(**texts: str | None) -> None:
    """What tasks are chosen by. Raises ConfigError for what cannot be stored as one: databases differ on what it is."""
    for name, text in texts.items():
        if text is not None and (not isinstance(text, str) or text != storable(text)):
            raise ConfigError(f"{name} must be a text, not {text!r:.80}")


def instant(text: str, now: int) -> int:
    """An instant: how long ago (``2h``), or RFC 3339 with its zone. Raises FilterError."""
    try:
        return now - round(parse_duration(text) * SECOND)
    except ConfigError:
        pass
    try:
        return instant_us(datetime.fromisoformat(text), "a time")
    except (ValueError, SchedulerError):
        raise FilterError(
            f"{text!r:.60} is neither how long ago, such as 2h, nor a time with its zone, such as 2026-01-31T02:30Z"
        ) from None


def _term(word: str, now: int, hidden: Callable[[str], bool], bare: bool) -> Term:
    found = _FIELD.fullmatch(word)
    if found is None or (found[4].startswith("=") and _ALIASES.get(found[2], found[2]) not in FIELDS):
        return _other(word, hidden, bare)
    sign, name, path, rest = found.groups()
    field = _ALIASES.get(name, name)
    if field not in FIELDS or (path and field != "payload"):
        there = f"there are {', '.join(FIELDS)}, and payload.NAME"
        raise FilterError(f"there is no field {name}{path}; {there}")
    if not rest:
        raise FilterError(f"{name}{path}: has no value")
    if field in (*AGES, SINCE, "until"):
        return _age(field, rest, bool(sign), now)
    values = [value for value in rest.split(",") if value] if field != "error" else [rest]
    if not values or len(values) > MAX_VALUES:
        raise FilterError(f"{name}: takes 1 to {MAX_VALUES} values, with commas between them")
    if field == "payload" and not path:
        raise FilterError("say which field of the payload: payload.NAME:value")
    _refuse_hidden(path[1:], hidden)
    return Term(field, _values(field, values), bool(sign), path[1:])


def _other(word: str, hidden: Callable[[str], bool], bare: bool) -> Term:
    """A word without one of the fields: a number is an id, NAME=TEXT and NAME:=JSON are of the payload."""
    text = word.removeprefix("-")
    if text.isascii() and text.isdigit():
        return Term("id", (str(int(text)),), word.startswith("-"))
    found = _PAYLOAD.fullmatch(word)
    if found is not None:
        path = found[2].removeprefix("payload.")
        _refuse_hidden(path, hidden)
        value, how = (_json(path, found[4]), EXACTLY) if found[3] else (found[4], READS)
        return Term("payload", (value,), bool(found[1]), path, how)
    if not bare:
        raise FilterError(f"{word!r:.60} is neither an id nor a word such as kind:Mail; error:TEXT looks into errors")
    return Term("error", (text,), word.startswith("-"))


def _json(path: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        from scheduler.model.json_text import json_fault

        raise FilterError(f"{path}:={text:.60}: not JSON: {json_fault(text, error)}") from None


def _refuse_hidden(path: str, hidden: Callable[[str], bool]) -> None:
    if path and hidden(path):
        raise FilterError(f"payload.{path} is masked: searching it would show it", masked=True)


def _age(field: str, text: str, exclude: bool, now: int) -> Term:
    """``stored:<2h``: less than 2 h ago; ``stored:<2026-01-31T02:30Z``: earlier than that; ``since:2h`` says SINCE."""
    if field in (SINCE, "until"):
        return Term("stored", (instant(text, now),), exclude, how=SINCE if field == SINCE else BEFORE)
    sign, rest = text[0], text[1:]
    if sign not in "<>" or not rest:
        raise FilterError(f"{field}: takes an age or a time behind < or >, such as {field}:<2h, not {text!r:.60}")
    try:
        ago = round(parse_duration(rest.removeprefix("-")) * SECOND)
    except ConfigError:
        return Term(field, (instant(rest, now),), exclude, how=BEFORE if sign == "<" else SINCE)
    at = now + ago if rest.startswith("-") else now - ago
    return Term(field, (at,), exclude, how=SINCE if sign == "<" else BEFORE)


def _values(field: str, values: Sequence[str]) -> tuple[str, ...]:
    try:
        if field == "state":
            return tuple(state.value for state in parse_states(list(values)))
        if field == "priority":
            return tuple(Priority.parse(value).label for value in values)
    except SchedulerError as error:
        raise FilterError(str(error)) from None
    numbers = all(value.isascii() and value.isdigit() and len(value) < 19 for value in values)
    if field in ("id", "worker") and not numbers:
        raise FilterError(f"{field}: takes numbers")
    return tuple(values)


def _terms(given: Mapping[str, Any], now: int, ended: bool) -> list[Term]:
    """The terms of keywords. Raises ConfigError."""
    unknown = set(given) - Filters.__optional_keys__
    if unknown:
        there = ", ".join(sorted(Filters.__optional_keys__))
        raise ConfigError(f"there is no filter {', '.join(sorted(unknown))}: by {there}")
    terms: list[Term] = []
    if given.get("ids") is not None:
        terms.append(only("id", *_ids(given["ids"])))
    for name in _TEXTS:
        several = given.get(name)
        several = list(several) if isinstance(several, (list, tuple, set, frozenset)) else [several]
        for text in several:
            check_filters(**{name: text})
        if texts := [text for text in several if text is not None]:
            terms.append(only(_ALIASES.get(name, name), *texts))
    if given.get("status") is not None and (states := parse_states(given["status"])):
        terms.append(in_states(states))
    fields = given.get("payload") or {}
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        raise ConfigError(f"payload must map fields to values, not {fields!r:.80}")
    terms += [Term("payload", (value,), False, path, EXACTLY) for path, value in fields.items()]
    for name, how in (("older_than", BEFORE), ("newer_than", SINCE)):
        if given.get(name) is not None:
            terms.append(Term("ended" if ended else "stored", (now - span_us(given[name], name),), how=how))
    return terms


def _ids(given: Iterable[int]) -> list[int]:
    """Ids of a filter. Raises ConfigError, UnknownTaskError; none is an error, since it would choose all."""
    if isinstance(given, (str, bytes, int)) or not isinstance(given, Iterable):
        raise ConfigError(f"ids is a list of task ids, not {given!r:.80}")
    found = [check_id(task_id) for task_id in given]
    if not found:
        raise ConfigError("ids names no task")
    return found


def _watermark(given: int | None) -> int | None:
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or not 0 <= given < 2**63 - 1):
        raise ConfigError(f"up_to is a task id, or 0, not {given!r:.80}")
    return given
