"""A machine without time zone data, as small images are: UTC works, all else says what to install."""

from __future__ import annotations

import importlib.metadata
import pickle
import re
import sys
import zoneinfo
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from zoneinfo import ZoneInfo

import pytest

from scheduler.cli import timefmt
from scheduler.config.load import load
from scheduler.console.pages.basics import set_preferences
from scheduler.console.visit import BadInputError, Preferences, Visit
from scheduler.errors import ConfigError, InvalidScheduleError
from scheduler.model import zoned
from scheduler.model.recurrence import cron, daily_at, fold_marks
from scheduler.model.zoned import forget_zones, zone_of
from scheduler.operations import apscheduler, installation
from scheduler.operations.upkeep import OK, PROBLEM
from scheduler.store.schedule_times import unknown_zone

BERLIN = "Europe/Berlin"
JOB = pickle.dumps(
    {
        "func": "shop:report",
        "trigger": None,
        "args": (),
        "kwargs": {},
        "next_run_time": datetime(2026, 1, 1, tzinfo=ZoneInfo(BERLIN)),
    }
)
SAYS = r"this machine has no time zone data: .*`apt-get install tzdata`.* `pip install tzdata`"


@pytest.fixture
def no_zone_data(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    paths = zoneinfo.TZPATH
    for name in [one for one in sys.modules if one.partition(".")[0] == "tzdata"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tzdata", None)
    zoneinfo.reset_tzpath([])
    _forget()
    yield
    zoneinfo.reset_tzpath([str(path) for path in paths])
    _forget()


def _forget() -> None:
    forget_zones()
    ZoneInfo.clear_cache()


@pytest.mark.usefixtures("no_zone_data")
def test_utc_needs_no_data() -> None:
    assert zone_of("UTC") is UTC
    assert daily_at(9, 0).next_after(0) == 9 * 3600 * 1_000_000
    assert [mark.offset for mark in fold_marks([0], "UTC")] == ["+00:00"]
    assert Preferences.read("dark|UTC", "UTC") == Preferences("dark", "UTC")
    assert load(None, {"SCHEDD_SCHEDULES__TIMEZONE": "UTC"}).schedules.timezone == "UTC"


@pytest.mark.usefixtures("no_zone_data")
def test_a_recurrence_and_a_setting_say_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(InvalidScheduleError, match=SAYS):
        cron("0 9 * * *", BERLIN)
    for setting in ("schedules.timezone", "console.zone"):
        section, _, key = setting.partition(".")
        file = tmp_path / "config.toml"
        file.write_text(f'[{section}]\n{key} = "{BERLIN}"\n')
        with pytest.raises(ConfigError, match=f"{setting} .*{SAYS}"):
            load(str(file), {}, str(tmp_path))


@pytest.mark.usefixtures("no_zone_data")
def test_commands_pages_and_imports_say_what_to_install() -> None:
    with pytest.raises(ValueError, match=SAYS):
        timefmt.zone_of(BERLIN)
    asked = {"zone": BERLIN}
    visit = SimpleNamespace(given=lambda name, default="": asked.get(name, default), preferences=Preferences())
    with pytest.raises(BadInputError, match=SAYS):
        set_preferences(cast(Visit, visit))
    assert re.search(SAYS, apscheduler._unpickled("a", JOB).trouble or "")
    assert unknown_zone(f'{{"tz": "{BERLIN}"}}') == BERLIN


@pytest.mark.usefixtures("no_zone_data")
def test_doctor_says_what_to_install(tmp_path: Path) -> None:
    found = {one.check: one for one in installation.examine(load(None, {}, str(tmp_path)))}
    assert found["clock"].level == PROBLEM
    assert re.search(SAYS, found["clock"].text)


def test_doctor_misses_no_package_of_another_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "tzdata":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = {one.check: one for one in installation.examine(load(None, {}, str(tmp_path)))}
    assert found["packages"].level == OK


def test_old_names_are_told_from_misspelt_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zoned, "available_timezones", lambda: {BERLIN})
    assert "tzdata-legacy" in zoned.no_zone("US/Pacific")
    assert "did you mean Europe/Berlin?" in zoned.no_zone("Europe/Berlim")
