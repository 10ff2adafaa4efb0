"""What a handler can do with its context, and how it says what went wrong."""

from dataclasses import dataclass, field
from datetime import timedelta

from scheduler import AsyncContext, Context, PermanentError, Retry, RetryPolicy, Scheduler, Snooze, Task


@dataclass
class App:
    """The application's own object: ctx.state in every handler."""

    failures: list[str] = field(default_factory=list[str])
    asked: int = 0


class Resize(Task, retry=RetryPolicy(min_wait=1, max_attempts=3), timeout=60):
    path: str
    widths: list[int]

    def run(self, ctx: Context) -> dict[str, int]:
        for done, width in enumerate(self.widths):
            ctx.check_cancelled()  # ends here if the task was cancelled, or its time is up
            ctx.log.info("resizing", width=width)  # kept with the attempt: schedctl logs
            ctx.report_progress(100 * done / len(self.widths), f"{width} pixels")
        return {"files": len(self.widths)}  # anything that is JSON


class Publish(Task, retry=RetryPolicy(min_wait=0.1, max_attempts=3)):
    title: str

    async def run(self, ctx: AsyncContext[App]) -> str:  # for type checkers: what ctx.state is
        results = await ctx.results()  # of what it depends on, by id; None of what failed
        failed = await ctx.dependency_failures()  # id -> how it ended
        ctx.state.asked += 1
        if ctx.state.asked == 1:
            raise Retry(after=timedelta(milliseconds=50), reason="busy", status=503)  # an attempt, with its own wait
        if ctx.state.asked == 2:
            raise Snooze(0.05)  # later; does not count as an attempt
        return f"{self.title}: {sum(r['files'] for r in results.values() if r)} files, {len(failed)} failures"


class Charge(Task, retry=RetryPolicy(min_wait=1, max_attempts=5)):
    account: int

    def run(self, ctx: Context) -> None:
        # No further attempts. idempotency_key is the same in every attempt: for services that take one.
        raise PermanentError(f"account {self.account} is closed ({ctx.idempotency_key})", status=403)

    def on_failed(self, ctx: Context[App], error: BaseException) -> None:
        ctx.state.failures.append(str(error))


def main() -> None:
    app = App()
    jobs = Scheduler("sqlite:///handlers.db", state=app)
    for kind in (Resize, Publish, Charge):
        jobs.register(kind)
    with jobs:
        resize = jobs.task(Resize("cat.jpg", [200, 800])).schedule()
        charge = jobs.task(Charge(42)).schedule()
        publish = jobs.task(Publish("Cats")).depend_on(resize).depend_on(charge, otherwise="run").schedule()
        print(jobs.result(publish, timeout=10))
        print([attempt.outcome.value for attempt in jobs.get_attempts(publish)])
        print(jobs.get_task_status(charge), app.failures)


if __name__ == "__main__":
    main()
