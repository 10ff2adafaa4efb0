"""Records who changed what, and why, in the transaction of the change itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from scheduler.model.actor import actor
from scheduler.model.spec import TaskId, TaskSpec, plain
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx
from scheduler.system.processes import user as user

_COLUMNS: dict[str, type] = {"task_id": int, "detail": str}


def record(
    tx: Tx,
    action: str,
    *,
    tasks: Iterable[int] | Mapping[int, Mapping[str, Any]] | None = None,
    subject: str | None = None,
    before: Any = None,
    after: Any = None,
    **detail: Any,
) -> None:
    """Record a verb of the acting actor (:func:`scheduler.model.actor.actor`).

    ``tasks``: one row for each of them, with details of its own where this is a mapping; nothing if there is none.
    Without ``tasks`` one row about ``subject``, such as ``queue mail`` or ``schedule nightly``. ``before``, ``after``
    and each ``detail`` are JSON values; None is left out.
    """
    who = actor()
    common = {**detail, "before": before, "after": after, "filter": who.filter}
    if tasks is None:
        rows: list[tuple[int | None, str]] = [(None, _json(common))]
    elif isinstance(tasks, Mapping):
        rows = [(task_id, _json({**common, **own})) for task_id, own in tasks.items()]
    else:
        text = _json(common)
        rows = [(int(task_id), text) for task_id in tasks]
    if not rows:
        return
    tx.rows(
        "INSERT INTO schedd_audit (task_id, at, actor, via, action, reason, subject, bulk, detail) "
        "SELECT task_id, CAST(:now AS bigint), CAST(:actor AS text), CAST(:via AS text), CAST(:action AS text), "
        "CAST(:reason AS text), CAST(:subject AS text), CAST(:bulk AS text), detail "
        f"FROM {tx.dialect.rows(_COLUMNS)} j",
        rows=bind_rows(rows),
        now=tx.now,
        actor=who.name if who.name is not None else user(),
        via=who.via,
        action=action,
        reason=who.reason,
        subject=subject,
        bulk=who.bulk,
    )


def record_submit(tx: Tx, specs: Sequence[TaskSpec], ids: Sequence[TaskId]) -> None:
    """Record tasks that were stored by hand, but not those that a key kept from being stored."""
    made = [int(i) for spec, i in zip(specs, ids, strict=True) if i.created or spec.conflict == "replace"]
    record(tx, "submit", tasks=made)


def _json(detail: Mapping[str, Any]) -> str:
    kept = {name: value for name, value in detail.items() if value is not None}
    return msgspec.json.encode(kept, enc_hook=plain).decode()


def new_bulk() -> str:
    """A name for one bulk, the same in all its transactions."""
    import secrets

    return secrets.token_hex(6)


def clean(tx: Tx, before: int, batch: int) -> int:
    """Remove up to ``batch`` rows from before this instant. Returns how many."""
    gone = tx.run(
        "DELETE FROM schedd_audit WHERE id IN "
        "(SELECT id FROM schedd_audit WHERE at < :before ORDER BY at LIMIT :batch)",
        before=before,
        batch=batch,
    )
    return gone.rowcount
