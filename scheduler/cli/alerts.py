"""``schedctl alerts``: what fires, silences, messages and whether sinks work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from scheduler.cli import exits
from scheduler.cli.exits import CommandGroup
from scheduler.cli.options import SPAN, Number, acts, common
from scheduler.cli.output import print_rows, time
from scheduler.cli.session import Session, note, prints

if TYPE_CHECKING:
    from scheduler.operations.alerts import SilenceRecord

_FIELDS = (
    *("rule", "about", "fingerprint", "state", "since", "began", "number", "text", "notified_at"),
    *("silenced_until", "severity", "detail"),
)
_COLUMNS = ("rule", "about", "state", "began", "silenced_until", "text")
_SILENCE_FIELDS = ("id", "rule", "about", "fingerprint", "until", "since", "by", "reason")
_SILENCE_COLUMNS = ("id", "rule", "about", "until", "by", "reason")
_HISTORY_FIELDS = ("at", "sink", "event", "rule", "title", "delivered_at", "tries", "error", "id")
_HISTORY_COLUMNS = ("at", "sink", "event", "title", "delivered_at", "error")
_TEST_FIELDS = ("sink", "type", "ok", "error")


@click.group(name="alerts", cls=CommandGroup)
def alerts_command() -> None:
    """Alerts that fire, silences, and messages to sinks."""


@alerts_command.command(name="list")
@common
@prints(_FIELDS)
def list_(session: Session, /) -> None:
    """Alerts that are pending, firing or recovering, and silences.

    A daemon evaluates the rules if its [alerts] has a sink, or enabled = true. Without such a daemon nothing is
    evaluated.
    """
    from scheduler.alerts.rules import rules_of
    from scheduler.client.json_views import alert_view
    from scheduler.operations.alerts import current

    rules = rules_of(session.config.alerts.rules)
    with session.desk.read() as tx:
        found = current(tx)
    rows = []
    for alert in found.alerts:
        rule = rules.get(alert.key.rule)
        row = alert_view(alert) | {"severity": None if rule is None else rule.severity}
        rows.append(row | {"silenced_until": time(found.silenced_until(alert))})
    print_rows(session, rows, _COLUMNS)
    if not found.evaluated:
        note("no daemon evaluates alerts now: see [alerts] in its configuration")
    if session.output == "table":
        for one in found.silences:
            note(f"silence {one.id}: {one.subject}, until {time(one.until)}{_by(one)}")


@alerts_command.command(name="history")
@click.option("--limit", type=Number(1, 100_000), default=50, show_default=True, help="At most this many.")
@common
@prints(_HISTORY_FIELDS)
def show_history(session: Session, /, limit: int) -> None:
    """Messages of the last week, newest first, and whether they have arrived."""
    from scheduler.operations.alerts import history

    with session.desk.read() as tx:
        found = history(tx, limit)
    rows = []
    for one in found:
        error = f"given up: {one.error}" if one.given_up else one.error
        row = {**one._asdict(), "at": time(one.at), "delivered_at": time(one.delivered_at), "error": error}
        rows.append(row)
    print_rows(session, rows, _HISTORY_COLUMNS)


@alerts_command.command(name="test")
@click.argument("names", metavar="[SINK]…", nargs=-1)
@common
@prints(_TEST_FIELDS)
def test(session: Session, /, names: tuple[str, ...]) -> int:
    """Send a test message to these sinks of [alerts.sinks], or to all of them. Status 1 if one does not take it.

    This command sends it itself: it needs no daemon and no database.
    """
    import time as clock

    from scheduler.alerts.messages import Origin, trial
    from scheduler.alerts.service import make_sinks
    from scheduler.alerts.sinks import SinkError
    from scheduler.operations.alerts import new_id

    settings = session.config.alerts
    for name in names:
        if name not in settings.sinks:
            there = ", ".join(settings.sinks) or "none"
            raise click.UsageError(f"there is no sink {name!r}; [alerts.sinks] has {there}")
    if not settings.sinks:
        raise click.UsageError("there is no sink: write one as [alerts.sinks.NAME]")
    sinks = make_sinks(session.config)
    body = trial(Origin(settings.label, settings.console_url), new_id(), clock.time_ns() // 1000)
    rows = []
    for name in dict.fromkeys(names or settings.sinks):
        error = None
        try:
            sinks[name].deliver(body)
        except SinkError as trouble:
            error = str(trouble)
        rows.append({"sink": name, "type": settings.sinks[name].type, "ok": error is None, "error": error})
    print_rows(session, rows)
    return exits.DONE if all(row["ok"] for row in rows) else exits.FAILED


@alerts_command.command(name="silence")
@click.argument("rule", metavar="RULE")
@click.option("--kind", metavar="K", help="Only alerts about this kind, queue or schedule.")
@click.option("--fingerprint", metavar="F", help="Only alerts about this cause of dead letters.")
@click.option("--for", "span", type=SPAN, required=True, metavar="S", help="The length of the silence, such as 2h.")
@acts
@common
@prints(_SILENCE_FIELDS)
def silence(session: Session, /, rule: str, kind: str | None, fingerprint: str | None, span: int) -> None:
    """Make no messages of a rule for a while; "*" for all rules. The end of an alert that fired before is still
    sent.

    Alerts that still fire when the silence ends are sent then.
    """
    from scheduler.operations import alerts

    if span <= 0:
        raise click.UsageError("--for is a time, such as 2h")
    made = alerts.silence(session.desk, rule, span, kind=kind, fingerprint=fingerprint)
    print_rows(session, [_silence_view(made)], _SILENCE_COLUMNS)


@alerts_command.command(name="unsilence")
@click.argument("number", metavar="ID", type=Number(1, 2**63 - 1))
@acts
@common
@prints(_SILENCE_FIELDS)
def unsilence(session: Session, /, number: int) -> int:
    """End a silence, by the id that `alerts list` shows."""
    from scheduler.operations import alerts

    ended = alerts.unsilence(session.desk, number)
    if ended is None:
        note(f"there is no silence {number} in effect")
        return exits.UNKNOWN
    print_rows(session, [_silence_view(ended)], _SILENCE_COLUMNS)
    return exits.DONE


def _silence_view(one: SilenceRecord) -> dict[str, Any]:
    from scheduler.client.json_views import fields

    return {
        **fields(one, "id", "rule"),
        "about": one.kind,
        **fields(one, "fingerprint", "until"),
        "since": time(one.at),
        "by": one.actor,
        "reason": one.reason,
    }


def _by(one: SilenceRecord) -> str:
    by = "" if one.actor is None else f", by {one.actor}"
    return by if one.reason is None else f"{by}: {one.reason}"
