"""``jobs.release_held``: messages that wait for others before them."""

from __future__ import annotations

from scheduler.client.threads import in_thread
from scheduler.model.actor import acting_as
from scheduler.store import inbox_held
from scheduler.store.db.database import Database


class MessageOperations:
    """The part of the Scheduler that steers messages. Needs ``database``, ``threads`` and ``_notify``."""

    database: Database

    def _notify(self) -> None:
        raise NotImplementedError

    def release_held(
        self, source: str, *, subject: str | None = None, by: str | None = None, reason: str | None = None
    ) -> list[int]:
        """Run messages of a source that are held since others of their subject are missing; returns the tasks' ids.

        ``subject``: of this one only. They run in their order; a missing message that comes later does not run. The
        audit records ``by`` and ``reason``. Raises StoreUnavailableError.
        """
        made: list[int] = []
        with acting_as(by, reason=reason):
            while more := self.database.change(lambda tx: inbox_held.release(tx, source, subject)):
                made += more
        if made:
            self._notify()
        return made

    release_held_async = in_thread(release_held)
