"""The pages of bulks: where their verbs stand, and what is offered of one whose process has ended."""

from __future__ import annotations

import pytest

from scheduler.operations import stored_bulks
from scheduler.ports import SECOND
from scheduler.store import bulks
from support.bench import Bench
from support.consoles import ask, console_on, post


def test_the_verbs_of_many_tasks_stand_above_the_rows(bench: Bench) -> None:
    bench.die("a", "b")
    (group,) = bench.jobs.dead_letters.groups()
    with console_on(bench.database, "operator") as gate:
        for path in ("/tasks?q=state:dead", f"/dead?kind=Step&fingerprint={group.fingerprint}"):
            text = ask(gate, "GET", path).text
            assert 0 < text.index('id="bulk"') < text.index("<tbody>"), path


@pytest.mark.case(98)
def test_an_interrupted_bulk_is_gone_on_with_or_undone(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_bulks, "BATCH", 2)
    for number in range(5):
        bench.step(f"s{number}").subject("ada").schedule()
    made = bench.jobs.bulks.create("cancel", subject="ada")
    bench.jobs.bulks.start(made.name)
    bench.jobs.database.change(lambda tx: stored_bulks.step(tx, made.name, "dead process"))
    bench.execute("UPDATE schedd_bulks SET runner_until = 1, updated_at = created_at + :s", s=SECOND)
    with console_on(bench.database, "operator") as gate:
        text = ask(gate, "GET", f"/bulks/{made.name}").text
        assert "interrupted" in text
        assert "The process that ran it has ended" in text
        assert "Go on" in text
        assert "Undo what had not begun" in text
        assert "2 of 5 looked at, 2 a second; 3 left" in text
        assert ">Stop<" not in text
        assert ask(gate, "GET", f"/bulks/{made.name}.json").json["state"] == "interrupted"
        assert post(gate, f"/bulks/{made.name}/cancel/start", rate="nonsense").status == 422
        assert post(gate, f"/bulks/{made.name}/cancel/undo").status == 303
        gate.close()
    with bench.jobs.database.read() as tx:
        assert bulks.get(tx, made.name).state == "undone"
