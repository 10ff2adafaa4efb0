"""Records ends in a transaction of their own, beside the turn that claims (PostgreSQL).

One after the other, recording and claiming keep either the server or this process waiting. Where a backlog keeps both
busy, the ends are written from a second thread, through a second connection, while the turn claims through its own. The
turn waits for it before it ends, so nothing is ever recorded beside the next turn.

Neither waits for the other's rows: a claim passes over what is locked, and what is being recorded is not claimable
before its commit. Should the task of a lost claim be, the recording waits for the claim's commit, never the claim.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from scheduler.ports import Spawner
from scheduler.store.database import Database
from scheduler.store.finish import Finished
from scheduler.store.statement import run
from scheduler.store.wires import let_go

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

TRUSTED = 1.0  # seconds that its connection may have lain idle without being tried before it is used
JOIN = 1.0  # seconds to wait for the thread's end
AGAIN = 10.0  # seconds until a second connection, or the thread, is asked for again that could not be had

Write = Callable[["sa.Connection"], Finished]


class Recorder:
    """See the module. The engine's loop calls it, for one recording at a time.

    ``idle_limit``: seconds, as of ``Database.connect``. ``spawn`` None: it is done at once, in the caller's own thread
    (tests).
    """

    def __init__(self, database: Database, idle_limit: float, spawn: Spawner | None) -> None:
        self._database = database
        self._idle_limit = idle_limit
        self._spawn = spawn
        self._connection: sa.Connection | None = None
        self._used = 0.0  # when that was last made or used (monotonic)
        self._given: queue.SimpleQueue[tuple[sa.Connection, Write, Future[Finished]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stale = False  # plans are to be made anew
        self._not_before = 0.0  # monotonic
        self._told = False  # that it cannot be had

    def begin(self, write: Write) -> Future[Finished] | None:
        """Begin to do this in a transaction of its own; None: it cannot be had at present. The result may raise
        StoreUnavailableError, among others."""
        connection = self._ready()
        if connection is None:
            return None
        job = connection, write, Future[Finished]()
        if self._spawn is None:
            self._do(*job)
        else:
            self._given.put(job)
        self._used = time.monotonic()
        return job[2]

    def _ready(self) -> sa.Connection | None:
        """A connection that works, and a thread to use it. One that is refused (the server's limit, a pooler's) must
        not keep the turn from using its own."""
        if time.monotonic() < self._not_before:
            return None
        try:
            if self._connection is not None and time.monotonic() > self._used + TRUSTED:
                self._try_out(self._connection)
            # From the loop's thread, so that the guard cuts it with the loop's own should the server not answer.
            if self._connection is None:
                self._connection = self._database.connect(idle_limit=self._idle_limit)
            if self._thread is None and self._spawn is not None:
                self._thread = self._spawn(self._run, "schedd-recorder")
        except Exception as error:  # refused, no thread or file can be had: the turn's own connection will do
            self._not_before = time.monotonic() + AGAIN
            if not self._told:
                self._told = True
                log.warning("ends are recorded one transaction after the other, which is slower: %s", error)
            return None
        self._told = False
        return self._connection

    def _try_out(self, connection: sa.Connection) -> None:
        try:
            run(connection, "SELECT 1", {})
            connection.connection.rollback()
        except Exception:  # whatever it was: another one is made
            self.drop_connection()

    def flagged(self, name: str) -> bool:
        """Whether what was written has left this in its connection's ``info``; takes it away."""
        return self._connection is not None and bool(self._connection.info.pop(name, False))

    def forget_plans(self) -> None:
        """Let the server plan its statements anew: see ``Dialect.forget_plans``."""
        self._stale = True

    def failed(self) -> None:
        """What was begun has failed, for whatever reason: one transaction after the other, for a while."""
        self._not_before = max(self._not_before, time.monotonic() + AGAIN)
        self.drop_connection()

    def drop_connection(self) -> None:
        """Nothing may be under way."""
        connection, self._connection = self._connection, None
        let_go(connection)

    def close(self) -> None:
        """End the thread, once it has done what it was given. Nothing can be begun any more."""
        self._not_before = float("inf")
        self._given.put(None)
        if self._thread is not None:
            self._thread.join(JOIN)

    def _run(self) -> None:
        while (job := self._given.get()) is not None:
            self._do(*job)

    def _do(self, connection: sa.Connection, write: Write, done: Future[Finished]) -> None:
        try:
            with self._database.write(connection) as c:
                if self._stale:
                    self._database.dialect.forget_plans(c)
                    self._stale = False
                finished = write(c)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(finished)
