"""Schedules the two tasks of an order, and waits for them:  python order.py 1001 me@example.com"""

import sys

from shop_tasks import SendInvoice, WriteInvoice

from scheduler import Scheduler


def main(order: int, address: str) -> None:
    jobs = Scheduler.from_config("config.toml")
    with jobs.batch(correlation=f"order-{order}") as batch:  # both tasks are stored, or none
        invoice = batch.task(WriteInvoice(order, "49.90 EUR")).key(f"invoice-{order}")
        batch.task(SendInvoice(address)).key(f"send-{order}").depend_on(invoice)
    print(jobs.result(batch.ids[1], timeout=30))
    jobs.close()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
