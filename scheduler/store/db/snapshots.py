"""Callers' transactions that see the store as it was when they began: PostgreSQL's REPEATABLE READ and SERIALIZABLE."""

from __future__ import annotations

from collections.abc import Callable, Set
from contextlib import AbstractContextManager
from typing import Any

from scheduler.store.db.tx import Tx

Reader = Callable[[], AbstractContextManager[Tx]]
_ISOLATION = "SELECT current_setting('transaction_isolation')"
_REFUSE = """
DO $$BEGIN RAISE EXCEPTION 'could not serialize access: {} since this transaction began'
USING ERRCODE = 'serialization_failure'; END$$
"""


def refuse_unseen(tx: Tx, find: Callable[[Tx], Set[Any]], read: Reader, happened: str) -> None:
    """Have PostgreSQL refuse a caller's transaction whose snapshot lacks some of what ``find`` finds now.

    The caller holds locks that keep more of it from being stored. ``read``: begins a transaction of the store's own.
    Raises sqlalchemy.exc.OperationalError, as for all else that cannot be serialized: then the caller begins again.
    """
    if tx.dialect.name != "postgresql" or tx.rows(_ISOLATION) == [("read committed",)]:
        return
    with read() as present:
        there = find(present)
    if not there <= find(tx):
        tx.run(_REFUSE.format(happened))
