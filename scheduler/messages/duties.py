"""SourceDuties: all that a source needs beside receiving, the same whether messages are fetched or posted."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence

from scheduler.backoff import LogOnce
from scheduler.errors import SchedulerError, StoreUnavailableError
from scheduler.messages.intake import Intake
from scheduler.messages.texts import stored_form
from scheduler.model.fingerprint import describe
from scheduler.model.problem import TransportProblem
from scheduler.model.texts import storable
from scheduler.ports import SECOND
from scheduler.store import inbox, inbox_held, pauses
from scheduler.telemetry.metrics import MESSAGES_RECEIVED, MESSAGES_SETTLED
from scheduler.transports.ports import Delivery, Limits, Verdict

LOOK_EVERY = 1.0  # seconds between looks at pauses and the backlog
OVERDUE_EVERY = 5.0  # seconds between looks for held messages that have waited too long
TROUBLE_LASTS = 300.0  # seconds that one failed try counts: longer than until the next one has failed
OLD_SHARE = 0.75  # of the transport's retention: messages that come so late are about to be dropped
OLD_LASTS = 3600.0  # seconds that an old message counts, while none comes

log = logging.getLogger("scheduler.messages")


class SourceDuties:
    """One source, of which one thread calls all methods. ``error``: what went wrong last, None once all is well.

    What needs the transport itself (receive, settle, extend) is left to the class that derives from it.
    """

    def __init__(self, intake: Intake, limits: Limits) -> None:
        self.name = intake.name
        self.error: str | None = None
        self._intake = intake
        self._limits = limits
        self._traffic = intake.traffic
        self._database = intake.database
        ordering = intake.ordering
        self._waits_in_order = ordering is not None and ordering.gap == "wait"
        self._held_back: str | None = None
        self._missing_kind: str | None = None
        self._look_at = self._overdue_at = 0.0
        self._failing = False  # what is due by time
        self._logged = LogOnce()

    # Whether messages may be taken

    def held_back(self) -> str | None:
        """Why no message may be taken now; looks again every second."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY
            self._held_back = self._why_held_back()
        return self._held_back

    def _why_held_back(self) -> str | None:
        """The source is paused, too many of its tasks wait, or all its messages would be dead."""
        self._look_for_kind()
        if self._missing_kind is not None:
            return f"no worker has registered the kind {self._missing_kind}"
        most = self._intake.section.max_backlog
        with self._database.read() as tx:
            if pauses.of_source(tx, self.name) is not None:
                return "the source is paused"
            return "too many tasks wait" if inbox.backlog(tx, sorted(self._intake.queues), most + 1) > most else None

    def _look_for_kind(self) -> None:
        before, self._missing_kind = self._missing_kind, self._intake.unknown_kind()
        if self._missing_kind is not None:
            kind = repr(self._missing_kind)
            self.failed(f"no worker has registered the kind {kind}: nothing is received until one has")
        elif before is not None:
            self.is_well()

    # What came, and what became of it

    def came(self, deliveries: Sequence[Delivery]) -> None:
        """Count what was received."""
        self._traffic.count(MESSAGES_RECEIVED, self.name, number=len(deliveries))

    def look_at_ages(self, deliveries: Sequence[Delivery]) -> None:
        """Tell if messages come so late that the transport is about to drop those behind them."""
        keeps = self._limits.retention
        sent = [at for one in deliveries if (at := stored_form(one).sent_at) is not None]
        if keeps is None or (deliveries and not sent):
            return
        oldest, now = min(sent, default=None), self._database.now()
        if oldest is not None and now - oldest > OLD_SHARE * keeps * SECOND:
            trouble = TransportProblem("source", self.name, oldest, old=True, keeps=round(keeps * SECOND))
            self._traffic.tell(trouble, OLD_LASTS)
        else:
            self._traffic.is_well("source", self.name, old=True)

    def settled(self, verdict: Verdict) -> None:
        """Count a verdict that was given to the transport, or to the sender."""
        self._traffic.count(MESSAGES_SETTLED, self.name, type(verdict).__name__.lower())

    # What went wrong

    def failed(self, error: Exception | str) -> None:
        """Log it once, and tell it where people look until it is over or has not come for a while."""
        expected = isinstance(error, str | SchedulerError)
        text = describe(error).text if isinstance(error, Exception) and not expected else storable(str(error))
        if self._logged.is_new(text):
            if isinstance(error, str) or expected:
                log.warning("source %s: %s", self.name, text)
            else:
                log.error("source %s: unexpected error", self.name, exc_info=error)
        self.error = text
        self._traffic.tell(TransportProblem("source", self.name, self._database.now(), text), TROUBLE_LASTS)

    def is_well(self) -> None:
        """Messages have been taken, or there were none."""
        if self._intake.failing is not None:
            self.failed(self._intake.failing)
            return
        if self._failing:
            return
        self.error = None
        if self._missing_kind is None:
            self._traffic.is_well("source", self.name)
        self._logged.clear()

    # What is due by time

    def look(self) -> None:
        """Let held messages go that have waited too long, and see whether a kind that was missing is there.

        Harms nothing else if it fails. What was held before the settings changed, so that nothing waits now, goes, too.
        """
        now = time.monotonic()
        if now < self._overdue_at:
            return
        self._overdue_at = now + OVERDUE_EVERY
        self._failing = False
        try:
            self._look_for_kind()
            self._let_overdue_go()
            if not self._waits_in_order and self._missing_kind is None and self._overdue_at > now:
                self._overdue_at = math.inf
        except Exception as error:
            self._overdue_at, self._failing = now + OVERDUE_EVERY, True
            self.failed(error)

    def until_look(self) -> float | None:
        """Seconds until :meth:`look` has something to do; None: nothing by itself."""
        if self._overdue_at == math.inf:
            return None
        return max(0.0, self._overdue_at - time.monotonic())

    def _let_overdue_go(self) -> None:
        timeout = round(self._intake.section.gap_timeout * SECOND) if self._waits_in_order else 0
        before = self._database.now() - timeout
        with self._database.read() as tx:
            subjects = inbox_held.held_subjects(tx, self.name, before)
        if not subjects:
            return
        try:
            gone = self._let_go(subjects, before)
        except StoreUnavailableError:
            raise
        except Exception as error:  # what is stored of one of them cannot be read: the others go
            self._failing = True
            self.failed(error)
            gone = sum(self._let_one_go(subject, before) for subject in subjects)
        if gone:
            log.warning("source %s: %d messages went ahead of others that did not come", self.name, gone)
            self._intake.notify()
        if gone and len(subjects) == inbox_held.SUBJECTS_AT_ONCE:
            self._overdue_at = 0.0

    def _let_go(self, subjects: Sequence[str], before: int) -> int:
        ordering = self._intake.ordering
        return len(self._database.change(lambda tx: inbox_held.let_go(tx, self.name, subjects, before, ordering)))

    def _let_one_go(self, subject: str, before: int) -> int:
        try:
            return self._let_go([subject], before)
        except StoreUnavailableError:
            raise
        except Exception as error:
            self.failed(error)
            return 0
