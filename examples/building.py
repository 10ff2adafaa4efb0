"""What a builder can say of a task. Nothing runs here: it schedules, and lists what is stored."""

from datetime import UTC, datetime, timedelta

from scheduler import Context, DuplicateKeyError, Priority, RetryPolicy, Scheduler, Weekday, task


@task
def load(ctx: Context, table: str) -> None: ...


@task
def report(ctx: Context, day: str) -> None: ...


@task
def alarm(ctx: Context, text: str) -> None: ...


def single(jobs: Scheduler) -> None:
    """Keys, times, retries, priorities, and what goes along with a task."""
    load_id = (
        jobs.task(load, table="sales")
        .key("load-sales-2026-01-31", retention=timedelta(days=7))  # the same key again returns the same task
        .with_retry(RetryPolicy(min_wait=10, max_wait=3600, max_attempts=5))  # 10 s, 20 s, 40 s, 80 s
        .priority(Priority.HIGH)
        .queue("etl")
        .timeout(timedelta(minutes=20))  # of one attempt
        .after(timedelta(minutes=5))  # not before; or .at(datetime)
        .correlation("nightly-2026-01-31")
        .headers({"requested_by": "alice"})
        .schedule()
    )
    again = jobs.task(load, table="sales").key("load-sales-2026-01-31").schedule()
    assert (again, again.created) == (load_id, False)
    try:
        jobs.task(load, table="sales").key("load-sales-2026-01-31", conflict="reject").schedule()
    except DuplicateKeyError as error:
        print(error, f"({error.existing_id})")

    # Dependencies: ids of stored tasks.
    jobs.task(report, day="2026-01-31").depend_on(load_id).schedule()
    jobs.task(alarm, text="no sales").depend_on(load_id, when="failure").schedule()
    jobs.task(alarm, text="done").depend_on([load_id], when="finished").at(
        datetime(2026, 2, 1, 6, tzinfo=UTC)
    ).schedule()


def many(jobs: Scheduler) -> None:
    """A batch: all tasks or none, with edges between tasks that have no ids yet."""
    with jobs.batch(correlation="nightly-2026-02-01") as batch:
        loads = [batch.task(load, table=name) for name in ("sales", "stock", "staff")]
        batch.task(report, day="2026-02-01").depend_on(loads, otherwise="run")  # also if one of them fails
    assert len(batch.ids) == 4


def recurring(jobs: Scheduler) -> None:
    """Schedules have names: their key. Each of their runs is a task of its own."""
    jobs.task(report, day="today").key("daily").daily_at(2, 30, tz="Europe/Berlin").schedule()
    jobs.task(report, day="week").key("weekly").weekly_on(Weekday.MONDAY, 7, 0, tz="America/New_York").schedule()
    jobs.task(report, day="month").key("monthly").monthly_on(1, 8, 0).schedule()
    jobs.task(load, table="stock").key("stock").cron("*/15 8-18 * * MON-FRI").overlap("skip").schedule()
    jobs.task(load, table="rates").key("rates").hourly_at(5).catchup("all").with_automatic_retry().schedule()
    jobs.task(load, table="feed").key("feed").every(600, mode="fixed_delay").run_on_startup().schedule()


def main() -> None:
    jobs = Scheduler("sqlite:///building.db", timezone="UTC")
    for function in (load, report, alarm):
        jobs.register(function)
    single(jobs)
    many(jobs)
    recurring(jobs)
    for stored in reversed(jobs.list_tasks()):
        print(stored.id, stored.kind, stored.state, stored.key or "-")
    for schedule in jobs.schedules.list():
        print(schedule.name, schedule.recurrence.describe())
    jobs.close()


if __name__ == "__main__":
    main()
