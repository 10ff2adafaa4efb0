"""The tasks in the pictures: a shop that loads, cleans and reports, with a mail server that is away."""

from __future__ import annotations

import random
import time

from scheduler import Context, PermanentError, RetryPolicy, Scheduler, Task, task


class LoadPartition(Task):
    table: str
    day: str

    def run(self, ctx: Context) -> int:
        rows = random.randint(9_000, 11_000)
        print(f"reading {self.table} of {self.day}: {rows} rows")
        ctx.report_progress(50, f"{rows // 2} rows")
        time.sleep(random.uniform(0.05, 0.4))
        return rows


class CleanPartition(Task):
    table: str
    day: str

    def run(self, ctx: Context) -> None:
        time.sleep(random.uniform(0.02, 0.2))
        if (self.table, self.day) == ("staff", "2026-02-02"):
            raise PermanentError("column hired_on: 31.02.2026 is not a date")


class JoinTables(Task):
    day: str

    def run(self, ctx: Context) -> None:
        time.sleep(random.uniform(0.1, 0.3))


class WriteReport(Task):
    day: str

    def run(self, ctx: Context) -> None:
        time.sleep(0.1)


class ResizePhoto(Task):
    path: str

    def run(self, ctx: Context) -> None:
        time.sleep(random.uniform(0.01, 0.06))


class SendInvoice(Task, retry=RetryPolicy(min_wait=1, max_attempts=2)):
    order: int
    to: str
    password: str = ""

    def run(self, ctx: Context) -> str:
        if self.order % 9 == 4:
            raise ConnectionRefusedError("mail.example.com:25 does not answer")
        if self.order % 50 == 13:
            raise PermanentError("mailbox full")
        return "sent"


class Export(Task):
    """Runs until it is cancelled."""

    customer: str

    def run(self, ctx: Context) -> None:
        print(f"exporting 200 pages for {self.customer}")
        ctx.report_progress(61, "page 122 of 200")
        while True:
            ctx.check_cancelled()
            time.sleep(0.1)


@task
def nightly_report(ctx: Context) -> int:
    time.sleep(0.2)
    return 1


@task
def refresh_prices(ctx: Context) -> int:
    time.sleep(0.3)
    return 1


def setup(jobs: Scheduler) -> None:
    """The schedules."""
    jobs.task(nightly_report).key("nightly-report").daily_at(2, 30, tz="Europe/Berlin").schedule()
    jobs.task(refresh_prices).key("refresh-prices").every(600).schedule()
