"""Tasks of kinds by their names, without their handlers: checked by what workers have published."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from scheduler import Context, PayloadError, Priority, RetryPolicy, Scheduler, Task, UnregisteredKindError
from scheduler.testing import FakeClock, drain
from support.databases import Database


class Invoice(
    Task,
    queue="mail",
    priority=Priority.HIGH,
    retry=RetryPolicy(max_attempts=3),
    timeout=30,
    dead_letter=False,
    result_ttl=60,
    key_retention=90,
    concurrency_key="{customer}",
    schema_version=2,
):
    customer: str
    amount: float = 1.5
    lines: list[int] = msgspec.field(default_factory=list[int])

    def run(self, ctx: Context) -> str:
        return f"{self.customer} {self.amount} {self.lines}"


class Private(Task, concurrency_key=lambda task: task.name):
    name: str

    def run(self, ctx: Context) -> None: ...


@pytest.fixture
def schedulers(database: Database) -> Iterator[tuple[Scheduler, Scheduler]]:
    """A worker that has published its kinds, and a program that has none of them."""
    clock = FakeClock()
    worker, program = (Scheduler.for_testing(url=database.url, clock=clock) for _ in range(2))
    worker.register(Invoice)
    worker.register(Private)
    drain(worker)
    yield worker, program
    worker.close()
    program.close()


def test_it_is_the_same_task(schedulers: tuple[Scheduler, Scheduler]) -> None:
    worker, program = schedulers
    ours = worker.task(Invoice("a", 2.5, [1])).schedule()
    theirs = program.submit("Invoice", {"customer": "a", "amount": 2.5, "lines": [1]})
    same = ("kind", "queue", "priority", "payload", "retry", "timeout", "max_attempts", "dead_letter", "schema_version")
    one, other = worker.get_task(ours), program.get_task(theirs)
    assert [getattr(one, name) for name in same] == [getattr(other, name) for name in same]
    with worker.database.read() as tx:
        lanes = tx.connection.exec_driver_sql("SELECT DISTINCT lane, result_ttl FROM schedd_tasks").fetchall()
    assert len(lanes) == 1
    drain(worker)
    assert program.result(theirs, 0) == "a 2.5 [1]"


def test_with_all_that_a_builder_says(schedulers: tuple[Scheduler, Scheduler]) -> None:
    worker, program = schedulers
    first = program.task("Invoice", {"customer": "a"}).key("k").priority("low").schedule()
    again = program.task("Invoice", {"customer": "b"}).key("k").schedule()
    assert (again, again.created) == (first, False)
    late = program.task("Invoice", {"customer": "b"}).depend_on(first).after(timedelta(hours=1)).schedule()
    with program.batch() as batch:
        batch.task("Invoice", {"customer": "d"}).depend_on(batch.task("Invoice", {"customer": "c"}))
    name = program.task("Invoice", {"customer": "e"}).key("nightly").daily_at(2, 0).schedule()
    assert program.schedules.get(name).kind == "Invoice"
    drain(worker)
    assert [program.get_task(i).state.value for i in (first, late, *batch.ids)] == [
        "success",
        "scheduled",
        "success",
        "success",
    ]
    assert program.get_task(first).priority is Priority.LOW
    assert asyncio.run(program.submit_async("Invoice", {"customer": "f"})).created


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({}, "missing required field `customer`"),
        ({"customer": 5}, r"Expected `str`, got `int` - at `\$\.customer`"),
        ({"customer": "a", "lines": ["x"]}, r"Expected `int`, got `str` - at `\$\.lines\[0\]`"),
        ({"customer": "a", "lines": [1.0]}, "Expected `int`, got `float`"),
        ({"customer": "a", "amout": 1}, "unknown field `amout`; there are customer, amount, lines"),
        ({"customer": "a", "amount": object()}, "payload of Invoice is not JSON"),
        ({"customer": "a" * 200_000}, "over the limit"),
        ("a", "is a mapping of its fields, not 'a'"),
        (None, "is a mapping of its fields, not None"),
    ],
)
def test_what_does_not_fit_is_refused(schedulers: tuple[Scheduler, Scheduler], payload: Any, message: str) -> None:
    _, program = schedulers
    with pytest.raises(PayloadError, match=message):
        program.submit("Invoice", payload)
    assert program.list_tasks() == []


def test_what_cannot_be_known_is_refused(schedulers: tuple[Scheduler, Scheduler]) -> None:
    worker, program = schedulers
    with pytest.raises(UnregisteredKindError, match="no worker has registered a kind 'Nothing'; known are Inv"):
        program.submit("Nothing", {})
    with pytest.raises(PayloadError, match="the concurrency key of Private is made by its program"):
        program.submit("Private", {"name": "a"})
    assert worker.submit("Private", {"name": "a"}).created, "its program may"
    with pytest.raises(PayloadError, match="payload of Private does not fit"):
        worker.submit("Private", {"nam": "a"})
    for call in (
        lambda: program.task("Invoice"),  # type: ignore[call-overload]
        lambda: program.task("Invoice", {"customer": "a"}, 5),  # type: ignore[call-overload]
        lambda: program.task("Invoice", customer="a"),  # type: ignore[call-overload]
    ):
        with pytest.raises(PayloadError, match="a kind by its name takes its payload"):
            call()
