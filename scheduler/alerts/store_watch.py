"""Whether this daemon can use its store; where it cannot, its sinks are told directly, as no stored message can be.

Each daemon tells for itself, once, and tells when it is over. All of that is in memory: no table could keep it.
"""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.alerts import messages
from scheduler.alerts.machine import Notice, Rule
from scheduler.alerts.sinks import LIFE, REFRESH_EVERY, Alertmanager, SinkError
from scheduler.backoff import Backoff, LogOnce
from scheduler.errors import StoreUnavailableError
from scheduler.model.alerts import Alert, AlertEvent, AlertKey, AlertPhase
from scheduler.model.redact import redact
from scheduler.ports import SECOND
from scheduler.store.alerts import new_id
from scheduler.store.db.deadline import in_time
from scheduler.store.db.writable import no_writes

if TYPE_CHECKING:
    from scheduler.store.db.database import Database

RULE = "store_away"
LONGEST_PAUSE = 15.0  # seconds between two looks
LONGEST_LOOK = 10.0  # seconds that one look may take
FIND_HOLDER_S = 3.0
FIRST_PAUSE, MAX_PAUSE = 2.0, 60.0  # seconds between two tries of one message
WELL_LOOKS = 2  # looks without trouble until it is over
# It changes no row. It needs the locks that a change needs: SQLite's write lock, the table's of PostgreSQL.
_PROBE = "UPDATE schedd_tasks SET id = id WHERE id = -1"

log = logging.getLogger("scheduler.alerts")


class Outage(NamedTuple):
    """Since when (microseconds) the store cannot be used, and why."""

    since: int
    text: str


class Judge:
    """Says of each look whether an outage is to be told now, or its end. Pure. ``after``: seconds."""

    def __init__(self, after: float) -> None:
        self._after = round(after * SECOND)
        self._outage: Outage | None = None
        self._told = False
        self._well = 0

    def look(self, trouble: str | None, began: int, now: int) -> tuple[AlertEvent, Outage] | None:
        """``trouble``: why the store could not be used by a look that ``began`` then; None: it could."""
        if trouble is not None:
            self._well = 0
            self._outage = Outage(began if self._outage is None else self._outage.since, trouble)
            if self._told or now - self._outage.since < self._after:
                return None
            self._told = True
            return AlertEvent.FIRED, self._outage
        self._well += 1
        if self._outage is None or self._well < (WELL_LOOKS if self._told else 1):
            return None
        over, told = self._outage, self._told
        self._outage, self._told = None, False
        return (AlertEvent.RECOVERED, over) if told else None


def trouble_of(database: Database, seconds: float) -> str | None:
    """Why the store cannot be used, in words with what to do; None if it can. Takes ``seconds`` or little more."""
    try:
        with database.within(seconds), database.write() as tx:
            refused = no_writes(tx)
            if refused is None:
                if tx.dialect.name == "postgresql":
                    tx.run(f"SET LOCAL lock_timeout = {round(seconds * 1000)}")
                tx.run(_PROBE)
            return refused
    except StoreUnavailableError as error:
        holder = None
        with suppress(TimeoutError, StoreUnavailableError, RuntimeError):
            holder = in_time(database.locked_by, FIND_HOLDER_S)
        return f"{error}" if holder is None else f"{error}; {holder}"


class _Teller:
    """A thread for each sink: one that hangs delays no other. Tries each message until it has arrived."""

    def __init__(self, name: str, sink: Any, rule: Rule) -> None:
        self._name = name
        self._sink = sink
        self._rule = rule
        self._wanted: queue.SimpleQueue[tuple[Mapping[str, Any], Alert, bool] | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._logged = LogOnce()
        threading.Thread(target=self._run, name=f"schedd-store-alert-{name}", daemon=True).start()

    def tell(self, body: Mapping[str, Any], alert: Alert, over: bool) -> None:
        """Deliver this, after what came before."""
        self._wanted.put((body, alert, over))

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopping.set()
        self._wanted.put(None)

    def _run(self) -> None:
        while (one := self._wanted.get()) is not None:
            body, alert, over = one
            if not self._until_done(lambda: self._deliver(body, alert, over)):  # noqa: B023
                return
            if isinstance(self._sink, Alertmanager):
                self._keep_up(alert, over)

    def _deliver(self, body: Mapping[str, Any], alert: Alert, over: bool) -> None:
        if isinstance(self._sink, Alertmanager):
            self._sink.refresh([] if over else [alert], {self._rule.name: self._rule}, _now())
        else:
            self._sink.deliver(body)

    def _keep_up(self, alert: Alert, over: bool) -> None:
        """Alertmanager forgets what is not posted again: until there is news; an end for as long as the alert lives."""
        until = time.monotonic() + LIFE / SECOND
        while self._wanted.empty() and not self._stopping.wait(1.0 if over else REFRESH_EVERY):
            if over and time.monotonic() > until:
                return
            with suppress(SinkError):
                self._deliver({}, alert, over)
            if over and self._stopping.wait(REFRESH_EVERY):
                return

    def _until_done(self, work: Callable[[], None]) -> bool:
        backoff = Backoff(FIRST_PAUSE, MAX_PAUSE)
        while not self._stopping.is_set():
            try:
                work()
            except Exception as error:  # a sink is someone else's
                text = str(error) if isinstance(error, SinkError) else repr(error)
                if self._logged.is_new(text):
                    log.warning("alert sink %s: %s", self._name, text)
                self._stopping.wait(backoff.next())
            else:
                self._logged.clear()
                return True
        return False


class StoreWatch:
    """Looks at the store between :meth:`start` and :meth:`stop`, in a thread of its own.

    ``sinks``: those that take the rule, by name. ``outage``: what the daemon's engine says of the store.
    """

    def __init__(
        self,
        database: Database,
        rule: Rule,
        sinks: Mapping[str, Any],
        origin: messages.Origin,
        outage: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._database = database
        self._rule = rule
        self._sinks = sinks
        self._origin = origin
        self._outage = outage
        after = rule.after / SECOND
        self._judge = Judge(after)
        self._pause = max(0.2, min(LONGEST_PAUSE, after / 4))
        self._look_s = max(1.0, min(LONGEST_LOOK, after / 2))
        self._tellers: dict[str, _Teller] = {}
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, unless it runs."""
        if self._thread is None and not self._stopping.is_set():
            self._thread = threading.Thread(target=self._run, name="schedd-store-watch", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Look no more, and begin no delivery."""
        self._stopping.set()
        for teller in self._tellers.values():
            teller.stop()

    def join(self, timeout: float) -> None:
        """Wait until no look goes on, and close the database; one that goes on is left to end by itself."""
        if self._thread is not None:
            self._thread.join(timeout)
        if self._thread is None or not self._thread.is_alive():
            self._database.settle()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = _now()
            try:
                trouble = trouble_of(self._database, self._look_s) or self._outage()
            except Exception as error:  # a store that is no store any more, such as a replaced file
                trouble = str(error)
            if self._stopping.is_set():
                return
            found = self._judge.look(trouble, began, _now())
            if found is not None:
                self._tell(*found)
            self._stopping.wait(self._pause)

    def _tell(self, event: AlertEvent, outage: Outage) -> None:
        now, over = _now(), event is AlertEvent.RECOVERED
        where = f"{socket.gethostname()}:{os.getpid()}"
        text = f"the daemon {where} {'can use the database again; the last reason was' if over else WORDS}: "
        text += redact(outage.text)
        key = AlertKey(self._rule.name, where)
        alert = Alert(key, AlertPhase.FIRING, now, 1, outage.since, 1, text, {}, outage.since)
        log.log(logging.INFO if over else logging.ERROR, "alert %s: %s", event.value, text)
        body = messages.compose(Notice(event, self._rule.name, (alert,)), self._rule, self._origin, new_id(), now)
        for name, sink in self._sinks.items():
            teller = self._tellers.get(name) or self._tellers.setdefault(name, _Teller(name, sink, self._rule))
            teller.tell(body, alert, over)


WORDS = "cannot use the database, so no task starts or ends there, and no other alert can go out"


def _now() -> int:
    return time.time_ns() // 1000
