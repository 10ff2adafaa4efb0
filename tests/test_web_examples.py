"""The examples of FastAPI and Flask, run as their pages say: by uvicorn, by flask, on both databases."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from scheduler import Scheduler
from support.databases import Database, one_database
from support.fleet import until

pytestmark = pytest.mark.timeout(300)  # whole programs, which a busy machine takes long to start
WEB = Path(__file__).parents[1] / "examples" / "web"
TOKEN = "t" * 32


@contextmanager
def served(place: Path, *command: object, **environ: str) -> Iterator[httpx2.Client]:
    """A client of the program, which listens on ``place/s``; it ends with status 0, and prints no traceback."""
    for file in WEB.glob("*.py"):
        shutil.copy(file, place)
    with (place / "log").open("wb") as log:
        program = subprocess.Popen(
            [sys.executable, "-m", *map(str, command)], cwd=place, stderr=log, stdout=log, env=os.environ | environ
        )
        try:
            until(lambda: (place / "s").exists() or program.poll() is not None, 150)
            assert program.poll() is None, (place / "log").read_text()
            with httpx2.Client(transport=httpx2.HTTPTransport(uds=str(place / "s")), base_url="http://shop") as client:
                yield client
        finally:
            program.terminate()
            program.wait(60)
    assert "Traceback" not in (place / "log").read_text()


def events(client: httpx2.Client, path: str) -> list[tuple[str, dict[str, object]]]:
    """(event, data) of a stream, to its end."""
    found, name = [], ""
    with client.stream("GET", path, timeout=60) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        for line in response.iter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                found.append((name, json.loads(value)))
    return found


def uvicorn(app: str, place: Path) -> tuple[object, ...]:
    return "uvicorn", f"{app}:app", "--uds", place / "s", "--log-level", "warning"


@one_database
def test_fastapi_in_fifteen_lines(database: Database, tmp_path: Path) -> None:
    with served(tmp_path, *uvicorn("fastapi_app", tmp_path)) as client:
        stored = client.post("/orders/42").json()
        seen = events(client, f"/tasks/{stored['task']}")
        assert seen[-1][0] == "end"
        assert {name for name, _ in seen[:-1]} <= {"progress"}
        assert seen[-1][1] == {
            "id": stored["task"],
            "kind": "ship",
            "state": "success",
            "status": "Completed",
            "attempt": 1,
            "progress": 50.0,
            "message": "packing",
        }
        missing = client.get("/tasks/99")
        assert (missing.status_code, missing.text) == (404, "there is no task 99\n")


def test_a_shop_on_fastapi(database: Database, tmp_path: Path) -> None:
    with served(tmp_path, *uvicorn("fastapi_shop", tmp_path), SHOP_URL=database.url, SHOP_TOKEN=TOKEN) as client:
        for path in ("/orders", "/async-orders"):
            made = client.post(path, params={"item": "book"}).json()
            shipped = client.get(f"/results/{made['task']}", timeout=60).json()
            assert shipped == f"order {made['order']} shipped"
            assert client.post(path, params={"item": "nothing"}).status_code == 422
        mailed = client.post("/mails", params={"to": "me"}).json()
        assert client.get(f"/results/{mailed['task']}", timeout=60).json() == "to me: hello"
        unknown = client.get("/results/999999", timeout=60)
        assert (unknown.status_code, unknown.json()) == (404, {"detail": "there is no task 999999"})

        assert client.get("/jobs/").status_code == 401
        known = {"authorization": f"Bearer {TOKEN}"}
        page = client.get("/jobs/", headers=known)
        assert (page.status_code, "shopkeeper" in page.text) == (200, True)
    jobs = Scheduler(database.url)
    assert {str(one.state) for one in jobs.list_tasks()} == {"success"}
    assert len(jobs.list_tasks()) == 3  # none of what was rolled back
    jobs.close()


@one_database
def test_flask(database: Database, tmp_path: Path) -> None:
    with served(tmp_path, "flask", "--app", "flask_app", "run", "--host", f"unix://{tmp_path / 's'}") as client:
        stored = client.post("/orders/42").json()
        assert client.get(f"/tasks/{stored['task']}").json() == {"state": "scheduled", "result": None}
        assert client.get("/tasks/99").status_code == 404
        settings = {"SCHEDD_STORE__URL": "sqlite:///shop.db", "SCHEDD_TASKS__MODULES": "flask_app"}
        settings["SCHEDD_TASKS__PATH"] = "."
        schedd = subprocess.run(
            [Path(sys.executable).parent / "schedd", "--exit-when-idle", "0.1"],
            cwd=tmp_path,
            env=os.environ
            | {
                "SCHEDD_STORE__URL": "sqlite:///shop.db",
                "SCHEDD_TASKS__MODULES": "flask_app",
                "SCHEDD_TASKS__PATH": ".",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert schedd.returncode == 0, schedd.stderr
        done = client.get(f"/tasks/{stored['task']}").json()
        assert done == {"state": "success", "result": "order 42 shipped"}


@one_database
def test_the_shop_beside_others(database: Database, tmp_path: Path) -> None:
    with served(tmp_path, "flask", "--app", "shop_flask", "run", "--host", f"unix://{tmp_path / 's'}") as client:
        stored = client.post("/orders/tea").json()
        assert client.get(f"/orders/{stored['order']}").json() == {"state": "scheduled", "result": None}
    (tmp_path / "s").unlink(missing_ok=True)
    with served(tmp_path, *uvicorn("shop_fastapi", tmp_path)) as client:
        until(lambda: client.get(f"/orders/{stored['order']}").json() == {"state": "success", "result": 3}, 60)
    told = subprocess.run(
        [sys.executable, "shop_tasks.py"], cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False
    )
    assert (told.returncode, told.stdout) == (0, "3 EUR\n"), told.stderr


def test_the_page_shows_our_lines() -> None:
    page = (WEB.parents[1] / "docs" / "compare" / "side-by-side.md").read_text()
    assert f"```python\n{(WEB / 'shop_tasks.py').read_text().partition(chr(10) * 2)[2]}```\n" in page
    programs = "".join(path.read_text() for path in WEB.parent.rglob("*.py"))
    ours = [line for line in page.splitlines() if line.startswith("| schedd | ")]
    assert len(ours) == 3  # of FastAPI, Flask and Django
    for code in re.findall(r"`([^`]+)`", "".join(ours)):
        assert code in programs, code


@pytest.mark.parametrize("name", ["fastapi_app", "fastapi_shop", "flask_app"])
def test_the_pages_show_the_files(name: str) -> None:
    shown = (WEB.parents[1] / "docs" / "guides" / ("flask.md" if name == "flask_app" else "fastapi.md")).read_text()
    assert f"<!-- examples/web/{name}.py -->\n```python\n{(WEB / f'{name}.py').read_text()}```\n" in shown
