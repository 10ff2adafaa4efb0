"""The programs of docs/guides/durable-patterns.md, as a user would try them: with failures in the middle."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler.testing import FakeClock, drain
from support.bench import Bench
from support.databases import Database
from support.fleet import rows, write

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "durable"))
import agent
import billing
import polling
import saga
import transfer

ROOT = Path(__file__).parents[3]


@dataclass
class World:
    """What the handlers call: it notes every call, and fails those that ``away`` names."""

    done: Counter[str] = field(default_factory=Counter)
    away: set[str] = field(default_factory=set)
    refuses: set[str] = field(default_factory=set)
    ready_after: int = 4
    dangerous: tuple[str, ...] = ("delete",)

    def do(self, what: str) -> str:
        if what in self.away:
            self.away.discard(what)
            raise ConnectionError(f"{what}: no answer")
        self.done[what] += 1
        return what

    # polling

    def order(self, month: str) -> str:
        return self.do(f"order {month}")

    def status(self, ticket: str) -> str:
        self.do("look")
        return "ready" if self.done["look"] >= self.ready_after else "working"

    def fetch(self, ticket: str) -> str:
        return self.do("fetch")

    # saga

    def book(self, what: str, person: str) -> dict[str, str]:
        self.do(f"book {what}")
        return {"refused": "sold out"} if what in self.refuses else {"number": f"{what} of {person}"}

    def cancel(self, what: str, number: str) -> None:
        self.do(f"cancel {number}")

    # billing

    def customers(self) -> list[str]:
        self.do("customers")
        return [f"c{i}" for i in range(5)]

    def bill(self, customer: str, day: str) -> int:
        self.do(f"bill {customer} {day}")
        return 10

    def report(self, day: str, total: int) -> None:
        self.do(f"report {day} {total}")

    # agent

    async def model(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        self.do(f"think {len(messages)}")
        if len(messages) == 1:
            search = [{"id": f"s{i}", "tool": "search", "arguments": {"text": text}} for i, text in enumerate("ab")]
            return {"content": "", "calls": [*search, {"id": "d", "tool": "delete", "arguments": {"text": "c"}}]}
        return {"content": str([m["content"] for m in messages if m["role"] == "tool"]), "calls": []}

    @property
    def tools(self) -> dict[str, Any]:
        return {"search": lambda text: self.do(f"search {text}"), "delete": lambda text: self.do(f"delete {text}")}


@pytest.fixture
def bench(database: Database) -> Iterator[Bench]:
    made = Bench(database, FakeClock(datetime(2026, 3, 1, tzinfo=UTC)))
    for kind in (agent.Agent, billing.Bill, billing.Billing, polling.Report, saga.Trip, transfer.Transfer):
        made.jobs.register(kind)
    yield made
    for jobs in made.workers:
        jobs.close()


@pytest.fixture
def world(bench: Bench) -> World:
    made = World()
    bench.jobs.state = made
    return made


def go_on(bench: Bench, seconds: float = 61) -> None:
    bench.clock.advance(seconds)
    drain(bench.jobs)


@pytest.mark.case(52, 53)
def test_polling(bench: Bench, world: World) -> None:
    world.away = {"fetch"}
    task_id = bench.jobs.task(polling.Report("2026-02")).schedule()
    drain(bench.jobs)
    assert bench.states(task_id) == ["suspended"]
    for _ in range(6):
        go_on(bench)
    assert bench.jobs.result(task_id, 0) == "fetch"
    assert world.done == {"order 2026-02": 1, "look": 4, "fetch": 1}


@pytest.mark.case(52)
def test_a_saga_that_is_refused_takes_back_what_it_had(bench: Bench, world: World) -> None:
    world.refuses = {"car"}
    world.away = {"book hotel", "cancel flight of ann"}
    task_id = bench.jobs.task(saga.Trip("ann")).schedule()
    drain(bench.jobs)
    for _ in range(3):
        go_on(bench)
    assert bench.jobs.result(task_id, 0) == {"booked": [], "refused": "car: sold out"}
    assert set(world.done.values()) == {1}
    assert sorted(world.done) == [
        "book car",
        "book flight",
        "book hotel",
        "cancel flight of ann",
        "cancel hotel of ann",
    ]


@pytest.mark.case(52)
def test_a_saga_that_succeeds(bench: Bench, world: World) -> None:
    task_id = bench.jobs.task(saga.Trip("ann")).schedule()
    drain(bench.jobs)
    assert bench.jobs.result(task_id, 0) == {"booked": ["flight of ann", "hotel of ann", "car of ann"]}


@pytest.mark.case(52, 56)
def test_a_night_of_billing(bench: Bench, world: World) -> None:
    world.away = {"bill c3 2026-03-02", "report 2026-03-02 50"}
    billing.setup(bench.jobs)
    drain(bench.jobs)
    go_on(bench, 25.1 * 3600)  # past 02:00 in Berlin
    for _ in range(4):
        go_on(bench)
    (task,) = bench.jobs.list_tasks(kind="Billing", status="success")
    assert bench.jobs.result(task.id, 0) == {"day": "2026-03-02", "bills": 5, "total": 50}
    assert set(world.done.values()) == {1}
    assert len(world.done) == 7


@pytest.mark.case(52, 54, 55)
@pytest.mark.parametrize("allowed", [True, False, None])
def test_an_agent(bench: Bench, world: World, allowed: bool | None) -> None:
    world.away = {"think 5", "search b"}
    task_id = bench.jobs.task(agent.Agent("tidy up")).schedule()
    drain(bench.jobs)
    go_on(bench)
    assert bench.states(task_id) == ["suspended"]
    if allowed is None:
        go_on(bench, 86_400)
    else:
        bench.jobs.emit_event(f"allow/{task_id}/d", allowed)
        drain(bench.jobs)
    go_on(bench)
    found = "delete c" if allowed else "not allowed"
    assert bench.jobs.result(task_id, 0) == str(["search a", "search b", found])
    assert set(world.done.values()) == {1}
    assert world.done["delete c"] == (1 if allowed else 0)


@pytest.mark.case(4)
def test_a_transfer(bench: Bench, world: World) -> None:
    write(bench.jobs, "DROP TABLE IF EXISTS accounts")
    write(bench.jobs, "CREATE TABLE accounts (id integer PRIMARY KEY, balance integer NOT NULL CHECK (balance >= 0))")
    try:
        write(bench.jobs, "INSERT INTO accounts VALUES (1, 50), (2, 0)")
        task_id = bench.jobs.task(transfer.Transfer(1, 2, 30)).schedule()
        too_much = bench.jobs.task(transfer.Transfer(2, 1, 500)).schedule()
        drain(bench.jobs)
        assert bench.jobs.result(task_id, 0) == {"moved": 30}
        assert [tuple(row) for row in rows(bench.jobs, "SELECT * FROM accounts ORDER BY id")] == [(1, 20), (2, 30)]
        assert bench.states(too_much) == ["retry"]
        assert sa.exc.IntegrityError.__name__ in (bench.jobs.get_last_error(too_much) or "")
    finally:
        write(bench.jobs, "DROP TABLE accounts")


@pytest.mark.case(52, pure=True)
def test_the_page_shows_the_programs_as_they_are() -> None:
    page = (ROOT / "docs" / "guides" / "durable-patterns.md").read_text()
    blocks = [block.partition("```")[0] for block in page.split("```python\n")[1:]]
    programs = [path.read_text() for path in (ROOT / "examples" / "durable").glob("*.py")]
    assert len(blocks) == 5
    for block in blocks:
        assert any(block in program for program in programs), block
