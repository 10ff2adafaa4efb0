"""One look: reads what each rule needs, and keeps what need not be read each time. A rule that fails stops no other."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from scheduler.alerts import rules
from scheduler.alerts.machine import Observation, Observations, Rule
from scheduler.alerts.rules import Samples, us
from scheduler.backoff import LogOnce
from scheduler.errors import InvalidScheduleError
from scheduler.model.recurrence import Recurrence
from scheduler.ports import FOREVER, NEVER, SECOND
from scheduler.store.broken_rows import UNREADABLE
from scheduler.store.read import alert_facts, schedules
from scheduler.store.read.flow import flows_now
from scheduler.store.read.status import status
from scheduler.store.read.tasks import errors_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from scheduler.config.alerts import AlertRules
    from scheduler.store.db.tx import Tx
    from scheduler.store.read.schedules import ScheduleRecord

SAMPLE_EVERY = 60 * SECOND  # between two samples of the backlogs
MAX_SAMPLED = 200  # queues whose samples are kept
SCHEDULES_EVERY = 60 * SECOND  # between two looks at what schedules should have done
PERCENTILE_LIFE = 300 * SECOND  # how long the p95 of a kind is good
MAX_PERCENTILES = 1000

log = logging.getLogger("scheduler.alerts")


class Retained(NamedTuple):
    """How long dead letters and outcomes are kept, in microseconds."""

    dead: int
    outcomes: int


class Observer:
    """Looks at the store for the rules that are on. For one thread."""

    def __init__(self, settings: AlertRules, known: Mapping[str, Rule], retained: Retained) -> None:
        self._settings = settings
        self._known = known
        self._retained = retained
        self._logged = LogOnce()
        self._usual: dict[str, tuple[int, int | None]] = {}  # kind: when it was read, its p95
        self._slots: dict[tuple[str, Recurrence, int], tuple[int | None, int]] = {}
        self._schedules_at: int | None = None

    def observe(self, tx: Tx, samples: Samples) -> tuple[Observations, Samples]:
        """What there is to observe now, and the samples of the backlogs, old and new."""
        seen: list[Observation] = []
        complete: set[str] = set()

        def part(names: tuple[str, ...], observe: Callable[[], tuple[list[Observation], bool]]) -> None:
            wanted = [name for name in names if name in self._known]
            if not wanted:
                return
            with self._apart(wanted[0]):
                found, whole = observe()
                seen.extend(one for one in found if one.key.rule in self._known)
                complete.update(wanted if whole else ())

        part(("dead_letters",), lambda: self._dead_letters(tx))
        part(("dead_letters_expiring",), lambda: self._expiring(tx))
        part(("dead_messages",), lambda: self._dead_messages(tx))
        part(("retry_rate",), lambda: self._retry_rate(tx))
        taken = list(samples)
        part(("backlog_age", "backlog_growth"), lambda: self._backlogs(tx, taken))
        part(rules.PROBLEM_RULES, lambda: (rules.problems(status(tx).stuck), True))
        part(("long_run",), lambda: self._long_runs(tx))
        part(("silent_schedule",), lambda: self._silent(tx))
        return Observations(seen, frozenset(complete)), taken

    @contextmanager
    def _apart(self, rule: str) -> Iterator[None]:
        """A row that cannot be read ends the look of its rule, and of no other; the rule's alerts stay as they are."""
        try:
            yield
            self._logged.clear(rule)
        except UNREADABLE as error:
            if self._logged.is_new(str(error), rule):
                log.warning("alert rule %s could not be evaluated: %s: %s", rule, type(error).__name__, error)

    def _dead_letters(self, tx: Tx) -> tuple[list[Observation], bool]:
        found = alert_facts.dead_letters(tx)
        errors = errors_of(tx, [group.id for group in found.groups]) if found.groups else {}
        return rules.dead_letters(found.groups, errors), found.whole

    def _expiring(self, tx: Tx) -> tuple[list[Observation], bool]:
        kept = self._retained.dead
        within = min(us(self._settings.dead_letters_expiring.within), kept // 2)  # not from the moment they die
        return rules.dead_letters_expiring(alert_facts.expiring(tx, kept, within), tx.now), True

    def _dead_messages(self, tx: Tx) -> tuple[list[Observation], bool]:
        return rules.dead_messages(alert_facts.dead_messages(tx, us(self._settings.dead_messages.within))), True

    def _retry_rate(self, tx: Tx) -> tuple[list[Observation], bool]:
        own = self._settings.retry_rate
        return rules.retry_rate(alert_facts.retry_rates(tx, us(own.window)), own), True

    def _backlogs(self, tx: Tx, samples: list[tuple[int, Mapping[str, int]]]) -> tuple[list[Observation], bool]:
        own = self._settings.backlog_growth
        window = us(own.window)
        found, held = alert_facts.backlogs(tx)
        age = self._settings.backlog_age
        late = "backlog_age" in self._known and any(tx.now - one.since > us(age.above) for one in found)
        seen = rules.backlog_age(found, {flow.queue: flow for flow in flows_now(tx)} if late else {}, age, tx.now)
        last = samples[-1][0] if samples else None
        if last is None or last > tx.now or tx.now - last >= SAMPLE_EVERY:
            numbers = {one.queue: one.number for one in found[:MAX_SAMPLED]}
            samples.append((tx.now, numbers | dict.fromkeys(sorted(held), rules.UNKNOWN)))
        samples[:] = [(at, n) for at, n in samples if tx.now - window - 2 * SAMPLE_EVERY <= at <= tx.now]
        if "backlog_growth" in self._known:
            ended = alert_facts.departures(tx, window) if found else {}
            seen += rules.backlog_growth(found, samples, ended, own, tx.now)
        return seen, True

    def _long_runs(self, tx: Tx) -> tuple[list[Observation], bool]:
        own = self._settings.long_run
        running = alert_facts.running_since(tx, tx.now - us(own.above))
        usual = {kind: self._usual_run(tx, kind) for kind in {one.kind for one in running}}
        return rules.long_runs(running, usual, own, tx.now), True

    def _usual_run(self, tx: Tx, kind: str) -> int | None:
        at, found = self._usual.get(kind, (None, None))
        if at is None or not 0 <= tx.now - at < PERCENTILE_LIFE:
            if len(self._usual) >= MAX_PERCENTILES:
                self._usual.clear()
            found = alert_facts.usual_run(tx, kind)
            self._usual[kind] = (tx.now, found)
        return found

    def _silent(self, tx: Tx) -> tuple[list[Observation], bool]:
        if self._schedules_at is not None and 0 <= tx.now - self._schedules_at < SCHEDULES_EVERY:
            return [], False
        self._schedules_at = tx.now
        expected, asked = {}, []
        used: dict[tuple[str, Recurrence, int], tuple[int | None, int]] = {}
        for one in schedules.records(tx):
            slot = self._expected(one, tx.now, used)
            # A schedule that is new, was changed or resumed has had no time for it; and what is older than outcomes
            # are kept has been forgotten, whatever it was.
            if slot is None or slot <= max(one.created_at, one.updated_at) or slot < tx.now - self._retained.outcomes:
                continue
            expected[one.name] = slot
            delayed = one.recurrence.mode == "fixed_delay"
            asked.append((one.name, slot, (one.last_task or 0) if delayed else 0))
        self._slots = used
        return rules.silent_schedules(alert_facts.without_success(tx, asked), expected, tx.now), True

    def _expected(
        self,
        schedule: ScheduleRecord,
        now: int,
        used: dict[tuple[str, Recurrence, int], tuple[int | None, int]],
    ) -> int | None:
        """The latest fire time that should have succeeded by now; None if there is none.

        It is looked for once for each fire time: to find it costs far more than all else.
        """
        if schedule.paused or schedule.trouble is not None or schedule.next_at >= NEVER:
            return None
        recurrence, until = schedule.recurrence, now - us(self._settings.silent_schedule.grace)
        if recurrence.mode == "fixed_delay":
            return until - recurrence.interval_us
        key = (schedule.name, recurrence, schedule.anchor)
        slot, following = self._slots.get(key, (None, 0))
        if following <= until:
            begin = max(schedule.created_at, schedule.updated_at, until - self._retained.outcomes)
            try:
                slot = recurrence.newest_between(begin, until, schedule.anchor)
                following = recurrence.next_after(until, schedule.anchor)
            except InvalidScheduleError:
                slot, following = None, FOREVER
        used[key] = (slot, following)
        return slot
