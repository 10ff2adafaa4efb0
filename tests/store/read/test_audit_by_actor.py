"""What one actor has changed is found by an index, however much others have."""

from __future__ import annotations

from typing import Any

from scheduler.store.read.audit import AuditFilter, entries
from support.bench import Bench
from support.plans import Seen, plan

MANY = 20_000
SERIES = {
    "sqlite": "(WITH RECURSIVE s(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM s WHERE i < :many) SELECT i FROM s) s",
    "postgresql": "(SELECT i FROM generate_series(1, CAST(:many AS bigint)) i) s",
}


class SeenAudit(Seen):
    def note(self, text: str, bound: Any) -> None:
        if "FROM schedd_audit" in text:
            self.statements[text] = dict(bound) if isinstance(bound, dict) else list(bound)


def test_entries_of_a_rare_actor_are_not_looked_for_among_all(bench: Bench) -> None:
    database = bench.jobs.database
    bench.execute(
        "INSERT INTO schedd_audit (at, action, actor, via, detail) SELECT i, 'retry', "
        f"CASE WHEN i % 10000 = 5 THEN 'bob' ELSE 'ada' END, 'cli', '{{}}' FROM {SERIES[database.dialect.name]}",
        many=MANY,
    )
    with database.alone() as connection:
        connection.exec_driver_sql("ANALYZE schedd_audit")
    seen = SeenAudit()
    with seen.watch(bench.jobs), database.read() as tx:
        found, cursor = entries(tx, AuditFilter(actor="bob"), 100)
    assert [entry.at for entry in found] == [10_005, 5]
    assert cursor is None
    ((text, bound),) = seen.statements.items()
    steps = plan(bench.jobs, text, bound)
    assert any("ix_schedd_audit_actor" in step for step in steps), steps
