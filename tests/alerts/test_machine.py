"""The state machine of alerts: by examples, and by random histories of looks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from scheduler.alerts.machine import HOUR, Level, MessageLimits, Notice, Observation, Observations, Rule, advance
from scheduler.model.alerts import Alert, AlertEvent, AlertKey, AlertPhase, Memory, Silence
from scheduler.ports import SECOND

EVERY = 15 * SECOND
LIMITS = MessageLimits(repeat=4 * HOUR, per_hour=20)
RULE = Rule("r", "title", after=60 * SECOND, looks=2, clear_after=120 * SECOND, clear_looks=2)
KEY = AlertKey("r", "Mail")
FIRES, BETWEEN, CLEAR = Level.FIRES, Level.BETWEEN, Level.CLEAR


class History:
    """Looks, one every 15 s, and the messages that they made."""

    def __init__(self, *rules: Rule, limits: MessageLimits = LIMITS, start: int = 0) -> None:
        self.rules = {rule.name: rule for rule in rules}
        self.limits = limits
        self.now = start
        self.alerts: dict[AlertKey, Alert] = {}
        self.memory = Memory()
        self.sent: list[tuple[int, Notice]] = []
        self.silences: list[Silence] = []

    def look(self, found: Iterable[Observation] = (), complete: bool = True) -> list[Notice]:
        look = Observations(tuple(found), frozenset(self.rules) if complete else frozenset())
        done = advance(self.rules, self.alerts, look, self.silences, self.memory, self.limits, self.now)
        self.alerts, self.memory = done.alerts, done.memory
        self.sent += [(self.now, notice) for notice in done.notices]
        self.now += EVERY
        return done.notices

    def run(self, levels: Iterable[Level | None], number: int = 1) -> None:
        for level in levels:
            self.look([] if level is None else [seen(level, number)])

    def events(self) -> list[tuple[int, str]]:
        return [(at // SECOND, notice.event.value) for at, notice in self.sent]


def seen(level: Level, number: int = 1, key: AlertKey = KEY) -> Observation:
    return Observation(key, level, number, f"{number} of {key.kind}")


def test_it_fires_once_it_has_held_and_is_over_once_it_has_been_clear() -> None:
    history = History(RULE)
    history.run([FIRES] * 10 + [None] * 20)
    assert history.events() == [(60, "fired"), (270, "recovered")]
    (_, over) = history.sent[-1]
    assert over.alerts[0].began == 0
    assert over.alerts[0].since == 150 * SECOND, "it was clear from then on"
    assert history.alerts == {}


def test_what_does_not_last_is_never_said() -> None:
    history = History(RULE)
    history.run([FIRES, FIRES, FIRES, None] * 20)
    assert history.events() == []


@pytest.mark.parametrize("back", [HOUR, 24 * HOUR])
def test_a_clock_that_is_set_back_delays_no_message(back: int) -> None:
    """Not of what had begun to hold, nor of what had begun to be clear, nor the hour's messages, nor a repetition."""
    history = History(RULE, limits=LIMITS._replace(per_hour=2), start=2 * back)
    history.run([FIRES] * 2)
    history.now -= back
    history.run([FIRES] * 6)
    assert [notice.event.value for _, notice in history.sent] == ["fired"]
    history.run([None])
    history.now -= back // 2
    history.run([None] * 10)
    assert [notice.event.value for _, notice in history.sent] == ["fired", "recovered"]
    history.now += HOUR + EVERY
    history.run([FIRES] * 6)
    history.now -= back // 2
    history.run([FIRES])
    history.now += LIMITS.repeat
    history.run([FIRES])
    assert [notice.event.value for _, notice in history.sent[2:]] == ["fired", "repeated"]


def test_between_the_thresholds_nothing_changes() -> None:
    history = History(RULE)
    history.run([FIRES] * 5 + [BETWEEN] * 50)
    assert history.events() == [(60, "fired")]
    assert history.alerts[KEY].phase is AlertPhase.FIRING
    history.run([CLEAR] * 4 + [BETWEEN] + [CLEAR] * 4 + [FIRES] * 3)
    assert history.events() == [(60, "fired")], "it was not clear for long enough, and it is the same alert"
    pending = History(RULE)
    pending.run([FIRES] * 4 + [BETWEEN] + [FIRES] * 4)
    assert pending.events() == []


def test_looks_count_where_a_rule_says_so() -> None:
    history = History(Rule("r", "t", looks=2, clear_looks=3))
    history.run([FIRES, FIRES, CLEAR, CLEAR, BETWEEN, CLEAR, CLEAR, CLEAR])
    assert history.events() == [(15, "fired"), (105, "recovered")]


def test_a_rule_that_was_not_looked_at_leaves_its_alerts_as_they_are() -> None:
    history = History(RULE)
    history.run([FIRES] * 5)
    before = history.alerts
    for _ in range(50):
        history.look(complete=False)
    assert history.alerts == before
    assert len(history.sent) == 1


def test_a_rule_that_was_switched_off_is_forgotten() -> None:
    history = History(RULE)
    history.run([FIRES] * 5)
    history.rules = {}
    history.look()
    assert history.alerts == {}


def test_steps_are_said_once_each() -> None:
    history = History(RULE._replace(steps=(1, 10, 100, 1000)))
    history.run([FIRES] * 5, number=3)
    for number in (9, 10, 12, 99, 11, 500, 100, 1000, 5000):
        history.run([FIRES], number)
    sent = [(notice.event.value, notice.alerts[0].number) for _, notice in history.sent]
    assert sent == [("fired", 3), ("grew", 10), ("grew", 500), ("grew", 1000)]


def test_one_message_for_all_alerts_of_a_rule_that_fire_at_once() -> None:
    history = History(Rule("r", "t"))
    (notice,) = history.look([seen(FIRES, n, AlertKey("r", "K", f"f{n}")) for n in range(1, 51)])
    assert [alert.number for alert in notice.alerts[:3]] == [50, 49, 48], "the largest first"
    assert len(notice.alerts) == 50


def test_it_is_repeated() -> None:
    history = History(Rule("r", "t"), limits=MessageLimits(HOUR, 20))
    history.run([FIRES] * 4 * 60 * 3)
    assert history.events() == [(0, "fired"), (3600, "repeated"), (7200, "repeated")]
    never = History(Rule("r", "t"), limits=MessageLimits(0, 20))
    never.run([FIRES] * 4 * 60 * 3)
    assert never.events() == [(0, "fired")]


def test_a_silence_keeps_messages_back_until_it_ends() -> None:
    history = History(Rule("r", "t"))
    history.silences = [Silence("r", "Mail", None, 100 * SECOND)]
    history.run([FIRES] * 12)
    assert history.events() == [(105, "fired")], "it still fires when the silence ends"
    history.silences = [Silence("*", None, None, 2**60)]
    history.run([CLEAR])
    assert history.events()[1:] == [(180, "recovered")], "what was said to fire is said to be over"
    history.run([FIRES, FIRES, CLEAR, CLEAR])
    assert len(history.sent) == 2, "an alert that was never sent ends without a message"


@pytest.mark.parametrize(
    ("silence", "covered"),
    [
        (Silence("r", None, None, 10), True),
        (Silence("*", None, None, 10), True),
        (Silence("r", "Mail", "f", 10), True),
        (Silence("other", None, None, 10), False),
        (Silence("r", "Other", None, 10), False),
        (Silence("r", None, "g", 10), False),
        (Silence("r", None, None, 5), False),
    ],
)
def test_what_a_silence_covers(silence: Silence, covered: bool) -> None:
    assert silence.covers(AlertKey("r", "Mail", "f"), 5) is covered


def test_a_flood_is_held_back_and_said_once_an_hour() -> None:
    history = History(Rule("r", "t"), limits=MessageLimits(0, 3))
    for number in range(300):  # 75 minutes, a new one in each look
        history.look([seen(FIRES, 1, AlertKey("r", f"K{n}")) for n in range(number + 1)])
    events = [event for _, event in history.events()]
    assert events[:4] == ["fired", "fired", "fired", "flooded"]
    later = [(at, notice) for at, notice in history.sent if at > 60 * SECOND]
    assert [notice.event.value for _, notice in later] == ["fired", "fired", "fired", "flooded"]
    (at, first), *_ = later
    assert at == HOUR
    assert len(first.alerts) == 238, "all that still fire, in one message"


LEVELS = some.lists(some.sampled_from([FIRES, BETWEEN, CLEAR, None]), min_size=1, max_size=120)
RULES = some.builds(
    Rule,
    some.just("r"),
    some.just("t"),
    after=some.sampled_from([0, 20 * SECOND, 60 * SECOND]),
    looks=some.integers(1, 3),
    clear_after=some.sampled_from([0, 20 * SECOND, 120 * SECOND]),
    clear_looks=some.integers(1, 3),
    steps=some.sampled_from([(), (1, 10, 100)]),
)


def runs_of(levels: list[Any]) -> list[Any]:
    """The levels of each look, with what is not among the observations as clear."""
    return [CLEAR if level is None else level for level in levels]


@given(RULES, LEVELS)
@settings(max_examples=150)
def test_messages_alternate_and_come_for_a_reason(rule: Rule, levels: list[Any]) -> None:
    history = History(rule, limits=MessageLimits(0, 1000))
    history.run(levels)
    plain = runs_of(levels)
    events = [(at // EVERY, notice.event) for at, notice in history.sent]
    assert all(len(notice.alerts) == 1 for _, notice in history.sent)
    for number, (look, event) in enumerate(events):
        assert event is (AlertEvent.RECOVERED if number % 2 else AlertEvent.FIRED), (
            "no message twice, none without the other"
        )
        wanted, after, looks = (
            (CLEAR, rule.clear_after, rule.clear_looks) if number % 2 else (FIRES, rule.after, rule.looks)
        )
        needed = max(-(-after // EVERY) + 1, looks)  # looks that span the time
        assert plain[look - needed + 1 : look + 1] == [wanted] * needed, "it held all that time"


@given(RULES)
def test_what_lasts_is_said_as_soon_as_it_may_be(rule: Rule) -> None:
    history = History(rule)
    needed = max(-(-rule.after // EVERY) + 1, rule.looks)
    history.run([FIRES] * needed)
    assert history.events() == [((needed - 1) * EVERY // SECOND, "fired")]
    cleared = max(-(-rule.clear_after // EVERY) + 1, rule.clear_looks)
    history.run([None] * cleared)
    assert history.events()[1:] == [((needed + cleared - 1) * EVERY // SECOND, "recovered")]


@given(
    RULES,
    some.lists(some.lists(some.sampled_from([FIRES, BETWEEN, CLEAR, None]), min_size=5, max_size=5), max_size=500),
    some.integers(1, 4),
    some.sampled_from([0, 5 * 60 * SECOND]),
    some.data(),
)
@settings(max_examples=50)
def test_an_hour_has_no_more_messages_than_are_allowed(
    rule: Rule, looks: list[list[Any]], per_hour: int, repeat: int, data: some.DataObject
) -> None:
    history = History(rule, limits=MessageLimits(repeat, per_hour))
    for row in looks:
        number = data.draw(some.sampled_from([1, 10, 100]))
        history.look([seen(lv, number, AlertKey("r", f"K{i}")) for i, lv in enumerate(row) if lv is not None])
    times = [at for at, notice in history.sent if notice.event is not AlertEvent.FLOODED]
    floods = [at for at, notice in history.sent if notice.event is AlertEvent.FLOODED]
    assert all(b - a >= HOUR for a, b in zip(times, times[per_hour:], strict=False))
    assert all(b - a >= HOUR for a, b in itertools.pairwise(floods))
    open_now: set[AlertKey] = set()
    last: dict[AlertKey, int] = {}
    for at, notice in history.sent:
        for alert in notice.alerts:
            key = alert.key
            assert (key in open_now) is (notice.event is not AlertEvent.FIRED), "each is opened once, and closed once"
            if notice.event is AlertEvent.REPEATED:
                assert at - last[key] >= repeat > 0
            last[key] = at
            open_now.discard(key) if notice.event is AlertEvent.RECOVERED else open_now.add(key)
    assert open_now == {key for key, alert in history.alerts.items() if alert.notified_at is not None}


@given(RULES, LEVELS, some.integers(0, 119))
@settings(max_examples=50)
def test_a_restart_in_between_changes_nothing(rule: Rule, levels: list[Any], at: int) -> None:
    """All that a look depends on is what is stored."""
    through, again = History(rule), History(rule)
    through.run(levels)
    again.run(levels[:at])
    other = History(rule, start=again.now)
    other.alerts = {key: Alert(**alert._asdict()) for key, alert in again.alerts.items()}
    other.memory = Memory(again.memory.sent, again.memory.flooded_at)
    other.run(levels[at:])
    assert through.sent == again.sent + other.sent
    assert through.alerts == other.alerts
