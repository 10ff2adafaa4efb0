"""The default rules: what each observes, from what was read. Pure: of facts and thresholds, observations."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduler.alerts.machine import Level, Observation, Rule
from scheduler.config.alerts import AlertRules, BacklogAgeRule, BacklogGrowthRule, LongRunRule, RetryRateRule
from scheduler.model.alerts import AlertKey
from scheduler.model.problem import Problem
from scheduler.model.redact import redact
from scheduler.model.texts import counted, span_text, storable
from scheduler.ports import SECOND
from scheduler.store.read.alert_facts import (
    MAX_BACKLOG,
    DeadGroup,
    Expiring,
    LongRun,
    QueueBacklog,
    RetryRate,
    SourceDeadMessages,
)
from scheduler.store.read.flow import Flow
from scheduler.store.read.problems import BY_NAME, TABLE
from scheduler.store.read.shared_causes import by_common_text, kinds_text

DEAD_LETTER_STEPS = (1, 10, 100, 1000)
AGE_LOOKS, AGE_CLEAR_LOOKS = 2, 3  # of backlog_age: looks that confirm it, and that it is over
GROWTH_CLEAR_AFTER = 120 * SECOND
MAX_ERROR = 200  # characters of an error in a message
_EXAMPLES, _MAX_KINDS = 5, 50  # of tasks and kinds that a cause of several kinds names
MAX_EXAMPLES = 5
UNKNOWN = -1  # of a backlog: a pause holds a part of it
Samples = Sequence[tuple[int, Mapping[str, int]]]

# The rules of problems, of which :data:`scheduler.store.read.problems.TABLE` says which belongs to which.
PROBLEM_RULES = tuple(dict.fromkeys(row.rule for row in TABLE))
_TITLES = {
    "dead_letters": ("dead letters", "warning", "dead"),
    "dead_letters_expiring": ("dead letters are about to be removed", "warning", "dead"),
    "retry_rate": ("many attempts are retried", "warning", "kinds"),
    "backlog_age": ("ready tasks wait long", "warning", "tasks?state=scheduled"),
    "backlog_growth": ("a backlog grows", "warning", "tasks?state=scheduled"),
    "unserved": ("no worker takes ready tasks", "critical", ""),
    "lease_lost": ("a worker lost its lease", "critical", "workers"),
    "stalled": ("running tasks are stuck", "warning", "tasks?state=running"),
    "late_schedule": ("schedules are late", "critical", "schedules"),
    "unreachable": ("a source or a sink cannot be used", "critical", ""),
    "old_messages": ("messages come too late", "critical", ""),
    "dead_messages": ("messages can become no task", "warning", ""),
    "problem": ("something is stuck", "critical", ""),
    "long_run": ("attempts run unusually long", "warning", "tasks?state=running"),
    "store_away": ("the database cannot be used", "critical", ""),
    "silent_schedule": ("a schedule has not succeeded in time", "critical", "schedules"),
}


def us(seconds: float) -> int:
    """Microseconds."""
    return round(seconds * SECOND)


def rules_of(settings: AlertRules) -> dict[str, Rule]:
    """The rules that are on, by name."""
    found = {}
    for name in AlertRules.__struct_fields__:
        own: Any = getattr(settings, name)
        if not own.enabled:
            continue
        title, severity, page = _TITLES[name]
        after, clear_after = us(getattr(own, "after", 0.0)), us(getattr(own, "clear_after", 0.0))
        looks, clear_looks = 2 if after else 1, 2 if clear_after else 1
        rule = Rule(name, title, severity, after, looks, clear_after, clear_looks, (), page)
        if name in ("dead_letters", "dead_messages"):
            rule = rule._replace(steps=DEAD_LETTER_STEPS)
        elif name == "backlog_age":
            rule = rule._replace(looks=AGE_LOOKS, clear_looks=AGE_CLEAR_LOOKS)
        elif name == "backlog_growth":
            rule = rule._replace(clear_after=GROWTH_CLEAR_AFTER)
        found[name] = rule
    return found


def shown_error(text: str | None) -> str | None:
    """The first line of an error, without secrets, cut to what fits a message."""
    if not text:
        return None
    line = redact(storable(text).strip().partition("\n")[0])
    return line if len(line) <= MAX_ERROR else f"{line[: MAX_ERROR - 1]}…"


def dead_letters(groups: Iterable[DeadGroup], errors: Mapping[int, str | None]) -> list[Observation]:
    """One observation for each cause: of several kinds that have it in common, or of one kind."""
    found = []
    for common, several in by_common_text(groups, lambda group: errors.get(group.id)):
        own = [_dead_letters(group, shown_error(errors.get(group.id))) for group in several]
        if len(several) > 1:
            # An alert of a kind that fires already neither ends nor begins anew for it.
            found += [one._replace(level=Level.BETWEEN) for one in own]
            own = [_over_kinds(several, common, errors)]
        found += own
    return found


def _dead_letters(group: DeadGroup, error: str | None) -> Observation:
    cause = error or group.error_class or "an unknown cause"
    text = f"{counted(group.number, 'dead letter')} of {group.kind}: {cause}"
    detail = {"error_class": group.error_class, "error": error, "tasks": [group.id]}
    key = AlertKey("dead_letters", group.kind, group.fingerprint or group.error_class or "")
    return Observation(key, Level.FIRES, group.number, text, detail)


def _over_kinds(several: list[DeadGroup], common: str, errors: Mapping[int, str | None]) -> Observation:
    newest = max(several, key=lambda group: group.id)
    error = shown_error(errors.get(newest.id))
    kinds = tuple(dict.fromkeys(group.kind for group in several))
    number = sum(group.number for group in several)
    cause = error or newest.error_class or "an unknown cause"
    text = f"{counted(number, 'dead letter')} of {kinds_text(kinds)}: {cause}"
    tasks = [newest.id, *(group.id for group in several if group is not newest)][:_EXAMPLES]
    detail = {"error_class": newest.error_class, "error": error, "tasks": tasks, "kinds": list(kinds[:_MAX_KINDS])}
    digest = hashlib.sha256(f"{newest.error_class}\n{common}".encode()).hexdigest()[:16]
    return Observation(AlertKey("dead_letters", "", digest), Level.FIRES, number, text, detail)


def dead_letters_expiring(groups: Iterable[Expiring], now: int) -> list[Observation]:
    """One observation for each kind."""
    found = []
    for group in groups:
        left = group.first - now
        when = f"in {span_text(left)}" if left > 0 else "now"
        text = f"retention removes {counted(group.number, 'dead letter')} of {group.kind}, the first {when}"
        found.append(Observation(AlertKey("dead_letters_expiring", group.kind), Level.FIRES, group.number, text))
    return found


def dead_messages(groups: Iterable[SourceDeadMessages]) -> list[Observation]:
    """One observation for each source."""
    found = []
    for group in groups:
        error = shown_error(group.error)
        text = f"{counted(group.number, 'message')} of source {group.source} could become no task"
        detail = {"error": error, "key": group.key}
        text = f"{text}, the last one: {error or 'an unknown cause'}"
        found.append(Observation(AlertKey("dead_messages", group.source), Level.FIRES, group.number, text, detail))
    return found


def retry_rate(rates: Iterable[RetryRate], own: RetryRateRule) -> list[Observation]:
    """One observation for each kind with attempts. Too few attempts neither fire nor clear, unless none was retried."""
    found = []
    for one in rates:
        rate = one.retried / one.attempts if one.attempts else 0.0
        if rate > own.above and one.attempts >= own.attempts:
            level = Level.FIRES
        else:
            level = Level.CLEAR if rate < own.below else Level.BETWEEN
        text = f"{rate:.0%} of the last {counted(one.attempts, 'attempt')} of {one.kind} were retried"
        detail = {"attempts": one.attempts, "retried": one.retried, "rate": round(rate, 4)}
        found.append(Observation(AlertKey("retry_rate", one.kind), level, one.retried, text, detail))
    return found


def backlog_age(
    backlogs: Iterable[QueueBacklog], flows: Mapping[str, Flow], own: BacklogAgeRule, now: int
) -> list[Observation]:
    """One observation for each queue with ready tasks. ``flows``: how fast tasks come and go, of some queues."""
    found = []
    for one in backlogs:
        age = now - one.since
        if age > us(own.above):
            level = Level.FIRES
        else:
            level = Level.CLEAR if age < us(own.below) else Level.BETWEEN
        text = f"the oldest ready task of queue {one.queue} ({one.kind}) waits since {span_text(age)}{one.cause}"
        detail: dict[str, float | None] = {"age_seconds": round(age / SECOND, 1)}
        flow = flows.get(one.queue)
        if flow is not None:
            text = f"{text}; {flow.prospect()}"
            drained = None if flow.drained_in is None else round(flow.drained_in / SECOND)
            detail |= {"in": round(flow.arriving, 3), "out": round(flow.leaving, 3), "drained_in": drained}
        found.append(Observation(AlertKey("backlog_age", one.queue), level, max(1, one.number), text, detail))
    return found


def backlog_growth(
    backlogs: Iterable[QueueBacklog], samples: Samples, departed: Mapping[str, int], own: BacklogGrowthRule, now: int
) -> list[Observation]:
    """One observation for each queue whose samples reach back a whole window.

    It fires if the backlog has grown in each third of the window, so a batch that came at once does not count as
    growth. Nothing is known of a queue that a pause held, and of a backlog that is too long to be counted.
    """
    window = us(own.window)
    before = [_sample(samples, now - window * thirds // 3) for thirds in (3, 2, 1)]
    if any(one is None for one in before):
        return []
    found = []
    for one in backlogs:
        was = [0 if numbers is None else numbers.get(one.queue, 0) for numbers in before]
        if UNKNOWN in (one.number, *was):
            continue
        ended = departed.get(one.queue, 0)
        drain = one.number * window // ended if ended else None  # None: for ever
        if drain is not None and drain <= us(own.drain):
            level = Level.CLEAR
        elif one.number >= MAX_BACKLOG:
            level = Level.BETWEEN
        elif was[0] < was[1] < was[2] < one.number:
            level = Level.FIRES
        else:
            level = Level.CLEAR if one.number < was[0] else Level.BETWEEN
        takes = "none of them ended" if drain is None else f"to run them takes {span_text(drain)} at this rate"
        text = (
            f"queue {one.queue} has grown from {was[0]} to {one.number} ready tasks in {span_text(window)}, and {takes}"
        )
        detail = {"before": was[0], "ended": ended, "drain_seconds": None if drain is None else round(drain / SECOND)}
        found.append(Observation(AlertKey("backlog_growth", one.queue), level, one.number, text, detail))
    return found


def _sample(samples: Samples, at: int) -> Mapping[str, int] | None:
    """The newest sample that is not younger than this instant."""
    return next((numbers for taken, numbers in reversed(samples) if taken <= at), None)


def problems(found: Iterable[Problem]) -> list[Observation]:
    """One observation for each problem that ``schedctl status`` names."""
    seen: dict[AlertKey, list[Problem]] = {}
    for one in found:
        seen.setdefault(AlertKey(BY_NAME[one.name].rule, one.name), []).append(one)
    return [
        Observation(
            key,
            Level.FIRES,
            sum(max(1, one.number) for one in several),
            "; ".join(redact(one.text) for one in several[:MAX_EXAMPLES]),
            {"tasks": [task for one in several for task in one.tasks][:MAX_EXAMPLES]},
        )
        for key, several in seen.items()
    ]


def long_runs(
    running: Iterable[LongRun], usual: Mapping[str, int | None], own: LongRunRule, now: int
) -> list[Observation]:
    """One observation for each kind with attempts that run unusually long. ``usual``: the p95 by kind."""
    seen: dict[str, list[LongRun]] = {}
    for one in running:
        p95 = usual.get(one.kind)
        if p95 is not None and now - one.started_at > max(own.factor * p95, us(own.above)):
            seen.setdefault(one.kind, []).append(one)
    found = []
    for kind, runs in seen.items():
        longest, p95 = min(runs, key=lambda one: one.started_at), usual[kind] or 0
        text = (
            f"{counted(len(runs), 'attempt')} of {kind} run for up to {span_text(now - longest.started_at)}; "
            f"95 % of its attempts end within {span_text(p95)}"
        )
        detail = {"tasks": [one.id for one in runs[:MAX_EXAMPLES]], "p95_seconds": round(p95 / SECOND, 3)}
        found.append(Observation(AlertKey("long_run", kind), Level.FIRES, len(runs), text, detail))
    return found


def silent_schedules(names: Iterable[str], expected: Mapping[str, int], now: int) -> list[Observation]:
    """One observation for each schedule. ``expected``: the fire time that should have succeeded by now."""
    found = []
    for name in sorted(names):
        text = f"schedule {name} has not succeeded since it was due {span_text(now - expected[name])} ago"
        found.append(Observation(AlertKey("silent_schedule", name), Level.FIRES, 1, text))
    return found
