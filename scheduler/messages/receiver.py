"""Receiver: the thread that serves one source which is fetched."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from scheduler.backoff import Backoff, LogOnce
from scheduler.errors import SchedulerError, StoreUnavailableError
from scheduler.messages.ending import Serving
from scheduler.messages.intake import Intake
from scheduler.model.trouble import Trouble
from scheduler.ports import FAILPOINTS, SECOND
from scheduler.store import inbox, pauses
from scheduler.store.db.database import Database
from scheduler.telemetry.metrics import MESSAGES_RECEIVED, MESSAGES_SETTLED
from scheduler.transports.ports import Delivery, Retry, Source, TransportError, Verdict

IDLE_WAIT = 4.0  # seconds that one receive waits for messages
OPEN_WAIT = 0.5  # the same while ends of tasks are waited for
LOOK_EVERY = 1.0  # seconds between looks at pauses and the backlog
OVERDUE_EVERY = 5.0  # seconds between looks for held messages that have waited too long
FIRST_PAUSE, MAX_PAUSE = 0.5, 60.0  # seconds between tries after trouble with the transport or the store
TROUBLE_LASTS = 300.0  # seconds that one failed try counts: longer than until the next one has failed
OLD_SHARE = 0.75  # of the transport's retention: messages that come so late are about to be dropped
OLD_LASTS = 3600.0  # seconds that an old message counts, while none comes

log = logging.getLogger("scheduler.messages")


class Receiver(Serving):
    """Receives, stores and settles between :meth:`start` and :meth:`stop`. Trouble with its source delays no other.

    ``holder``: this receiver, among all that receive from the same queue.
    """

    def __init__(self, source: Source, intake: Intake, database: Database, holder: str) -> None:
        super().__init__(source, f"source {intake.name}")
        self.name = intake.name
        self.error: str | None = None
        self._source = source
        self._intake = intake
        self._traffic = intake.traffic
        self._database = database
        self._holder = holder
        self._at_end = intake.section.ack == "end"
        self._waits_in_order = intake.ordering is not None and intake.ordering.gap == "wait"
        self._open: dict[str, float] = {}  # receipt -> when it is to be extended (monotonic)
        self._held_back = False
        self._missing_kind: str | None = None
        self._look_at = self._overdue_at = 0.0
        self._stopping = threading.Event()
        self._waiting = False  # within a receive, which ends when the source is closed
        self._stopped = self._ended_wait = False  # asked to stop; the source was closed, so that the receive ends
        self._lock = threading.Lock()  # of these
        self._logged = LogOnce()
        self._backoff = Backoff(FIRST_PAUSE, MAX_PAUSE)

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=f"schedd-source-{self.name}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Receive nothing more: a receive that waits ends. What was received and not settled comes again."""
        with self._lock:
            self._stopped, self._ended_wait = True, self._waiting
        self._stopping.set()
        if self._ended_wait:
            self._close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.turn()
                self.error = None
                if self._missing_kind is None:
                    self._traffic.is_well("source", self.name)
                self._backoff.reset()
                self._logged.clear()
                continue
            except TransportError as error:
                pause = max(self._backoff.next(), error.after or 0.0)
                self._failed(str(error))
                self._tell(str(error))
            except (StoreUnavailableError, SchedulerError) as error:
                pause = self._backoff.next()
                self._failed(str(error))
            except Exception as error:
                pause = MAX_PAUSE
                if self._logged.is_new(repr(error)):
                    log.exception("source %s: unexpected error", self.name)
                self.error = type(error).__name__
            self._stopping.wait(pause)
        self._close()

    def _receive(self, most: int, wait: float) -> Sequence[Delivery]:
        with self._lock:
            if self._stopped:
                return []
            self._waiting = True
        try:
            return self._source.receive(most, wait)
        except Exception:
            if self._ended_wait:
                return []
            raise
        finally:
            with self._lock:
                self._waiting = False

    def _failed(self, text: str) -> None:
        self.error = text
        if self._logged.is_new(text):
            log.warning("source %s: %s", self.name, text)

    def _tell(self, text: str) -> None:
        self._traffic.tell(Trouble("source", self.name, self._database.now(), text), TROUBLE_LASTS)

    def _look_at_ages(self, deliveries: Sequence[Delivery]) -> None:
        """Tell if messages come so late that the transport is about to drop those behind them."""
        keeps = self._source.limits.retention
        sent = [one.sent_at for one in deliveries if one.sent_at is not None]
        if keeps is None or (deliveries and not sent):
            return
        oldest, now = min(sent, default=None), self._database.now()
        if oldest is not None and now - oldest > OLD_SHARE * keeps * SECOND:
            trouble = Trouble("source", self.name, oldest, old=True, keeps=round(keeps * SECOND))
            self._traffic.tell(trouble, OLD_LASTS)
        else:
            self._traffic.is_well("source", self.name, old=True)

    def turn(self) -> int:
        """Receive once, unless nothing may be received now, and settle what is due. Returns how many came."""
        if self._may_receive():
            section = self._intake.section
            most = min(section.batch, self._source.limits.max_batch or section.batch)
            deliveries = self._receive(most, OPEN_WAIT if self._open or self._at_end else IDLE_WAIT)
            self._traffic.count(MESSAGES_RECEIVED, self.name, number=len(deliveries))
            try:
                taken = self._intake.take(deliveries)
            except Exception:
                if deliveries and self._source.limits.visibility is None:
                    self._source.close()  # only then do they come again
                raise
            self._settle([one.verdict for one in taken if one.verdict is not None])
            at = time.monotonic() + self._extend_after()
            self._open |= {one.delivery.receipt: at for one in taken if one.verdict is None}
            received = len(deliveries)
            self._look_at_ages(deliveries)
        else:
            received = 0
            self._stopping.wait(LOOK_EVERY)
        if self._open:
            self._tend()
        if self._waits_in_order and time.monotonic() >= self._overdue_at:
            self._overdue_at = time.monotonic() + OVERDUE_EVERY
            self._let_overdue_go()
        return received

    def _may_receive(self) -> bool:
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            self._held_back = self._is_held_back()
        return not self._held_back

    def _is_held_back(self) -> bool:
        """Whether the source is paused, or too many of its tasks wait."""
        most = self._intake.section.max_backlog
        self._missing_kind = self._intake.unknown_kind()
        if self._missing_kind is not None:
            text = f"no worker has registered the kind {self._missing_kind!r}: nothing is received until one has"
            self._failed(text)
            self._tell(text)
            return True
        with self._database.read() as tx:
            if pauses.of_source(tx, self.name) is not None:
                return True
            return inbox.backlog(tx, sorted(self._intake.queues), most + 1) > most

    def _settle(self, verdicts: Sequence[Verdict]) -> None:
        """Tell the transport, then note what it has taken of those that the store has receipts of."""
        if not verdicts:
            return
        FAILPOINTS.hit("inbox.settling")
        settled = self._source.settle(verdicts)
        FAILPOINTS.hit("inbox.settled")
        done: list[str] = []
        back: list[str] = []
        for verdict, one in zip(verdicts, settled, strict=True):
            if one.error is not None and not one.gone:
                log.warning("source %s: a verdict was not taken: %s", self.name, one.error)
                continue
            self._open.pop(verdict.receipt, None)
            if not one.gone:
                self._traffic.count(MESSAGES_SETTLED, self.name, type(verdict).__name__.lower())
            (back if one.gone or isinstance(verdict, Retry) else done).append(verdict.receipt)
        if self._at_end:
            self._note(done, back)

    def _note(self, done: list[str], back: list[str]) -> None:
        for receipts, is_done in ((done, True), (back, False)):
            if receipts:
                self._database.change(lambda tx: inbox.settled(tx, self.name, self._holder, receipts, done=is_done))  # noqa: B023

    def _tend(self) -> None:
        """Settle the messages whose tasks have ended, give back those whose tasks wait long, keep the others."""
        with self._database.read() as tx:
            found, now = inbox.open_messages(tx, self.name, self._holder), tx.now
        known = {one.receipt for one in found}
        self._open = {receipt: at for receipt, at in self._open.items() if receipt in known}
        verdicts: list[Verdict] = []
        for one in found:
            verdict = self._intake.verdict_of_task(one.receipt, one.state, one.run_at, now)
            if verdict is not None:
                verdicts.append(verdict)
        self._settle(verdicts)
        self._extend()

    def _extend_after(self) -> float:
        visibility = self._source.limits.visibility
        return float("inf") if visibility is None else visibility / 3

    def _extend(self) -> None:
        at = time.monotonic()
        due = [receipt for receipt, when in self._open.items() if when <= at]
        if not due:
            return
        visibility = self._source.limits.visibility or 0.0
        gone = [one.receipt for one in self._source.extend(due, visibility) if one.gone]
        for receipt in due:
            self._open[receipt] = at + self._extend_after()
        for receipt in gone:  # it comes again, with another receipt
            self._open.pop(receipt, None)
        self._note([], gone)

    def _let_overdue_go(self) -> None:
        section, ordering = self._intake.section, self._intake.ordering
        assert ordering is not None
        before = self._database.now() - round(section.gap_timeout * SECOND)
        gone = self._database.change(lambda tx: inbox.let_overdue_go(tx, self.name, ordering, before))
        if gone:
            log.warning("source %s: %d messages went ahead of others that did not come", self.name, gone)
            self._intake.notify()
