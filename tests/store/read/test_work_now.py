"""What a kind and a queue do now: what runs, what is ready and since when, what waits."""

from __future__ import annotations

from typing import Literal

import pytest

from scheduler.ports import SECOND
from scheduler.store.read import work_now as module
from scheduler.store.read.work_now import WorkNow, work_now
from support.bare_workers import Bare
from support.bench import Bench
from support.consoles import ask, console_on
from support.databases import Database


def now(bench: Bench, scope: Literal["kind", "queue"] = "kind", name: str = "Step") -> WorkNow:
    with bench.jobs.database.read() as tx:
        return work_now(tx, scope, name)


def crowd(bench: Bench) -> list[int]:
    """Of Step two in retry, one suspended and three ready, the oldest for 90 seconds."""
    ids = [int(bench.step(f"r{n}").schedule()) for n in range(3)]
    ids += [int(bench.step("old").queue("slow").schedule())]
    bench.clock.advance(90)
    ids += [int(bench.step(f"k{n}").schedule()) for n in range(2)]
    later = 4_000_000_000 * SECOND  # also to the console, whose clock is the real one
    bench.execute("UPDATE schedd_tasks SET state = 2, run_at = :at WHERE id IN (:a, :b)", a=ids[0], b=ids[1], at=later)
    bench.execute("UPDATE schedd_tasks SET state = 3, run_at = :at WHERE id = :a", a=ids[2], at=later)
    return ids


def test_each_is_counted(bench: Bench) -> None:
    assert now(bench) == WorkNow(0, 0, 0, None, 0, 0, frozenset())
    ids = crowd(bench)
    found = now(bench)
    assert found._replace(since=None) == WorkNow(0, 0, 3, None, 2, 1, frozenset())
    assert found.since is not None
    assert 89 * SECOND < bench.jobs.database.now() - found.since < 100 * SECOND
    assert now(bench, "queue", "slow")._replace(since=None) == WorkNow(0, 0, 1, None, 0, 0, frozenset())
    assert now(bench, name="Soft").retry == 0, "those of another kind are not its own"
    worker = Bare(bench.database.url, bench.clock).worker("a")
    bench.execute("UPDATE schedd_tasks SET state = 5, worker = :w, claim = 1 WHERE id = :a", w=worker, a=ids[3])
    bench.execute("UPDATE schedd_tasks SET state = 4, worker = :w, claim = 1 WHERE id = :a", w=worker, a=ids[4])
    assert now(bench)[:3] == (1, 1, 1)


def test_a_bound_says_so(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    crowd(bench)
    monkeypatch.setattr(module, "MAX_COUNTED", 2)
    found = now(bench)
    assert (found.ready, found.retry, found.suspended, found.capped) == (2, 2, 1, {"ready", "retry"})
    monkeypatch.undo()
    monkeypatch.setattr(module, "_MAX_LANES", 1)
    assert (now(bench).ready, now(bench).capped) == (1, {"ready"})


def test_the_pages_of_a_kind_and_a_queue_say_it(bench: Bench, database: Database) -> None:
    bench.drain()  # the worker publishes its kinds
    crowd(bench)
    with console_on(database) as gate:
        kind = ask(gate, "GET", "/kinds/Step.json").json
        queue = ask(gate, "GET", "/queues/slow.json").json
        text = ask(gate, "GET", "/kinds/Step").text
    assert (kind["running"], kind["ready"], kind["retry"], kind["suspended"], kind["capped"]) == (0, 3, 2, 1, [])
    assert kind["oldest_ready_age"] > 89
    assert kind["oldest_ready_since"] is not None
    assert (queue["running"], queue["retry"], queue["ready"][0]["due"]) == (0, 0, 1)
    assert "retry<b>2</b>" in text
    assert "The oldest ready task became ready" in text
