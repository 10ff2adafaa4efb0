"""Evaluator: looks at the store, moves the alerts on, and stores the messages; one of the fleet does, by a lease."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.alerts import messages
from scheduler.alerts.machine import HOUR, MessageLimits, Notice, advance
from scheduler.alerts.observer import Observer, Retained
from scheduler.alerts.rules import rules_of, us
from scheduler.model.alerts import AlertEvent
from scheduler.store import alerts

if TYPE_CHECKING:
    from scheduler.alerts.rules import Samples
    from scheduler.config.alerts import Alerts
    from scheduler.store.db.database import Database
    from scheduler.store.db.tx import Tx

LEASE_LOOKS = 3  # looks that a holder may miss until another one takes its place

log = logging.getLogger("scheduler.alerts")


class Looked(NamedTuple):
    """One call of :meth:`Evaluator.look`. ``due``: the sinks that have a message to deliver."""

    leading: bool
    notices: list[Notice]
    due: frozenset[str] = frozenset()


class Evaluator:
    """Evaluates the rules in a store. For one thread. ``holder``: the name of this process in the lease."""

    def __init__(self, database: Database, settings: Alerts, retained: Retained, holder: str) -> None:
        self.rules = rules_of(settings.rules)
        self._database = database
        self._settings = settings
        self._holder = holder
        self._observer = Observer(settings.rules, self.rules, retained)
        self._origin = messages.Origin(settings.label, settings.console_url)
        self._lease = us(LEASE_LOOKS * settings.every)
        self._limits = MessageLimits(us(settings.repeat), settings.max_per_hour)
        self._outbox = {name: sink for name, sink in settings.sinks.items() if sink.type != "alertmanager"}

    def look(self) -> Looked:
        """Look once, unless another process holds the lease. Raises StoreUnavailableError."""
        with self._database.read() as tx:
            seen = alerts.lease(tx)
            if not seen.free_for(self._holder, tx.now, self._lease + HOUR):
                return Looked(False, [])
            found, samples = self._observer.observe(tx, seen.remembered.samples)

        def write(tx: Tx) -> Looked:
            silences = [one.silence for one in alerts.silences(tx)]
            before = alerts.alerts(tx)
            after = advance(self.rules, before, found, silences, seen.remembered.memory, self._limits, tx.now)
            memory = alerts.Remembered(after.memory.sent, after.memory.flooded_at, _plain(samples))
            if not alerts.hold(tx, seen, self._holder, tx.now + self._lease, memory):
                return Looked(False, [])  # another process was faster
            alerts.write(tx, before, after.alerts)
            alerts.put(tx, [one for notice in after.notices for one in self._messages(notice, tx.now)])
            alerts.clean(tx, self._outbox)
            return Looked(True, after.notices, frozenset(alerts.due(tx)))

        done = self._database.change(write)
        for notice in done.notices:
            self._log(notice)
        return done

    def _messages(self, notice: Notice, now: int) -> list[tuple[str, Mapping[str, Any]]]:
        """The message for each sink that takes it."""
        rule = None if notice.event is AlertEvent.FLOODED else self.rules[notice.rule]
        body = messages.compose(notice, rule, self._origin, alerts.new_id(), now)
        return [(name, body) for name, sink in self._outbox.items() if rule is None or sink.takes(rule.name)]

    def _log(self, notice: Notice) -> None:
        texts = [alert.text for alert in notice.alerts[: messages.MAX_CAUSES]]
        level = logging.INFO if notice.event is AlertEvent.RECOVERED else logging.WARNING
        log.log(level, "alert %s: %s", notice.event.value, notice.rule or "too many messages", extra={"alerts": texts})

    def give_up(self) -> None:
        """Leave the lease to another process. Raises StoreUnavailableError."""
        self._database.change(lambda tx: alerts.give_up(tx, self._holder))


def _plain(samples: Samples) -> tuple[tuple[int, dict[str, int]], ...]:
    return tuple((at, dict(numbers)) for at, numbers in samples)
