"""Messages that go out, as tasks of their sinks: stored in the order of their groups, and read for people."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from scheduler.model import state as st
from scheduler.model.outgoing import OUTBOX
from scheduler.model.spec import EdgeSpec, TaskId, TaskSpec
from scheduler.model.state import Otherwise, When
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.enqueue import enqueue, hold_writes


def put(tx: Tx, specs: Sequence[TaskSpec], groups: Sequence[str | None], *, ours: bool) -> list[TaskId]:
    """Store messages. One of a group waits until those before it have gone out, or are dead letters.

    The groups are locked until the transaction ends, so that their order is that of the commits. ``ours``: as
    :func:`enqueue` has it.
    """
    if not ours:
        hold_writes(tx)
    wanted: list[TaskSpec] = []
    last: dict[tuple[str, str], int] = {}
    names = {f"{spec.kind} {group}" for spec, group in zip(specs, groups, strict=True) if group is not None}
    for name in sorted(names):
        tx.dialect.await_name(tx.connection, f"outbox {name}")
    for position, (spec, group) in enumerate(zip(specs, groups, strict=True)):
        if group is not None:
            before = last.get((spec.kind, group))
            if before is None:
                parents = _last_of(tx, spec.kind, group)
                edges = [EdgeSpec(parent, When.FINISHED, Otherwise.RUN) for parent in parents]
            else:
                edges = [EdgeSpec(before, When.FINISHED, Otherwise.RUN, local=True)]
            last[spec.kind, group] = position
            wanted.append(msgspec.structs.replace(spec, edges=edges) if edges else spec)
        else:
            wanted.append(spec)
    return enqueue(tx, wanted, ours=ours)


def _last_of(tx: Tx, kind: str, group: str) -> list[int]:
    """The messages of a group that have not gone out, without those that another one waits for."""
    return [
        row.id
        for row in tx.run(
            f"SELECT t.id FROM schedd_tasks t WHERE t.subject = :subject AND t.kind = :kind AND t.queue = '{OUTBOX}' "
            f"AND t.state < {st.FIRST_TERMINAL} AND NOT EXISTS (SELECT 1 FROM schedd_edges e "
            f"JOIN schedd_tasks c ON c.id = e.child WHERE e.parent = t.id AND c.kind = :kind) ORDER BY t.id",
            kind=kind,
            subject=group,
        )
    ]


def result_of(tx: Tx, task_id: int) -> str | None:
    """The result of a task, as JSON; None if it is gone."""
    row = tx.run("SELECT t.result FROM schedd_tasks t WHERE t.id = :id", id=task_id).first()
    if row is not None and row.result is not None:
        return str(row.result)
    row = tx.run(
        "SELECT v.value FROM schedd_task_values v WHERE v.task_id = :id AND v.name = 'result'", id=task_id
    ).first()
    return None if row is None else str(row.value)
