"""The task types of a small shop. The daemon imports this module, and so does each program that schedules."""

from pathlib import Path

from scheduler import AsyncContext, Context, Priority, RetryPolicy, Scheduler, Task, task


class WriteInvoice(Task, retry=RetryPolicy(min_wait=5, max_wait=300, max_attempts=5)):
    order: int
    amount: str

    def run(self, ctx: Context) -> str:
        path = Path(f"invoice-{self.order}.txt")
        path.write_text(f"Order {self.order}: {self.amount}\n")
        return str(path)


class SendInvoice(Task, priority=Priority.HIGH, timeout=30):
    to: str

    async def run(self, ctx: AsyncContext) -> dict[str, str]:
        [path] = (await ctx.results()).values()
        ctx.log.info("sending", to=self.to, file=path)
        return {"sent_to": self.to, "file": path}


@task
def daily_report(ctx: Context) -> int:
    return len(list(Path().glob("invoice-*.txt")))


def setup(jobs: Scheduler) -> None:
    """Called by the daemon at each start. The key names the schedule: there is one, however often this is called."""
    jobs.task(daily_report).key("daily-report").daily_at(6, 0, tz="Europe/Berlin").schedule()
