"""A connection that takes no commit for done whose wait for the standby was cancelled.

PostgreSQL answers such a commit with success and a warning: the primary has it, and a failover loses it. The server
does so at a cancel and at its statement_timeout. The caller gets an error instead, as if the answer had been lost.
"""

from __future__ import annotations

from typing import Any

import psycopg

from scheduler.store.db import pg_single
from scheduler.store.db.pg_single import Singles

_WAITS = "SyncRepWaitForLSN"  # the server's function that warns; the warning's text is in the server's language


class SynchronousConnection(psycopg.Connection[Any]):
    """See the module. Such an error closes it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        warnings: list[str] = []  # no reference to the connection, which is to go at once when it is dropped

        def notice(diagnostic: Any) -> None:
            if diagnostic.source_function == _WAITS:
                warnings.append(str(diagnostic.message_primary))

        self._warnings = warnings
        self.singles = Singles()
        self.user: int | None = None  # the thread that uses it
        self.distrusted = False  # it was cut, or leads to a server that takes no writes any more
        self.add_notice_handler(notice)

    def wait(self, *args: Any, **options: Any) -> Any:
        """Wait for an answer of the server. Raises psycopg.OperationalError if it is not the standby's, too."""
        found = super().wait(*args, **options)
        if self._warnings:
            self.close()
            raise psycopg.OperationalError(f"the commit may not be on the standby: {self._warnings[-1]}")
        return found

    def rollback(self) -> None:
        """As the driver's, with unread answers too: a pool calls it for what a program has dropped."""
        self.settle()
        super().rollback()

    one_row = pg_single.one_row
    send_notice = pg_single.send_notice
    plan_anew = pg_single.plan_anew

    def settle(self) -> None:
        """Read the unread answers of :meth:`one_row` and :meth:`send_notice`, first of all. Raises psycopg.Error."""
        if self.singles.entered:
            pg_single.settle(self)
