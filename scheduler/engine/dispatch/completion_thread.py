"""Records outcomes from a second thread and connection while the cycle claims (PostgreSQL).

With a backlog this keeps the server and this process busy at the same time. The cycle joins the recording before it
ends, so no two cycles overlap.

The claim never waits for the recording: it skips locked rows, and a task is not claimable before its outcome commits.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from scheduler.backoff import LogOnce
from scheduler.ports import Spawner
from scheduler.store.db.database import Database
from scheduler.store.db.pg_connections import let_go
from scheduler.store.db.statements import run
from scheduler.store.db.tx import Tx
from scheduler.store.tasks.complete import Completion

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

UNTESTED_IDLE_S = 1.0  # a connection idle for longer is tested before use
JOIN_TIMEOUT_S = 1.0  # for the thread's end
RETRY_AFTER_S = 10.0  # until a refused connection or thread is tried again

Write = Callable[[Tx], Completion]


class CompletionThread:
    """Runs one write at a time for the engine's loop.

    ``idle_limit``: seconds, as of ``Database.connect``. ``spawn`` None: run in the caller's thread (tests).
    """

    def __init__(self, database: Database, idle_limit: float, spawn: Spawner | None) -> None:
        self._database = database
        self._idle_limit = idle_limit
        self._spawn = spawn
        self._connection: sa.Connection | None = None
        self._used = 0.0  # when that was last made or used (monotonic)
        self._given: queue.SimpleQueue[tuple[sa.Connection, Write, Future[Completion]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stale = False  # the server is to plan statements anew
        self._not_before = 0.0  # monotonic
        self._logged = LogOnce()  # that no connection can be had

    @property
    def thread(self) -> threading.Thread | None:
        """The thread; None if there is none yet."""
        return self._thread

    def begin(self, write: Write) -> Future[Completion] | None:
        """Start a write in a transaction of its own; None: no connection or thread can be had at present.

        The result may raise StoreUnavailableError, among others.
        """
        connection = self._ready()
        if connection is None:
            return None
        job = connection, write, Future[Completion]()
        if self._spawn is None:
            self._do(*job)
        else:
            self._given.put(job)
        self._used = time.monotonic()
        return job[2]

    def _ready(self) -> sa.Connection | None:
        """A tested connection, with the thread started; None if either is refused. The cycle then uses its own."""
        if time.monotonic() < self._not_before:
            return None
        try:
            if self._connection is not None and time.monotonic() > self._used + UNTESTED_IDLE_S:
                self._test(self._connection)
            # From the loop's thread, so that the guard cuts it with the loop's own should the server not answer.
            if self._connection is None:
                self._connection = self._database.connect(idle_limit=self._idle_limit)
            if self._thread is None and self._spawn is not None:
                self._thread = self._spawn(self._run, "schedd-recorder")
        except Exception as error:  # refused, no thread or file can be had: the cycle's own connection will do
            self._not_before = time.monotonic() + RETRY_AFTER_S
            if self._logged.is_new():
                log.warning("ends are recorded one transaction after the other, which is slower: %s", error)
            return None
        self._logged.clear()
        return self._connection

    def _test(self, connection: sa.Connection) -> None:
        try:
            run(connection, "SELECT 1", {})
            connection.connection.rollback()
        except Exception:  # whatever it was: another one is made
            self.drop_connection()

    def flagged(self, name: str) -> bool:
        """Take this flag out of the connection's ``info``; whether it was set."""
        return self._connection is not None and bool(self._connection.info.pop(name, False))

    def forget_plans(self) -> None:
        """Let the server plan its statements anew: see ``Dialect.forget_plans``."""
        self._stale = True

    def failed(self) -> None:
        """After a failed write: use the cycle's own transaction for a while."""
        self._not_before = max(self._not_before, time.monotonic() + RETRY_AFTER_S)
        self.drop_connection()

    def drop_connection(self) -> None:
        """Drop the connection; no write may be under way."""
        connection, self._connection = self._connection, None
        let_go(connection)

    def close(self) -> None:
        """End the thread after its last write. Later writes are refused."""
        self._not_before = float("inf")
        self._given.put(None)
        if self._thread is not None:
            self._thread.join(JOIN_TIMEOUT_S)

    def _run(self) -> None:
        while (job := self._given.get()) is not None:
            self._do(*job)

    def _do(self, connection: sa.Connection, write: Write, done: Future[Completion]) -> None:
        try:
            with self._database.write(connection) as tx:
                if self._stale:
                    self._database.dialect.forget_plans(tx.connection)
                    self._stale = False
                finished = write(tx)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(finished)
