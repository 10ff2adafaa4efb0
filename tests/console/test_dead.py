"""The pages of dead letters: by cause, one cause, and from there to the plan of a replay."""

from __future__ import annotations

import pytest

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
        assert "Plan a replay of all 3" in ask(gate, "GET", f"/dead?{where}").text
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
