"""What hides the secrets of tasks from people: made of the schemas that workers have published."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.model.secrets import MARK, Mask
from scheduler.store.broken_rows import options_of
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx

_READ = "SELECT k.name, k.schema FROM {names} j JOIN schedd_kinds k ON k.name = j.name"


def masks(tx: Tx, kinds: Iterable[str]) -> dict[str, Mask]:
    """The mask of each of these kinds that has secrets; the others have none."""
    return {
        name: Mask(options_of(schema))
        for name, schema in _schemas(tx, kinds).items()
        if f'"{MARK}":true' in schema.replace(" ", "")
    }


def unpublished(tx: Tx, kinds: Iterable[str]) -> set[str]:
    """Those of these kinds whose secret fields no worker has published."""
    wanted = set(kinds)
    return wanted - set(_schemas(tx, wanted))


def _schemas(tx: Tx, kinds: Iterable[str]) -> dict[str, str]:
    names = sorted(set(kinds))
    if not names:
        return {}
    sql = _READ.format(names=tx.dialect.rows({"name": str}))
    return {row[0]: row[1] for row in tx.rows(sql, rows=bind_rows([(name,) for name in names]))}
