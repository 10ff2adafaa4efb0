"""The order of messages within a subject: their tasks run one after the other, by ``sequence``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from scheduler.model import inbox
from scheduler.model.inbox import InboxState
from scheduler.model.spec import EdgeSpec, TaskSpec
from scheduler.model.state import FIRST_TERMINAL, Otherwise, When
from scheduler.store.db.dialect import bind_rows
from scheduler.store.db.tx import Tx

MOST_HELD = 1000  # messages of one subject that one transaction lets go


class Ordering(NamedTuple):
    """``gap``: what a message does while others before it are missing. ``first``: the first sequence of a subject."""

    gap: str
    first: int = 1


class SubjectOrder:
    """How far one subject has come. Collects the messages of a batch, then chains those that may go."""

    def __init__(self, tx: Tx, source: str, subject: str, last: int, task_id: int | None, gap: str) -> None:
        self.subject = subject
        self.kept_out: list[tuple[InboxState | None, str]] = []
        self._tx = tx
        self._source = source
        self._last = last
        self._task_id = task_id
        self._gap = gap
        self._going: list[tuple[str, TaskSpec]] = []
        self._held: list[tuple[str, TaskSpec]] = []

    def take(self, key: str, sequence: int, spec: TaskSpec) -> None:
        """A message of the batch; to be called by rising sequence."""
        if sequence <= self._last:
            self.kept_out.append((InboxState.LATE, key))
        elif sequence == self._last + 1 or self._gap == "skip":
            self._go(key, sequence, spec)
            self._follow()
        elif self._gap == "wait":
            self.kept_out.append((InboxState.HELD, key))
            self._held.append((key, spec))
        else:
            self.kept_out.append((None, key))

    def skip(self, before: int) -> None:
        """Let the first held message go that has waited since ``before``, and what it held up; repeatedly."""
        for row in self._held_rows("AND i.first_at <= :before ", before=before):
            if row.sequence > self._last:
                self._go(row.message_key, row.sequence, msgspec.json.decode(row.held, type=TaskSpec))
            else:  # a later one went ahead under other settings
                self.kept_out.append((InboxState.LATE, row.message_key))
        self._follow()

    def _go(self, key: str, sequence: int, spec: TaskSpec) -> None:
        self._last = sequence
        self._going.append((key, spec))

    def _follow(self) -> None:
        """Held messages that follow without a gap go, too."""
        for row in self._held_rows("AND i.sequence > :last ", last=self._last):
            if row.sequence != self._last + 1:
                break
            self._go(row.message_key, row.sequence, msgspec.json.decode(row.held, type=TaskSpec))

    def _held_rows(self, more: str, **bound: int) -> Sequence[Any]:
        return self._tx.run(
            "SELECT i.message_key, i.sequence, i.held FROM schedd_inbox i WHERE i.source = :source "
            f"AND i.subject = :subject AND i.held IS NOT NULL {more}ORDER BY i.sequence LIMIT :most",
            source=self._source,
            subject=self.subject,
            most=MOST_HELD,
            **bound,
        ).all()

    def chained(self, position: int) -> list[tuple[str, TaskSpec]]:
        """The tasks that may go, each after the one before it. ``position``: of the first in the batch to be stored."""
        found: list[tuple[str, TaskSpec]] = []
        for number, (key, spec) in enumerate(self._going):
            if number:
                edge = EdgeSpec(position + number - 1, When.FINISHED, Otherwise.RUN, local=True)
            elif self._task_id is not None:
                edge = EdgeSpec(self._task_id, When.FINISHED, Otherwise.RUN)
            else:
                found.append((key, spec))
                continue
            found.append((key, msgspec.structs.replace(spec, edges=[*spec.edges, edge])))
        return found

    def save(self, tx: Tx, made: Mapping[str, int]) -> None:
        """Write how far the subject has come, and what waits, once the tasks are stored."""
        for verdict, key in self.kept_out:
            self._keep_out(tx, verdict, key)
        if self._going:
            tx.run(
                "UPDATE schedd_inbox_subjects SET sequence = :sequence, task_id = :task, at = :now "
                "WHERE source = :source AND subject = :subject",
                sequence=self._last,
                task=made[self._going[-1][0]],
                now=tx.now,
                source=self._source,
                subject=self.subject,
            )

    def _keep_out(self, tx: Tx, verdict: InboxState | None, key: str) -> None:
        named = {"source": self._source, "key": key}
        if verdict is None:
            tx.run("DELETE FROM schedd_inbox WHERE source = :source AND message_key = :key", **named)
            return
        spec = next((spec for held, spec in self._held if held == key), None)
        late = "a later message of its subject went ahead"
        tx.run(
            "UPDATE schedd_inbox SET verdict = :verdict, held = :held, error = :error, receipt = NULL, holder = NULL "
            "WHERE source = :source AND message_key = :key",
            verdict=verdict.code,
            held=None if spec is None else msgspec.json.encode(spec).decode(),
            error=late if verdict.code == inbox.LATE else None,
            **named,
        )


def place(tx: Tx, source: str, subjects: Sequence[str], ordering: Ordering) -> list[SubjectOrder]:
    """The places of these subjects, in their order, locked until the transaction ends."""
    if not subjects:
        return []
    rows = bind_rows([(subject,) for subject in subjects])
    tx.run(
        "INSERT INTO schedd_inbox_subjects (source, subject, sequence, at) "
        f"SELECT CAST(:source AS text), subject, CAST(:before AS bigint), CAST(:now AS bigint) "
        f"FROM {tx.dialect.rows({'subject': str})} j WHERE true ON CONFLICT (source, subject) DO NOTHING",
        rows=rows,
        source=source,
        before=ordering.first - 1,
        now=tx.now,
    )
    found = tx.run(
        "SELECT t.subject, t.sequence, t.task_id FROM schedd_inbox_subjects t WHERE t.source = :source "
        f"AND t.subject IN (SELECT subject FROM {tx.dialect.rows({'subject': str})} j) "
        f"ORDER BY t.subject {tx.dialect.lock}",
        rows=rows,
        source=source,
    ).all()
    live = _live(tx, [row.task_id for row in found if row.task_id is not None])
    return [
        SubjectOrder(tx, source, row.subject, row.sequence, row.task_id if row.task_id in live else None, ordering.gap)
        for row in found
    ]


def _live(tx: Tx, ids: Sequence[int]) -> set[int]:
    """Those of these tasks that have not ended: only for them another one waits."""
    if not ids:
        return set()
    rows = tx.run(
        f"SELECT t.id FROM schedd_tasks t WHERE t.id IN {tx.dialect.ids()} AND t.state < {FIRST_TERMINAL}",
        ids=bind_rows(ids),
    )
    return {row.id for row in rows}
