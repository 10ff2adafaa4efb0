"""``schedctl doctor --install``: it looks at the installation, and opens no store."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.config.load import load
from scheduler.operations import installation
from scheduler.operations.upkeep import NOTE, OK, PROBLEM, DoctorFinding

from .conftest import Ctl

CHECKS = {"versions", "packages", "extras", "names", "commands", "rights", "clock", "sqlite", "disk", "descriptors"}


def examined(place: Path, text: str = "", **environ: str) -> dict[str, DoctorFinding]:
    """The worst finding of each check."""
    (place / "config.toml").write_text(text)
    found: dict[str, DoctorFinding] = {}
    for one in installation.examine(load(str(place / "config.toml"), environ, str(place))):
        if one.check not in found or one.level == PROBLEM:
            found[one.check] = one
    return found


def test_it_opens_no_store(empty_ctl: Ctl, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    told = empty_ctl("-o", "json", "doctor", "--install", SCHEDD_STORE__URL=f"sqlite:///{tmp_path}/none.db")
    rows = json.loads(told.stdout)
    assert {row["check"] for row in rows} == CHECKS
    assert not [row for row in rows if row["level"] == PROBLEM], rows
    assert sorted(tmp_path.iterdir()) == before
    assert "--install looks at no store" in empty_ctl.fails(2, "doctor", "--install", "--full")


def test_a_broken_installation_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version
    there: dict[str, str | None] = {"msgspec": "0.2", "psycopg": None, "schedd": "0.0.9"}

    def version(name: str) -> str:
        answer = there.get(name, "") if name in there else real(name)
        if answer is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return answer

    monkeypatch.setattr(importlib.metadata, "version", version)
    found = examined(tmp_path, '[store]\nurl = "postgresql+psycopg://me@db/x"\n')
    assert found["versions"].level == PROBLEM
    assert "0.0.9 is installed" in found["versions"].text
    assert "msgspec 0.21.0 (there is 0.2)" in found["packages"].text
    assert found["extras"].text.startswith(
        "[store] url needs psycopg, which is not installed: pip install 'schedd[postgres]'"
    )
    there["httpx2"] = None
    needs = "[executors.k8s] needs httpx2, which is not installed: pip install 'schedd[kubernetes]'"
    assert examined(tmp_path, '[executors.k8s]\ntype = "kubernetes"\n')["extras"].text == needs
    there["scheduler"] = "0.8.11"
    assert "both cannot live in one environment" in examined(tmp_path)["names"].text


def test_names_that_hide_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ctl: Ctl) -> None:
    assert examined(tmp_path)["names"].level == OK
    (tmp_path / "scheduler.py").touch()
    found = examined(tmp_path)["names"]
    assert found.level == PROBLEM
    assert f"{tmp_path}/scheduler.py hides schedd's package scheduler" in found.text
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = ctl.json("doctor")
    assert [row["level"] for row in rows if "hides schedd's package" in row["text"]] == [NOTE]


def test_rights_disk_clock_and_descriptors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = examined(tmp_path, '[store]\nurl = "sqlite:////nowhere/at/all/x.db"\n[tasks]\npath = ["gone"]\n')
    assert (found["rights"].level, found["disk"].level) == (PROBLEM, PROBLEM)
    secret = examined(tmp_path, '[store]\nurl = "postgresql+psycopg://me:secret@db/x"\n')["rights"]
    assert secret.level == NOTE
    assert "which has store.url" in secret.text
    assert "secret@" not in secret.text
    os.chmod(tmp_path / "config.toml", 0o600)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=1))
    monkeypatch.setattr(installation.time, "time", lambda: 1_000_000.0)
    monkeypatch.setattr(installation, "file_limits", lambda: (64, 64))
    found = examined(tmp_path)
    assert found["disk"].text.startswith("0 MiB free")
    assert (found["disk"].level, found["clock"].level, found["descriptors"].level) == (PROBLEM, PROBLEM, NOTE)
    assert "at most" in found["descriptors"].text


def test_commands_sqlite_zones_and_time_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("schedd", "schedctl"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\n")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(installation, "_synchronised", lambda: False)
    monkeypatch.setattr(installation, "sqlite_too_old", lambda: "SQLite 3.30 is too old")
    found = examined(tmp_path)
    assert f"schedd on PATH is {tmp_path}/bin/schedd, of another installation" in found["commands"].text
    assert (found["commands"].level, found["sqlite"].level, found["clock"].level) == (NOTE, PROBLEM, NOTE)
    monkeypatch.setenv("PATH", "")
    assert "schedd is not on PATH" in examined(tmp_path)["commands"].text


def test_a_store_that_its_user_may_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jobs.db").touch()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("jobs.db") and real(path, mode))
    found = examined(tmp_path, f'[store]\nurl = "sqlite:///{tmp_path}/jobs.db"\n')["rights"]
    assert (found.level, f"{tmp_path}/jobs.db cannot be written by uid" in found.text) == (PROBLEM, True)
