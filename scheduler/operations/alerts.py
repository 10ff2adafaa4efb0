"""Alerts: what fires, what is silenced and by whom, which messages went out; silence and unsilence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scheduler.config.alerts import RULES
from scheduler.errors import ConfigError
from scheduler.model.alerts import Alert, Silence
from scheduler.model.names import nearest
from scheduler.operations.desk import Desk
from scheduler.operations.masks import masked, masked_text
from scheduler.store import alerts, audit
from scheduler.store.alerts import AlertDelivery
from scheduler.store.alerts import SilenceRecord as SilenceRecord
from scheduler.store.alerts import new_id as new_id
from scheduler.store.db.tx import Tx


class AlertsNow(NamedTuple):
    """Alerts that are not ok, and the silences in effect; ``evaluated``: whether a daemon evaluates the rules now."""

    at: int
    alerts: list[Alert]
    silences: Sequence[SilenceRecord]
    evaluated: bool

    def silenced_until(self, alert: Alert) -> int | None:
        """Until when an alert is silenced; None: it is not."""
        return max((one.until for one in self.silences if one.silence.covers(alert.key, self.at)), default=None)


def current(tx: Tx) -> AlertsNow:
    """Alerts that are pending, firing or recovering, and what is silenced. Without secrets that errors name."""
    found = [
        one._replace(text=masked_text(one.text) or "", detail=masked(dict(one.detail)))
        for one in alerts.alerts(tx).values()
    ]
    silences = [one._replace(reason=masked_text(one.reason)) for one in alerts.silences(tx)]
    return AlertsNow(tx.now, found, silences, alerts.lease(tx).until > tx.now)


def history(tx: Tx, limit: int) -> list[AlertDelivery]:
    """Messages of the last week, newest first, at most ``limit``. Without secrets that errors name."""
    return [
        one._replace(title=masked_text(one.title) or "", error=masked_text(one.error))
        for one in alerts.history(tx, limit)
    ]


def silence(
    desk: Desk, rule: str, span: int, *, kind: str | None = None, fingerprint: str | None = None
) -> SilenceRecord:
    """Make no messages of a rule for ``span`` microseconds; "*" for all rules. Raises ConfigError."""
    if rule != "*" and rule not in RULES:
        near = nearest(rule, RULES)
        there = f"did you mean {near[0]}?" if near else f"there are {', '.join(RULES)}, *"
        raise ConfigError(f"there is no rule {rule!r:.80}; {there}")
    return desk.database.change(lambda tx: alerts.silence(tx, Silence(rule, kind, fingerprint, tx.now + span)))


def unsilence(desk: Desk, number: int) -> SilenceRecord | None:
    """End a silence; None if there is none in effect with this id."""
    return desk.database.change(lambda tx: alerts.unsilence(tx, number))


def note_test(desk: Desk, sink: str) -> None:
    """Have the audit say that somebody sends a test message."""
    desk.database.change(lambda tx: audit.record(tx, "alert test", subject=f"sink {sink}"))
