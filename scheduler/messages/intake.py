"""Intake: stores the deliveries of one source as tasks, and says what to tell the transport."""

from __future__ import annotations

import base64
import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from scheduler.client.submitter import TaskSubmitter
from scheduler.config.messages import SourceSection
from scheduler.errors import SchedulerError, StoreUnavailableError
from scheduler.messages.reading import Letter, SourceReader
from scheduler.messages.texts import UNKNOWN, as_reason, digest, stored_form
from scheduler.model.fingerprint import describe
from scheduler.model.inbox import INBOX, InboxState
from scheduler.model.inbox import UNREADABLE as UNREADABLE
from scheduler.model.json_text import encode_json
from scheduler.model.lanes import LANE_SEPARATOR
from scheduler.model.spec import TaskSpec
from scheduler.model.state import TaskState
from scheduler.model.texts import storable
from scheduler.ports import FAILPOINTS, SECOND
from scheduler.store import inbox
from scheduler.store.db.tx import Tx
from scheduler.store.inbox_order import Ordering
from scheduler.store.read.kinds import get_kind
from scheduler.telemetry.metrics import MESSAGES_DEAD
from scheduler.telemetry.traffic import Traffic
from scheduler.transports.ports import Ack, Dead, Delivery, Limits, Retry, Verdict

DAY = 86_400.0
RETENTION = 14 * DAY  # for how long a transport may deliver again that does not say so
REDRIVE = 4 * DAY  # for which messages may lie in a dead-letter queue until they are sent again
MAX_KEPT_BODY = 64 * 1024  # bytes of an unreadable message that a dead task keeps

log = logging.getLogger("scheduler.messages")


class Taken(NamedTuple):
    """What became of one delivery. ``verdict`` None: its task's end settles it. ``key``: of the message."""

    delivery: Delivery
    key: str
    verdict: Verdict | None
    entry: inbox.InboxEntry | None


class Intake:
    """Takes the deliveries of one source. ``holder``: who has their receipts, if the task's end settles them."""

    def __init__(
        self,
        name: str,
        section: SourceSection,
        limits: Limits,
        caller: TaskSubmitter,
        holder: str | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.name = name
        self.traffic = traffic or Traffic()
        self.section = section
        self.reader = SourceReader(name, section, caller)
        self.queues: set[str] = set() if section.task_queue is None else {section.task_queue}
        self.database = caller.database
        self.failing: str | None = None  # why a message of the last batch could neither be stored nor noted
        self._knows_kind = False
        self._limits = limits
        self._caller = caller
        self._at_end = section.ack == "end" and holder is not None
        self._to_dlq = limits.has_dlq and section.dlq != "none"
        kept = (limits.retention or RETENTION) + REDRIVE if section.keep is None else section.keep
        self.ordering = None if section.ordered_by is None else Ordering(section.gap, section.first_sequence)
        self._rules = inbox.InboxRules(round(kept * SECOND), holder, self.ordering)

    def take(self, deliveries: Sequence[Delivery]) -> list[Taken]:
        """Store a batch in one transaction; what to tell the transport is only true once this has returned.

        One for each delivery, in their order. A message that cannot be stored harms no other. Raises
        StoreUnavailableError: then nothing may be acknowledged, whatever has been committed.
        """
        if not deliveries:
            return []
        self.failing = None
        return self._take(deliveries)

    def _take(self, deliveries: Sequence[Delivery]) -> list[Taken]:
        FAILPOINTS.hit("inbox.received")
        letters = [self.reader.read(delivery) for delivery in deliveries]
        try:
            taken = self._store(list(zip(deliveries, letters, strict=True)))
        except StoreUnavailableError:
            raise
        except Exception as error:  # one of them cannot be stored: find out which
            if len(deliveries) > 1:
                return [one for delivery in deliveries for one in self._take([delivery])]
            taken = [self._bury(deliveries[0], letters[0], error)]
        FAILPOINTS.hit("inbox.stored")
        self.notify()
        for one, letter in zip(taken, letters, strict=True):
            self._log(one, letter)
            if letter.spec is None and (one.entry is None or not one.entry.again):
                self.traffic.count(MESSAGES_DEAD, self.name)
        return taken

    def _bury(self, delivery: Delivery, letter: Letter, error: Exception) -> Taken:
        """Note that a message cannot be stored; if not even that can be, it comes again, and no other suffers."""
        log.error("source %s: message %s cannot be stored", self.name, as_reason(delivery.message_id), exc_info=error)
        text = str(error) if isinstance(error, SchedulerError) else f"it cannot be stored: {type(error).__name__}"
        try:
            (taken,) = self._store([(delivery, letter._replace(spec=None, error=as_reason(text)))])
        except StoreUnavailableError:
            raise
        except Exception as other:
            log.error("source %s: nor can a note of it", self.name, exc_info=other)
            self.failing = as_reason(f"a message cannot be stored, nor a note of it: {describe(other).text}")
            return Taken(delivery, letter.key, self.retry(delivery.receipt, self.section.retry, self.failing), None)
        return taken

    def unknown_kind(self) -> str | None:
        """The kind of the source's tasks, if no program has registered it yet: its messages would all be dead."""
        name = self.section.kind
        if name is None or self._knows_kind or self._caller.registry.get(name) is not None:
            return None
        with self.database.read() as tx:
            self._knows_kind = get_kind(tx, name) is not None
        return None if self._knows_kind else name

    def notify(self) -> None:
        """Wake the engines: there are new tasks."""
        self._caller.notify()

    def _store(self, read: Sequence[tuple[Delivery, Letter]]) -> list[Taken]:
        arrivals = [self._arrival(delivery, letter) for delivery, letter in read]

        def work(tx: Tx) -> list[inbox.InboxEntry]:
            return inbox.store(tx, self.name, self._by_former_keys(tx, arrivals, read), self._rules)

        entries = self._caller.database.change(work)
        now = self._caller.database.now()
        self.queues |= {letter.spec.queue for _, letter in read if letter.spec is not None}
        return [
            Taken(delivery, entry.key, self._verdict(delivery, letter, entry, now), entry)
            for (delivery, letter), entry in zip(read, entries, strict=True)
        ]

    def _by_former_keys(
        self, tx: Tx, arrivals: list[inbox.Arrival], read: Sequence[tuple[Delivery, Letter]]
    ) -> list[inbox.Arrival]:
        """Those that have come before under a former key have it again."""
        formers = [one.former_key for one, _ in read]
        if not any(formers):
            return arrivals
        there = inbox.message_ids(tx, self.name, sorted({one for one in formers if one is not None}))
        return [
            arrival if key is None or there.get(key) != arrival.message_id else arrival._replace(key=key)
            for key, arrival in zip(formers, arrivals, strict=True)
        ]

    def _arrival(self, delivery: Delivery, letter: Letter) -> inbox.Arrival:
        spec, error, key = letter.spec, letter.error, letter.key
        kept = stored_form(delivery)
        if spec is None and not self._to_dlq:
            spec = _unreadable(self.name, kept, error or "")
            if key.startswith(UNKNOWN):  # senders may choose ids: another message of this id is kept, too
                key = f"{key[:128]} {digest(delivery.body)[:32]}"
        message = letter.message
        by_end = self._at_end and letter.spec is not None and delivery.receipt == storable(delivery.receipt)
        return inbox.Arrival(
            key,
            kept.message_id,
            spec,
            error,
            delivery.receipt if by_end else None,
            None if message is None else message.subject,
            None if message is None or letter.spec is None else message.sequence,
        )

    def _verdict(self, delivery: Delivery, letter: Letter, entry: inbox.InboxEntry, now: int) -> Verdict | None:
        receipt = delivery.receipt
        if entry.verdict is None:
            return self.retry(receipt, self.section.retry, "messages of its subject before it are missing")
        if entry.verdict is InboxState.DEAD:
            return Dead(receipt, letter.error or "it was refused before", delivery) if self._to_dlq else Ack(receipt)
        if entry.verdict is InboxState.OPEN:
            return self.verdict_of_task(receipt, entry.state, entry.run_at, now)
        return Ack(receipt)

    def verdict_of_task(
        self, receipt: str, state: TaskState | None, run_at: int | None, now: int
    ) -> Ack | Retry | None:
        """What to tell of a message that its task's end settles; None: nothing yet.

        A task that waits longer than the transport's visibility gives the message back for that long, as far as the
        transport can wait; the rest it waits for in the store.
        """
        if state is not None and state.terminal:
            return Ack(receipt)
        waits = 0.0 if run_at is None else (run_at - now) / SECOND
        visibility = self._limits.visibility
        if state is TaskState.RETRY and visibility is not None and waits > visibility:
            return self.retry(receipt, waits, "its task is to be tried again then")
        return None

    def retry(self, receipt: str, after: float, reason: str) -> Retry:
        """A Retry within what the transport can wait."""
        most = self._limits.max_delay
        if most is None or after <= most:
            return Retry(receipt, after, reason)
        log.info(
            "source %s: a message comes again in %.0f s, not %.0f s: its transport waits no longer",
            self.name,
            most,
            after,
        )
        return Retry(receipt, most, reason)

    def _log(self, one: Taken, letter: Letter) -> None:
        message, verdict = letter.message, one.verdict
        verdict_text = "held until its task ends" if verdict is None else type(verdict).__name__.lower()
        fields: dict[str, Any] = {
            "source": self.name,
            "message_id": as_reason(one.delivery.message_id),
            "idempotency_key": one.key,
            "deliveries": one.delivery.attempts,
            "verdict": verdict_text,
            "task": None if one.entry is None else one.entry.task_id,
        }
        if message is not None:
            fields |= {
                "correlation": message.correlation_id,
                "message_type": message.message_type,
                "subject": message.subject,
            }
        level = logging.WARNING if letter.spec is None else logging.DEBUG
        if log.isEnabledFor(level):
            shown = {name: value for name, value in fields.items() if value is not None}
            why = "" if letter.error is None else f": {letter.error}"
            log.log(level, "message %s: %s%s", fields["message_id"], verdict_text, why, extra=shown)


def _unreadable(source: str, delivery: Delivery, error: str) -> TaskSpec:
    """The task that stands for a message that cannot be read: it is dead once a worker has looked at it."""
    body = delivery.body[:MAX_KEPT_BODY]
    payload = {
        "source": source,
        "message_id": delivery.message_id,
        "reason": error,
        "body": base64.b64encode(body).decode(),
        "complete": len(body) == len(delivery.body),
        "headers": dict(delivery.headers),
    }
    return TaskSpec(
        kind=UNREADABLE,
        payload=encode_json(payload, "an unreadable message"),
        lane=f"{UNREADABLE}{LANE_SEPARATOR}{source}",
        queue=INBOX,
        subject=source,
    )
