"""Writes messages: of a notice the JSON body that is stored, and the texts that people read. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

from scheduler.alerts.machine import Notice, Rule
from scheduler.model.alerts import Alert, AlertEvent
from scheduler.model.texts import counted, rfc3339, span_text
from scheduler.ports import SECOND

VERSION = 1  # of the body
MAX_CAUSES = 3  # alerts that the text names
MAX_ALERTS = 50  # that the body lists
WORDS = {
    AlertEvent.FIRED: "",
    AlertEvent.GREW: "more: ",
    AlertEvent.REPEATED: "still: ",
    AlertEvent.RECOVERED: "over: ",
    AlertEvent.FLOODED: "",
    AlertEvent.TEST: "",
}


class Origin(NamedTuple):
    """Where a message comes from: the installation's label, and the address of its console, if there are."""

    label: str | None = None
    console_url: str | None = None

    def link(self, page: str) -> str | None:
        """A page of the console."""
        return None if self.console_url is None else f"{self.console_url.rstrip('/')}/{page}"


def compose(notice: Notice, rule: Rule | None, origin: Origin, message_id: str, now: int) -> dict[str, Any]:
    """The body of a message, for JSON. ``rule`` None: of a flood."""
    if rule is None:
        return _flood(notice, origin, message_id, now)
    alerts = notice.alerts
    number = sum(alert.number for alert in alerts)
    began = min(alert.began for alert in alerts)
    over = notice.event is AlertEvent.RECOVERED
    lasted = max(alert.since for alert in alerts) - began if over else now - began
    lines = [alert.text for alert in alerts[:MAX_CAUSES]]
    if len(alerts) > MAX_CAUSES:
        lines.append(f"and {len(alerts) - MAX_CAUSES} more")
    lines.append(f"it lasted {span_text(lasted)}" if over else f"since {rfc3339(began, exact=False)}")
    title = f"{WORDS[notice.event]}{rule.title}"
    if len(alerts) == 1 and alerts[0].key.kind:
        title += f" ({alerts[0].key.kind})"
    return {
        "version": VERSION,
        "id": message_id,
        "event": notice.event.value,
        "rule": rule.name,
        "severity": rule.severity,
        "label": origin.label,
        "title": _labelled(origin, title),
        "text": "\n".join(lines),
        "at": rfc3339(now),
        "since": rfc3339(began),
        "lasted_seconds": round(lasted / SECOND, 3),
        "number": number,
        "url": origin.link(_page(rule, alerts)),
        "alerts": [_alert(alert, origin) for alert in alerts[:MAX_ALERTS]],
        "alerts_total": len(alerts),
    }


def _page(rule: Rule, alerts: tuple[Alert, ...]) -> str:
    """The console's page for these: of one cause of dead letters those alone."""
    if rule.page == "dead" and len(alerts) == 1:
        key = alerts[0].key
        if not key.kind:
            return rule.page  # a cause of several kinds
        cause = f"&fingerprint={quote(key.fingerprint, safe='')}" if key.fingerprint else ""
        return f"dead?kind={quote(key.kind, safe='')}{cause}"
    return rule.page


def _alert(alert: Alert, origin: Origin) -> dict[str, Any]:
    tasks = alert.detail.get("tasks") or []
    return {
        "kind": alert.key.kind or None,
        "fingerprint": alert.key.fingerprint or None,
        "number": alert.number,
        "text": alert.text,
        "began": rfc3339(alert.began),
        "detail": dict(alert.detail),
        "url": origin.link(f"tasks/{tasks[0]}") if tasks else None,
    }


def _flood(notice: Notice, origin: Origin, message_id: str, now: int) -> dict[str, Any]:
    held = counted(notice.held, "alert")
    text = (
        f"There were as many messages within an hour as [alerts] max_per_hour allows; {held} held back for now. "
        "`schedctl alerts list` shows all. What still fires is sent once there is room again."
    )
    title = _labelled(origin, "too many alerts: messages are held back")
    return _plain(AlertEvent.FLOODED, title, text, "critical", origin, message_id, now)


def trial(origin: Origin, message_id: str, now: int) -> dict[str, Any]:
    """The body of ``schedctl alerts test``."""
    text = "This is a test of an alert sink; nothing is wrong."
    return _plain(AlertEvent.TEST, _labelled(origin, "test of an alert"), text, "warning", origin, message_id, now)


def _plain(
    event: AlertEvent, title: str, text: str, severity: str, origin: Origin, message_id: str, now: int
) -> dict[str, Any]:
    return {
        "version": VERSION,
        "id": message_id,
        "event": event.value,
        "rule": None,
        "severity": severity,
        "label": origin.label,
        "title": title,
        "text": text,
        "at": rfc3339(now),
        "since": None,
        "lasted_seconds": None,
        "number": 0,
        "url": origin.link("alerts"),
        "alerts": [],
        "alerts_total": 0,
    }


def _labelled(origin: Origin, title: str) -> str:
    return title if origin.label is None else f"[{origin.label}] {title}"


def plain_text(body: Mapping[str, Any]) -> str:
    """What a person reads below the title: the text, and where to look."""
    lines = [str(body["text"])]
    if body.get("url"):
        lines.append(str(body["url"]))
    return "\n".join(lines)
