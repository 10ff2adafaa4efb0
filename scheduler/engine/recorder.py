"""Records ends in a transaction of their own, beside the turn that claims (PostgreSQL).

One after the other, recording and claiming keep either the server or this process waiting. Where a backlog keeps both
busy, the ends are written from a second thread, through a second connection, while the turn claims through its own. The
turn waits for it before it ends, so nothing is ever recorded beside the next turn.

Neither waits for the other's rows: a claim passes over what is locked, and what is being recorded is not claimable
before its commit. Should the task of a lost claim be, the recording waits for the claim's commit, never the claim.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from scheduler.ports import Spawner
from scheduler.store.database import Database
from scheduler.store.finish import Finished

if TYPE_CHECKING:
    import sqlalchemy as sa

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
        self._given: queue.SimpleQueue[tuple[sa.Connection, Write, Future[Finished]] | None] = queue.SimpleQueue()
        self._started = False

    def begin(self, write: Write) -> Future[Finished]:
        """Begin to do this in a transaction of its own. Raises StoreUnavailableError; so may the result."""
        if self._connection is None or self._connection.closed or self._connection.invalidated:
            self.drop_connection()
            # From the loop's thread, so that the guard cuts it with the loop's own should the server not answer.
            self._connection = self._database.connect(idle_limit=self._idle_limit)
        job = self._connection, write, Future[Finished]()
        if self._spawn is None:
            self._do(*job)
        else:
            if not self._started:
                self._started = True
                self._spawn(self._run, "schedd-recorder")
            self._given.put(job)
        return job[2]

    def flagged(self, name: str) -> bool:
        """Whether what was written has left this in its connection's ``info``; takes it away."""
        return self._connection is not None and bool(self._connection.info.pop(name, False))

    def drop_connection(self) -> None:
        """Nothing may be under way."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.invalidate()
            with suppress(Exception):
                connection.close()

    def close(self) -> None:
        """End the thread, once it has done what it was given."""
        self._given.put(None)

    def _run(self) -> None:
        while (job := self._given.get()) is not None:
            self._do(*job)

    def _do(self, connection: sa.Connection, write: Write, done: Future[Finished]) -> None:
        try:
            with self._database.write(connection) as c:
                finished = write(c)
        except BaseException as error:
            done.set_exception(error)
        else:
            done.set_result(finished)
