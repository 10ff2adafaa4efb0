"""``schedctl init``: what it writes runs, is typed, and takes the place of nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.processes import Nursery
from support.runner import Ran, Runner

ROOT = Path(__file__).parents[2]
PYTEST = ("-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider")


def init(*arguments: object) -> Ran:
    from scheduler.cli.root import root

    return Runner(env={}).invoke(root, ["init", *map(str, arguments)])


def run(place: Path, *arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SCHEDD_", "PYTEST_"))}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=place, env=environ, capture_output=True, text=True, check=False, timeout=90
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_a_first_project_runs_and_passes_its_test(tmp_path: Path) -> None:
    place = tmp_path / "new" / "project"
    done = init(place)
    assert done.exit_code == 0
    assert {file.name for file in place.iterdir()} == {"tasks.py", "config.toml", "test_tasks.py", "send.py"}
    assert f"cd {place}\n" in done.stderr
    assert "1 passed" in run(place, *PYTEST)
    with Nursery(place) as nursery:
        daemon = nursery.start("-m", "scheduler.daemon", "--reload")
        daemon.expect('"ready"')
        assert "HELLO ME!" in run(place, "send.py", "me")
        daemon.kill(2)
        assert daemon.end() == 0


def test_it_takes_the_place_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("mine\n")
    done = init(tmp_path)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "has config.toml already, so nothing is written" in done.stderr
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("config.toml", "mine\n")]
    (tmp_path / "file").touch()
    assert init(tmp_path / "file").exit_code == 2
    assert init(tmp_path / "file" / "below").exit_code == 2
    assert init(tmp_path / "new", "--django", "--fastapi").exit_code == 2
    assert sorted(file.name for file in tmp_path.iterdir()) == ["config.toml", "file"]


def test_an_app_of_fastapi_stores_tasks(tmp_path: Path) -> None:
    assert init(tmp_path, "--fastapi").exit_code == 0
    assert "1 passed" in run(tmp_path, *PYTEST)
    code = (
        "from fastapi.testclient import TestClient; from app import app\n"
        "with TestClient(app) as client: print(client.post('/greetings/me').json())"
    )
    assert "{'task': 2}" in run(tmp_path, "-c", code)


def test_a_project_of_django_passes_its_test(tmp_path: Path) -> None:
    assert init(tmp_path, "--django").exit_code == 0
    assert "OK" in run(tmp_path, "manage.py", "test")
    run(tmp_path, "manage.py", "migrate")
    run(tmp_path, "manage.py", "schedd", "--exit-when-idle", "0")


def test_a_project_of_django_that_is_there_gets_an_app(tmp_path: Path) -> None:
    (tmp_path / "manage.py").write_text("mine\n")
    done = init(tmp_path, "--django")
    assert done.exit_code == 0
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.py")) == [
        *("greetings/__init__.py", "greetings/tasks.py", "greetings/tests.py", "manage.py")
    ]
    assert "settings.py" in done.stderr
