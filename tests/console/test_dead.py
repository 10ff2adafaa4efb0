"""The pages of dead letters: by cause, one cause, and from there to the plan of a replay."""

from __future__ import annotations

import pytest

from scheduler import Context, PermanentError, task
from scheduler.store.read import dead_causes
from support.bench import Bench
from support.consoles import ask, console_on, post


def test_causes_and_the_plan_of_a_replay(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with console_on(bench.database, "operator") as gate:
        assert "There are no dead letters" in ask(gate, "GET", "/dead").text
        dead = bench.die("d1", "d1", "d1")
        cause = ask(gate, "GET", "/dead.json").json["causes"][0]
        assert (cause["kind"], cause["number"], sum(cause["trend"])) == ("Step", 3, 3)
        where = f"kind=Step&fingerprint={cause['fingerprint']}"
        assert "all of this cause (3)" in ask(gate, "GET", f"/dead?{where}").text
        assert "Plan a replay" in ask(gate, "GET", f"/dead?{where}").text
        assert "Plan a purge" not in ask(gate, "GET", f"/dead?{where}").text, "an operator does not purge"
        assert [one["id"] for one in ask(gate, "GET", f"/dead.json?{where}").json["letters"]] == dead[::-1]
        form = {"q": f"state:dead kind:Step fingerprint:{cause['fingerprint']}", "matching": "1"}
        assert post(gate, "/bulks/plan/replay", **form).status == 303
        bulk = bench.jobs.bulks.list()[0]
        assert (bulk.verb, bulk.total, bulk.via, bench.states(*dead)) == ("replay", 3, "page", ["dead"] * 3)
        monkeypatch.setattr(dead_causes, "WINDOW", 2)
        bounded = ask(gate, "GET", "/dead.json").json
        assert (bounded["whole"], bounded["causes"][0]["number"]) == (False, 2)


def test_what_retention_removes_soon(bench: Bench) -> None:
    bench.die("d1", "d2")
    hour = 3600 * 1_000_000
    with bench.jobs.database.read() as tx:
        found = dead_causes.causes(tx, kept=50 * hour, within=48 * hour)
        assert sum(one.leaving for one in found.causes) == 0
        found = dead_causes.causes(tx, kept=47 * hour, within=48 * hour)
        assert sum(one.leaving for one in found.causes) == 2
        assert all(one.first_leaves == one.oldest + 47 * hour for one in found.causes)


def test_a_field_is_set_before_a_replay(bench: Bench) -> None:
    """By the type that the published schema gives it; a wrong one is said before a plan is made."""
    dead = bench.die("d1", "d1")
    with console_on(bench.database, "operator") as gate:
        cause = ask(gate, "GET", "/dead.json").json["causes"][0]
        page = ask(gate, "GET", f"/dead?kind=Step&fingerprint={cause['fingerprint']}").text
        assert '<option value="name">name (string)</option>' in page
        form = {"id": [str(i) for i in dead], "kind": "Step"}
        for wrong, message in (
            ({"field": "nme", "value": "x"}, "there is no field"),
            ({"field": "", "value": "x"}, "choose the field that gets this value"),
        ):
            refused = post(gate, "/bulks/plan/replay", **form, **wrong)
            assert (refused.status, message in refused.text) == (422, True)
        assert not bench.jobs.bulks.list()
        assert post(gate, "/bulks/plan/replay", **form, field="name", value="mended").status == 303
        (made,) = bench.jobs.bulks.list()
        assert (made.total, made.options["fields"]) == (2, {"name": "mended"})
        plan = ask(gate, "GET", f"/bulks/{made.name}").text
        assert "each payload gets" in plan
        assert "one task first; the rest follows if it succeeds" in plan
        assert post(gate, f"/bulks/{made.name}/replay/start", canary="1").status == 303
        assert bench.jobs.bulks.get(made.name).options["canary"] is True


def test_a_bulk_shows_no_secret(bench: Bench) -> None:
    """Neither of the field that it sets, nor of the reason."""
    form = {
        "id": [str(i) for i in bench.die("d1")],
        "kind": "Step",
        "field": "name",
        "value": "ftp://ada:hunter2@host/",
    }
    with console_on(bench.database, "operator") as gate:
        made = post(gate, "/bulks/plan/replay", **form, reason="known, password=hunter2")
        assert made.status == 303
        path = made.headers["location"]
        for where in (path, f"{path}.json", "/bulks", "/bulks.json"):
            assert "hunter2" not in ask(gate, "GET", where).text, where
        assert "ftp://ada:***@host/" in ask(gate, "GET", path).text
    (stored,) = bench.jobs.bulks.list()
    assert stored.options["fields"] == {"name": "ftp://ada:hunter2@host/"}, "the replay sets it whole"


def test_a_value_that_does_not_fit_its_type_is_refused(bench: Bench) -> None:
    @task
    def count(ctx: Context, number: int) -> None:
        raise PermanentError("no")

    bench.jobs.register(count)
    task_id = int(bench.jobs.task(count, 1).schedule())
    bench.drain()
    with console_on(bench.database, "operator") as gate:
        form = {"id": [str(task_id)], "kind": "count", "field": "number"}
        assert "number takes JSON (integer)" in post(gate, "/bulks/plan/replay", **form, value="seven").text
        assert post(gate, "/bulks/plan/replay", **form, value='"7"').status == 422, "the schema says integer"
        assert not bench.jobs.bulks.list()
        assert post(gate, "/bulks/plan/replay", **form, value="7").status == 303
