from scheduler import Context, RetryPolicy, Scheduler, task


@task(retry=RetryPolicy(max_attempts=5))
def fetch(ctx: Context, city: str) -> list[int]:
    return [18, 21, 19]


@task
def report(ctx: Context, degrees: list[int]) -> str:
    return f"up to {max(degrees)} degrees"


with Scheduler("sqlite:///hello.db") as jobs:
    jobs.register(fetch)
    jobs.register(report)
    task_id = jobs.task(fetch, "Berlin").then(report).schedule()
    print(jobs.result(task_id, timeout=10))
