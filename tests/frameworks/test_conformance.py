"""The contract of Django's task backends, of packages/django-tasks-conformance, on ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.databases import Database
from support.django_project import TIMEOUT, Project

SUITE = Path(__file__).parents[2] / "packages" / "django-tasks-conformance" / "src"
RUN = """
def run():
    from scheduler.django.testing import run_tasks
    run_tasks()
"""


@pytest.mark.timeout(300)
@pytest.mark.both_databases
def test_schedd_keeps_every_contract(database: Database, tmp_path: Path) -> None:
    project = Project(tmp_path, database)
    project.write("runs.py", RUN)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "-p", "no:cacheprovider", "-p", "no:schedd"),
            *("-p", "django_tasks_conformance.plugin", "--pyargs", "django_tasks_conformance.test_contracts"),
            *("--tasks-settings", "settings", "--tasks-run", "runs:run"),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{SUITE}"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\d+ passed, 1 skipped", done.stdout), done.stdout  # QUEUES is empty: no queue is refused
