"""``jobs.release_held``: messages that wait for others before them."""

from __future__ import annotations

from scheduler.client.threads import in_thread
from scheduler.model.actor import acting_as
from scheduler.operations import messages
from scheduler.operations.desk import Desk


class MessageOperations:
    """The part of the Scheduler that steers messages. Needs ``desk`` and ``threads``."""

    desk: Desk

    def release_held(
        self, source: str, *, subject: str | None = None, by: str | None = None, reason: str | None = None
    ) -> list[int]:
        """Run messages of a source that are held since others of their subject are missing; returns the tasks' ids.

        ``subject``: of this one only. They run in their order; a missing message that comes later does not run. The
        audit records ``by`` and ``reason``. Raises StoreUnavailableError.
        """
        with acting_as(by, reason=reason):
            return messages.release(self.desk, source, subject)

    release_held_async = in_thread(release_held)
