"""Twenty incidents and some more, planted in a real store: an agent with only the tools of MCP is told each cause.

It knows a symptom at most: a task that somebody asks about. It asks what an agent asks who follows the server's
instructions, whatever the incident is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from scheduler import Scheduler
from scheduler.config.model import Config
from scheduler.console.api.tools import Tools
from scheduler.store.db import sqlite_files, writable
from scheduler.testing import engine_of
from support.bench import Bench, Step, notify_and_step
from support.databases import Database
from support.placing import free_port

from .test_problems import HOUR, PLANTS, held
from .test_timeout import locked

pytestmark = pytest.mark.needs("the SDK of MCP")


class Incident(NamedTuple):
    """``cause``: words that answers have, all of them; ``symptom``: a task that somebody asks about."""

    cause: tuple[str, ...]
    symptom: int | None = None


def of_the_table(name: str) -> Callable[[Bench], Incident]:
    """A problem that status tells of, as its own test plants it."""

    def plant(live: Bench) -> Incident:
        planted = PLANTS[name](live)
        return Incident((planted.words,), planted.tasks[0] if planted.tasks else None)

    return plant


def an_api_is_down(live: Bench) -> Incident:
    """Forty tasks of one kind fail alike."""

    def away(ctx: Any) -> Any:
        raise ConnectionError(f"https://api.example.org/orders/{ctx.id} answered 503 Service Unavailable")

    live.script.bodies |= {f"order {n}": away for n in range(40)}
    for n in range(40):
        live.step(f"order {n}").schedule()
    live.drain()
    engine_of(live.jobs).write_rollups()
    return Incident(("40 of 40 attempts of Step", "answered 503 Service Unavailable"))


def a_payload_is_poisoned(live: Bench) -> Incident:
    def parse(ctx: Any) -> Any:
        raise ValueError("invalid literal for int() with base 10: '12,50'")

    live.script.bodies["price 12,50"] = parse
    made = int(live.step("price 12,50").schedule())
    live.step("price 12").schedule()
    live.drain()
    return Incident(("ValueError: invalid literal for int()", '"name":"price 12,50"'), made)


class Parse(Step, isolation="process"):
    """In a child process."""


def a_payload_is_poisoned_in_a_child(live: Bench) -> Incident:
    def parse(ctx: Any) -> Any:
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte")

    live.script.bodies["page"] = parse
    live.jobs.register(Parse)
    made = int(live.jobs.task(Parse("page")).schedule())
    live.drain()
    return Incident(("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff",), made)


def a_worker_is_killed_by_a_kind(live: Bench) -> Incident:
    made = held(live, "segfault")
    live.execute(f"UPDATE schedd_tasks SET state = 5, started_at = claimed_at WHERE id = {made}")
    live.execute("UPDATE schedd_workers SET state = 3")
    live.jobs.repair()
    return Incident(("lost",), made)


def a_schedule_is_in_a_wrong_zone(live: Bench) -> Incident:
    """The report of the office in Berlin comes nine hours late."""
    live.step("report").key("morning-report").cron("0 6 * * *", tz="America/Los_Angeles").schedule()
    live.drain()
    return Incident(('"name":"morning-report"', '"next_local":"06:00 America/Los_Angeles"'))


def a_colleague_paused_a_schedule(live: Bench) -> Incident:
    live.step("report").key("morning-report").cron("0 6 * * *").schedule()
    live.drain()
    with live.jobs.acting("alice", reason="the provider is down"):
        live.jobs.schedules.pause("morning-report")
    return Incident(("schedule morning-report is paused", "alice", "the provider is down"))


def a_queue_was_paused(live: Bench) -> Incident:
    live.drain()
    with live.jobs.acting("bob", reason="migration"):
        live.jobs.pause(queue="default")
    made = int(live.step("mail").schedule())
    return Incident(("queue default", "bob", "migration"), made)


def retention_removed_it(live: Bench) -> Incident:
    made = live.ended("success")
    earlier = "finished_at = finished_at - :days, result_until = result_until - :days"
    live.execute(f"UPDATE schedd_tasks SET {earlier}", days=10 * 24 * HOUR)
    live.jobs.gc()
    return Incident(("it ended as success, and retention removed it at",), made)


def a_backlog_grows(live: Bench) -> Incident:
    live.drain()
    ids = [int(live.step(f"n{n}").schedule()) for n in range(20)]
    notify_and_step(live.jobs)
    minutes = "run_at = run_at - :span, created_at = created_at - :span"
    live.execute(f"UPDATE schedd_tasks SET {minutes} WHERE id <= {ids[0] + 1}", span=HOUR // 10)
    live.execute("UPDATE schedd_tasks SET state = 1, worker = NULL WHERE state IN (4, 5)")
    return Incident(("queue default: ", "it never drains at that rate, and grows"), ids[0])


INCIDENTS: dict[str, Callable[[Bench], Incident]] = {
    "an API answers 503": an_api_is_down,
    "a poisoned payload": a_payload_is_poisoned,
    "a poisoned payload in a child": a_payload_is_poisoned_in_a_child,
    "a kind kills its worker": a_worker_is_killed_by_a_kind,
    "a deadlock, with a timeout": of_the_table("overdue"),
    "a deadlock, without": of_the_table("unmoved"),
    "a queue that nobody serves": of_the_table("unserved"),
    "a cap of one, held": of_the_table("capped"),
    "a wrong zone": a_schedule_is_in_a_wrong_zone,
    "a paused schedule": a_colleague_paused_a_schedule,
    "a dead parent": of_the_table("parent"),
    "a full disk": of_the_table("writes"),
    "a worker's clock ahead": of_the_table("clock"),
    "retention": retention_removed_it,
    "a backlog that grows": a_backlog_grows,
    # Two more have tests of their own below: a lock that a session holds, a server that is away.
    "a source that refuses": of_the_table("source"),
    "no worker": of_the_table("idle"),
    "tasks that wait for themselves": of_the_table("ring"),
    # Beyond the twenty:
    "a handler hangs": of_the_table("hung"),
    "a paused queue": a_queue_was_paused,
    "a task stored by a clock ahead": of_the_table("ahead"),
}


@contextmanager
def tools_on(url: str) -> Iterator[Tools]:
    jobs = Scheduler(url, auto_migrate=False)
    made = Tools(jobs, Config())
    try:
        yield made
    finally:
        made.close()
        jobs.close()


def investigate(tools: Tools, symptom: int | None) -> str:
    """All that an agent is told, in the order of the instructions."""

    def ask(name: str, **given: Any) -> str:
        return tools.call(name, given, "tester").text

    told = [ask("health")]
    found = json.loads(told[0]) if told[0].startswith("{") else {"problems": []}
    named = [task for one in found["problems"] for task in one["tasks"][:1]]
    for task in dict.fromkeys([*([] if symptom is None else [symptom]), *named]):
        told += [ask("why", id=task), ask("show_task", id=task), ask("show_logs", id=task)]
    told += [ask(one) for one in ("list_dead_letters", "status", "list_schedules", "list_pauses", "list_workers")]
    return "\n".join(told)


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=pytest.mark.both_databases) if "clock" in one else one for one in INCIDENTS],
)
def test_the_cause_is_told(name: str, live: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    incident = INCIDENTS[name](live)
    if name == "a full disk":
        monkeypatch.setattr(sqlite_files, "_FULL", 1 << 62)
        monkeypatch.setattr(writable, "_SERVER", "SELECT false AS standby, true AS read_only")
    with tools_on(live.database.url) as tools:
        told = investigate(tools, incident.symptom)
    assert [words for words in incident.cause if words not in told] == [], told


@pytest.mark.usefixtures("real_grace")
@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_session_that_holds_a_lock_is_named(database: Database) -> None:
    with locked(database) as session, tools_on(database.url) as tools:
        told = tools.call("status", {}, "tester")
    assert told.wrong
    assert f"session {session}" in told.text, told.text


def test_a_server_that_is_away_is_named() -> None:
    with tools_on(f"postgresql://nobody@127.0.0.1:{free_port()}/none") as tools:
        told = tools.call("health", {}, "tester")
    assert told.wrong
    assert "refused" in told.text.lower(), told.text
