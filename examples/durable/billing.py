"""Every night a bill for each customer, and a report once all of them are written."""

from typing import Any
from zoneinfo import ZoneInfo

from scheduler import Context, RetryPolicy, Scheduler, Task

BERLIN = ZoneInfo("Europe/Berlin")


class Bill(Task, retry=RetryPolicy(min_wait=1, max_attempts=5)):
    customer: str
    day: str

    def run(self, ctx: Context) -> int:
        amount: int = ctx.step("bill", ctx.state.bill, self.customer, self.day)
        return amount


class Billing(Task, retry=RetryPolicy(min_wait=1, max_attempts=5)):
    """A child for each customer, 10,000 if need be; while they run, this one takes no slot."""

    def run(self, ctx: Context) -> Any:
        night = ctx.slot_local or ctx.created_at.astimezone(BERLIN)  # triggered by hand, it is for no slot
        day = night.date().isoformat()
        customers = ctx.step("customers", ctx.state.customers)  # recorded: a later attempt bills the same ones
        amounts = ctx.map(Bill, [{"customer": customer, "day": day} for customer in customers])
        ctx.step("report", ctx.state.report, day, sum(amounts))
        return {"day": day, "bills": len(amounts), "total": sum(amounts)}


def setup(jobs: Scheduler) -> None:
    jobs.task(Billing()).key("billing").daily_at(2, 0, tz="Europe/Berlin").schedule()
