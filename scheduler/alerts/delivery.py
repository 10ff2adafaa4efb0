"""Couriers: one thread for each sink, so that one that hangs delays no other, nor the evaluation."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from scheduler.alerts.machine import Rule, is_silenced
from scheduler.alerts.rules import us
from scheduler.alerts.sinks import REFRESH_EVERY, Alertmanager, Sink, SinkError
from scheduler.backoff import Backoff, LogOnce
from scheduler.errors import StoreUnavailableError
from scheduler.model.alerts import AlertPhase
from scheduler.ports import SECOND
from scheduler.store import alerts

if TYPE_CHECKING:
    from scheduler.store.alerts import AlertMessage
    from scheduler.store.db.database import Database

FIRST_PAUSE, MAX_PAUSE = 5.0, 600.0  # seconds between two tries of one message
STORE_PAUSE = 5.0  # seconds after trouble with the store
EXTRA_HOLD = 30.0  # seconds, beyond a sink's timeout, that a message is one process's to deliver
MAX_SHIFT = 20  # doublings of a pause

log = logging.getLogger("scheduler.alerts")


class Courier:
    """A thread that serves one sink while this process leads. ``leads``: whether it does."""

    def __init__(self, name: str, database: Database, leads: Callable[[], bool]) -> None:
        self.name = name
        self._database = database
        self._leads = leads
        self._wanted = threading.Event()
        self._stopping = self._abandoned = False
        self._logged = LogOnce()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"schedd-alert-{self.name}", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """There may be something to deliver."""
        self._wanted.set()

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping = True
        self._wanted.set()

    def abandon(self) -> None:
        """Write nothing more: the store is closed. What was being delivered comes again, with the same id."""
        self._abandoned = True

    def join(self, timeout: float) -> bool:
        """Wait until the thread has ended; False if it has not, since the sink hangs."""
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        pause: float | None = None
        while not self._stopping:
            self._wanted.wait(pause)
            self._wanted.clear()
            pause = None
            if self._stopping or not self._leads():
                continue
            try:
                pause = self._work()
                self._logged.clear("store")
            except StoreUnavailableError as error:
                self._log("store", str(error))
                pause = STORE_PAUSE
            except Exception:
                log.exception("alert sink %s: unexpected error", self.name)
                pause = MAX_PAUSE

    def _work(self) -> float | None:
        """Do what is due; returns the seconds until there is more to do, None: when woken."""
        raise NotImplementedError

    def _log(self, key: str, text: str) -> None:
        if self._logged.is_new(text, key):
            log.warning("alert sink %s: %s", self.name, text)


class MessageCourier(Courier):
    """Delivers the stored messages of its sink, one after the other, each again until it has arrived."""

    def __init__(self, name: str, sink: Sink, timeout: float, database: Database, leads: Callable[[], bool]) -> None:
        super().__init__(name, database, leads)
        self._sink = sink
        self._hold = us(timeout + EXTRA_HOLD)

    def _work(self) -> float | None:
        while not self._stopping:
            message = self._database.change(lambda tx: alerts.take(tx, self.name, self._hold))
            if message is None:
                break
            self._deliver(message)
        with self._database.read() as tx:
            at = alerts.next_due(tx, self.name)
            return None if at is None else max(0.0, (at - tx.now) / SECOND) + 0.01

    def _deliver(self, message: AlertMessage) -> None:
        number = message.number
        try:
            self._sink.deliver(message.body)
        except SinkError as error:
            self._log("sink", str(error))
            self._failed(message, str(error))
        except Exception as error:
            log.exception("alert sink %s: unexpected error", self.name)
            self._failed(message, type(error).__name__)
        else:
            self._logged.clear("sink")
            if not self._abandoned:
                self._database.change(lambda tx: alerts.delivered(tx, number))

    def _failed(self, message: AlertMessage, error: str) -> None:
        if self._abandoned:
            return
        pause = us(min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(message.tries - 1, MAX_SHIFT)))
        if not self._database.change(lambda tx: alerts.failed(tx, message.number, error, pause)):
            log.error("alert sink %s: message %s is given up: %s", self.name, message.id, error)


class StateCourier(Courier):
    """Posts what fires to an Alertmanager, each minute and when something changes."""

    def __init__(
        self,
        name: str,
        sink: Alertmanager,
        rules: Mapping[str, Rule],
        database: Database,
        leads: Callable[[], bool],
    ) -> None:
        super().__init__(name, database, leads)
        self._sink = sink
        self._rules = rules
        self._backoff = Backoff(FIRST_PAUSE, REFRESH_EVERY)

    def _work(self) -> float | None:
        began = time.monotonic()
        with self._database.read() as tx:
            silences = [one.silence for one in alerts.silences(tx)]
            found = [one for one in alerts.alerts(tx).values() if one.phase is not AlertPhase.PENDING]
            shown = [one for one in found if not is_silenced(silences, one.key, tx.now)]
            now = tx.now
        try:
            self._sink.refresh(shown, self._rules, now)
        except SinkError as error:
            self._log("sink", str(error))
            return self._backoff.next()
        self._logged.clear("sink")
        self._backoff.reset()
        return max(1.0, REFRESH_EVERY - (time.monotonic() - began))
