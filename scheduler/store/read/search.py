"""Searches tasks by a list of terms, also by what they are not, looking at a bounded number of them at a time."""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.model.state import TaskState
from scheduler.model.task import Priority
from scheduler.ports import SECOND
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.store.read.paging import Asked, Ids, Led, Window, first_id, ids_of, of_correlation
from scheduler.store.read.tasks import Found, get_tasks

WINDOW = 100_000  # tasks that are looked at for one page where no index leads to them, the newest first
_CHUNK = 1000  # tasks whose payloads are compared at a time
_COMPARED = 20_000  # tasks whose payloads are compared for one page
_CREATED_SLACK = 600 * SECOND  # ids and creation times may be this much out of step
_TEXTS = {
    "kind": "t.kind",
    "queue": "t.queue",
    "key": "t.key",
    "subject": "t.subject",
    "schedule": "t.schedule",
    "class": "t.error_class",
    "fingerprint": "t.fingerprint",
    "type": "coalesce(t.message_type, t.kind)",
}
_CONTAINING = {"error": ("t.error", "t.error_class")}
FIELDS = (*_TEXTS, *_CONTAINING, "state", "priority", "correlation", "worker", "id", "since", "until", "payload")
_INDEXED = frozenset({"key", "subject", "correlation"})
_EXPONENT = {"sqlite": "t.payload GLOB '*[0-9][eE][-+0-9]*'", "postgresql": "t.payload ~ '[0-9][eE][-+0-9]'"}
_LITERAL = re.compile(r'[^*?"\\\x00-\x1f\x7f-\U0010ffff]+')


class Term(NamedTuple):
    """A condition: ``field`` has one of ``values``, or none of them (``exclude``).

    ``*`` in a text stands for any characters. ``path``: of a field of the payload. ``state``: TaskState values;
    ``since`` and ``until``: one instant in microseconds, as text.
    """

    field: str
    values: tuple[str, ...]
    exclude: bool = False
    path: str = ""


def search(
    tx: Tx,
    terms: Sequence[Term],
    *,
    limit: int = 50,
    cursor: int | None = None,
    broken: Callable[[str], object] | None = None,
) -> Found:
    """A page of the tasks that fit all terms, by ids under ``cursor``. It walks down ``WINDOW`` tasks at most.

    ``broken``: called with each row that cannot be read, which is left out.
    """
    page = search_ids(tx, terms, limit=limit, cursor=cursor)
    return Found(get_tasks(tx, page.ids, broken), page.cursor, page.bound)


def search_ids(tx: Tx, terms: Sequence[Term], *, limit: int, cursor: int | None = None) -> Ids:
    """The ids of a page of :func:`search`."""
    asked = _asked(tx, terms)
    payload = [term for term in terms if term.field == "payload"]
    window = Window(WINDOW)
    if not payload:
        return ids_of(tx, asked, cursor, limit, window)
    ids: list[int] = []
    compared = 0
    while True:
        page = ids_of(tx, asked, cursor, _CHUNK, window)
        compared += len(page.ids)
        texts = _payloads(tx, page.ids)
        ids += [one for one in page.ids if one in texts and all(_fits(term, texts[one]) for term in payload)]
        cursor = page.cursor
        if len(ids) > limit:
            return Ids(ids[:limit], ids[limit - 1])
        if cursor is None or page.bound or compared >= _COMPARED:
            return Ids(ids, cursor, cursor is not None)


def any_with(tx: Tx, *terms: Term) -> bool:
    """Whether a task fits all terms, which are not of payloads, among the newest ``WINDOW``."""
    return bool(ids_of(tx, _asked(tx, terms), None, 1, Window(WINDOW)).ids)


def _payloads(tx: Tx, ids: Sequence[int]) -> dict[int, str | None]:
    """The payloads of these tasks, as far as they are there."""
    sql = (
        "SELECT t.id, coalesce(t.payload, v.value) FROM schedd_tasks t LEFT JOIN schedd_task_values v "
        f"ON v.task_id = t.id AND v.name = 'payload' WHERE t.id IN {tx.dialect.ids()}"
    )
    return {row[0]: row[1] for row in tx.run(sql, ids=bind_rows(ids))} if ids else {}


def _codes(terms: Sequence[Term]) -> list[int] | None:
    codes: set[int] | None = None
    for term in terms:
        if term.field != "state":
            continue
        given = {TaskState(value).code for value in term.values}
        given = set(range(len(TaskState))) - given if term.exclude else given
        codes = given if codes is None else codes & given
    return None if codes is None else sorted(codes)


def _asked(tx: Tx, terms: Sequence[Term]) -> Asked:
    conditions: list[str] = []
    bound: dict[str, Any] = {}
    least = 0

    def bind(value: object) -> str:
        name = f"v{len(bound)}"
        bound[name] = value
        return f":{name}"

    led = next((term for term in terms if _leads(term)), None)
    for term in terms:
        found = "" if term is led else _condition(term, bind, _EXPONENT[tx.dialect.name])
        if term.field == "since":
            least = max(least, first_id(tx, int(term.values[0]) - _CREATED_SLACK))
        if found:
            conditions.append(f"NOT ({found})" if term.exclude and term.field != "payload" else found)
    if least:
        conditions.append(f"t.id >= {bind(least)}")
    by_index = None if led is None else Led(led.field, led.values)
    return Asked(conditions, bound, _codes(terms), by_index, _names(terms, "kind"), _names(terms, "queue"), least)


def _leads(term: Term) -> bool:
    return term.field in _INDEXED and not term.exclude and "*" not in "".join(term.values)


def _names(terms: Sequence[Term], field: str) -> Sequence[str] | None:
    """The names that one of the terms allows this field; None: none does, or a pattern."""
    for term in terms:
        if term.field == field and not term.exclude and "*" not in "".join(term.values):
            return term.values
    return None


def _condition(term: Term, bind: Callable[[object], str], exponent: str) -> str:
    """The condition of a term, without its sign; empty where it is no condition on a row."""
    if term.field in _TEXTS:
        column = f"coalesce({_TEXTS[term.field]}, '')" if term.exclude else _TEXTS[term.field]
        plain = [value for value in term.values if "*" not in value]
        parts = [f"{column} IN ({', '.join(map(bind, plain))})"] if plain else []
        parts += [f"{column} LIKE {bind(_like(value))} ESCAPE '!'" for value in term.values if "*" in value]
        return " OR ".join(parts) if len(parts) == 1 else f"({' OR '.join(parts)})"
    if term.field in _CONTAINING:
        columns = _CONTAINING[term.field]
        parts = [
            f"lower(coalesce({column}, '')) LIKE {bind(_like(f'*{value.lower()}*'))} ESCAPE '!'"
            for value in term.values
            for column in columns
        ]
        return f"({' OR '.join(parts)})"
    if term.field == "priority":
        return f"t.priority IN ({', '.join(str(int(Priority.parse(value))) for value in term.values)})"
    if term.field in ("id", "worker"):
        return f"t.{term.field} IN ({', '.join(bind(int(value)) for value in term.values)})"
    if term.field == "correlation":
        return of_correlation(bind, *term.values)
    if term.field == "since":
        return f"t.created_at >= {bind(int(term.values[0]))}"
    if term.field == "until":
        return f"t.created_at < {bind(int(term.values[0]))}"
    if term.field == "payload" and not term.exclude:
        return _hint(term, bind, exponent)
    return ""


def _hint(term: Term, bind: Callable[[object], str], exponent: str) -> str:
    """What the text of a payload that fits must have in it: spares decoding most of the others.

    ``exponent``: a condition on a payload that has a number with one.
    """
    texts: list[str] = []
    parts: list[str] = []
    for value in term.values:
        number = _number(value)
        if number is not None and not number.is_integer():
            return ""
        texts += [value] if number is None else [value, str(int(number))]
        parts += [] if number is None else [exponent]
    literals = [max(_LITERAL.findall(text), key=len, default="") for text in texts]
    if not all(literals):
        return ""
    likes = [f"t.payload LIKE {bind(_like(f'*{text}*'))} ESCAPE '!'" for text in dict.fromkeys(literals)]
    return f"(t.payload IS NULL OR {' OR '.join([*likes, *parts[:1]])})"


def _like(pattern: str) -> str:
    escaped = re.sub(r"([!%_])", r"!\1", pattern)
    return escaped.replace("*", "%")


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _fits(term: Term, payload: str | None) -> bool:
    try:
        value = msgspec.json.decode(payload or "null")
    except (msgspec.MsgspecError, RecursionError):
        return term.exclude
    found = _at(value, term.path)
    fits = any(_same(one, wanted) for one in found for wanted in term.values)
    return fits is not term.exclude


def _at(value: Any, path: str) -> list[Any]:
    """What is at a path; of a list each item."""
    if isinstance(value, dict) and path in value:
        found = value[path]
    else:
        for name in path.split("."):
            if isinstance(value, list) and name.isdigit() and int(name) < len(value):
                value = value[int(name)]
            elif isinstance(value, dict) and name in value:
                value = value[name]
            else:
                return []
        found = value
    return found if isinstance(found, list) else [found]


def _same(found: Any, wanted: str) -> bool:
    if isinstance(found, bool) or found is None:
        return msgspec.json.encode(found).decode() == wanted
    if isinstance(found, int):
        return str(found) == wanted or (_number(wanted) == found and abs(found) < 2**53)
    if isinstance(found, float):
        return _number(wanted) == found
    if isinstance(found, str):
        return fnmatch.fnmatchcase(found, re.sub(r"([\[?])", r"[\1]", wanted)) if "*" in wanted else found == wanted
    return False
