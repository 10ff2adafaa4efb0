"""State machine of alerts: pending, firing, recovering; what is to be sent, and what is held back. Pure.

ok -> pending -> firing -> recovering -> ok. An alert that is ok is not kept. Instants and spans are microseconds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

from scheduler.model.alerts import Alert, AlertEvent, AlertKey, AlertPhase, Memory, Silence
from scheduler.ports import SECOND

HOUR = 3600 * SECOND


class Level(IntEnum):
    """Where a value is: over the threshold that fires, under the one that clears, or between them."""

    CLEAR = 0
    BETWEEN = 1
    FIRES = 2


class Rule(NamedTuple):
    """How long a condition must hold, and in how many looks, before it fires, and must be gone before it is over.

    ``steps``: numbers at which it is sent again.
    """

    name: str
    title: str
    severity: str = "warning"  # or critical
    after: int = 0
    looks: int = 1
    clear_after: int = 0
    clear_looks: int = 1
    steps: tuple[int, ...] = ()
    page: str = ""


class Observation(NamedTuple):
    """What one look found of an alert. ``number``: how many things are concerned; ``detail``: JSON values."""

    key: AlertKey
    level: Level
    number: int
    text: str
    detail: Mapping[str, Any] = {}


class Observations(NamedTuple):
    """What one look found. Of ``complete`` rules an alert that is not among the observations is clear."""

    observations: Sequence[Observation] = ()
    complete: frozenset[str] = frozenset()


class Notice(NamedTuple):
    """A message to make: one event of one rule, of all its alerts that are due. ``held``: of a flood, how many."""

    event: AlertEvent
    rule: str
    alerts: tuple[Alert, ...]
    held: int = 0


class MessageLimits(NamedTuple):
    """``repeat``: how long a firing alert is silent between two messages, 0: for ever; ``per_hour``: messages."""

    repeat: int
    per_hour: int


class Result(NamedTuple):
    """The alerts after a look, the messages that are to be made, and what is to be remembered."""

    alerts: dict[AlertKey, Alert]
    notices: list[Notice]
    memory: Memory


def advance(
    rules: Mapping[str, Rule],
    alerts: Mapping[AlertKey, Alert],
    found: Observations,
    silences: Collection[Silence],
    memory: Memory,
    limits: MessageLimits,
    now: int,
) -> Result:
    """Take one look into account. Alerts of rules that are no longer there are forgotten."""
    alerts = {key: _not_ahead(alert, now) for key, alert in alerts.items()}
    flooded_at = memory.flooded_at
    memory = Memory(tuple(min(at, now) for at in memory.sent), None if flooded_at is None else min(flooded_at, now))
    seen = {one.key: one for one in found.observations}
    kept: dict[AlertKey, Alert] = {}
    for key in dict.fromkeys([*alerts, *seen]):
        rule = rules.get(key.rule)
        if rule is None:
            continue
        moved = _moved(rule, alerts.get(key), seen.get(key), key, now, key.rule in found.complete)
        if moved is not None:
            kept[key] = moved
    notices, memory = _notify(rules, kept, silences, memory, limits, now)
    return Result(kept, notices, memory)


def _not_ahead(alert: Alert, now: int) -> Alert:
    """An alert of which nothing lies ahead of the clock: it may have been set back, and spans would never pass."""
    fired, notified = (None if at is None else min(at, now) for at in (alert.fired_at, alert.notified_at))
    since, began = min(alert.since, now), min(alert.began, now)
    return alert._replace(since=since, began=began, fired_at=fired, notified_at=notified)


def _moved(
    rule: Rule, alert: Alert | None, seen: Observation | None, key: AlertKey, now: int, complete: bool
) -> Alert | None:
    """The alert after this look; None: ok."""
    if seen is None and not complete:
        return alert  # not looked at: unknown is neither better nor worse
    level = Level.CLEAR if seen is None else seen.level
    if alert is None:
        if seen is None or level is not Level.FIRES:
            return None
        alert = Alert(key, AlertPhase.PENDING, now, 0, now)
    if seen is not None and level is not Level.CLEAR:
        alert = alert._replace(number=seen.number, text=seen.text, detail=seen.detail)
    if alert.phase is AlertPhase.PENDING:
        if level is not Level.FIRES:
            return None
        alert = alert._replace(looks=alert.looks + 1)
        if now - alert.since < rule.after or alert.looks < rule.looks:
            return alert
        return alert._replace(phase=AlertPhase.FIRING, since=now, looks=1, fired_at=now)
    if level is not Level.CLEAR:
        return (
            alert if alert.phase is AlertPhase.FIRING else alert._replace(phase=AlertPhase.FIRING, since=now, looks=1)
        )
    if alert.phase is AlertPhase.FIRING:
        return alert._replace(phase=AlertPhase.RECOVERING, since=now, looks=1)
    return alert._replace(looks=alert.looks + 1)


def recovered(rule: Rule, alert: Alert, now: int) -> bool:
    """Whether an alert has been clear for long enough."""
    over = now - alert.since >= rule.clear_after and alert.looks >= rule.clear_looks
    return alert.phase is AlertPhase.RECOVERING and over


def step_of(rule: Rule, number: int) -> int:
    """The highest step that a number has reached; 0: none."""
    return max((step for step in rule.steps if step <= number), default=0)


def is_silenced(silences: Iterable[Silence], key: AlertKey, now: int) -> bool:
    """Whether one of them covers this alert now."""
    return any(one.covers(key, now) for one in silences)


def _notify(
    rules: Mapping[str, Rule],
    kept: dict[AlertKey, Alert],
    silences: Collection[Silence],
    memory: Memory,
    limits: MessageLimits,
    now: int,
) -> tuple[list[Notice], Memory]:
    """Make what is due, as far as the hour's messages allow; marks it in ``kept``, and removes what has recovered."""
    due: dict[tuple[AlertEvent, str], list[Alert]] = {}
    for key, alert in list(kept.items()):
        rule = rules[key.rule]
        event = _event(rule, alert, is_silenced(silences, key, now), limits.repeat, now)
        if event is not None:
            due.setdefault((event, key.rule), []).append(alert)
        elif recovered(rule, alert, now):
            del kept[key]  # there was no message that it fired
    sent = [at for at in memory.sent if at > now - HOUR]
    notices: list[Notice] = []
    held = 0
    order = list(AlertEvent)
    for (event, name), found in sorted(due.items(), key=lambda item: (order.index(item[0][0]), item[0][1])):
        if len(sent) >= limits.per_hour:
            held += len(found)
            continue
        sent.append(now)
        rule = rules[name]
        ordered = tuple(sorted(found, key=lambda alert: (-alert.number, alert.key)))
        notices.append(Notice(event, name, ordered))
        for alert in found:
            if event is AlertEvent.RECOVERED:
                del kept[alert.key]
            else:
                step = max(alert.step, step_of(rule, alert.number))
                kept[alert.key] = alert._replace(notified_at=now, step=step)
    flooded_at = memory.flooded_at
    if held and (flooded_at is None or now - flooded_at >= HOUR):
        notices.append(Notice(AlertEvent.FLOODED, "", (), held))
        flooded_at = now
    return notices, Memory(tuple(sent), flooded_at)


def _event(rule: Rule, alert: Alert, silenced: bool, repeat: int, now: int) -> AlertEvent | None:
    """The message that is due. The end of an alert that was sent is sent, silenced or not: receivers close it."""
    if recovered(rule, alert, now):
        return AlertEvent.RECOVERED if alert.notified_at is not None else None
    if alert.phase is not AlertPhase.FIRING or silenced:
        return None
    if alert.notified_at is None:
        return AlertEvent.FIRED
    if step_of(rule, alert.number) > alert.step:
        return AlertEvent.GREW
    return AlertEvent.REPEATED if repeat and now - alert.notified_at >= repeat else None
