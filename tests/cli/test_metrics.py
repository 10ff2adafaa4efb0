"""`schedctl metrics`: text for Prometheus, also as a file for node_exporter's textfile collector."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scheduler import Context, Scheduler, task
from scheduler.cli import stats
from scheduler.telemetry.store_figures import STORE_METRICS
from support.databases import Database

from .conftest import Ctl


@task(kind="works")
def works(ctx: Context) -> None: ...


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(works)
    yield made
    made.close()


def parsed(text: str) -> dict[str, Any]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_the_command_prints_what_prometheus_reads(ctl: Ctl, jobs: Scheduler) -> None:
    jobs.task(works).schedule()
    found = ctl("metrics")
    assert found.exit_code == 0, found.stderr
    families = parsed(found.stdout)
    assert families.keys() <= {metric.name for metric in STORE_METRICS}
    assert {"schedd_tasks", "schedd_stuck", "schedd_database_bytes", "schedd_scrape_seconds"} <= families.keys()
    (scheduled,) = [s for s in families["schedd_tasks"].samples if s.labels == {"state": "scheduled"}]
    assert scheduled.value == 1
    assert ctl("metrics", "-o", "json").exit_code == 2


def test_a_file_is_replaced_in_one_piece(
    ctl: Ctl, tmp_path: Path, jobs: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "textfiles"
    place.mkdir()
    target = place / "schedd.prom"
    assert ctl("metrics", "--file", str(target)).exit_code == 0
    first = target.read_text()
    assert parsed(first)
    assert stat.S_IMODE(target.stat().st_mode) == stats.FILE_MODE
    assert os.listdir(place) == ["schedd.prom"]

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    refused = ctl("metrics", "--file", str(target))
    assert refused.exit_code == 1
    assert "schedd.prom cannot be written: No space left on device" in refused.stderr
    assert target.read_text() == first
    assert os.listdir(place) == ["schedd.prom"]
    assert ctl("metrics", "--file", str(tmp_path / "nowhere" / "x.prom")).exit_code == 1


def test_a_missing_library_is_named(ctl: Ctl, jobs: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    found = ctl("metrics")
    assert found.exit_code == 2
    assert "pip install 'schedd[metrics]'" in found.stderr
