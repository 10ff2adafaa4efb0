"""The kinds that workers have published, with what ``schedctl submit`` needs of them."""

from __future__ import annotations

from typing import Any, NamedTuple

from scheduler.store.broken_rows import options_of
from scheduler.store.db.tx import Tx


class KindRecord(NamedTuple):
    """One kind. ``schema``: JSON schema of its payload; ``options``: its class options, in microseconds."""

    name: str
    schema: dict[str, Any]
    options: dict[str, Any]
    schema_version: int
    updated_at: int


def get_kind(tx: Tx, name: str) -> KindRecord | None:
    """The kind with this name, None if no worker ever published it."""
    row = tx.run(
        "SELECT name, schema, options, schema_version, updated_at FROM schedd_kinds WHERE name = :name", name=name
    ).first()
    if row is None:
        return None
    schema, options = options_of(row.schema), options_of(row.options)
    return KindRecord(row.name, schema, options, row.schema_version, row.updated_at)


def kind_names(tx: Tx) -> list[str]:
    """The names of all kinds that workers have published."""
    return [row[0] for row in tx.run("SELECT name FROM schedd_kinds ORDER BY name")]


def unknown_kind(tx: Tx, kind: str) -> str | None:
    """A sentence about a kind that no worker has published, with those that there are; None if one has."""
    known = kind_names(tx)
    if kind in known:
        return None
    there = f"known are {', '.join(known)}" if known else "no worker has registered any"
    return f"no worker has registered a kind {kind!r}; {there}"
