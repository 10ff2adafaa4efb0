"""AlertService: the threads of a daemon that evaluate alerts and deliver messages. Never the engine's threads."""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from scheduler.alerts.delivery import Courier, MessageCourier, StateCourier
from scheduler.alerts.evaluator import Evaluator
from scheduler.alerts.messages import Origin
from scheduler.alerts.observer import Retained
from scheduler.alerts.rules import us
from scheduler.alerts.sinks import Alertmanager, make_sink
from scheduler.alerts.store_watch import RULE, StoreWatch
from scheduler.backoff import LogOnce
from scheduler.config.scheduler_options import task_settings
from scheduler.errors import StoreUnavailableError
from scheduler.ports import Clock, SystemClock
from scheduler.store.db.database import Database
from scheduler.store.db.server_clock import ServerClock

if TYPE_CHECKING:
    from scheduler.config.alerts import Alerts
    from scheduler.config.model import Config, Retention

LOOK_TIMEOUT = 60.0  # seconds that one look may take
GOODBYE = 2.0  # seconds in which the lease is given up
STOP_WITHIN = 3.0  # seconds that a stop waits for the threads

log = logging.getLogger("scheduler.alerts")


def retained(retention: Retention) -> Retained:
    """How long what alerts look at is kept."""
    dead = retention.failed if retention.dead is None else retention.dead
    return Retained(us(dead), us(retention.outcomes))


def make_sinks(config: Config) -> dict[str, Any]:
    """The sinks of a configuration, by name. Raises ConfigError."""
    alerts, settings = config.alerts, task_settings(config)
    origin = Origin(alerts.label, alerts.console_url)
    return {name: make_sink(sink, settings, origin) for name, sink in alerts.sinks.items()}


class AlertService:
    """Evaluates and delivers between :meth:`start` and :meth:`stop`. Raises ConfigError for a sink that cannot be."""

    def __init__(
        self, config: Config, clock: Clock | None = None, outage: Callable[[], str | None] = lambda: None
    ) -> None:
        settings = config.alerts
        self._database = Database(config.store.url, clock or SystemClock(), auto_migrate=False)
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._evaluator = Evaluator(self._database, settings, retained(config.retention), holder)
        self._every = settings.every
        self._leading = False
        self._stopping = threading.Event()
        self._logged = LogOnce()
        self._couriers = self._make_couriers(make_sinks(config), settings)
        self._watch = self._make_watch(config, outage)
        self._thread: threading.Thread | None = None

    def _make_couriers(self, sinks: Mapping[str, Any], settings: Alerts) -> dict[str, Courier]:
        found: dict[str, Courier] = {}
        for name, sink in sinks.items():
            if isinstance(sink, Alertmanager):
                found[name] = StateCourier(name, sink, self._evaluator.rules, self._database, self._leads)
            else:
                timeout = settings.sinks[name].timeout
                found[name] = MessageCourier(name, sink, timeout, self._database, self._leads)
        return found

    def _make_watch(self, config: Config, outage: Callable[[], str | None]) -> StoreWatch | None:
        rule, alerts = self._evaluator.rules.get(RULE), config.alerts
        if rule is None:
            return None
        sinks = {name: sink for name, sink in make_sinks(config).items() if alerts.sinks[name].takes(RULE)}
        origin = Origin(alerts.label, alerts.console_url)
        # A database of its own: it must not wait for a look that waits.
        apart = Database(config.store.url, self._database.clock, auto_migrate=False)
        return StoreWatch(apart, rule, sinks, origin, outage)

    def watch(self) -> None:
        """Begin to look whether the store can be used, before it has been opened."""
        if self._watch is not None:
            self._watch.start()

    def keep_to(self, server_clock: ServerClock) -> None:
        """Take the time of this clock."""
        self._database.server_clock = server_clock

    def _leads(self) -> bool:
        return self._leading

    def start(self) -> None:
        self.watch()
        for courier in self._couriers.values():
            courier.start()
        self._thread = threading.Thread(target=self._run, name="schedd-alert-rules", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop, and let another daemon evaluate. Returns within ``STOP_WITHIN`` seconds, whatever sinks do."""
        deadline = time.monotonic() + STOP_WITHIN
        self._stopping.set()
        if self._watch is not None:
            self._watch.stop()
        for courier in self._couriers.values():
            courier.stop()
        ended = True
        if self._thread is not None:
            self._thread.join(max(0.0, deadline - time.monotonic()))
            ended = not self._thread.is_alive()
        for courier in self._couriers.values():
            if not courier.join(max(0.0, min(0.5, deadline - time.monotonic()))):
                courier.abandon()
                log.warning("alert sink %s hangs: its message comes again from another daemon", courier.name)
        if self._watch is not None:
            self._watch.join(max(0.0, deadline - time.monotonic()))
        if ended:
            self._database.settle()

    def _run(self) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            self._look()
            self._stopping.wait(max(0.1, self._every - (time.monotonic() - began)))
        if self._leading:
            self._leading = False
            try:
                with self._database.within(GOODBYE):
                    self._evaluator.give_up()
            except StoreUnavailableError as error:
                log.info("the lease of alerts was not given up: %s", error)

    def _look(self) -> None:
        try:
            with self._database.within(LOOK_TIMEOUT):
                looked = self._evaluator.look()
        except StoreUnavailableError as error:
            if self._logged.is_new(str(error)):
                log.warning("alerts could not be evaluated: %s", error)
            return
        except Exception as error:
            if self._logged.is_new(repr(error)):
                log.exception("alerts could not be evaluated")
            return
        self._logged.clear()
        began, self._leading = looked.leading and not self._leading, looked.leading
        if began:
            log.info("this daemon evaluates the alerts")
        for name, courier in self._couriers.items():
            stateful = isinstance(courier, StateCourier)
            if looked.leading and (name in looked.due or (stateful and (began or looked.notices))):
                courier.wake()
