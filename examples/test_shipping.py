"""pytest finds the fixtures by itself: an empty store for each test, its clock, and what runs the tasks."""

from scheduler import Context, Scheduler, task
from scheduler.testing import Drain, FakeClock


@task
def ship(ctx: Context, order: int) -> str:
    return f"order {order} shipped"


def test_an_order_is_shipped_an_hour_later(schedd: Scheduler, schedd_clock: FakeClock, schedd_drain: Drain) -> None:
    schedd.register(ship)
    shipping = schedd.task(ship, 42).after(3600).schedule()
    schedd_clock.advance(3600)
    assert schedd_drain(raise_errors=True) == 1
    assert schedd.result(shipping, timeout=0) == "order 42 shipped"
