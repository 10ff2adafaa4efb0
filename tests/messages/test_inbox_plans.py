"""A batch of messages costs the same however many have come before: their rows are found by their keys."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import Context, Scheduler, Task
from scheduler.store import inbox
from support.databases import Database
from support.plans import plan

MANY = 50_000  # so many that no planner reads all of them for 50, whatever it knows of the table
HOUR = 3_600_000_000
RULES = inbox.InboxRules(HOUR, "me", None)


class Order(Task):
    number: int

    def run(self, _ctx: Context) -> None: ...


def batch(jobs: Scheduler, receipts: str) -> list[inbox.Arrival]:
    kind = jobs.submitter.registry.get("Order")
    assert kind is not None
    return [inbox.Arrival(f"k{n}", f"m{n}", kind.spec(Order(n)), None, f"{receipts}{n}", None, None) for n in range(50)]


@pytest.mark.parametrize("analyzed", ["before", "after"])
@pytest.mark.parametrize("again", [False, True], ids=["new", "again"])
def test_no_statement_reads_all_messages_of_a_source(database: Database, again: bool, analyzed: str) -> None:
    jobs = Scheduler(database.url)
    jobs.register(Order)
    if analyzed == "before":  # as the statistics are at first
        analyze(jobs)
    jobs.database.change(lambda tx: fill(tx, MANY))
    if analyzed == "after":
        analyze(jobs)
    if again:
        jobs.database.change(lambda tx: inbox.store(tx, "orders", batch(jobs, "r"), RULES))
    seen: dict[str, Any] = {}

    def noted(_conn: Any, _cursor: Any, text: str, bound: Any, *_: Any) -> None:
        if "UPDATE schedd_inbox" in text or "i.holder" in text:
            seen[text] = bound

    sa.event.listen(jobs.database.open(), "before_cursor_execute", noted)
    jobs.database.change(lambda tx: inbox.store(tx, "orders", batch(jobs, "s"), RULES))
    with jobs.database.read() as tx:
        assert len(inbox.open_messages(tx, "orders", "me")) == 50
    jobs.database.change(lambda tx: inbox.settled(tx, "orders", "me", [f"s{n}" for n in range(50)], done=True))
    sa.event.remove(jobs.database.open(), "before_cursor_execute", noted)
    assert len(seen) == 3
    for text, bound in seen.items():
        steps = plan(jobs, text, bound)
        assert not any("Seq Scan schedd_inbox" in step for step in steps), steps
        assert not any(step.endswith("PRIMARY KEY (source=?)") for step in steps), steps
    with jobs.database.read() as tx:
        assert inbox.open_messages(tx, "orders", "me") == []
    jobs.close()


def analyze(jobs: Scheduler) -> None:
    with jobs.database.open().connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("ANALYZE schedd_inbox")


def fill(tx: Any, count: int) -> None:
    """Messages that were settled long ago."""
    tx.run(
        "INSERT INTO schedd_inbox (source, message_key, message_id, verdict, first_at, last_at, expires_at) "
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count) "
        "SELECT 'orders', 'old' || i, 'old', 0, :now, :now, :now + :hour FROM n",
        count=count, now=tx.now, hour=HOUR,
    )  # fmt: skip
