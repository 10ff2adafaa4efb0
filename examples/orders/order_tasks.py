"""What is done with an order that came as a message: a parcel and an invoice, then messages to others."""

import os
import time

from scheduler import Context, Task


class PackParcel(Task):
    order: int
    item: str
    quantity: int

    def run(self, ctx: Context) -> str:
        time.sleep(0.05)  # it takes a while
        return f"parcel-{self.order}"


class WriteInvoice(Task):
    order: int
    cents: int

    def run(self, ctx: Context) -> str:
        time.sleep(0.02)
        return f"invoice-{self.order}: {self.cents / 100:.2f} EUR"


class TakeOrder(Task):
    """Its messages and its success are committed together: either all of them, or none."""

    order: int
    item: str
    quantity: int

    def run(self, ctx: Context) -> None:
        parcel = ctx.spawn(PackParcel(self.order, self.item, self.quantity))
        invoice = ctx.spawn(WriteInvoice(self.order, 499 * self.quantity))
        done = {"order": self.order, "parcel": ctx.await_task(parcel), "invoice": ctx.await_task(invoice)}
        with ctx.transaction():
            for sink in ctx.state:
                ctx.publish(sink, done, key=f"shipped-{self.order}", message_type="order.shipped")


def sinks() -> list[str]:
    """``ctx.state``: the sinks of the configuration."""
    return os.environ.get("ORDERS_SINKS", "shop").split(",")
