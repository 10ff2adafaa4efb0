"""The tasks of the guide to operating: a shop whose night goes wrong in the usual ways."""

from __future__ import annotations

import time

from scheduler import Context, PermanentError, Scheduler, Task, task


class Export(Task):
    """Runs until it is cancelled."""

    customer: str

    def run(self, ctx: Context) -> None:
        ctx.report_progress(61, "page 122")
        while True:
            ctx.check_cancelled()
            time.sleep(0.1)


class SendInvoice(Task):
    order: int

    def run(self, ctx: Context) -> str:
        if self.order == 1013:
            raise PermanentError("mailbox full")
        if self.order > 1013:
            raise ConnectionRefusedError("mail.example.com:25")
        return "sent"


class WriteInvoice(Task):
    order: int

    def run(self, ctx: Context) -> str:
        return f"invoice-{self.order}.txt"


@task
def nightly_report(ctx: Context) -> int:
    return 1


def setup(jobs: Scheduler) -> None:
    jobs.task(nightly_report).key("nightly-report").daily_at(2, 30, tz="Europe/Berlin").schedule()
