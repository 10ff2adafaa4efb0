"""``schedctl queues``: a table that fits a terminal, JSON with everything, and sentences of what is wrong."""

from __future__ import annotations

import pytest

from scheduler.store.read import queues
from support.bench import Bench, notify_and_step

from .conftest import Ctl


def test_a_store_without_any_says_so(ctl: Ctl) -> None:
    result = ctl("queues")
    assert result.stderr == "schedctl: no task, no worker, no pause and no limit names a queue\n"
    assert ctl.json("queues") == []


def test_each_queue_is_a_row(ctl: Ctl, live: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    notify_and_step(live.jobs)
    for n in range(3):
        live.step(f"r{n}").queue("etl").schedule()
    live.step("later").queue("etl").after(3600).schedule()
    ctl("set", "queue", "etl", "--max-concurrency", "2", "--rate-limit", "100/min")
    ctl("pause", "--queue", "etl", "--reason", "provider down")
    (etl,) = [one for one in ctl.json("queues") if one["queue"] == "etl"]
    assert (etl["ready"], etl["later"], etl["held"], etl["at_least"]) == (3, 1, 0, [])
    assert (etl["max_concurrency"], etl["rate_limit"]) == (2, "100/min")
    assert etl["paused"]["reason"] == "provider down"
    assert (len(etl["workers"]), etl["unserved"]) == (1, None)
    result = ctl("queues")
    assert "paused, cap 2, 100/min" in result.stdout
    assert "provider down: `schedctl resume --queue etl` ends that" in result.stderr
    monkeypatch.setattr(queues.queues, "__defaults__", (queues.MOST_QUEUES, 2))
    (line,) = [line for line in ctl("queues").stdout.splitlines() if line.startswith("etl")]
    assert "2+" in line.split()


def test_a_queue_that_nobody_serves_is_a_sentence(ctl: Ctl, live: Bench) -> None:
    live.step("a").queue("old").schedule()
    (old,) = ctl.json("queues")
    assert (old["workers"], old["unserved"]) == ([], "no worker is live")
    result = ctl("queues")
    assert "schedctl: queue old: no worker is live. Start a worker that serves queue old" in result.stderr
    assert "unserved" in result.stdout
