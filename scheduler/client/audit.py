"""``jobs.acting`` and ``jobs.audit``: who changes something, and who changed what."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any

import msgspec

from scheduler.client.info import info
from scheduler.client.threads import in_thread
from scheduler.errors import ConfigError
from scheduler.model.actor import acting_as
from scheduler.model.names import check_whole
from scheduler.model.spec import check_id
from scheduler.model.texts import storable
from scheduler.model.times import instant_us
from scheduler.operations import masks
from scheduler.operations.audit import AuditFilter, entries
from scheduler.operations.desk import Desk

MAX_ENTRIES = 100_000


class AuditEntry(msgspec.Struct, frozen=True):
    """One change: ``actor`` did ``action`` (cancel, retry, replay, "schedule paused", …) to ``task_id`` or ``subject``.

    ``via``: python, cli, page, api, mcp or http. ``bulk``: the same for all entries of one change of many tasks, which
    ``filter`` chose. ``before`` and ``after``: what the change replaced, and by what; ``detail``: what else is worth
    knowing.
    """

    id: int
    task_id: int | None
    at: datetime
    actor: str | None
    action: str
    detail: dict[str, Any]
    via: str = "python"
    reason: str | None = None
    subject: str | None = None
    bulk: str | None = None
    filter: dict[str, Any] | None = None
    before: Any = None
    after: Any = None


class AuditOperations:
    """The part of the Scheduler that records and reads who changed what. Needs ``desk`` and ``threads``."""

    desk: Desk

    def acting(
        self, by: str | None = None, *, reason: str | None = None, via: str | None = None
    ) -> AbstractContextManager[None]:
        """Say who makes the changes within, and why: ``with jobs.acting("alice", reason="wrong customer"): …``.

        Holds for this thread, or this coroutine and what it awaits, on every Scheduler. ``by``: by default the user of
        the process; ``via``: the door (python, cli, page, api, mcp, http). Raises ConfigError for too long a text.
        """
        return acting_as(by, reason=reason, via=via)

    def audit(
        self,
        task: int | None = None,
        *,
        action: str | None = None,
        by: str | None = None,
        subject: str | None = None,
        via: str | None = None,
        bulk: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        cursor: int | None = None,
    ) -> Sequence[AuditEntry]:
        """Changes and who made them, the newest first; also of tasks that were removed since.

        ``action``: such as ``cancel``; ``schedule`` means all that begin so. ``subject``: such as ``queue mail``, or
        ``queue`` for all queues. ``since`` and ``until``: aware datetimes. ``cursor``: only entries older than the one
        with this id. Entries stay for ``[retention] audit``. Raises ConfigError, StoreUnavailableError.
        """
        for name, text in (("action", action), ("by", by), ("subject", subject), ("via", via), ("bulk", bulk)):
            if text is not None and (not isinstance(text, str) or text != storable(text)):
                raise ConfigError(f"{name} must be a text, not {text!r:.80}")
        check_whole(limit, "limit", 1, MAX_ENTRIES)
        for name, number in (("task", task), ("cursor", cursor)):
            if number is not None:
                check_whole(number, name)
        first = None if since is None else instant_us(since, "since")
        end = None if until is None else instant_us(until, "until")
        wanted = AuditFilter(task, action, by, subject, via, bulk, first, end)
        with self.desk.read() as tx:
            found, _ = entries(tx, wanted, limit, cursor)
        return [info(AuditEntry, record) for record in found]

    def reveal(self, task_id: int) -> Any:
        """The decoded payload of a task with its secrets, for a person: the audit says who saw it (:meth:`acting`).

        Programs that need not say so read :meth:`get_task`. Raises UnknownTaskError, StoreUnavailableError.
        """
        check_id(task_id)
        return masks.reveal(self.desk, task_id)

    def masked(self, task_id: int) -> Any:
        """The decoded payload of a task with ``***`` in place of its secrets. Raises as :meth:`reveal`."""
        check_id(task_id)
        return masks.hidden(self.desk, task_id)

    audit_async = in_thread(audit)
    reveal_async = in_thread(reveal)
    masked_async = in_thread(masked)
