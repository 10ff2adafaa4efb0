"""What a timeline says of the records of one task, and what it leaves unknown."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from scheduler.model.outcome import AttemptEnd
from scheduler.model.state import TaskState
from scheduler.model.timeline import Attempted, AuditedChange, Life, Phase, Span, place_of, places, spans, state_at

S = TaskState
END = AttemptEnd


def life(state: TaskState, **given: Any) -> Life:
    return Life(7, state, **{"created_at": 100, "run_at": 100, "now": 1000, **given})


def phases(one: Life) -> list[tuple[str, int, int | None]]:
    return [(span.phase.value, span.start, span.end) for span in spans(one)]


def test_waiting_for_parents_then_for_a_worker_then_running() -> None:
    parents = {"parents": 2, "parents_ended": 200}
    assert phases(life(S.WAITING, parents=2)) == [("waiting", 100, None)]
    assert phases(life(S.SCHEDULED, **parents)) == [("waiting", 100, 200), ("ready", 200, None)]
    assert phases(life(S.WAITING, **parents)) == [("waiting", 100, None)], "one of them ended badly, and it stays"
    running = life(S.RUNNING, **parents, claim=3, number=1, claimed_at=250, started_at=260)
    assert spans(running) == [
        Span(Phase.WAITING, S.WAITING, 100, 200),
        Span(Phase.READY, S.SCHEDULED, 200, 250),
        Span(Phase.CLAIMED, S.CLAIMED, 250, 260, 3, 1),
        Span(Phase.RUNNING, S.RUNNING, 260, None, 3, 1),
    ]


def test_a_delay_is_distinct_from_the_wait_for_a_worker() -> None:
    done = Attempted(1, 1, 450, 460, 500, END.SUCCEEDED)
    ended = life(S.SUCCESS, run_at=400, attempts=[done], finished_at=500)
    assert phases(ended) == [
        ("planned", 100, 400),
        ("ready", 400, 450),
        ("claimed", 450, 460),
        ("running", 460, 500),
    ]
    assert spans(ended)[-1].outcome is END.SUCCEEDED
    assert phases(life(S.SCHEDULED, run_at=5000)) == [("planned", 100, None)]


def test_only_the_last_pause_says_when_it_was_over() -> None:
    tries = [Attempted(n, n, 200 * n, 200 * n, 200 * n + 50, END.RETRIED) for n in (1, 2, 3)]
    assert phases(life(S.RETRY, attempts=tries, run_at=800)) == [
        ("pending", 100, 200),
        ("running", 200, 250),
        ("backoff", 250, 400),
        ("running", 400, 450),
        ("backoff", 450, 600),
        ("running", 600, 650),
        ("backoff", 650, 800),
        ("ready", 800, None),
    ]


def test_suspended_apart_from_running() -> None:
    one = Attempted(1, 1, 200, 200, 300, END.SUSPENDED)
    two = Attempted(2, 1, 700, 700, 720, END.SUCCEEDED)
    assert phases(life(S.SUCCESS, attempts=[one, two], run_at=600, finished_at=720))[2:] == [
        ("suspended", 300, 600),
        ("ready", 600, 700),
        ("running", 700, 720),
    ]


def test_a_task_that_was_retried_by_hand_was_ended_meanwhile() -> None:
    died = Attempted(1, 1, 200, 200, 300, END.DEAD)
    again = life(
        S.RUNNING, attempts=[died], changes=[AuditedChange(500, "retry")], claim=2, claimed_at=600, started_at=610
    )
    assert [phase for phase in phases(again) if phase[1] >= 300] == [
        ("ended", 300, 500),
        ("pending", 500, 600) if again.run_at > 600 else ("ready", 500, 600),
        ("claimed", 600, 610),
        ("running", 610, None),
    ]
    assert [state_at(again, at) for at in (100, 250, 400, 550, 605, 999)] == [
        S.SCHEDULED,
        S.RUNNING,
        S.DEAD,
        S.SCHEDULED,
        S.CLAIMED,
        S.RUNNING,
    ]


def test_a_task_that_came_back_without_a_record_is_unknown_meanwhile() -> None:
    """It was revived with its parent: nothing says when."""
    died = Attempted(1, 1, 200, 200, 300, END.DEAD)
    again = life(S.RUNNING, attempts=[died], claim=2, claimed_at=600, started_at=610)
    assert ("unknown", 300, 600) in phases(again)
    assert state_at(again, 400) is None
    waits = life(S.WAITING, attempts=[died], parents=1)
    assert state_at(waits, 400) is None
    assert state_at(waits, 1000) is S.WAITING, "how it stands now is known"


def test_parents_that_ran_again_leave_the_first_wait_unknown() -> None:
    done = Attempted(1, 1, 200, 200, 300, END.SUCCEEDED)
    one = life(S.SUCCESS, attempts=[done], finished_at=300, parents=1, parents_ended=800)
    assert state_at(one, 150) is None
    assert state_at(one, 250) is S.RUNNING
    removed = life(S.SUCCESS, attempts=[done], finished_at=300, parents=1)
    assert state_at(removed, 150) is None


def test_cancelled_before_it_began_and_brought_back() -> None:
    changes = [AuditedChange(200, "cancel", S.SCHEDULED), AuditedChange(400, "retry", S.CANCELLED)]
    one = life(S.SCHEDULED, changes=changes, run_at=400)
    assert phases(one) == [("pending", 100, 200), ("ended", 200, 400), ("ready", 400, None)]
    asked = life(S.RUNNING, changes=[AuditedChange(500, "cancel", S.RUNNING)], claim=1, claimed_at=200, started_at=200)
    assert state_at(asked, 600) is S.RUNNING, "it was asked to end"


def test_an_instant_outside_of_its_life_is_refused() -> None:
    for instant in (99, 1001):
        with pytest.raises(ValueError, match="task 7"):
            state_at(life(S.SCHEDULED), instant)


@some.composite
def lives(draw: Any) -> Life:
    times = sorted(draw(some.lists(some.integers(100, 1000), min_size=2, max_size=14)))
    attempts = [
        Attempted(n, n, begin, draw(some.sampled_from([begin, None])), end, draw(some.sampled_from(list(END))))
        for n, (begin, end) in enumerate(zip(times[::2], times[1::2], strict=False), 1)
    ]
    actions = some.sampled_from(["cancel", "retry", "rerun", "replay"])
    changes = [
        AuditedChange(draw(some.integers(100, 1000)), draw(actions), draw(some.sampled_from([None, *S])))
        for _ in range(draw(some.integers(0, 3)))
    ]
    state = draw(some.sampled_from(list(S)))
    parents = draw(some.integers(0, 2))
    return life(
        state,
        attempts=attempts,
        changes=changes,
        run_at=draw(some.integers(50, 2000)),
        parents=parents,
        parents_ended=draw(some.sampled_from([None, 50, 400, 900])) if parents else None,
        claim=99,
        claimed_at=draw(some.integers(100, 1000)),
        started_at=draw(some.integers(100, 1000)),
        finished_at=draw(some.integers(100, 1000)),
    )


@given(lives())
def test_any_record_makes_spans_without_gaps_that_agree_with_the_states(one: Life) -> None:
    found = spans(one)
    assert all(a.end == b.start for a, b in itertools.pairwise(found))
    if found:
        assert found[0].start == 100
    assert all(span.end is None or span.end > span.start for span in found)
    for span in found:
        if span.start < one.now:
            assert state_at(one, span.start) is span.state
    drawn = places(found, one.now)
    assert all(0 <= p.left <= p.right <= 1 for p in drawn)
    assert all(abs(a.right - b.left) < 1e-9 for a, b in itertools.pairwise(drawn))


def test_idle_hours_leave_room_for_seconds_of_work() -> None:
    tries = [Attempted(1, 1, 1000, 1000, 1010, END.RETRIED), Attempted(2, 2, 90_000, 90_000, 90_030, END.SUCCEEDED)]
    one = life(S.SUCCESS, attempts=tries, run_at=80_000, finished_at=90_030, now=100_000)
    drawn = places(spans(one), one.now)
    assert [(p.start, p.end, p.cut) for p in drawn] == [
        (100, 1000, True),
        (1000, 1010, False),
        (1010, 90_000, True),
        (90_000, 90_030, False),
    ]
    busy = sum(p.right - p.left for p in drawn if not p.cut)
    assert busy > 0.6
    assert place_of(90_015, drawn) == pytest.approx(1 - (drawn[-1].right - drawn[-1].left) / 2)
    assert places(spans(life(S.SCHEDULED, run_at=5000)), 1000)[0].cut is False
    assert places([], 5) == []
