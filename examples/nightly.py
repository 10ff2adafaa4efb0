"""A graph that recurs: two loads side by side, a report on both, and a clean-up whatever happened."""

from typing import Any

from scheduler import Context, Scheduler, task


@task
def load(ctx: Context, table: str) -> dict[str, Any]:
    return {"table": table, "rows": len(table) * 1000}


@task
def report(ctx: Context) -> str:
    loads: list[Any] = list(ctx.results().values())  # of the tasks that this one depends on
    return ", ".join(f"{one['table']}: {one['rows']} rows" for one in loads)


@task
def clean_up(ctx: Context) -> None: ...


def setup(jobs: Scheduler) -> None:
    """The daemon calls this at each start; the same name updates the graph."""
    with jobs.recurring("nightly").daily_at(2, 30, tz="Europe/Berlin").overlap("skip") as night:
        orders = night.task(load, "orders").key("orders")
        customers = night.task(load, "customers").key("customers")
        both = night.task(report).depend_on([orders, customers])
        night.task(clean_up).depend_on(both, when="finished")


def main() -> None:
    jobs = Scheduler("sqlite:///nightly.db")
    for function in (load, report, clean_up):
        jobs.register(function)
    setup(jobs)
    jobs.schedules.trigger("nightly")  # one run now, beside its times
    with jobs:
        jobs.wait([one.id for one in jobs.list_tasks()], timeout=10)
        for stored in reversed(jobs.list_tasks()):
            print(stored.kind, stored.state)
        found = next(one for one in jobs.list_tasks() if one.kind == "report")
        print(jobs.result(found.id))


if __name__ == "__main__":
    main()
