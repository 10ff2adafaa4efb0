"""The SQL of a :class:`~scheduler.model.task_filter.TaskFilter`: one for lists and for changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from scheduler.model.lanes import FAIR_LANE, LANE_SEPARATOR, WEIGHT_SEPARATOR
from scheduler.model.priority import Priority
from scheduler.model.state import CLAIMED, FIRST_TERMINAL, RUNNING, TERMINAL
from scheduler.model.task_filter import EXACTLY, SINCE, TEXTS, TaskFilter, Term, number_of
from scheduler.ports import SECOND
from scheduler.store.db.tx import Tx
from scheduler.store.read.paging import BIGGEST, Led, TaskQuery, as_id, first_id

_SLACK = 600 * SECOND  # ids and creation times may be this much out of step
_COLUMNS = {"class": "t.error_class", "type": "coalesce(t.message_type, t.kind)"}
_AGES = {"stored": "t.created_at", "due": "t.run_at", "ended": "t.finished_at"}
_CONTAINING = ("t.error", "t.error_class")
_INDEXED = ("key", "correlation", "subject")
_LITERAL = re.compile(r"[ !#-)+->@-\[\]-~]+")  # printable ASCII but for * ? " and \\
_EXPONENT = {"sqlite": "t.payload GLOB '*[0-9][eE][-+0-9]*'", "postgresql": "t.payload ~ '[0-9][eE][-+0-9]'"}
_HELD = {CLAIMED, RUNNING}


class Where(NamedTuple):
    """Conditions on ``t`` and what they bind, but for the payload and the states."""

    conditions: list[str]
    bound: dict[str, Any]

    def sql(self, *more: str) -> str:
        """All of them, after these."""
        return " AND ".join([*more, *self.conditions]) or "true"


def where(wanted: TaskFilter, *, without: Term | None = None, exponent: str = "") -> Where:
    """The conditions of a filter, but for the one term, the ids that it names, its states, and its payload, of which a
    hint spares decoding most of the others."""
    bound: dict[str, Any] = {}

    def bind(value: object) -> str:
        name = f"v{len(bound)}"
        bound[name] = value
        return f":{name}"

    conditions: list[str] = []
    for term in wanted.terms:
        found = "" if term is without else _condition(term, bind, exponent)
        if found:
            conditions.append(f"NOT ({found})" if term.exclude and term.field != "payload" else found)
    if wanted.up_to is not None:
        conditions.append(f"t.id <= {bind(wanted.up_to)}")
    return Where(conditions, bound)


def codes(wanted: TaskFilter) -> list[int] | None:
    """The codes of the states that a task may have; None: any."""
    found = None if wanted.states is None else {state.code for state in wanted.states}
    for field, among in (("ended", {state.code for state in TERMINAL}), ("worker", _HELD)):
        if any(not term.exclude for term in wanted.of(field)):
            found = among if found is None else found & among
    return None if found is None else sorted(found)


def asked(tx: Tx, wanted: TaskFilter) -> TaskQuery:
    """What a page is asked for: the index that leads to it, the bounds of its ids, and all conditions but the
    payload's."""
    led = next((term for field in _INDEXED for term in wanted.of(field) if term.plain), None)
    conditions, bound = where(wanted, without=led, exponent=_EXPONENT[tx.dialect.name])
    least, top = 0, BIGGEST if wanted.up_to is None else wanted.up_to + 1
    for term in wanted.of("stored"):
        at = int(term.values[0])
        if (term.how == SINCE) is not term.exclude:
            least = max(least, first_id(tx, at - _SLACK))
        else:
            top = min(top, first_id(tx, at + _SLACK) + 1)
    if least:
        bound["least"] = least
        conditions.append("t.id >= :least")
    if (ids := wanted.ids) is not None:
        conditions.append(tx.dialect.among("t.id"))
        bound["ids"] = tx.dialect.bind_ids(sorted(ids))
    by_index = None if led is None else Led(led.field, led.values)
    kinds, queues = wanted.names("kind"), wanted.names("queue")
    return TaskQuery(conditions, bound, codes(wanted), by_index, kinds, queues, least, top)


def _condition(term: Term, bind: Callable[[object], str], exponent: str) -> str:
    """The condition of a term, without its sign; empty where it is no condition on a row."""
    if term.field == "fairness":
        return _fair(term, bind)
    if term.field in TEXTS:
        return _text(term, bind)
    if term.field == "error":
        parts = [
            f"lower(coalesce({column}, '')) LIKE {bind(_like(f'*{value.lower()}*'))} ESCAPE '!'"
            for value in term.values
            for column in _CONTAINING
        ]
        return f"({' OR '.join(parts)})"
    if term.field == "priority":
        return f"t.priority IN ({', '.join(str(int(Priority.parse(value))) for value in term.values)})"
    if term.field == "worker" or (term.field == "id" and term.exclude):
        values = ", ".join(bind(int(value)) for value in term.values)
        return f"coalesce(t.{term.field}, 0) IN ({values})" if term.exclude else f"t.{term.field} IN ({values})"
    if term.field in _AGES:
        compared = f"{_AGES[term.field]} {'>=' if term.how == SINCE else '<'} {bind(int(term.values[0]))}"
        return f"(t.state >= {FIRST_TERMINAL} AND {compared})" if term.field == "ended" and term.exclude else compared
    if term.field == "payload" and not term.exclude:
        return _hint(term, bind, exponent)
    return ""


def _fair(term: Term, bind: Callable[[object], str]) -> str:
    """Whether the lane has the mark of one of these keys; ``*`` is a sign of a key. LIKE of SQLite knows no case."""
    ends = (LANE_SEPARATOR, WEIGHT_SEPARATOR)
    marks = [bind(f"{FAIR_LANE}{key}{end}") for key in term.values for end in ends]
    parts = [f"replace(t.lane, {mark}, '') <> t.lane" for mark in marks]
    return f"({' OR '.join(parts)})"


def _text(term: Term, bind: Callable[[object], str]) -> str:
    column = _COLUMNS.get(term.field, f"t.{term.field}")
    column = f"coalesce({column}, '')" if term.exclude else column
    plain = [value for value in term.values if term.how == EXACTLY or "*" not in value]
    parts = [f"{column} IN ({', '.join(map(bind, plain))})"] if plain else []
    parts += [f"{column} LIKE {bind(_like(value))} ESCAPE '!'" for value in term.values if value not in plain]
    if term.field == "correlation":  # a task without one has its own id
        own = [as_id(value) for value in plain if as_id(value) > 0]
        parts += [f"(t.id IN ({', '.join(map(bind, own))}) AND t.correlation IS NULL)"] if own else []
    return parts[0] if len(parts) == 1 else f"({' OR '.join(parts)})"


def _hint(term: Term, bind: Callable[[object], str], exponent: str) -> str:
    """What the text of a payload that fits must have in it.

    ``exponent``: a condition on a payload that has a number with one; without it no number is looked for.
    """
    texts: list[str] = []
    numbers = False
    for value in term.values:
        number = None if not isinstance(value, str) or term.how == EXACTLY else number_of(value)
        if not isinstance(value, str) or (number is not None and not (exponent and number.is_integer())):
            return ""
        texts += [value] if number is None else [value, str(int(number))]
        numbers |= number is not None
    literals = [max(_LITERAL.findall(text), key=len, default="") for text in texts]
    if not all(literals):
        return ""
    likes = [f"t.payload LIKE {bind(_like(f'*{text}*'))} ESCAPE '!'" for text in dict.fromkeys(literals)]
    return f"(t.payload IS NULL OR {' OR '.join([*likes, *([exponent] if numbers else [])])})"


def _like(pattern: str) -> str:
    escaped = re.sub(r"([!%_])", r"!\1", pattern)
    return escaped.replace("*", "%")
