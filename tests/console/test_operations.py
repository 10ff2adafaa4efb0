"""Workers, kinds, queues, events, audit, alerts, settings, the pause of everything, figures: pages and verbs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler import Scheduler
from scheduler.console import principal
from scheduler.testing import FakeClock
from support.bare_workers import Bare
from support.consoles import ask, console_on, post
from support.databases import Database


def newest(gate: Any, **query: str) -> dict[str, Any]:
    text = "&".join(f"{name}={value}" for name, value in query.items())
    return ask(gate, "GET", f"/audit.json?{text}").json["entries"][0]


def test_events_are_emitted_once_and_audited(database: Database) -> None:
    with console_on(database) as gate:
        assert post(gate, "/events/emit", name="paid", payload='{"token": "abc"}', reason="by phone").status == 303
        shown = ask(gate, "GET", "/events.json").json["events"]
        assert [(one["name"], one["payload"]) for one in shown] == [("paid", {"token": "***"})]
        entry = newest(gate, action="event")
        assert (entry["about"], entry["via"], entry["reason"], entry["actor"]) == (
            "event paid", "page", "by phone", "ada",
        )  # fmt: skip
        assert post(gate, "/events/emit", name="x", payload="{").status == 422
        assert post(gate, "/events/emit", name="x", payload='"***"').status == 422


def test_events_have_further_pages(database: Database) -> None:
    with console_on(database) as gate:
        jobs = Scheduler(database.url)
        for number in range(103):
            jobs.emit_event(f"e{number}")
        jobs.close()
        first = ask(gate, "GET", "/events.json").json
        rest = ask(gate, "GET", f"/events.json?cursor={first['cursor']}").json
        names = [one["name"] for one in (*first["events"], *rest["events"])]
        assert sorted(names) == sorted(f"e{number}" for number in range(103))
        assert rest["cursor"] is None
        assert ask(gate, "GET", "/events?cursor=x").status == 422


def test_everything_is_paused_on_all_pages(database: Database) -> None:
    with console_on(database) as gate:
        assert post(gate, "/pause", all="1", reason="provider down").status == 303
        for path in ("/", "/workers", "/kinds", "/audit", "/settings", "/workers?fragment=1"):
            text = ask(gate, "GET", path).text
            assert "Everything is paused" in text, path
            assert "provider down" in text, path
        assert newest(gate, action="pause")["about"] == "everything"
        post(gate, "/resume", all="1")
        assert "Everything is paused" not in ask(gate, "GET", "/workers").text


def test_audit_is_filtered_and_paged(database: Database) -> None:
    with console_on(database) as gate:
        jobs = Scheduler(database.url)
        with jobs.acting("bob"):
            for number in range(103):
                jobs.pause(queue=f"q{number}")
        jobs.close()
        post(gate, "/pause", kind="Mail")
        first = ask(gate, "GET", "/audit.json?by=bob").json
        rest = ask(gate, "GET", f"/audit.json?by=bob&cursor={first['cursor']}").json
        abouts = [one["about"] for one in (*first["entries"], *rest["entries"])]
        assert abouts == [f"queue q{number}" for number in reversed(range(103))]
        assert newest(gate, subject="kind")["about"] == "kind Mail"
        assert ask(gate, "GET", "/audit.json?until=1h").json["entries"] == []
        assert ask(gate, "GET", "/audit?since=nonsense").status == 422


def test_limits_and_slots_are_set_and_reset(database: Database) -> None:
    with console_on(database) as gate:
        assert post(gate, "/kinds/set/Mail", max_concurrency="4", rate_limit="100/min").status == 303
        assert post(gate, "/settings/pool", pool="low", slots="3", reason="night").status == 303
        live = {one["setting"]: one for one in ask(gate, "GET", "/settings.json").json["live"]}
        assert live["kind Mail"]["value"] == {"max_concurrency": 4, "rate_limit": "100/min"}
        assert (live["pool low"]["value"], live["pool low"]["by"], live["pool low"]["reason"]) == (
            {"slots": 3}, "ada", "night",
        )  # fmt: skip
        entry = newest(gate, action="settings")
        assert (entry["via"], entry["after"]) == ("page", {"slots": 3})
        post(gate, "/settings/reset", kind="Mail")
        post(gate, "/settings/reset", pool="low")
        assert ask(gate, "GET", "/settings.json").json["live"] == []
        for form in ({"max_concurrency": "many"}, {"rate_limit": "fast"}, {}):
            assert post(gate, "/kinds/set/Mail", **form).status == 422


def test_silences_say_who_and_end(database: Database) -> None:
    with console_on(database) as gate:
        assert (
            post(
                gate,
                "/alerts/silence",
                rule="retry_rate",
                kind="Mail",
                **{"for": "2h"},
                reason="known, password=hunter2",
            ).status
            == 303
        )
        (one,) = ask(gate, "GET", "/alerts.json").json["silences"]
        assert (one["rule"], one["kind"], one["actor"], one["reason"]) == (
            "retry_rate",
            "Mail",
            "ada",
            "known, password=***",
        )
        assert newest(gate, action="silence")["via"] == "page"
        assert post(gate, "/alerts/unsilence", id=one["id"]).status == 303
        assert ask(gate, "GET", "/alerts.json").json["silences"] == []
        assert post(gate, "/alerts/silence", rule="no_rule", **{"for": "2h"}).status == 422
        assert post(gate, "/alerts/silence", rule="*", **{"for": "soon"}).status == 422
        assert post(gate, "/alerts/test", sink="none").status == 422


def test_slots_of_threads_and_of_coroutines_stand_apart(database: Database) -> None:
    Bare(database.url, FakeClock(datetime.now(UTC))).worker("a")
    with console_on(database) as gate:
        jobs = Scheduler(database.url)
        with jobs.database.write() as tx:
            tx.run("UPDATE schedd_workers SET pools = :pools", pools='{"medium":[7,93],"processes":2}')
        workers, first = ask(gate, "GET", "/workers").text, ask(gate, "GET", "/").text
        jobs.close()
    assert 'aria-label="0 held of 7 medium threads"' in workers
    assert 'aria-label="0 held of 93 medium coroutines"' in workers
    assert "7 + 93</td>" in first


def test_a_worker_drains_and_resumes(database: Database) -> None:
    number = Bare(database.url, FakeClock(datetime.now(UTC))).worker("a")
    with console_on(database) as gate:
        assert "No other worker claims" in ask(gate, "GET", "/workers").text
        assert post(gate, f"/workers/{number}/drain", reason="new kernel").status == 303
        assert ask(gate, "GET", "/workers.json").json[0]["state"] == "draining"
        entry = newest(gate, action="drain")
        assert (entry["about"], entry["reason"], entry["via"]) == (f"worker {number}", "new kernel", "page")
        assert post(gate, f"/workers/{number}/resume").status == 303
        assert post(gate, f"/workers/{number}/restart").status == 303
        assert newest(gate, action="restart")["about"] == f"worker {number}"
        assert post(gate, f"/workers/{number + 1}/drain").status == 404


def test_a_kind_and_a_queue(filled: Any) -> None:
    with console_on(Database(filled.url, "sqlite")) as gate:
        names = {one["name"]: one for one in ask(gate, "GET", "/kinds.json").json["kinds"]}
        assert names["Mail"]["attempts"] == 2
        assert names["Mail"]["failure_rate"] == 0.5
        mail = ask(gate, "GET", "/kinds/Mail.json").json
        assert [one["task"] for one in mail["failures"]] == [filled.dead]
        assert "mailbox full" in mail["failures"][0]["error"]
        assert ask(gate, "GET", "/kinds/Nothing").status == 404
        assert ask(gate, "GET", "/kinds?over=ages").status == 422
        queue = ask(gate, "GET", "/queues/slow.json").json
        assert queue["paused"]["by"] == "alice"
        assert queue["ready"][0]["due"] == 1


def test_all_queues(filled: Any) -> None:
    with console_on(Database(filled.url, "sqlite")) as gate:
        post(gate, "/pause", queue="photos", reason="named, however long ago its tasks ended")
        found = ask(gate, "GET", "/queues.json").json
        post(gate, "/resume", queue="photos")
        slow, photos = ({one["queue"]: one for one in found["queues"]}[name] for name in ("slow", "photos"))
        assert (slow["ready"], slow["paused"]["by"], slow["unserved"]) == (1, "alice", "no worker is live")
        assert (photos["ready"], found["more"]) == (0, False)
        page = ask(gate, "GET", "/queues").text
        assert "`schedctl set task --queue slow --to-queue QUEUE`" in page
        assert "schedctl queues" in page
        post(gate, "/pause", queue="slow", reason="password=hunter2")
        assert "hunter2" not in ask(gate, "GET", "/queues").text
        post(gate, "/resume", queue="slow")
        queues = {one["queue"]: one for one in ask(gate, "GET", "/queues.json").json["queues"]}
        assert queues["slow"]["paused"] is None


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_settings_are_the_admins(database: Database, role: str) -> None:
    with console_on(database, lambda scope: principal("eve", role)) as gate:
        assert post(gate, "/settings/pool", pool="low", slots="3").status == 403
        assert post(gate, "/kinds/set/Mail", max_concurrency="1").status == 403
        assert ask(gate, "GET", "/settings").status == 200


def test_figures_for_prometheus_are_behind_the_gate(database: Database) -> None:
    with console_on(database) as gate:
        answer = ask(gate, "GET", "/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        assert "# TYPE schedd_tasks gauge" in answer.text
    with console_on(database, lambda scope: None) as gate:
        assert ask(gate, "GET", "/metrics").status == 401
