"""Results that go from one function to the next, by order and by name."""

from scheduler import Context, Scheduler, task
from scheduler.testing import drain


@task
def fetch(ctx: Context, table: str) -> list[int]:
    return [len(table), 2, 3]


@task
def total(ctx: Context, rows: list[int], factor: int = 1) -> int:
    return sum(rows) * factor


@task
def compare(ctx: Context, sales: int = 0, stock: int = 0) -> str:
    return f"{sales} sold, {stock} left"


def main() -> None:
    jobs = Scheduler.for_testing()
    for function in (fetch, total, compare):
        jobs.register(function)

    last = jobs.task(fetch, "sales").then(total, factor=10).schedule()  # stores both

    with jobs.batch() as batch:
        sales = batch.task(fetch, "sales").then(total)
        stock = batch.task(fetch, "stock").then(total)
        batch.task(compare).depend_on({"sales": sales, "stock": stock})

    drain(jobs)  # a daemon would run them
    print(jobs.result(last))
    print(jobs.result(batch.ids[-1]))
    jobs.close()


if __name__ == "__main__":
    main()
