"""``cron import``, ``cron sync`` and ``cron add``."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.bench import Bench

from .conftest import Ctl

pytestmark = pytest.mark.both_databases


def actions(ctl: Ctl, *arguments: object) -> list[tuple[str, str | None]]:
    return [(row["action"], row["name"]) for row in ctl.json("cron", *arguments)]


def names(ctl: Ctl) -> set[str]:
    return {row["name"] for row in ctl.json("cron", "list")}


def test_import_sync_and_dry_run(ctl: Ctl, tmp_path: Path) -> None:
    tab = tmp_path / "ops"
    tab.write_text("0 2 * * * backup\n@hourly tidy\n@reboot start\n")
    planned = actions(ctl, "import", tab, "--dry-run")
    assert [action for action, _ in planned] == ["added", "added", "added"]
    assert names(ctl) == set()
    assert actions(ctl, "import", tab) == planned
    assert names(ctl) == {str(name) for _, name in planned}
    boot = str(planned[2][1])
    assert {row["name"]: row["recurrence"] for row in ctl.json("cron", "list")}[boot] == "at start"
    assert "when a worker starts and no other is live" in ctl("cron", "next", boot).stderr
    ctl.json("cron", "delete", boot)
    tab.write_text("30 3 * * * backup\nMAILTO=me@example.com\n@hourly tidy\n")
    backup, tidy = (str(name) for _, name in planned[:2])
    assert actions(ctl, "sync", tab, "--dry-run") == [("updated", backup), ("updated", tidy)]
    assert actions(ctl, "sync", tab) == [("updated", backup), ("updated", tidy)]
    assert actions(ctl, "sync", tab) == [("unchanged", backup), ("unchanged", tidy)]
    tab.write_text("30 3 * * * backup\n")
    assert actions(ctl, "sync", tab) == [("unchanged", backup), ("deleted", tidy)]
    assert names(ctl) == {backup}
    (one,) = ctl.json("cron", "list")
    assert (one["recurrence"], one["catchup"], one["owner"]) == ("30 3 * * * UTC", "none", "crontab:ops")


@pytest.mark.parametrize("text", ["", "# nothing today\nSHELL=/bin/bash\n"])
def test_sync_of_a_file_without_lines_wants_to_be_meant(ctl: Ctl, tmp_path: Path, text: str) -> None:
    tab = tmp_path / "ops"
    tab.write_text(text)
    assert actions(ctl, "sync", tab) == []  # there is nothing to delete
    tab.write_text("0 2 * * * backup\n@hourly tidy\n")
    made = {str(name) for _, name in actions(ctl, "sync", tab)}
    tab.write_text(text)
    error = ctl.fails(2, "cron", "sync", tab)
    assert "all of crontab:ops would be deleted (2 schedules): add --allow-empty" in error
    assert names(ctl) == made
    planned = actions(ctl, "sync", tab, "--dry-run")
    assert {action for action, _ in planned} == {"deleted"}
    assert names(ctl) == made
    assert actions(ctl, "import", tab) == []
    assert names(ctl) == made
    assert actions(ctl, "sync", tab, "--allow-empty") == planned
    assert names(ctl) == set()


def test_a_dry_run_waits_for_no_writer(ctl: Ctl, live: Bench, tmp_path: Path) -> None:
    tab = tmp_path / "ops"
    tab.write_text("0 2 * * * backup\n")
    actions(ctl, "sync", tab)
    with live.jobs.database.write() as tx:
        tx.run("UPDATE schedd_schedules SET jitter = 0")
        for verb in ("import", "sync"):
            assert [action for action, _ in actions(ctl, verb, tab, "--dry-run")] == ["unchanged"]


def test_a_bad_line_changes_nothing(ctl: Ctl, tmp_path: Path) -> None:
    tab = tmp_path / "ops"
    tab.write_text("0 2 * * * backup\n0 25 * * * late\n")
    assert "line 2: " in ctl.fails(2, "cron", "import", tab)
    assert names(ctl) == set()
    tab.write_bytes(b"0 2 * * * echo \xff\n")
    assert "is not UTF-8" in ctl.fails(2, "cron", "import", tab)


def test_add(ctl: Ctl, live: Bench) -> None:
    assert ctl.json("cron", "add", "nightly", "0 2 * * *", "--", "backup", "--all") == {
        "schedule": "nightly",
        "created": True,
    }
    ctl.json("cron", "add", "boot", "@reboot", "--", "warm")
    boot, one = ctl.json("cron", "list")
    assert (boot["recurrence"], boot["next_at"]) == ("at start", None)
    assert one["payload"] == {"argv": ["backup", "--all"]}
