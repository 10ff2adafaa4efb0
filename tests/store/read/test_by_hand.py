"""What people have set by hand is in one list, with who, since when, why, and the command that takes it back."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.cli.root import root
from scheduler.model.alerts import Silence
from scheduler.ports import SECOND, SystemClock
from scheduler.store.alerts import silence
from scheduler.store.read.by_hand import ByHand, set_by_hand
from scheduler.testing import engine_of
from support.bench import Bench, Step
from support.consoles import ask, console_on
from support.databases import Database
from support.runner import Runner

pytestmark = pytest.mark.case(102)


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    """On the system's clock, as schedctl has it."""
    made = Bench(database, clock=SystemClock())  # type: ignore[arg-type]
    yield made
    made.close()


def found(bench: Bench) -> dict[str, ByHand]:
    with bench.jobs.database.read() as tx:
        return {one.sort: one for one in set_by_hand(tx)}


def set_all(bench: Bench) -> None:
    jobs = bench.jobs
    jobs.task(Step("x")).key("night ly").cron("0 5 * * *").schedule()
    bench.drain()
    with jobs.acting("alice", reason="provider down"):
        jobs.pause(queue="mail")
        jobs.schedules.pause("night ly")
        jobs.live_settings.kind("Step", max_concurrency=2)
        jobs.live_settings.pool("high", slots=1, worker=engine_of(jobs).worker)
        jobs.live_settings.key("Step", "ada b", max_concurrency=1)
        jobs.database.change(lambda tx: silence(tx, Silence("stalled", None, None, tx.now + 3600 * SECOND)))
        jobs.workers.drain(engine_of(jobs).worker)


def test_all_of_it_is_listed_and_each_command_takes_it_back(bench: Bench, tmp_path: Any) -> None:
    set_all(bench)
    with bench.jobs.database.read() as tx:
        listed = set_by_hand(tx)
    assert sorted(one.sort for one in listed) == ["pause", "schedule", *["setting"] * 3, "silence", "worker"]
    for one in listed:
        assert (one.actor, one.reason) == ("alice", "provider down")
        assert one.describe().endswith("by alice: provider down")
    (tmp_path / "c.toml").touch()
    environment = {"SCHEDD_CONFIG": str(tmp_path / "c.toml"), "SCHEDD_STORE__URL": bench.database.url}
    for one in listed:
        result = Runner(env=environment).invoke(root, shlex.split(one.undo)[1:])
        assert result.exit_code == 0, (one.undo, result.output)
    assert found(bench) == {}


def test_status_and_the_first_page_show_it(bench: Bench, tmp_path: Any) -> None:
    set_all(bench)
    (tmp_path / "c.toml").touch()
    environment = {"SCHEDD_CONFIG": str(tmp_path / "c.toml"), "SCHEDD_STORE__URL": bench.database.url}
    printed = Runner(env=environment).invoke(root, ["status"]).stdout
    assert "set by hand:\n" in printed
    assert "schedule night ly is paused since 20" in printed
    assert "by alice: provider down; `schedctl cron resume 'night ly'` ends that" in printed
    with console_on(bench.database) as gate:
        shown = ask(gate, "GET", "/").text
        assert len(ask(gate, "GET", "/.json").json["by_hand"]) == 7
    assert "Schedule night ly is paused since" in shown
    assert "schedctl cron resume" in shown


def test_who_paused_a_schedule_that_was_registered_anew(bench: Bench) -> None:
    set_all(bench)
    bench.execute("UPDATE schedd_schedules SET updated_at = updated_at + 5000000")
    assert found(bench)["schedule"].actor == "alice"
