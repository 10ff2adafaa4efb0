"""A price that may fail, a receipt made of it, and a report each night: python shop_tasks.py"""

from scheduler import Context, RetryPolicy, Scheduler, task

jobs = Scheduler("sqlite:///shop.db")


@task(retry=RetryPolicy(min_wait=1, max_attempts=5))
def price(ctx: Context, item: str) -> int:
    if ctx.attempt == 1:
        raise ConnectionError("the price list is away")
    return len(item)


@task
def receipt(ctx: Context, amount: int) -> str:
    return f"{amount} EUR"


@task
def report(ctx: Context) -> None: ...


for kind in (price, receipt, report):
    jobs.register(kind)


def setup(jobs: Scheduler) -> None:  # the daemon calls it
    jobs.task(report).key("nightly").daily_at(2, 0).schedule()


if __name__ == "__main__":
    with jobs:  # runs tasks in this process, too
        order = jobs.task(price, "tea").then(receipt).schedule()
        print(jobs.result(order, timeout=60))
