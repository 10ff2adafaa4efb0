"""Graphs, schedules and the forecast on pages: drawn, folded, as a table and a tree, in the past, on a phone."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import Scheduler, task
from scheduler.console.drawing import BOX_H, BOX_W, draw
from scheduler.model.graph_folding import fold_none, fold_roles
from scheduler.model.state import TaskState
from support.accessibility import Accessibility
from support.consoles import ask, console_on, link, post, served
from support.databases import Database, one_database
from support.graphs import etl, known_kinds, store_graph

SMALL, BIG, SCRIPT = 1, 1_000, 50_000


@task
def Mail(ctx: Any, to: str) -> None:
    pass


@pytest.fixture
def jobs(database: Database) -> Iterator[Scheduler]:
    made = Scheduler(database.url)
    made.register(Mail)
    yield made
    made.close()


def filled(jobs: Scheduler, chains: int = 3_300) -> None:
    """A small graph, one of 9,902 tasks, and schedules."""
    store_graph(jobs, *etl(8, done=3, dead=1), SMALL)
    store_graph(jobs, *etl(chains, done=1_200, dead=40), BIG)
    known_kinds(jobs, Extract=30, Clean=90, Load=240, Report=600, Start=1, Mail=1500)
    for number in range(3):
        jobs.task(Mail, "ada").key(f"team/nightly-{number}").daily_at(2, 30).schedule()


def overflow(page: Any) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"))


def test_the_json_of_a_graph_has_everything(database: Database, jobs: Scheduler) -> None:
    filled(jobs)
    with console_on(database, "viewer") as gate:
        small = ask(gate, "GET", "/graphs/2.json").json
        big = ask(gate, "GET", f"/graphs/{BIG}.json").json
        assert ask(gate, "GET", "/graphs/999999999").status == 404
        assert ask(gate, "GET", "/graphs/2?view=explode").status == 422
        assert ask(gate, "GET", "/graphs/2?at=2999-01-01").status == 422
        assert ask(gate, "GET", "/graphs/2?at=yesterday").status == 422
        listed = ask(gate, "GET", "/graphs.json").json
        for path, still in (("/graphs/2", False), (f"/graphs/{BIG}", True)):
            text = ask(gate, "GET", path).text
            assert ("data-live" in text, "Load it again" in text) == (not still, still)
    assert (small["view"], len(small["nodes"]), len(small["edges"])) == ("whole", 26, 32)
    assert {node["state"] for node in small["nodes"]} == {"success", "scheduled", "waiting", "dead"}
    assert small["estimate"]["remaining"] == 14
    assert len(small["estimate"]["path"]) == 4
    assert 700 < small["estimate"]["low"] <= small["estimate"]["high"]
    assert (big["view"], len(big["nodes"]), len(big["boxes"])) == ("roles", 9_902, 5)
    assert sorted(box["tasks"] for box in big["boxes"]) == [1, 1, 3_300, 3_300, 3_300]
    assert [one["id"] for one in listed] == [BIG, SMALL] or listed[0]["more"]


@one_database
@pytest.mark.parametrize("view", ["whole", "roles", "alike", "layers", "around"])
def test_each_view_of_ten_thousand_tasks_is_small(database: Database, jobs: Scheduler, view: str) -> None:
    filled(jobs)
    with console_on(database, "viewer") as gate:
        answer = ask(gate, "GET", f"/graphs/{BIG}?view={view}")
    assert answer.status == 200
    assert len(gzip.compress(answer.body)) < 30_000
    drawn = answer.text.count('class="box"')
    assert drawn == {"whole": 0, "roles": 5, "alike": 0, "layers": 5, "around": 200}[view]
    assert ("boxes are more than the 200 that are drawn" in answer.text) == (drawn == 0)
    assert "style=" not in answer.text


def test_a_graph_at_a_past_time_shows_what_was_then(database: Database, jobs: Scheduler) -> None:
    first = int(jobs.task(Mail, "a").schedule())
    below = int(jobs.task(Mail, "b").depend_on(first).schedule())
    jobs.cancel_task(first)
    with jobs.database.write() as tx:
        tx.run("UPDATE schedd_tasks SET created_at = created_at - 7200000000 WHERE id = :id", id=first)
    with console_on(database, "viewer") as gate:
        past = ask(gate, "GET", f"/graphs/{first}.json?at=1h").json
        now = ask(gate, "GET", f"/graphs/{first}.json").json
        page = ask(gate, "GET", f"/graphs/{first}?at=1h").text
        nothing = ask(gate, "GET", f"/graphs/{first}?at=3h").text
    assert past["nodes"] == [{"id": first, "kind": "Mail", "state": "scheduled"}]
    assert {node["id"]: node["state"] for node in now["nodes"]} == {first: "cancelled", below: "failed"}
    assert past["estimate"] is None
    assert "1 task had not been made yet" in page
    assert "No task of it had been made then" in nothing


def test_kinds_are_text_and_never_markup(database: Database, jobs: Scheduler) -> None:
    kinds = {0: "<script>alert(1)</script>", 1: '"><img src=x>'}
    store_graph(jobs, kinds, [(0, 1)], {0: TaskState.SUCCESS}, SCRIPT)
    with console_on(database, "viewer") as gate:
        for path in (f"/graphs/{SCRIPT}", "/graphs"):
            text = ask(gate, "GET", path).text
            assert "<script>alert" not in text
            assert "<img" not in text


def test_schedules_are_paused_resumed_triggered_and_deleted(database: Database, jobs: Scheduler) -> None:
    filled(jobs, 1)
    name = "team/nightly-1"
    with console_on(database, "admin") as gate:
        assert [one["name"] for one in ask(gate, "GET", "/schedules.json?q=NIGHTLY-1").json] == [name]
        assert post(gate, f"/schedules/pause/{name}", reason="holidays").status == 303
        assert ask(gate, "GET", f"/schedules/{name}.json").json["paused"]
        assert post(gate, f"/schedules/resume/{name}").status == 303
        assert post(gate, f"/schedules/trigger/{name}").status == 303
        one = ask(gate, "GET", f"/schedules/{name}.json").json
        assert [run["origin"] for run in one["runs"]] == ["trigger"]
        assert len(one["next"]) == 10
        assert one["payload"] == {"to": "ada"}
        jobs.task(Mail, "ada").key("boot").at_start().schedule()
        assert "at the next start" in ask(gate, "GET", "/schedules?q=boot").text
        assert "when a worker starts and no other is live" in ask(gate, "GET", "/schedules/boot").text
        assert "Run once now" in ask(gate, "GET", f"/schedules/{name}").text
        assert post(gate, f"/schedules/delete/{name}").status == 303
        assert ask(gate, "GET", f"/schedules/{name}").status == 404
    done = [(entry.action, entry.actor, entry.via) for entry in jobs.audit(subject=f"schedule {name}", limit=4)]
    assert ("schedule paused", "ada", "page") in done
    with console_on(database, "viewer") as gate:
        assert post(gate, "/schedules/pause/team/nightly-0").status == 403
        assert "Run once" not in ask(gate, "GET", "/schedules").text


def test_the_forecast_says_what_collides(database: Database, jobs: Scheduler) -> None:
    known_kinds(jobs, Mail=1500)
    soon = datetime.now(UTC) + timedelta(hours=3)
    for number in range(14):
        jobs.task(Mail, "ada").key(f"nightly-{number:02d}").daily_at(soon.hour, 30).schedule()
    jobs.task(Mail, "ada").key("often").every(1).schedule()
    jobs.schedules.pause("often")
    jobs.start()
    try:
        jobs.wait(jobs.task(Mail, "ada").schedule(), timeout=60)  # its worker is live by then
        with console_on(database, "viewer") as gate:
            found = ask(gate, "GET", "/forecast.json").json
            page = ask(gate, "GET", "/forecast").text
            assert ask(gate, "GET", "/forecast?hours=5").status == 422
    finally:
        jobs.stop()
    (one,) = found["collisions"]
    assert (one["wants"], one["slots"], one["slots_of"]) == (14, 12, "medium thread")
    assert "wants 14 of 12 medium thread slots" in page
    assert page.count('<rect class="part s-running"') == 14
    with console_on(database, "viewer") as gate:
        text = ask(gate, "GET", "/forecast?hours=168").text
    assert "wants" not in text.partition("<h2>")[0], "without a live worker there are no slots to hold it against"


def test_boxes_of_a_drawing_do_not_overlap() -> None:
    kinds, edges, states = etl(30)
    for fold in (fold_none(kinds, edges), fold_roles(kinds, edges)):
        found = draw(fold, states, ())
        places = [(box.x, box.y) for box in found.boxes]
        assert len(set(places)) == len(places) == len(fold.boxes)
        for i, (x, y) in enumerate(places):
            assert 0 <= x <= found.width - BOX_W
            assert 0 <= y <= found.height - BOX_H
            assert all(abs(x - u) >= BOX_W or abs(y - v) >= BOX_H for u, v in places[i + 1 :])
        assert len(found.lines) == len(fold.edges)


@one_database
def test_a_graph_in_a_browser_by_mouse_and_by_keyboard(database: Database, jobs: Scheduler, pages: Any) -> None:
    filled(jobs)
    with served(database) as server:
        page = pages.new()
        page.goto(link(server))
        page.get_by_role("link", name="Graphs", exact=True).click()
        page.get_by_role("link", name=str(BIG), exact=True).click()
        boxes = page.locator("svg.graph > a")
        assert boxes.count() == 5
        assert page.get_by_text("in 15 h 27 min").count() == 0, "no worker is live: only the longest path is known"
        page.get_by_role("link", name="Clean 3300 tasks: 40 dead").focus()
        page.keyboard.press("Enter")
        page.get_by_role("heading", name="Clean: 3\u202f300 tasks of one box").wait_for()
        page.wait_for_load_state()  # the heading is there before the rows below it
        rows = page.locator("#tasks ~ .scroll tbody tr")
        assert rows.count() == 200
        assert "dead" in rows.first.inner_text(), "what failed comes first"
        rows.first.get_by_role("link", name="Around it").click()
        page.get_by_role("heading", name="Around task").wait_for()
        page.wait_for_load_state()
        assert 3 < page.locator("svg.graph > a").count() <= 200
        page.goto(f"{server.url}graphs/2")
        assert page.locator("svg.graph > a").count() == 26
        assert page.locator("svg.graph .edge.way").count() == 3
        page.get_by_text("As a tree").click()
        assert "└─ " in page.locator("pre.tree").inner_text()
        page.get_by_role("link", name="Clean 13, dead").click()
        page.wait_for_url("**/tasks/13")
        page.close()  # it would look for the console that is about to stop


@one_database
def test_the_pages_are_accessible_and_fit_a_phone_in_the_dark(database: Database, jobs: Scheduler, pages: Any) -> None:
    filled(jobs, 300)
    paths = ("graphs", "graphs/2", f"graphs/{BIG}", "schedules", "schedules/team/nightly-1", "forecast")
    looked = Accessibility()
    with served(database) as server:
        page = pages.new(bypass_csp=True)
        page.goto(link(server))
        for path in paths:
            page.goto(f"{server.url}{path}")
            assert looked.violations(page) == [], path
            page.set_viewport_size({"width": 320, "height": 640})
            assert not overflow(page), path
            if path == "graphs/2":
                assert looked.violations(page, "dark") == [], "colours of the dark, too"
                page.emulate_media(color_scheme="light")
            page.set_viewport_size({"width": 1280, "height": 800})
        page.close()  # it would look for the console that is about to stop


def test_the_undo_of_a_cancel_keeps_the_time_of_the_task(database: Database, jobs: Scheduler) -> None:
    later = int(jobs.task(Mail, "ada").after(86_400).schedule())
    due = jobs.get_task(later).run_at
    with console_on(database, "operator") as gate:
        assert post(gate, f"/tasks/{later}/uncancel").status == 409, "it is not cancelled"
        assert post(gate, f"/tasks/{later}/cancel").status == 303
        assert jobs.get_task_status(later) is TaskState.CANCELLED
        assert post(gate, f"/tasks/{later}/uncancel").status == 303
    assert (jobs.get_task_status(later), jobs.get_task(later).run_at) == (TaskState.SCHEDULED, due)
