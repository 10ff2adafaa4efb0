"""What the health checks say of an engine."""

from __future__ import annotations

import pytest

from scheduler import Context, Scheduler, task
from scheduler.telemetry.health import Vitals, not_alive, not_ready, not_started
from support.databases import Database, PostgresDatabases
from support.fleet import until
from support.proxy import Proxy

WELL = Vitals(running=True, started=True, draining=False, loop_age=0.1, answer_age=0.5, in_store=False, lease=30.0)


@task(kind="nothing")
def nothing(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("vitals", "live", "ready", "started"),
    [
        (WELL, [], [], []),
        (None, [], ["has not started"], ["has not started"]),
        (WELL._replace(started=False), [], ["first dispatch cycle"], ["first dispatch cycle"]),
        (WELL._replace(draining=True), [], ["draining"], []),
        (WELL._replace(loop_age=14.9), [], [], []),
        (WELL._replace(loop_age=15.0), ["for 15.0 s; half a lease is 15 s"], ["for 15.0 s"], []),
        (WELL._replace(running=False), ["loop has ended"], ["loop has ended"], []),
        (WELL._replace(answer_age=10.0), [], ["database has not answered for 10 s"], []),
        (
            WELL._replace(loop_age=20.0, answer_age=20.0, in_store=True, draining=True),
            [],
            ["draining", "database has not answered for 20 s"],
            [],
        ),
    ],
)
def test_checks_name_what_is_wrong(
    vitals: Vitals | None, live: list[str], ready: list[str], started: list[str]
) -> None:
    for check, expected in ((not_alive, live), (not_ready, ready), (not_started, started)):
        found = check(vitals)
        assert len(found) == len(expected), found
        assert all(part in text for part, text in zip(expected, found, strict=True)), found


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_a_server_that_never_answers_is_no_reason_to_restart(
    database: Database, postgres_databases: PostgresDatabases
) -> None:
    with Proxy(postgres_databases.socket) as proxy:
        jobs = Scheduler(proxy.url(database.url.partition("?")[0].rpartition("/")[2]), lease=2)
        jobs.register(nothing)
        with jobs:
            engine = jobs.engine
            assert engine.wait_ready(30)
            assert not_ready(engine.health()) == []
            proxy.hole()
            seen: list[Vitals] = []

            def stands() -> bool:
                seen.append(engine.health())
                return seen[-1].loop_age >= 1.0 and seen[-1].in_store

            until(stands)
            assert not_alive(seen[-1]) == []
            assert not_alive(seen[-1]._replace(in_store=False)) != []
            proxy.heal()
            until(lambda: engine.health().answer_age < 1.0)
            assert not_ready(engine.health()) == []
