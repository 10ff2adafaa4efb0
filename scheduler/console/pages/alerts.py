"""``/alerts``: what fires, what is silenced and by whom, which messages went out; silence, unsilence, test."""

from __future__ import annotations

from typing import Any

from scheduler.alerts.messages import Origin, trial
from scheduler.alerts.service import make_sinks
from scheduler.alerts.sinks import SinkError
from scheduler.client.json_views import alert_view, time
from scheduler.config.alerts import RULES
from scheduler.config.sources import parse_duration
from scheduler.console.masks import exact, masked_text
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import BadInputError, Visit
from scheduler.errors import ConfigError
from scheduler.model.alerts import Alert, AlertPhase
from scheduler.model.times import SECOND
from scheduler.operations import alerts as operations

SHOWN = 300  # alerts on one page
MESSAGES = 100


@page("/alerts", nav=Nav("Alerts", "l", 90))
def alerts(visit: Visit) -> RenderedPage:
    """Alerts that are not ok, silences, and the messages of the last week."""
    with visit.read() as tx:
        seen, messages = operations.current(tx), operations.history(tx, MESSAGES)
    found = sorted(seen.alerts, key=lambda one: (one.phase is not AlertPhase.FIRING, -one.since))
    rows = [(one, seen.silenced_until(one) is not None) for one in found[:SHOWN]]
    config = visit.site.config
    context: dict[str, Any] = {
        "rows": rows,
        "left": max(0, len(found) - SHOWN),
        "silences": seen.silences,
        "messages": messages,
        "evaluated": seen.evaluated,
        "rules": RULES,
        "sinks": [] if config is None else list(config.alerts.sinks),
    }
    data = {
        "evaluated": seen.evaluated,
        "alerts": [_view(*row) for row in rows],
        "silences": [{**one._asdict(), "at": time(one.at), "until": time(one.until)} for one in seen.silences],
        "messages": [{**one._asdict(), "at": time(one.at), "delivered_at": time(one.delivered_at)} for one in messages],
    }
    return RenderedPage("alerts.html", data, context, "schedctl alerts list")


def _view(alert: Alert, silenced: bool) -> dict[str, Any]:
    return alert_view(alert) | {"silenced": silenced, "detail": exact(dict(alert.detail))}


@action("/alerts/silence", Verb.SILENCE)
def silence(visit: Visit) -> ActionDone:
    """Make no messages of a rule for a while."""
    rule = visit.given("rule")
    try:
        seconds = parse_duration(visit.given("for"))
    except ConfigError:
        raise BadInputError("say for how long, such as 2h") from None
    if not 0 < seconds <= 366 * 86_400:
        raise BadInputError("a silence lasts more than nothing, and a year at most")
    kind, fingerprint = visit.given("kind") or None, visit.given("fingerprint") or None
    span = round(seconds * SECOND)
    made = operations.silence(visit.jobs.desk, rule, span, kind=kind, fingerprint=fingerprint)
    undo = ("Undo: end the silence", "/alerts/unsilence", {"id": str(made.id)})
    return ActionDone(f"Silent: {made.subject}.", undo=undo, data={"id": made.id})


@action("/alerts/unsilence", Verb.SILENCE)
def unsilence(visit: Visit) -> ActionDone:
    """End a silence."""
    number = visit.given_number("id", least=1)
    if number is None:
        raise BadInputError("say which silence: id")
    ended = operations.unsilence(visit.jobs.desk, number)
    if ended is None:
        return ActionDone(f"There is no silence {number} in effect.", ok=False)
    return ActionDone(f"No longer silent: {ended.subject}.")


@action("/alerts/test", Verb.SILENCE)
def test(visit: Visit) -> ActionDone:
    """Send a test message to one sink."""
    name, config = visit.given("sink"), visit.site.config
    if config is None or name not in config.alerts.sinks:
        there = "none" if config is None else ", ".join(config.alerts.sinks) or "none"
        raise BadInputError(f"there is no sink {name!r:.80} in this console's configuration; there is {there}")
    operations.note_test(visit.jobs.desk, name)
    origin = Origin(config.alerts.label, config.alerts.console_url)
    try:
        make_sinks(config)[name].deliver(trial(origin, operations.new_id(), visit.jobs.database.now()))
    except SinkError as error:
        return ActionDone(f"{name} does not take it: {masked_text(str(error))}", ok=False)
    return ActionDone(f"{name} has taken a test message.")
