"""Receiver: the thread that serves one source which is fetched."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence

from scheduler.backoff import Backoff
from scheduler.errors import SchedulerError
from scheduler.messages.duties import LOOK_EVERY, SourceDuties
from scheduler.messages.duties import OLD_LASTS as OLD_LASTS
from scheduler.messages.duties import TROUBLE_LASTS as TROUBLE_LASTS
from scheduler.messages.ending import Serving
from scheduler.messages.intake import Intake
from scheduler.ports import FAILPOINTS
from scheduler.store import inbox
from scheduler.store.db.database import Database
from scheduler.transports.ports import Delivery, Retry, Source, TransportError, Verdict

IDLE_WAIT = 4.0  # seconds that one receive waits for messages
OPEN_WAIT = 0.5  # the same while ends of tasks are waited for
FIRST_PAUSE, MAX_PAUSE = 0.5, 60.0  # seconds between tries after trouble with the transport or the store

log = logging.getLogger("scheduler.messages")


class Receiver(SourceDuties, Serving):
    """Receives, stores and settles between :meth:`start` and :meth:`stop`. Trouble with its source delays no other.

    ``holder``: this receiver, among all that receive from the same queue.
    """

    def __init__(self, source: Source, intake: Intake, database: Database, holder: str) -> None:
        SourceDuties.__init__(self, intake, source.limits)
        Serving.__init__(self, source, f"source {intake.name}")
        self._source = source
        self._database = database
        self._holder = holder
        self._at_end = intake.section.ack == "end"
        self._open: dict[str, float] = {}  # receipt -> when it is to be extended (monotonic)
        self._stopping = threading.Event()
        self._waiting = False  # within a receive, which ends when the source is closed
        self._stopped = self._ended_wait = False  # asked to stop; the source was closed, so that the receive ends
        self._lock = threading.Lock()  # of these
        self._backoff = Backoff(FIRST_PAUSE, MAX_PAUSE)

    def start(self) -> None:
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
            self.look()
            try:
                self.turn()
            except Exception as error:
                self.failed(error)
                pause = self._backoff.next() if isinstance(error, SchedulerError) else MAX_PAUSE
                if isinstance(error, TransportError):
                    pause = max(pause, error.after or 0.0)
            else:
                if self._missing_kind is None:
                    self.is_well()
                self._backoff.reset()
                continue
            self._wait(pause)
        self._close()

    def _wait(self, pause: float) -> None:
        """Wait before the next try; what is due by time is done meanwhile."""
        until = time.monotonic() + pause
        while (left := until - time.monotonic()) > 0:
            look = self.until_look()
            if self._stopping.wait(left if look is None else min(left, max(look, 0.01))):
                return
            self.look()

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

    def turn(self) -> int:
        """Receive once, unless nothing may be received now, and settle what is due. Returns how many came."""
        if self.held_back() is None:
            section = self._intake.section
            most = min(section.batch, self._source.limits.max_batch or section.batch)
            deliveries = self._receive(most, OPEN_WAIT if self._open or self._at_end else IDLE_WAIT)
            self.came(deliveries)
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
            self.look_at_ages(deliveries)
        else:
            received = 0
            self._stopping.wait(LOOK_EVERY)
        if self._open:
            self._tend()
        self.look()
        return received

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
                self.settled(verdict)
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
