"""What a terminal shows: what matters first, ages, zones, colours, and the same again with --watch."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from scheduler.cli import polling
from scheduler.cli.timefmt import brief, short
from support.bench import Bench

from .conftest import Ctl

Terminal = Callable[[str], str]
LONG = "invoice-of-a-customer-with-a-name-that-is-longer-than-a-terminal-is-wide"


@pytest.fixture
def lines(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], list[str]]:
    """The lines of a command on a terminal of that width, without colours."""

    def call(width: int, line: str) -> list[str]:
        monkeypatch.setenv("COLUMNS", str(width))
        return terminal(line).splitlines()

    return call


def test_a_narrow_terminal_shows_what_matters_first(live: Bench, lines: Callable[[int, str], list[str]]) -> None:
    dead = live.ended("dead")
    narrow, wide = lines(80, "list"), lines(200, "list")
    assert narrow[0].split() == ["ID", "KIND", "KEY", "STATE", "AGE", "ATTEMPT", "ERROR"]
    assert wide[0].split("  ")[-1].strip() == "ERROR"
    assert [name for name in ("RUN AT", "CREATED AT") if name in wide[0]] == ["RUN AT", "CREATED AT"]
    assert re.match(rf" *{dead} +Step +- +dead +\d+[sm] +1/1 +PermanentError: ends dead failed", narrow[1])
    live.step("b").key(LONG).schedule()
    narrow = lines(80, "list")
    assert all(len(line) <= 80 for line in narrow)
    assert narrow[1].split()[2].startswith("invoice-of-a-cust")
    assert "PermanentError: ends" in narrow[2]
    assert LONG in lines(200, "list")[1]
    assert lines(80, "list --columns created_at,id,key")[0].split()[:3] == ["CREATED", "AT", "ID"], "as asked for"


def test_a_narrow_terminal_shows_the_hour_of_times(live: Bench, lines: Callable[[int, str], list[str]]) -> None:
    for number in range(3):
        live.jobs.emit_event(f"a name that needs room on a narrow terminal {number}")
    wide, narrow = lines(200, "audit"), lines(80, "audit")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", wide[1])
    assert re.match(r"\d\d:\d\d:\d\d  \S+ +event emitted  event a name that needs ", narrow[1])
    assert all(len(line) <= 80 for line in narrow)
    now = datetime(2026, 1, 31, 1, 0, tzinfo=UTC)
    at = datetime(2026, 1, 30, 23, 30, 5, tzinfo=UTC)
    assert short(at, UTC, now) == "01-30 23:30"
    assert short(at, ZoneInfo("Europe/Berlin"), now) == "00:30:05"
    assert short(at.replace(year=2024), UTC, now) == "2024-01-30"


def test_times_are_shown_in_the_zone_that_is_asked_for(ctl: Ctl, live: Bench, terminal: Terminal) -> None:
    made = int(live.step("a").schedule())
    live.execute("UPDATE schedd_tasks SET created_at = 1784540000000000")  # 2026-07-20T09:33:20Z
    assert "2026-07-20T11:33:20+02:00" in ctl("--tz", "Europe/Berlin", "list").stdout
    assert "2026-07-20T09:33:20Z" in ctl("list", "--tz", "utc").stdout
    assert "2026-07-20T09:33:20Z" in ctl("list").stdout
    assert re.search(
        r"created at: +2026-07-20T15:18:20\+05:45$", ctl("show", made, "--tz", "Asia/Kathmandu").stdout, re.MULTILINE
    )
    assert re.search(r"2026-07-20T..:..:..([+-]\d\d:\d\d)? ", ctl("list", "--tz", "local").stdout)
    assert ctl.json("list", "--tz", "Asia/Kathmandu")[0]["created_at"] == "2026-07-20T09:33:20Z"
    assert "unknown time zone 'Mars/Olympus'" in ctl.fails(2, "list", "--tz", "Mars/Olympus")
    assert "unknown time zone '../x'" in ctl.fails(2, "list", "--tz", "../x")
    assert re.search(r"created at: +2026-07-20T09:33:20Z  \((in )?\d+ d.*\)", terminal(f"show {made}"))
    assert " ago" not in ctl("show", made).stdout.split("why:")[0], "a pipe prints the same each time"


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_colours_when_they_are_wanted(
    ctl: Ctl, live: Bench, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    live.ended("dead")
    assert "\x1b[31mdead" in ctl("list", "--color", "always").stdout
    assert "\x1b" not in ctl("list").stdout
    assert "\x1b" not in terminal("list"), "NO_COLOR is set"
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[31mdead" in terminal("list --color auto")
    assert "\x1b" not in terminal("list --color never")


def test_several_tasks_at_once(ctl: Ctl, live: Bench) -> None:
    parent = int(live.step("a").schedule())
    child = int(live.step("b", parent).schedule())
    assert [one["id"] for one in ctl.json("show", child, parent)] == [child, parent]
    assert ctl.json("show", parent)["id"] == parent
    text = ctl("show", child, parent).stdout
    assert [line for line in text.splitlines() if line.startswith("id:")] == [
        f"id:{' ' * 11}{i}" for i in (child, parent)
    ]
    whys = ctl.json("why", child, parent)
    assert [(one["id"], one["state"]) for one in whys] == [(child, "waiting"), (parent, "scheduled")]
    assert whys[0]["why"] == f"waits for 1 of 1 task: {parent} (scheduled); task {parent} (Step): {whys[1]['why']}"
    assert "no worker is live" in whys[1]["why"]
    assert "there is no task 99" in ctl.fails(3, "why", parent, 99)


def test_status_checks(ctl: Ctl, live: Bench) -> None:
    assert ctl("status").exit_code == 0
    assert ctl("status", "--check").exit_code == 1, "no worker is live"
    live.step("a").schedule()
    live.drain()
    assert ctl("status", "--check").exit_code == 0
    live.step("b").queue("nowhere").schedule()
    live.execute("UPDATE schedd_workers SET queues = 'mail'")
    assert ctl("status", "--check").exit_code == 1
    assert ctl.json("status", "--check", status=1)["stuck"][0]["problem"] == "unserved"


def test_watching(ctl: Ctl, live: Bench, terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    made = int(live.step("a").schedule())
    seen: list[float] = []

    def pause(seconds: float) -> None:
        seen.append(seconds)
        if len(seen) % 2 == 0:
            raise KeyboardInterrupt
        live.drain()

    monkeypatch.setattr(polling, "pause", pause)
    done = ctl("list", "--watch", "--interval", "5s", "--columns", "id,state", "-o", "jsonl")
    assert done.exit_code == 130
    assert done.stdout.splitlines() == [f'{{"id": {made}, "state": "{s}"}}' for s in ("scheduled", "success")]
    shown = terminal(f"show {made} --watch")
    assert shown.count("\x1b[H\x1b[2J") == 2
    assert shown.count("state:") == 2
    assert seen == [5.0, 5.0, 2.0, 2.0]
    assert "--interval belongs to --watch" in ctl.fails(2, "status", "--interval", "1s")


@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_a_watched_screen_ends_where_the_terminal_does(
    live: Bench, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(20):
        live.step(f"s{number}").schedule()

    def pause(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(polling, "pause", pause)
    monkeypatch.setenv("LINES", "10")
    *shown, interrupted = terminal("list --watch").splitlines()
    assert len(shown) == 9
    assert (shown[-1], interrupted) == ("… 13 more lines", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.9, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h"), (86_399, "23h"), (200_000, "2d"), (-3, "0s")],
)
def test_ages_are_brief(seconds: float, text: str) -> None:
    assert brief(seconds) == text
