"""An order that takes days: pay, wait for a person's approval, ship. Without an approval, refund."""

from datetime import timedelta
from typing import Any

from scheduler import Context, Task


class Order(Task):
    """What has succeeded under a name is not done again: not after a failure, a restart, or days of waiting."""

    number: str
    amount: int

    def run(self, ctx: Context) -> Any:
        shop = ctx.state
        payment = ctx.step("charge", shop.charge, self.number, self.amount)
        try:
            approval = ctx.await_event(f"approved/{self.number}", timeout=timedelta(days=2))
        except TimeoutError:
            ctx.step("refund", shop.refund, payment)
            return {"shipped": False}
        ctx.sleep_for(timedelta(hours=1))  # the time in which a customer may still change the order
        parcel = ctx.step("ship", shop.ship, self.number, approval["by"])
        return {"shipped": True, "parcel": parcel}
