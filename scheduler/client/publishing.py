"""``jobs.publish`` sends messages to sinks; ``jobs.release_held`` runs what waits for messages before it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from scheduler.client.submitter import TaskSubmitter
from scheduler.client.threads import in_thread
from scheduler.model.actor import acting_as
from scheduler.model.outgoing import outgoing_spec
from scheduler.model.running import inherit
from scheduler.model.spec import TaskId, TaskSpec
from scheduler.model.times import span_us
from scheduler.operations import messages
from scheduler.operations.desk import Desk
from scheduler.store import outbox
from scheduler.store.db.tx import CallersTx, Tx
from scheduler.store.tasks.enqueue import callers_connection

log = logging.getLogger("scheduler.client")

if TYPE_CHECKING:
    from scheduler.client.submitter import PlainConnection


class PublishOperations:
    """The part of the Scheduler that publishes. Needs ``submitter`` and ``threads``."""

    @property
    def submitter(self) -> TaskSubmitter:
        raise NotImplementedError

    @property
    def known_sinks(self) -> frozenset[str]:
        """Sinks of the program's own configuration."""
        return self.submitter.known_sinks

    @known_sinks.setter
    def known_sinks(self, names: frozenset[str]) -> None:
        self.submitter.known_sinks = names

    def publish(
        self,
        sink: str,
        payload: Any = None,
        *,
        key: str | None = None,
        message_type: str | None = None,
        subject: str | None = None,
        group: str | None = None,
        correlation: str | None = None,
        causation: str | None = None,
        sequence: int | None = None,
        payload_ref: str | None = None,
        headers: Mapping[str, Any] | None = None,
        schema_version: int = 1,
        delay: float | timedelta | str = 0,
        connection: PlainConnection | None = None,
    ) -> TaskId[Any]:
        """Store a message to ``[sinks.NAME]``; a daemon that has the sink publishes it, at least once.

        ``payload``: any JSON value, up to 128 KiB; or ``payload_ref``, where it is. ``key``: by which its receiver
        knows it again; a message of this key that is stored already keeps this one out. ``group``: messages of one
        group go out one after the other. ``delay``: seconds or timedelta. ``connection``: the caller's own; the
        message goes out if that commits. Returns the id of the task that stands for the message: it is retried, is a
        dead letter in the end, and can be replayed as any other. Raises PayloadError; ConfigError, also if workers
        have sinks, but none of this name; StoreUnavailableError.
        """
        caller = self.submitter
        own = TaskSpec(kind="", payload="", lane="", correlation=correlation, causation=causation)
        inherit(own)
        fields = {
            "message_type": message_type,
            "schema_version": schema_version,
            "subject": subject,
            "correlation_id": own.correlation,
            "causation_id": own.causation,
            "sequence": sequence,
            "payload_ref": payload_ref,
            "payload_inline": payload,
        }
        spec = outgoing_spec(
            sink,
            secrets.token_hex(16) if key is None else key,
            fields,
            now=caller.database.now(),
            headers=headers,
            group=group,
            delay=span_us(delay, "delay"),
            keyed=key is not None,
        )
        known = self.known_sinks

        def put(tx: Tx) -> tuple[TaskId, bool]:
            (made,) = outbox.put(tx, [spec], [group], sinks=known)
            return made, sink in known or outbox.is_published(tx, spec.kind)

        if connection is None:
            made, published = caller.database.change(put)
            caller.notify()
        else:
            with callers_connection(connection) as theirs:
                caller.database.open_beside(theirs)
                made, published = put(CallersTx(theirs, caller.database.now()))
                caller.notify_after_commit(theirs)
        if not published:
            text = "no worker has published a sink yet: the message waits for a daemon that has [sinks.%s]"
            log.warning(text, sink, extra={"task": int(made)})
        return made

    publish_async = in_thread(publish)


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
