"""Messages as an operator reads them: by subject, correlation and key; and running again what failed of them."""

from __future__ import annotations

import pytest

from support.bench import Bench, Soft, notify_and_step

from .conftest import Ctl


def test_a_column_for_what_was_asked_for(ctl: Ctl, live: Bench) -> None:
    live.step("a").subject("order/1").correlation("c").schedule()
    live.step("b").subject("order/2").correlation("c").key("k").schedule()
    assert "order/1" not in ctl("list").stdout
    by_subject = ctl("list", "--subject", "order/2").stdout
    assert "SUBJECT" in by_subject.splitlines()[0]
    assert "order/2" in by_subject
    assert "order/1" not in by_subject
    by_correlation = ctl("list", "--correlation", "c").stdout.splitlines()
    assert "CORRELATION" in by_correlation[0]
    assert len(by_correlation) == 3
    assert [row["key"] for row in ctl.json("list", "--key", "k")] == ["k"]
    assert len(ctl("list", "--subject", "absent").stdout.splitlines()) <= 1


@pytest.mark.case(61)
def test_retry_of_what_failed_only(ctl: Ctl, live: Bench) -> None:
    live.script.failing |= {"bad", "soft"}
    dead = [int(live.step("bad").subject("s").key(f"k{n}").schedule()) for n in range(3)]
    failed = int(live.jobs.task(Soft("soft")).subject("s").correlation("c").schedule())
    child = int(live.step("child", dead[0]).subject("s").schedule())
    fine = int(live.step("fine").subject("s").schedule())
    other = int(live.step("bad").subject("t").schedule())
    cancelled = int(live.step("never").subject("s").schedule())
    live.jobs.cancel_task(cancelled)
    live.drain()
    live.script.failing.clear()
    assert ctl.json("retry", "--correlation", "c") == [{"id": failed, "kind": "Soft", "state": "scheduled"}]
    holder = int(live.step("again").key("k2").schedule())
    result = ctl("-o", "json", "retry", "--subject", "s", "--limit", 1)
    assert result.exit_code == 0
    assert result.stderr == "schedctl: 1 were retried; there may be more\n"
    assert live.state(child) == "waiting"
    result = ctl("retry", "--subject", "s")
    assert result.exit_code == 4
    assert result.stderr == f"schedctl: task {dead[2]} was not retried: task {holder} has its key\n"
    live.drain()
    assert live.states(*dead, failed, child, fine) == ["success", "success", "dead", "success", "success", "success"]
    assert live.states(other, cancelled) == ["dead", "cancelled"]
    assert len(live.jobs.get_attempts(fine)) == 1


def test_retry_wants_ids_or_filters(ctl: Ctl, live: Bench) -> None:
    assert "either IDs, or" in ctl.fails(2, "retry")
    assert "either IDs, or" in ctl.fails(2, "retry", 1, "--subject", "s")
    assert "--limit goes with filters" in ctl.fails(2, "retry", 1, "--limit", 5)
    live.drain()
    assert ctl.json("retry", "--key", "absent") == []


@pytest.mark.case(61)
def test_dead_letters_by_their_envelope(ctl: Ctl, live: Bench) -> None:
    live.script.failing.add("bad")
    ids = [int(live.step("bad").subject(f"s{n % 2}").correlation(f"c{n}").schedule()) for n in range(4)]
    live.drain()
    found = ctl.json("dlq", "list", "--each", "--subject", "s1")
    assert sorted(row["id"] for row in found) == ids[1::2]
    assert ctl.json("dlq", "list", "--correlation", "c0")[0]["count"] == 1
    live.script.failing.clear()
    assert ctl.json("dlq", "replay-all", "--subject", "s0")["replayed"] == ids[::2]
    live.drain()
    assert live.states(*ids) == ["success", "dead", "success", "dead"]
    assert ctl.json("dlq", "purge", "--older-than", "0s", "--correlation", "c1", "--yes") == {"removed": 1}


@pytest.mark.case(29, 61)
def test_show_tells_what_attempts_ran_with_where_that_was_something_else(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("one").key("k", conflict="replace").subject("first").schedule())
    notify_and_step(live.jobs)
    live.step("two").key("k", conflict="replace").subject("second").schedule()
    shown = ctl("show", made).stdout
    assert "rerun" in shown
    assert "; it was replaced, and runs once more" in shown
    live.execute(f"UPDATE schedd_tasks SET state = 5 WHERE id = {made}")
    assert "\nwhy: it was replaced, and runs once more" in ctl("show", made).stdout
    live.drain()
    view = ctl.json("show", made)
    assert [a["subject"] for a in view["attempts"]] == ["first", "second"]
    assert [a["payload"] for a in view["attempts"]] == [{"name": "one"}, {"name": "two"}]
    assert [a["idempotency_key"] for a in view["attempts"]] == ["k", "k"]
    assert (view["subject"], view["payload"], view["rerun"]) == ("second", {"name": "two"}, False)
    text = ctl("show", made).stdout
    attempts = text[text.index("\nattempts:\n") :]
    assert "SUBJECT" in attempts
    assert "first" in attempts
    assert "CORRELATION" not in attempts
    plain = int(live.step("plain").subject("s").schedule())
    live.drain()
    text = ctl("show", plain).stdout
    assert "SUBJECT" not in text[text.index("\nattempts:\n") :]


class TestConflict:
    def test_replace_and_reject(self, ctl: Ctl, live: Bench) -> None:
        live.drain()
        command = ("submit", "Step", "--key", "k")
        first = ctl.json(*command, "-P", "name=one")
        assert first["created"]
        result = ctl(*command, "-P", "name=two", "--conflict", "replace")
        assert result.stdout == f"{first['id']}\n"
        assert f"task {first['id']} holds the key 'k' already; it is replaced" in result.stderr
        assert "is held by task" in ctl.fails(4, *command, "-P", "name=three", "--conflict", "reject")
        assert live.drain() == ["two"]

    def test_it_belongs_to_a_key(self, ctl: Ctl, live: Bench) -> None:
        live.drain()
        assert "--conflict belongs to --key" in ctl.fails(2, "submit", "Step", "-P", "name=x", "--conflict", "replace")


class TestCronNext:
    def test_changes_of_the_clock_are_marked(self, ctl: Ctl, live: Bench) -> None:
        live.step("x").key("nightly").cron("30 2 * * *", tz="Europe/Berlin").catchup("all").schedule()
        live.execute("UPDATE schedd_schedules SET next_at = 1774661400000000")  # 28 March 2026
        rows = ctl.json("cron", "next", "nightly", "-n", 3)
        assert [row["local"] for row in rows] == [
            "2026-03-28T02:30:00+01:00",
            "2026-03-29T03:00:00+02:00",
            "2026-03-30T02:30:00+02:00",
        ]
        assert [row["slot"] for row in rows][1:] == ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
        assert [row["offset"] for row in rows] == ["+01:00", "+02:00", "+02:00"]
        assert [row["note"] for row in rows][1:] == ["clock changed, +01:00 to +02:00", None]
        text = ctl("cron", "next", "nightly", "-n", 2).stdout
        assert "2026-03-29T03:00:00+02:00" in text
        assert "clock changed, +01:00 to +02:00" in text

    def test_the_hour_that_comes_twice(self, ctl: Ctl, live: Bench) -> None:
        live.step("x").key("often").cron("*/30 * * * *", tz="Europe/Berlin").catchup("all").schedule()
        live.execute("UPDATE schedd_schedules SET next_at = 1792888200000000")  # 25 October 2026, 02:30, the first
        rows = ctl.json("cron", "next", "often", "-n", 4)
        assert [row["local"][11:] for row in rows] == [
            *("02:30:00+02:00", "02:00:00+01:00", "02:30:00+01:00", "03:00:00+01:00"),
        ]
        assert [row["note"] for row in rows][1:] == ["clock changed, +02:00 to +01:00", None, None]

    def test_one_that_cannot_be_read_keeps_no_other_from_being_listed(self, ctl: Ctl, live: Bench) -> None:
        live.step("x").key("bad").every(60).schedule()
        live.step("y").key("good").every(60).schedule()
        live.execute("UPDATE schedd_schedules SET recurrence = 'nonsense', payload = '{' WHERE name = 'bad'")
        bad, good = ctl.json("cron", "list")
        assert bad["recurrence"].startswith("unreadable: not a stored recurrence")
        assert (good["name"], good["recurrence"]) == ("good", "every 1 min, fixed rate")
        assert "schedule 'bad' cannot be read: not a stored recurrence" in ctl.fails(2, "cron", "next", "bad")
        assert ctl("cron", "pause", "bad").exit_code == 0
        live.execute("UPDATE schedd_schedules SET options = '[]' WHERE name = 'bad'")
        assert "schedule 'bad' cannot be read" in ctl.fails(2, "cron", "trigger", "bad")
        listed = live.jobs.schedules.list()
        assert [(s.name, s.recurrence.describe()[:12], s.trouble is None) for s in listed] == [
            ("bad", "unreadable: ", False),
            ("good", "every 1 min,", True),
        ]
        assert ctl("cron", "delete", "bad").exit_code == 0
