"""Searches tasks by a list of terms, also by what they are not, looking at a bounded number of them at a time."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.model.state import TaskState
from scheduler.model.task import Priority
from scheduler.ports import SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.read.tasks import TaskRecord, as_id, first_id, get_tasks, page_of

WINDOW = 100_000  # tasks that are looked at for one page, the newest first
_CHUNK = 1000  # tasks whose payloads are compared at a time
_CREATED_SLACK = 600 * SECOND  # ids and creation times may be this much out of step
_BIGGEST = 2**63 - 1
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


class Found(NamedTuple):
    """A page of a search, the newest first.

    ``cursor``: only ids below it come next; None: there is nothing more. ``bound``: the search stopped because it had
    looked at as many tasks as one page may; ids below ``cursor`` have not been looked at.
    """

    tasks: list[TaskRecord]
    cursor: int | None
    bound: bool


def search(
    tx: Tx,
    terms: Sequence[Term],
    *,
    limit: int = 50,
    cursor: int | None = None,
    broken: Callable[[str], object] | None = None,
) -> Found:
    """A page of the tasks that fit all terms, by ids under ``cursor``. It looks at no more than ``WINDOW`` tasks."""
    conditions, bound = _where(tx, terms)
    payload = [term for term in terms if term.field == "payload"]
    codes = _codes(terms)
    narrow = any(term.field in _INDEXED and not term.exclude and "*" not in "".join(term.values) for term in terms)
    top = _BIGGEST if cursor is None else cursor
    floor = 0
    if not narrow and terms:
        newest = tx.run("SELECT max(id) FROM schedd_tasks WHERE id < :top", top=top).scalar()
        floor = max(0, (newest or 0) - WINDOW)
        conditions.append("t.id > :floor")
        bound["floor"] = floor
    ids: list[int] = []
    for_payload, at = _CHUNK if payload else limit + 1, top
    while True:
        given = {**bound, "limit": for_payload, "cursor": at}
        rows = _rows(tx, page_of(tx, conditions, codes, given, narrow=narrow), bool(payload), given)
        ids += [row[0] for row in rows if not payload or all(_fits(term, row[1]) for term in payload)]
        if len(ids) > limit or len(rows) < for_payload:
            break
        at = rows[-1][0]
    shown = get_tasks(tx, ids[:limit])
    if len(ids) > limit:
        return Found(shown, ids[limit - 1], False)
    below = tx.run("SELECT max(id) FROM schedd_tasks WHERE id <= :floor", floor=floor).scalar() if floor else None
    return Found(shown, None if below is None else below + 1, below is not None)


def _rows(tx: Tx, page: str, payload: bool, bound: dict[str, Any]) -> list[Any]:
    if not payload:
        return list(tx.run(page, **bound).fetchall())
    return list(
        tx.run(
            f"SELECT t.id, coalesce(t.payload, v.value) FROM schedd_tasks t JOIN ({page}) p ON p.id = t.id "
            "LEFT JOIN schedd_task_values v ON v.task_id = t.id AND v.name = 'payload' ORDER BY t.id DESC",
            **bound,
        ).fetchall()
    )


def _codes(terms: Sequence[Term]) -> list[int] | None:
    codes: set[int] | None = None
    for term in terms:
        if term.field != "state":
            continue
        given = {TaskState(value).code for value in term.values}
        given = set(range(len(TaskState))) - given if term.exclude else given
        codes = given if codes is None else codes & given
    return None if codes is None else sorted(codes)


def _where(tx: Tx, terms: Sequence[Term]) -> tuple[list[str], dict[str, Any]]:
    conditions: list[str] = []
    bound: dict[str, Any] = {}

    def bind(value: object) -> str:
        name = f"v{len(bound)}"
        bound[name] = value
        return f":{name}"

    for term in terms:
        found = _condition(tx, term, bind)
        if found:
            conditions.append(f"NOT ({found})" if term.exclude and term.field != "payload" else found)
    return conditions, bound


def _condition(tx: Tx, term: Term, bind: Callable[[object], str]) -> str:
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
        parts = [
            f"t.id IN (SELECT id FROM schedd_tasks WHERE correlation = {bind(value)} "
            f"UNION ALL SELECT id FROM schedd_tasks WHERE id = {bind(as_id(value))} AND correlation IS NULL)"
            for value in term.values
        ]
        return f"({' OR '.join(parts)})"
    if term.field == "since":
        at = int(term.values[0])
        return f"t.created_at >= {bind(at)} AND t.id >= {bind(first_id(tx, at - _CREATED_SLACK))}"
    if term.field == "until":
        return f"t.created_at < {bind(int(term.values[0]))}"
    if term.field == "payload" and not term.exclude:
        return _hint(term, bind)
    return ""


def _hint(term: Term, bind: Callable[[object], str]) -> str:
    """What the text of a payload that fits must have in it: spares decoding most of the others."""
    parts = []
    for value in term.values:
        literals = _LITERAL.findall(value)
        if not literals or _number(value) is not None:
            return ""
        like = bind(_like(f"*{max(literals, key=len)}*"))
        parts.append(f"t.payload LIKE {like} ESCAPE '!'")
    return f"(t.payload IS NULL OR {' OR '.join(parts)})"


def _like(pattern: str) -> str:
    escaped = re.sub(r"([!%_])", r"!\1", pattern)
    return escaped.replace("*", "%")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


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
