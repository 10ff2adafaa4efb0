"""``status``, ``workers`` and ``doctor``; what is stuck is found."""

from __future__ import annotations

import json

import psycopg
import pytest
import sqlalchemy as sa

from scheduler.ports import FOREVER
from scheduler.store.admin import doctor as checks
from scheduler.store.db import horizon
from support.bench import Bench, notify_and_step
from support.databases import Database

from .conftest import Ctl

UNKNOWN = 2500


def stuck(ctl: Ctl) -> dict[str, str]:
    return {one["problem"]: one["text"] for one in ctl.json("status")["stuck"]}


def test_status_of_an_empty_database(ctl: Ctl) -> None:
    result = ctl("status", "-o", "json")
    assert result.exit_code == 0
    assert "no worker is live" in result.stderr
    view = json.loads(result.stdout)
    assert (view["states"], view["oldest_ready"], view["workers"], view["stuck"]) == ({}, None, [], [])
    assert ctl("status").stdout.endswith("no worker is live: nothing runs\n")


def test_status_counts_by_state_and_pool(ctl: Ctl, live: Bench) -> None:
    live.ended("success")
    first = int(live.step("due").priority("high").schedule())
    live.step("later").after(3600).schedule()
    live.step("waiting", first).schedule()
    view = ctl.json("status")
    assert view["states"] == {"waiting": 1, "scheduled": 2, "success": 1}
    assert view["pools"]["high"] == {"due": 1, "later": 0, "held": 0, "slots": 2, "async_slots": 20}
    assert view["pools"]["medium"] == {"due": 0, "later": 1, "held": 0, "slots": 8, "async_slots": 100}
    assert view["oldest_ready"]["id"] == first
    assert 0 <= view["oldest_ready"]["age"] < 3600
    (worker,) = view["workers"]
    assert worker["state"] == "live"
    assert 0 < worker["lease_left"] <= 30
    assert view["stuck"] == []
    text = ctl("status").stdout
    assert "nothing is stuck" in text
    assert f"oldest ready: task {first} (Step, queue default)" in text


def test_the_oldest_ready_task_counts_from_the_end_of_its_last_parent(ctl: Ctl, live: Bench) -> None:
    parent = int(live.step("parent").schedule())
    child = int(live.step("child", parent).priority("low").schedule())
    live.execute("UPDATE schedd_tasks SET run_at = 1000000")
    live.execute(f"UPDATE schedd_tasks SET state = 1, unmet = 0 WHERE id = {child}")
    live.execute(f"UPDATE schedd_tasks SET state = 6, finished_at = created_at WHERE id = {parent}")
    assert ctl.json("status")["oldest_ready"]["since"] == ctl.json("show", parent)["finished_at"]


@pytest.mark.case(24)
def test_an_unregistered_kind_is_left_alone_and_reported(ctl: Ctl, live: Bench) -> None:
    """Many of them, due earlier and of a higher priority, delay no other task."""
    first = int(live.step("first").schedule())
    source = (
        "FROM generate_series(1, :n) g"
        if live.database.dialect == "postgresql"
        else "FROM (WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c WHERE x < :n) SELECT x FROM c) g"
    )
    live.execute(
        "INSERT INTO schedd_tasks (state, queue, lane, priority, run_at, kind, created_at, payload) "
        f"SELECT 1, 'default', 'Unknown', 0, 1000000, 'Unknown', 1000000, '{{}}' {source}",
        n=UNKNOWN,
    )
    unknown = max(row["id"] for row in ctl.json("list", "--kind", "Unknown", "--limit", 1))
    before = ctl.json("show", unknown)
    assert live.drain() == ["first"]
    assert live.state(first) == "success"
    assert ctl.json("show", unknown) == before | {"why": ctl.json("show", unknown)["why"]}
    assert ctl.json("show", unknown)["why"].endswith(", but no live worker serves kind 'Unknown'")
    view = ctl.json("status")
    assert view["states"] == {"scheduled": UNKNOWN, "success": 1}
    assert [(s["text"], s["number"]) for s in view["stuck"]] == [
        (f"{UNKNOWN} tasks are ready, but no live worker serves kind 'Unknown'", UNKNOWN)
    ]
    assert "no live worker serves kind 'Unknown'" in ctl("status").stdout


def test_what_is_stuck(ctl: Ctl, live: Bench) -> None:
    dead = live.ended("dead")
    child = int(live.step("child", dead, otherwise="wait").schedule())
    held = int(live.step("held").schedule())
    notify_and_step(live.jobs)
    live.execute(f"UPDATE schedd_tasks SET state = 5, timeout = 1000000, started_at = 1000000 WHERE id = {held}")
    live.step("mail").queue("mail").schedule()
    live.execute("UPDATE schedd_workers SET queues = '[\"default\"]'")
    found = stuck(ctl)
    assert found["unserved"] == "1 task is ready, but no live worker serves queue 'mail'"
    assert found["parent"] == f"1 waiting task stuck until a parent is retried: {dead}"
    assert "running past the timeout" in found["overdue"]
    assert f"(task {child})" in ctl("status").stdout


def test_what_waits_for_a_failure_that_does_not_come(ctl: Ctl, live: Bench) -> None:
    """A success is not retried, nor removed while something waits for it: a retry of the other one is of no use."""
    done, dead = live.ended("success"), live.ended("dead")
    never = [int(live.step("child", done, when="failure", otherwise="wait").schedule())]
    builder = live.step("child", dead, otherwise="wait").depend_on(done, when="failure", otherwise="wait")
    never.append(int(builder.schedule()))
    assert stuck(ctl) == {
        "success": "2 waiting tasks can never run, waiting for the failure of what has succeeded "
        f"({done}): to be cancelled"
    }
    waits = int(live.step("child", dead, otherwise="wait").schedule())
    assert stuck(ctl)["parent"] == f"1 waiting task stuck until a parent is retried: {dead}"
    assert [one["tasks"] for one in ctl.json("status")["stuck"]] == [never, [waits]]
    found = {f["check"]: f for f in ctl.json("doctor")}["retries"]
    assert (found["level"], found["tasks"]) == ("note", [*never, waits])
    assert "; 1 waiting task stuck until a parent is retried" in found["text"]
    assert ctl("cancel", *map(str, never)).exit_code == 0
    assert set(stuck(ctl)) == {"parent"}
    live.jobs.cancel_task(waits)
    assert {f["check"]: f["level"] for f in ctl.json("doctor")}["retries"] == "ok"


def test_a_lost_lease_and_a_late_schedule_are_stuck(ctl: Ctl, live: Bench) -> None:
    live.drain()
    assert ctl("run", "--cron", "0 5 * * *", "--key", "nightly", "--", "true").exit_code == 0
    live.execute("UPDATE schedd_workers SET lease_until = 1000000")
    live.execute("UPDATE schedd_schedules SET next_at = 1000000")
    found = stuck(ctl)
    assert "lost its lease at 1970-01-01T00:00:01Z and still holds 0 tasks" in found["lease"]
    assert found["schedule"].endswith(": nightly")
    assert "no worker is live" in ctl("status").stderr


def test_workers(ctl: Ctl, live: Bench) -> None:
    assert ctl.json("workers") == []
    live.drain()
    result = ctl("workers", "-o", "json")
    assert result.stderr == ""
    (worker,) = json.loads(result.stdout)
    assert worker["state"] == "live"
    assert worker["queues"] == ["*"]
    assert worker["kinds"] == ["Soft", "Step"]
    assert worker["pools"]["low"] == {"slots": 4, "async_slots": 50}
    assert "Soft,Step" in ctl("workers").stdout
    live.execute("UPDATE schedd_workers SET state = 2")
    assert ctl.json("workers") == []
    assert [w["state"] for w in ctl.json("workers", "--all")] == ["stopped"]


@pytest.mark.parametrize("dialect", ["postgresql"], indirect=True)
def test_doctor_names_who_holds_an_old_snapshot(
    ctl: Ctl, live: Bench, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finding() -> tuple[str, str]:
        (found,) = [f for f in ctl.json("doctor") if f["check"] == "old snapshots"]
        return found["level"], found["text"]

    url = sa.make_url(database.url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(url, application_name="report") as holder:
        holder.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        holder.execute("SELECT 1")
        assert finding() == ("ok", "no transaction is open for 5 min")
        monkeypatch.setattr(horizon, "MIN_AGE", 0)
        level, text = finding()
        pid = holder.info.backend_pid
        assert level == "note"
        assert f"session {pid} (report, user postgres, idle in transaction) has a transaction open for" in text
        assert f"pg_terminate_backend({pid})" in text
    with psycopg.connect(url) as writer:
        writer.execute("CREATE TABLE mine (i int)")
        assert f"session {writer.info.backend_pid} (no name" in finding()[1], "it has no snapshot, but an id"
        writer.rollback()
    assert finding() == ("ok", "no transaction is open for 0 ms")


class TestDoctor:
    def problems(self, ctl: Ctl, *options: str, status: int = 1) -> dict[str, str]:
        found = ctl.json("doctor", *options, status=status)
        return {f["check"]: f["text"] for f in found if f["level"] == "problem"}

    def test_of_a_healthy_database(self, ctl: Ctl, live: Bench) -> None:
        parent = live.ended("success")
        live.step("child", parent, int(live.step("other").schedule())).schedule()
        live.step("waits", live.ended("dead"), otherwise="wait").schedule()
        held = int(live.step("held").schedule())
        notify_and_step(live.jobs)
        assert live.state(held) == "claimed"
        assert self.problems(ctl, status=0) == {}
        assert ctl("doctor").exit_code == 0

    def test_wrong_counts_are_found_and_repaired(self, ctl: Ctl, live: Bench) -> None:
        parent = int(live.step("parent").schedule())
        high, low = int(live.step("high", parent).schedule()), int(live.step("low", parent).schedule())
        live.execute(f"UPDATE schedd_tasks SET unmet = 7 WHERE id = {high}")
        live.execute(f"UPDATE schedd_tasks SET unmet = 0, state = 1 WHERE id = {low}")
        assert self.problems(ctl) == {"unmet counts": f"2 tasks with a wrong count of open edges: {high}, {low}"}
        result = ctl("doctor", "--repair")
        assert result.exit_code == 0
        assert f"counted the open edges anew of 2 tasks: {high}, {low}" in result.stderr
        assert [live.state(high), live.state(low)] == ["waiting", "waiting"]
        assert live.drain() == ["parent", "high", "low"]

    def test_more_than_a_look_finds_is_repaired_at_once(
        self, ctl: Ctl, live: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As after a restore that lacks a table: a thousand are looked for at a time, here two."""
        monkeypatch.setattr(checks, "_MAX_IDS", 2)
        held = [int(live.step("held").schedule()) for _ in range(5)]
        notify_and_step(live.jobs)
        waits = [int(live.step("waits", *held).schedule()) for _ in range(5)]
        live.execute("DELETE FROM schedd_workers")
        live.execute("UPDATE schedd_tasks SET unmet = 7 WHERE state = 0")
        result = ctl("doctor", "--repair")
        assert "counted the open edges anew of 5 tasks" in result.stderr
        assert "took back 5 tasks of worker" in result.stderr
        assert result.exit_code == 0
        assert set(live.states(*held)) == {"scheduled"}
        assert set(live.states(*waits)) == {"waiting"}

    def test_a_child_that_its_parents_end_forgot(self, ctl: Ctl, live: Bench) -> None:
        parent = int(live.step("parent").schedule())
        child = int(live.step("child", parent).schedule())
        live.execute(f"UPDATE schedd_tasks SET state = 8, finished_at = created_at WHERE id = {parent}")
        assert self.problems(ctl) == {"edges": f"1 task waiting on an edge that is decided: {child}"}
        assert ctl("doctor", "--repair").exit_code == 0
        assert live.state(child) == "failed"

    def test_each_fault_of_edges_is_told_by_its_own_check(self, ctl: Ctl, live: Bench) -> None:
        """All three are searched for at once, and none hides another."""
        ended, gone, parent = (int(live.step(name).schedule()) for name in ("ended", "gone", "parent"))
        decided, orphan, wrong = (int(live.step("child", one).schedule()) for one in (ended, gone, parent))
        live.execute(f"UPDATE schedd_tasks SET state = 8, finished_at = created_at WHERE id = {ended}")
        live.execute(f"DELETE FROM schedd_tasks WHERE id = {gone}")
        live.execute(f"UPDATE schedd_tasks SET unmet = 7 WHERE id = {wrong}")
        assert self.problems(ctl) == {
            "unmet counts": f"1 task with a wrong count of open edges: {wrong}",
            "edges": f"1 task waiting on an edge that is decided: {decided}",
            "parents": f"1 task waiting on a parent that never was: {orphan}",
        }

    def test_claims_without_a_live_worker(self, ctl: Ctl, live: Bench) -> None:
        held = int(live.step("held").schedule())
        notify_and_step(live.jobs)
        live.execute("UPDATE schedd_workers SET state = 3")
        assert self.problems(ctl) == {"claims": f"1 task held by no live worker, which the next one takes back: {held}"}
        result = ctl("doctor", "--repair")
        assert (result.exit_code, "took back 1 task of worker 1" in result.stderr) == (0, True)
        assert live.state(held) == "scheduled"

    @pytest.mark.parametrize("way", ["command", "command without numbers", "program", "worker unknown"])
    def test_an_attempt_that_is_taken_back_counts_as_lost(
        self, ctl: Ctl, live: Bench, way: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As it does where a worker takes it back; and what had not begun counts as nothing."""
        begun, claimed = int(live.step("begun").schedule()), int(live.step("claimed").schedule())
        notify_and_step(live.jobs)
        live.execute(f"UPDATE schedd_tasks SET state = 5, started_at = claimed_at WHERE id = {begun}")
        if way == "worker unknown":
            live.execute("DELETE FROM schedd_worker_kinds")
            live.execute("DELETE FROM schedd_workers")
        live.execute("UPDATE schedd_workers SET state = 3")
        monkeypatch.setenv("SCHEDD_METRICS__ROLLUPS", "false" if way == "command without numbers" else "true")
        if way == "program":
            assert live.jobs.repair()
        else:
            assert ctl("doctor", "--repair").exit_code == 0
        counted = 0 if way == "command without numbers" else 1
        assert live.jobs.stats().total.outcomes.get("lost", 0) == counted
        assert [live.jobs.get_task(i).attempts_used for i in (begun, claimed)] == [1, 0]

    def test_claims_of_an_unknown_worker(self, ctl: Ctl, live: Bench) -> None:
        held = int(live.step("held").schedule())
        notify_and_step(live.jobs)
        live.execute("DELETE FROM schedd_worker_kinds")
        live.execute("DELETE FROM schedd_workers")
        assert self.problems(ctl) == {"claims": f"1 task held by no live worker, which the next one takes back: {held}"}
        result = ctl("doctor", "--repair")
        assert (result.exit_code, "took back 1 task of worker" in result.stderr) == (0, True)
        assert live.state(held) == "scheduled"

    def test_leases_that_ran_out_are_left_to_the_daemons(self, ctl: Ctl, live: Bench) -> None:
        held = int(live.step("held").schedule())
        notify_and_step(live.jobs)
        live.execute("UPDATE schedd_workers SET lease_until = 1")
        result = ctl("doctor", "--repair")
        assert (result.exit_code, "nothing that this could repair" in result.stderr) == (1, True)
        assert live.state(held) == "claimed"

    def test_a_replacement_that_was_forgotten(self, ctl: Ctl, live: Bench) -> None:
        held = int(live.step("held").key("k").schedule())
        notify_and_step(live.jobs)
        assert int(live.step("new").key("k", conflict="replace").schedule()) == held
        live.execute("UPDATE schedd_tasks SET state = 1, worker = NULL")
        assert self.problems(ctl) == {"replaced": f"1 task replaced, and still what it was: {held}"}
        result = ctl("doctor", "--repair")
        assert (result.exit_code, f"looked after what was to replace 1 task: {held}" in result.stderr) == (0, True)
        assert ctl.json("show", str(held))["payload"]["name"] == "new"

    def test_a_fixed_delay_whose_end_was_missed(self, ctl: Ctl, live: Bench) -> None:
        live.step("often").key("often").every(300, mode="fixed_delay").schedule()
        live.execute("UPDATE schedd_schedules SET next_at = :now", now=live.clock.now() - 1)
        assert live.drain() == ["often"]
        live.execute("UPDATE schedd_schedules SET next_at = :never", never=FOREVER)
        live.execute("UPDATE schedd_tasks SET finished_at = finished_at - 120000000")
        assert "often (its run has ended" in self.problems(ctl)["schedules"]
        result = ctl("doctor", "--repair")
        assert (result.exit_code, "gave the next slot to 1 schedule: often" in result.stderr) == (0, True)

    def test_a_parent_that_never_was(self, ctl: Ctl, live: Bench) -> None:
        parent = int(live.step("parent").schedule())
        child = int(live.step("child", parent).schedule())
        live.execute(f"DELETE FROM schedd_tasks WHERE id = {parent}")
        assert self.problems(ctl) == {"parents": f"1 task waiting on a parent that never was: {child}"}

    def test_schedules(self, ctl: Ctl, live: Bench) -> None:
        for name in ("late", "broken", "fine"):
            assert ctl("run", "--cron", "0 5 * * *", "--key", name, "--", "true").exit_code == 0
        live.execute("UPDATE schedd_schedules SET next_at = 1000000 WHERE name = 'late'")
        live.execute("UPDATE schedd_schedules SET recurrence = '{}' WHERE name = 'broken'")
        text = self.problems(ctl)["schedules"]
        assert text.startswith("2 schedules without a next slot: broken (unreadable")
        assert "late (overdue by" in text
        assert "fine" not in text

    def test_overdue_schedules_are_no_problem_while_no_worker_is_meant_to_run(self, ctl: Ctl, live: Bench) -> None:
        live.step("nightly").every(3600).key("nightly").schedule()
        live.drain()
        live.execute("UPDATE schedd_schedules SET next_at = :before", before=live.clock.now() - 120_000_000)
        assert "nightly (overdue by" in self.problems(ctl)["schedules"]
        live.jobs.stop()
        (found,) = (f for f in ctl.json("doctor") if f["check"] == "schedules")
        assert found["level"] == "note"
        assert "no worker is live, so these wait: nightly (overdue by" in found["text"]
