"""``[alerts]``: which rules are evaluated, with which thresholds, and where messages go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, field

from scheduler.config.sources import Duration, Section
from scheduler.model.names import nearest

Share = Annotated[float, Meta(gt=0, le=1)]
SinkType = Literal["webhook", "slack", "ntfy", "email", "alertmanager", "command"]
MINUTE, HOUR = 60.0, 3600.0


class DeadLettersRule(Section, frozen=True):
    """There are dead letters. Says so again when there are 10, 100, 1,000 of one kind and cause."""

    # Evaluate this rule.
    enabled: bool = True
    # It fires when there are dead letters for so long; again at 10, 100, 1,000 of one kind and cause.
    after: Duration = MINUTE
    # It is over when there is none for so long.
    clear_after: Duration = 2 * MINUTE


class ExpiringRule(Section, frozen=True):
    """Retention removes dead letters ``within`` this time."""

    # Evaluate this rule.
    enabled: bool = True
    # It fires when retention removes dead letters within this time.
    within: Duration = 48 * HOUR


class RetryRateRule(Section, frozen=True):
    """Of the attempts of a kind within ``window`` more than ``above`` were retried; over when less than ``below``."""

    # Evaluate this rule.
    enabled: bool = True
    # It fires when more than this share of a kind's attempts were retried, or lost with their worker.
    above: Share = 0.2
    # It is over when the share is less.
    below: Share = 0.1
    # The time in which attempts are counted.
    window: Annotated[Duration, Meta(ge=60)] = 10 * MINUTE
    # The fewest attempts that count.
    attempts: Annotated[int, Meta(ge=1)] = 20


class BacklogAgeRule(Section, frozen=True):
    """The oldest ready task of a queue waits longer than ``above``; over when less than ``below``."""

    # Evaluate this rule.
    enabled: bool = True
    # It fires when the oldest ready task of a queue waits longer.
    above: Duration = 5 * MINUTE
    # It is over when the wait is shorter.
    below: Duration = 2 * MINUTE


class BacklogGrowthRule(Section, frozen=True):
    """For ``window`` more tasks became ready in a queue than ended, and to run them takes longer than ``drain``."""

    # Evaluate this rule.
    enabled: bool = True
    # It fires when more tasks became ready in a queue than ended, for so long.
    window: Annotated[Duration, Meta(ge=60)] = 15 * MINUTE
    # It fires only if running them takes longer than this as well.
    drain: Duration = HOUR


class PresentRule(Section, frozen=True):
    """Something that ``schedctl status`` names as stuck."""

    # Evaluate this rule.
    enabled: bool = True
    # It fires when the problem has lasted so long.
    after: Duration = MINUTE
    # It is over when the problem has been gone for so long.
    clear_after: Duration = 2 * MINUTE


class DeadMessagesRule(Section, frozen=True):
    """Messages of a source have come ``within`` this time that could become no task, and went to its transport's
    dead-letter queue. Says so again when there are 10, 100, 1,000."""

    # Evaluate this rule.
    enabled: bool = True
    # It fires when messages of a source that came within this time could become no task; again at 10, 100, 1,000.
    within: Annotated[Duration, Meta(ge=60)] = 24 * HOUR


class StoreAwayRule(Section, frozen=True):
    """A daemon has not been able to use the database for ``after``: each tells the sinks directly."""

    # Evaluate this rule.
    enabled: bool = True
    # It fires when a daemon has not been able to use the database for so long.
    after: Annotated[Duration, Meta(ge=1)] = MINUTE


class LongRunRule(Section, frozen=True):
    """An attempt runs longer than ``factor`` times the p95 of its kind, and longer than ``above``."""

    # Evaluate this rule.
    enabled: bool = True
    # It fires when an attempt runs so many times longer than the p95 of its kind.
    factor: Annotated[float, Meta(ge=1)] = 3.0
    # It fires only for attempts that run longer than this as well.
    above: Duration = MINUTE


class SilentScheduleRule(Section, frozen=True):
    """A schedule has had no success for its latest fire time, ``grace`` after that."""

    # Evaluate this rule.
    enabled: bool = True
    # It fires when a schedule has had no success for its latest fire time for so long.
    grace: Duration = 15 * MINUTE


class AlertRules(Section, frozen=True):
    """``[alerts.rules]``: the rules, by their names."""

    dead_letters: DeadLettersRule = DeadLettersRule()
    dead_letters_expiring: ExpiringRule = ExpiringRule()
    retry_rate: RetryRateRule = RetryRateRule()
    backlog_age: BacklogAgeRule = BacklogAgeRule()
    backlog_growth: BacklogGrowthRule = BacklogGrowthRule()
    unserved: PresentRule = PresentRule()
    lease_lost: PresentRule = PresentRule()
    stalled: PresentRule = PresentRule()
    late_schedule: PresentRule = PresentRule()
    unreachable: PresentRule = PresentRule()
    old_messages: PresentRule = PresentRule()
    dead_messages: DeadMessagesRule = DeadMessagesRule()
    problem: PresentRule = PresentRule()
    long_run: LongRunRule = LongRunRule()
    silent_schedule: SilentScheduleRule = SilentScheduleRule()
    store_away: StoreAwayRule = StoreAwayRule()


class AlertSink(Section, frozen=True):
    """``[alerts.sinks.NAME]``: a receiver of messages."""

    # `webhook`, `slack`, `ntfy`, `email`, `alertmanager` or `command`; see [alerts](../guides/alerts.md#sinks).
    type: SinkType = "webhook"
    # The address of the receiver.
    url: str | None = None
    # The secret that signs messages of a webhook.
    secret: str | None = None
    # The bearer token for it.
    token: str | None = None
    # Addresses of mail.
    to: tuple[str, ...] = ()
    # A command and its arguments.
    command: tuple[str, ...] = ()
    # The rules whose messages go there; `*`: all.
    rules: tuple[str, ...] = ("*",)
    # How long a delivery may take.
    timeout: Annotated[Duration, Meta(gt=0, le=300)] = 10.0

    def takes(self, rule: str) -> bool:
        """Whether messages of this rule go to it."""
        return "*" in self.rules or rule in self.rules


class Alerts(Section, frozen=True):
    """``[alerts]``: rules that are evaluated, and messages about them."""

    # Evaluate rules and send messages; see [alerts](../guides/alerts.md). Default: if there is a sink.
    enabled: bool | None = None
    # The time between two evaluations; one daemon of the fleet does it.
    every: Annotated[Duration, Meta(ge=1)] = 15.0
    # A message is sent again after so long while an alert goes on; 0: never.
    repeat: Duration = 4 * HOUR
    # Messages within an hour; then one says that others are held back.
    max_per_hour: Annotated[int, Meta(ge=1)] = 20
    # The name of this installation in messages.
    label: str | None = None
    # The console that links in messages lead to.
    console_url: str | None = None
    rules: AlertRules = AlertRules()
    sinks: dict[str, AlertSink] = field(default_factory=dict)

    @property
    def on(self) -> bool:
        """Whether a daemon evaluates the rules."""
        return bool(self.sinks) if self.enabled is None else self.enabled


# What a sink of each type needs, and what it may have besides.
_NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "webhook": ("url", ("secret", "token")),
    "slack": ("url", ()),
    "ntfy": ("url", ("token",)),
    "email": ("to", ()),
    "alertmanager": ("url", ("token",)),
    "command": ("command", ()),
}
_OWN = ("url", "secret", "token", "to", "command")
RULES = tuple(AlertRules.__struct_fields__)


def mistakes(alerts: Alerts, mail: bool) -> Iterator[tuple[str, str]]:
    """What is wrong with these settings: (dotted name, why). ``mail``: whether ``[mail]`` has a host and a sender."""
    for name, rule in (("retry_rate", alerts.rules.retry_rate), ("backlog_age", alerts.rules.backlog_age)):
        if rule.below > rule.above:
            yield f"alerts.rules.{name}.below", f"it is more than above ({rule.above:g}), so it would never be over"
    if alerts.console_url is not None and not re.match(r"https?://[^/]", alerts.console_url):
        yield "alerts.console_url", "expected an address that begins with https:// or http://"
    for name, sink in alerts.sinks.items():
        where = f"alerts.sinks.{name}"
        needed, allowed = _NEEDS[sink.type]
        given = [one for one in _OWN if getattr(sink, one)]
        if needed not in given:
            yield f"{where}.{needed}", f"a sink of type {sink.type} needs it"
        for one in given:
            if one != needed and one not in allowed:
                yield f"{where}.{one}", f"a sink of type {sink.type} has no such setting"
        if sink.url is not None and not re.match(r"https?://[^/]", sink.url):
            yield f"{where}.url", "expected an address that begins with https:// or http://"
        if sink.type == "email" and not mail:
            yield f"{where}.type", "mail needs a server: set host and sender in [mail]"
        for address in sink.to:
            if not re.fullmatch(r"[^@\s,;<>]+@[^@\s,;<>]+", address):
                yield f"{where}.to", f"{address!r} is not an address such as ops@example.org"
        if not sink.rules:
            yield f"{where}.rules", 'no rule; use ["*"] for all'
        for rule_name in sink.rules:
            if rule_name != "*" and rule_name not in RULES:
                near = nearest(rule_name, RULES)
                meant = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(RULES)}"
                yield f"{where}.rules", f"there is no rule {rule_name!r}{meant}"
