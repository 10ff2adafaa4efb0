"""Options of pytest: which settings, and how what is due is run."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("django-tasks-conformance")
    group.addoption("--tasks-settings", help="settings module whose TASKS['default'] is the backend")
    group.addoption("--tasks-run", help="module:function that runs what is due, for backends that queue")


def pytest_configure(config: pytest.Config) -> None:
    settings = config.getoption("--tasks-settings")
    if settings is None:
        raise pytest.UsageError("--tasks-settings names the settings module whose TASKS['default'] is the backend")
    os.environ["DJANGO_SETTINGS_MODULE"] = settings
    import django

    django.setup()
    from django.core.management import call_command

    call_command("migrate", run_syncdb=True, verbosity=0)


@pytest.fixture
def backend() -> Any:
    from django_tasks_conformance.standard import task_backends

    return task_backends["default"]


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """What ``note`` has been told, in order."""
    file = tmp_path / "ran.txt"
    monkeypatch.setenv("DJANGO_TASKS_RAN", str(file))
    return lambda: file.read_text(encoding="utf-8").split() if file.exists() else []


@pytest.fixture
def run(request: pytest.FixtureRequest, backend: Any, ran: Any) -> Callable[[], None]:
    """Runs what is due. A backend that never runs anything has no contract about that."""
    given = request.config.getoption("--tasks-run")
    if given is not None:
        module, _, name = given.partition(":")
        found: Callable[[], None] = getattr(import_module(module), name)
        found()  # what earlier tests have left
        return found
    from django_tasks_conformance.tasks import note

    note.enqueue("runs")
    if ran() != ["runs"]:
        pytest.skip("the backend runs nothing by itself, and --tasks-run names nothing that does")
    Path(os.environ["DJANGO_TASKS_RAN"]).unlink()
    return lambda: None


@pytest.fixture
def result_of(backend: Any) -> Callable[[Any], Any]:
    """The result as it is now: read again where the backend can, else the one that was returned."""
    return lambda result: backend.get_result(result.id) if backend.supports_get_result else result
