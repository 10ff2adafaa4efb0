"""The order of docs/guides/durable.md, as a user would try it: every step once, whatever happens in between."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scheduler.testing import drain
from support.bench import Bench

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "durable"))
from order import Order

DAY = 86_400.0


@dataclass
class Shop:
    done: list[str] = field(default_factory=list)
    down: bool = False

    def charge(self, number: str, amount: int) -> str:
        self.done.append(f"charged {amount}")
        return f"payment of {number}"

    def refund(self, payment: str) -> None:
        self.done.append(f"refunded {payment}")

    def ship(self, number: str, by: str) -> str:
        if self.down:
            raise OSError("the carrier does not answer")
        self.done.append(f"shipped, approved by {by}")
        return f"parcel of {number}"


@pytest.fixture
def shop(bench: Bench) -> Shop:
    made = Shop()
    bench.jobs.register(Order)
    bench.jobs.state = made
    return made


@pytest.mark.case(52, 53, 54)
def test_an_order_is_charged_and_shipped_once(bench: Bench, shop: Shop) -> None:
    jobs = bench.jobs
    task_id = jobs.task(Order("7", 30)).with_automatic_retry().schedule()
    drain(jobs)
    assert bench.states(task_id) == ["suspended"]
    jobs.emit_event("approved/7", {"by": "alice"})
    drain(jobs)
    shop.down = True
    bench.clock.advance(3601)
    drain(jobs)
    assert bench.states(task_id) == ["retry"]
    shop.down = False
    bench.clock.advance(60)
    drain(jobs)
    assert shop.done == ["charged 30", "shipped, approved by alice"]
    assert jobs.result(task_id, timeout=0) == {"shipped": True, "parcel": "parcel of 7"}


@pytest.mark.case(55)
def test_an_order_without_an_approval_is_refunded(bench: Bench, shop: Shop) -> None:
    jobs = bench.jobs
    task_id = jobs.task(Order("8", 5)).schedule()
    drain(jobs)
    bench.clock.advance(2 * DAY + 1)
    drain(jobs)
    assert shop.done == ["charged 5", "refunded payment of 8"]
    assert jobs.result(task_id, timeout=0) == {"shipped": False}
