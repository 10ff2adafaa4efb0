"""Alertmanager: what fires, posted again each minute; it groups, repeats and silences by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from scheduler.alerts.machine import Rule
from scheduler.alerts.messages import Origin
from scheduler.alerts.sinks.sink import Body, post
from scheduler.config.alerts import AlertSink
from scheduler.model.alerts import Alert, Key
from scheduler.model.texts import rfc3339
from scheduler.ports import SECOND

REFRESH_EVERY = 60.0  # seconds
LIFE = 5 * 60 * SECOND  # after which Alertmanager takes an alert for resolved that was not posted again
MAX_SKEW = 10 * SECOND  # by which the database's clock may be ahead of Alertmanager's
PATH = "/api/v2/alerts"


class Alertmanager:
    """Posts states, not messages. Remembers what it has posted, so as to say that it is over.

    Alertmanager drops an end that is yet to come by its own clock, in favour of the one that the firing alert had. So
    an end is dated back by ``MAX_SKEW``, and posted again for as long as the firing alert would have lived there.
    """

    def __init__(self, sink: AlertSink, settings: Mapping[str, Any], origin: Origin) -> None:
        self._sink = sink
        self._settings = settings
        self._origin = origin
        self._posted: dict[Key, tuple[int, dict[str, Any]]] = {}  # what fired: since when, and what was posted
        self._ended: dict[Key, tuple[int, dict[str, Any]]] = {}  # what ended: until when it is posted, and what

    def refresh(self, alerts: Iterable[Alert], rules: Mapping[str, Rule], now: int) -> None:
        """Post what fires, and as ended what was posted before and fires no more. Raises SinkError."""
        fires: dict[Key, tuple[int, dict[str, Any]]] = {}
        for alert in alerts:
            rule = rules.get(alert.key.rule)
            if rule is not None and self._sink.takes(rule.name):
                fires[alert.key] = alert.began, self._alert(alert, rule)
        ended = {key: one for key, one in self._ended.items() if key not in fires and now < one[0]}
        for key, (began, row) in self._posted.items():
            if key not in fires:
                ended[key] = now + LIFE, {**row, "endsAt": rfc3339(max(began, now - MAX_SKEW))}
        ends = rfc3339(now + LIFE, exact=False)
        rows = [{**row, "endsAt": ends} for _, row in fires.values()] + [row for _, row in ended.values()]
        if rows:
            self._post(rows)
        self._posted, self._ended = fires, ended

    def deliver(self, body: Body) -> None:
        """Post a test. Raises SinkError."""
        labels = {"alertname": "schedd_test", "severity": body["severity"], **self._own_labels()}
        note = {"summary": body["title"], "description": body["text"]}
        self._post([{"labels": labels, "annotations": note}])

    def _alert(self, alert: Alert, rule: Rule) -> dict[str, Any]:
        key = alert.key
        labels = {"alertname": f"schedd_{rule.name}", "severity": rule.severity, **self._own_labels()}
        labels |= {name: value for name, value in (("kind", key.kind), ("fingerprint", key.fingerprint)) if value}
        made: dict[str, Any] = {
            "labels": labels,
            "annotations": {"summary": rule.title, "description": alert.text},
            "startsAt": rfc3339(alert.began),
        }
        link = self._origin.link(rule.page)
        return made if link is None else made | {"generatorURL": link}

    def _own_labels(self) -> dict[str, str]:
        return {} if self._origin.label is None else {"installation": self._origin.label}

    def _post(self, rows: list[dict[str, Any]]) -> None:
        post(self._sink, msgspec.json.encode(rows), {"content-type": "application/json"}, self._settings, PATH)
