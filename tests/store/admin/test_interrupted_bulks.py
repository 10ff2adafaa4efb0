"""A bulk whose process has ended stays where it is until a person goes on with it, or takes it back."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from scheduler import ConfigError, InvalidTransitionError
from scheduler.client import bulks as client
from scheduler.client.bulks import BulkRunner
from scheduler.model.bulk import BulkState
from scheduler.operations import stored_bulks
from scheduler.ports import SECOND
from scheduler.store import bulks
from support.bench import Bench

pytestmark = pytest.mark.case(98)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_bulks, "BATCH", 2)
    monkeypatch.setattr(client, "LOOK_EVERY_S", 0.02)


def due(bench: Bench, many: int) -> list[int]:
    return [int(bench.step(f"s{n}").subject("ada").schedule()) for n in range(many)]


def killed(bench: Bench, many: int = 6) -> str:
    """A cancel that died after its first transaction, a while ago."""
    due(bench, many)
    with bench.jobs.acting("alice"):
        made = bench.jobs.bulks.create("cancel", subject="ada")
        bench.jobs.bulks.start(made.name)
    bench.jobs.database.change(lambda tx: stored_bulks.step(tx, made.name, "dead process"))
    assert bench.jobs.bulks.get(made.name).state is BulkState.RUNNING
    bench.clock.advance(bulks.RUNNER_US / SECOND + 1)
    return made.name


def test_no_opened_console_goes_on_with_it(bench: Bench, small: None) -> None:
    name = killed(bench)
    other = bench.jobs.bulks.create("cancel", ids=due(bench, 1))
    ran = threading.Event()
    runner = BulkRunner(bench.jobs.desk._replace(wake=ran.set))
    runner.start()
    try:
        bench.jobs.bulks.start(other.name)
        runner.wake()
        assert ran.wait(30), "what a person has just started runs"
    finally:
        runner.stop()
    found = bench.jobs.bulks.get(name)
    assert (found.state, found.done, found.left) == (BulkState.INTERRUPTED, 2, 4)
    assert [one.state for one in bench.jobs.bulks.list() if one.name == name] == [BulkState.INTERRUPTED]


def test_who_goes_on_does_so_in_their_own_name(bench: Bench, small: None) -> None:
    name = killed(bench)
    with bench.jobs.acting("bob", reason="it is right"):
        done = bench.jobs.bulks.run(name)
    assert (done.state, done.done, done.left, done.actor) == (BulkState.DONE, 6, 0, "bob")
    actors = [entry.actor for entry in bench.jobs.audit(bulk=name, action="cancel")]
    assert sorted(filter(None, actors)) == ["alice"] * 2 + ["bob"] * 4
    (entry,) = bench.jobs.audit(subject=f"bulk {name}", action="bulk continued")
    assert (entry.actor, entry.before, entry.reason) == ("bob", "interrupted", "it is right")


@pytest.mark.parametrize("how", ["interrupted", "stopped", "running"])
def test_undo_ends_it(bench: Bench, small: None, how: str) -> None:
    name = killed(bench)
    if how == "stopped":
        bench.jobs.bulks.stop(name)
    if how == "running":
        bench.jobs.bulks.start(name)
    back = bench.jobs.bulks.undo(name)
    assert bench.jobs.bulks.run(back.name).done == 2
    assert bench.jobs.bulks.get(name).state is BulkState.UNDONE
    late = bench.jobs.database.change(lambda tx: stored_bulks.step(tx, name, "dead process"))
    assert late.state is BulkState.UNDONE
    with pytest.raises(InvalidTransitionError, match="is undone"):
        bench.jobs.bulks.run(name)
    with pytest.raises(InvalidTransitionError, match="is undone"):
        bench.jobs.bulks.stop(name)
    assert len(bench.jobs.list_tasks("scheduled")) == 6


def test_what_breaks_it_off_leaves_it_interrupted_at_once(bench: Bench, small: None) -> None:
    due(bench, 6)
    made = bench.jobs.bulks.create("cancel", subject="ada")

    def interrupted(now: Any) -> None:
        if now.looked_at == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.jobs.bulks.run(made.name, each=interrupted)
    found = bench.jobs.bulks.get(made.name)
    assert (found.state, found.left) == (BulkState.INTERRUPTED, 2)
    assert bench.jobs.bulks.run(made.name).done == 6


def test_a_console_that_ends_leaves_its_bulk_interrupted(bench: Bench, small: None) -> None:
    due(bench, 6)
    made = bench.jobs.bulks.create("cancel", subject="ada")
    stop = threading.Event()
    bench.jobs.bulks.start(made.name)
    stop.set()
    stored_bulks.run(bench.jobs.desk, made.name, stop=stop)
    with bench.jobs.database.read() as tx:
        assert bulks.handed_over(tx, "another") == []
    assert bench.jobs.bulks.get(made.name).state is BulkState.INTERRUPTED


def test_a_rate(bench: Bench, small: None) -> None:
    due(bench, 5)
    made = bench.jobs.bulks.create("cancel", subject="ada")
    bench.jobs.bulks.start(made.name, rate=0.5)
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        bench.clock.advance(seconds)

    done = stored_bulks.run(bench.jobs.desk, made.name, wait=wait)
    assert (done.done, waited) == (5, [2.0] * 4)
    assert bench.jobs.bulks.get(made.name).options["rate"] == 0.5
    assert bench.jobs.bulks.get(made.name).rate == pytest.approx(5 / 8, rel=0.1)
    for rate in (0, -1, True, float("nan"), float("inf"), 1e9):
        with pytest.raises(ConfigError, match="tasks a second"):
            bench.jobs.bulks.start(made.name, rate=rate)


def test_one_that_nobody_took_is_interrupted_too(bench: Bench, small: None) -> None:
    due(bench, 2)
    made = bench.jobs.bulks.create("cancel", subject="ada")
    bench.jobs.bulks.start(made.name)
    bench.clock.advance(bulks.RUNNER_US / SECOND + 1)
    assert bench.jobs.bulks.get(made.name).state is BulkState.INTERRUPTED
    with bench.jobs.database.read() as tx:
        assert bulks.handed_over(tx, "another") == []
