"""A store with workers that have rows but no engines, for tests of the store alone."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import sqlalchemy as sa

from scheduler.model import state as st
from scheduler.model.capacity import Capacity
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.spec import EdgeSpec, TaskSpec
from scheduler.model.state import Otherwise, When
from scheduler.store import reaper, workers
from scheduler.store.db.database import Database as Store
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.claim import (
    Claimed,
    LaneClaim,
    claim,
)
from scheduler.store.tasks.complete import Completion, RowLocked, finish
from scheduler.store.tasks.enqueue import enqueue
from scheduler.store.workers import WorkerInfo
from scheduler.testing import FakeClock

S = 1_000_000
LEASE = 30 * S


class Bare:
    """A store with workers that have rows but no engines."""

    def __init__(self, url: str, clock: FakeClock) -> None:
        self.clock = clock
        self.store = Store(url, clock)
        self.dialect = self.store.dialect

    def worker(self, name: str) -> int:
        info = WorkerInfo(name, "host", 1, "0", ["*"], Capacity())
        with self.store.write() as tx:
            return workers.register(tx.at(self.clock.now()), info, [], LEASE)

    def task(self, *parents: int, count: int = 1, **options: Any) -> list[int]:
        edges = [EdgeSpec(p, When.SUCCESS, Otherwise.FAIL) for p in parents]
        specs = [TaskSpec("kind", "{}", "kind", edges=edges, **options) for _ in range(count)]
        with self.store.write() as tx:
            return [int(i) for i in enqueue(tx.at(self.clock.now()), specs)]

    def claim(self, worker: int, count: int = 10, connection: sa.Connection | None = None) -> list[Claimed]:
        picks = [LaneClaim("default", "kind", 1, count)]
        if connection is not None:
            return claim(Tx(connection, self.clock.now()), worker, picks)
        with self.store.write() as tx:
            return claim(tx.at(self.clock.now()), worker, picks)

    def outcome(
        self, c: Claimed, end: AttemptEnd = AttemptEnd.SUCCEEDED, state: int = st.SUCCESS, **more: Any
    ) -> Outcome:
        now = self.clock.now()
        return Outcome(c.id, c.claim, c.attempt, end, state, c.claimed_at, now, now, **more)

    def finish(self, worker: int, *outcomes: Outcome) -> Completion:
        """On PostgreSQL both ways, which have to come to the same."""
        quickly = self.finish_quickly(worker, *outcomes) if self.dialect.name == "postgresql" else None
        with self.store.write() as tx:
            done = finish(tx.at(self.clock.now()), worker, outcomes)
            rows = self.rows(tx.connection)
        if quickly is not None:
            assert (done, rows) == quickly
        return done

    def finish_quickly(self, worker: int, *outcomes: Outcome) -> tuple[Completion, object] | None:
        """What writing without locking first would make of it; None: it cannot."""
        with self.store.connect() as c, c.begin() as undone:
            try:
                return finish(Tx(c, self.clock.now()), worker, outcomes, skip_locks=True), self.rows(c)
            except RowLocked:
                return None
            finally:
                undone.rollback()

    def finish_meanwhile(self, worker: int, outcome: Outcome, *, skip_locks: bool) -> Future[Completion]:
        """Finish in another thread. Returns once that thread has ended or waits for another transaction."""
        done: Future[Completion] = Future()

        def work() -> None:
            try:
                with self.store.write() as tx:
                    completion = finish(tx.at(self.clock.now()), worker, [outcome], skip_locks=skip_locks)
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(completion)

        threading.Thread(target=work, daemon=True).start()
        waiting = sa.text(  # in this database: other tests share the server
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        with self.store.connect() as c:
            while not done.done() and not c.execute(waiting).scalar():
                c.rollback()  # the view stays as it was first seen in a transaction
        return done

    def rows(self, c: sa.Connection) -> object:
        tables = {"schedd_tasks": "id", "schedd_attempts": "task_id, claim", "schedd_edges": "parent, child"}
        return [c.execute(sa.text(f"SELECT * FROM {t} ORDER BY {by}")).fetchall() for t, by in tables.items()]

    def reap(self) -> None:
        with self.store.write() as tx:
            reaper.reap(tx.at(self.clock.now()))

    def row(self, task_id: int) -> Any:
        with self.store.read() as tx:
            return tx.connection.execute(sa.text("SELECT * FROM schedd_tasks WHERE id = :id"), {"id": task_id}).one()

    def history(self, task_id: int) -> list[tuple[int, str]]:
        sql = "SELECT claim, outcome FROM schedd_attempts WHERE task_id = :id ORDER BY claim"
        with self.store.read() as tx:
            found = tx.connection.execute(sa.text(sql), {"id": task_id}).fetchall()
        return [(row.claim, AttemptEnd.from_code(row.outcome).value) for row in found]
