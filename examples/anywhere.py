"""An order of 50 parcels, wherever there is room for it: where it runs changes nothing but ``executor=``.

    python examples/anywhere.py                         in this program, on a SQLite file
    python examples/anywhere.py schedd.toml             by the daemons of this configuration
    python examples/anywhere.py schedd.toml cluster     as jobs of [executors.cluster]: of Slurm, Dask, ...

It prints the same each time, also if it, a daemon, a job or the engine was killed meanwhile: ``make demo-anywhere``
kills them, and compares.
"""

import json
import os
import signal
import sys
import time
from contextlib import closing
from pathlib import Path

from scheduler import Context, RetryPolicy, Scheduler, Task, TaskInfo

PARCELS = int(os.environ.get("PARCELS", "50"))
ORDER = "order-7"
AGAIN = RetryPolicy(min_wait=0.1, max_attempts=10)


def call(service: str, what: str) -> str:
    """The world outside, which remembers all calls: a payment service, a printer of labels."""
    with open(service, "a", encoding="utf-8") as file:
        file.write(f"{what}\n")
    return what


def calls(service: str) -> list[str]:
    path = Path(service)
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


class Payment(Task, isolation="process", retry=AGAIN):
    """Takes the money and dies; the next attempt does not take it again, as that step is recorded."""

    service: str

    def run(self, ctx: Context) -> str:
        paid = ctx.step("charge", call, self.service, f"charge {ctx.idempotency_key}")
        if "crash" not in calls(self.service):
            call(self.service, "crash")
            os.kill(os.getpid(), signal.SIGKILL)
        return paid


class Parcel(Task, retry=AGAIN):
    number: int
    service: str

    def run(self, ctx: Context) -> int:
        ctx.step("label", call, self.service, f"label {ctx.idempotency_key}")
        time.sleep(0.5)
        return 100 + self.number


class Invoice(Task, retry=AGAIN):
    """Comes after all parcels."""

    service: str

    def run(self, ctx: Context) -> str:
        grams = sum(ctx.results().values())
        return ctx.step("invoice", call, self.service, f"invoice for {grams} g")


class Search(Task, retry=AGAIN):
    """Looks for a parcel of last year, until it is cancelled."""

    def run(self, ctx: Context) -> None:
        while True:
            ctx.check_cancelled()
            time.sleep(0.05)


class Apology(Task):
    def run(self, ctx: Context) -> str:
        [end] = ctx.dependency_failures().values()
        return f"search {end}"


def store(jobs: Scheduler, executor: str) -> dict[str, int]:
    """Store all tasks, or none if they are there: this program may have been killed. Returns their ids, by key."""
    if not tasks(jobs):
        service = str(Path("service").absolute())
        with jobs.batch(correlation=ORDER) as batch:
            payment = batch.task(Payment(service)).key(ORDER).executor(executor)
            parcels = [
                batch.task(Parcel(number, service)).key(f"parcel-{number:02}").depend_on(payment).executor(executor)
                for number in range(1, PARCELS + 1)
            ]
            batch.task(Invoice(service)).key("invoice").depend_on(parcels).executor(executor)
            search = batch.task(Search()).key("search").executor(executor)
            batch.task(Apology()).key("apology").depend_on(search, when="finished").executor(executor)
    return {str(task.key): task.id for task in tasks(jobs)}


def tasks(jobs: Scheduler) -> list[TaskInfo]:
    return sorted(jobs.list_tasks(correlation=ORDER, limit=1000), key=lambda task: str(task.key))


def give_up(jobs: Scheduler, search: int) -> None:
    """Cancel the search while it runs."""
    while not (state := jobs.get_task(search).state).terminal and state != "running":
        time.sleep(0.05)
    jobs.cancel_task(search)


def main(config: str = "", executor: str = "local") -> None:
    if config:
        jobs = Scheduler.from_config(config)
    else:
        jobs = Scheduler("sqlite:///anywhere.db", lease=5, pools={"medium": (4, 4)})
    for kind in (Payment, Parcel, Invoice, Search, Apology):
        jobs.register(kind)
    with closing(jobs) if config else jobs:  # the latter runs tasks until the end of the block
        ids = store(jobs, executor)
        jobs.wait(ids["invoice"])
        give_up(jobs, ids["search"])
        jobs.wait(ids.values())
        for task in tasks(jobs):
            print(f"{task.key:10} {task.state:10} {json.dumps(task.result)}")
    made = calls("service")
    labels = {one for one in made if one.startswith("label")}
    print(f"{made.count(f'charge {ORDER}')} charge, {len(labels)} labels")


if __name__ == "__main__":
    from anywhere import main as run  # under the name by which daemons know this module's task types

    if len(sys.argv) > 3:
        sys.exit("usage: python examples/anywhere.py [CONFIG [EXECUTOR]]")
    run(*sys.argv[1:])
