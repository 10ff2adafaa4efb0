"""Polling finds work that came without a notification. An idle worker runs no cycle without a reason."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import Context, task
from scheduler.store import due_work as looks
from scheduler.testing import FakeClock, engine_of
from support.fleet import Fleet, let_notifier_work, step


@task
def plain(ctx: Context) -> None: ...


@pytest.mark.parametrize("look", ["succeeds", "fails"])
def test_a_notification_that_was_lost(
    fleet: Fleet, clock: FakeClock, monkeypatch: pytest.MonkeyPatch, look: str
) -> None:
    """Within a second, also while the look that tells whether a cycle is worth it cannot be made."""
    jobs, caller = fleet.worker(plain), fleet.worker(plain)
    step(jobs)
    engine = engine_of(jobs)
    let_notifier_work(jobs)
    for _ in range(3):
        clock.advance(max(0.001, engine.step()))
    turns = engine.cycles
    for _ in range(5):
        clock.advance(max(0.001, engine.step()))
    assert engine.cycles == turns, "there was nothing to claim"

    def fails(*_: Any, **__: Any) -> None:
        raise RuntimeError("unforeseen")

    if look == "fails":
        monkeypatch.setattr(looks, "poll", fails)
    late = caller.task(plain).schedule()
    begun = clock.monotonic()
    while not engine.engine_state.held:
        assert clock.monotonic() < begun + 1.1
        clock.advance(max(0.001, engine.step()))
    assert [attempt.claimed.id for attempt in engine.engine_state.held.values()] == [late]
