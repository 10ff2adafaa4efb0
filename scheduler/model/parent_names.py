"""Names of a task's parents. They travel in a header of the task: name -> the parent's id."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

HEADER = "schedd-parents"
MAX_NAME = 100


def has_names(headers: str | None) -> bool:
    """Whether headers, as they are stored, may name parents: a cheap look."""
    return headers is not None and HEADER in headers


def names_in(headers: str | None) -> dict[str, int]:
    """The parents' ids by their names. Senders of messages choose headers too, so anything else counts as nothing."""
    if headers is None or HEADER not in headers:
        return {}
    found = msgspec.json.decode(headers)
    given = found.get(HEADER) if isinstance(found, dict) else None
    return {name: one for name, one in given.items() if type(one) is int} if isinstance(given, dict) else {}


def named_in(headers: Mapping[str, Any]) -> frozenset[str]:
    """The names of parents in decoded headers."""
    given = headers.get(HEADER)
    return frozenset(given) if isinstance(given, dict) else frozenset()


def with_names(headers: str | None, names: Mapping[str, int]) -> str | None:
    """Headers that name these parents, in place of those that they named."""
    if not names and not has_names(headers):
        return headers
    found = {} if headers is None else msgspec.json.decode(headers)
    others = {name: value for name, value in found.items() if name != HEADER}
    made = others | ({HEADER: dict(names)} if names else {})
    return msgspec.json.encode(made).decode() if made else None


def without_names(headers: dict[str, Any]) -> dict[str, Any]:
    """The caller's own headers."""
    return {name: value for name, value in headers.items() if name != HEADER} if HEADER in headers else headers
