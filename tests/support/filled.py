"""A store with something of everything, for the pages of the console."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Any, NamedTuple

from scheduler import RetryPolicy, Scheduler, task
from scheduler.testing import FakeClock, drain


class Filled(NamedTuple):
    """The store, and some of its tasks."""

    url: str
    dead: int
    done: int
    retried: int
    waiting: int  # for one that waits for ``dead``
    suspended: int
    running: int
    scheduled: int
    cause: str  # of ``dead``, as a query
    bulk: str


@task
def Mail(ctx: Any, to: str, password: str = "") -> dict[str, Any]:
    if to.startswith("full"):
        raise ValueError("mailbox full: https://user:secret-of-url@example.com/")
    return {"sent": to, "token": "a-token-of-ours"}


@task(retry=RetryPolicy(min_wait=5, jitter=0, max_attempts=3))
def Fetch(ctx: Any, url: str) -> int:
    print("fetching", url, "password=hunter2")
    if ctx.attempt < 3:
        raise TimeoutError("no answer within 5 s")
    return 200


@task
def Order(ctx: Any, number: int) -> None:
    ctx.step("reserve", lambda: {"reserved": number})
    ctx.await_event(f"paid:{number}")


@task
def Resize(ctx: Any, path: str) -> None: ...


TYPES = (Mail, Fetch, Order, Resize)


def fill(url: str) -> Filled:
    """Fill an empty store: dead, retried, suspended, waiting tasks, a schedule, a pause, an audit, numbers."""
    clock = FakeClock(datetime.fromtimestamp(time.time() - 600, UTC))
    jobs = Scheduler.for_testing(url=url, clock=clock)
    for kind in TYPES:
        jobs.register(kind)
    dead = jobs.task(Mail, "full@example.com", password="hunter2").key("welcome-1").subject("ada").schedule()
    jobs.task(Resize, "below").depend_on([dead]).schedule()  # ends with it
    middle = jobs.task(Resize, "b").depend_on([dead], otherwise="wait").schedule()
    waiting = jobs.task(Resize, "c").depend_on([middle]).schedule()
    done = jobs.task(Mail, "ada@example.com", password="hunter2").headers({"authorization": "Bearer abcdef"}).schedule()
    retried = jobs.task(Fetch, "https://example.com/").schedule()
    suspended = jobs.task(Order, 7).schedule()
    for number in range(30):
        jobs.task(Resize, f"/photos/{number}.jpg").key(f"photo-{number}").queue("photos").schedule()
    jobs.task(Resize, "nightly").key("nightly").daily_at(2, 30).schedule()
    for _ in range(4):
        drain(jobs)
        clock.advance(10)
    with jobs.acting("alice", reason="wrong customer"):
        cancelled = jobs.task(Resize, "no more").after(3600).schedule()
        jobs.cancel_task(cancelled)
        jobs.pause(queue="slow")
    scheduled = jobs.task(Resize, "later").after(86_400).schedule()
    running = jobs.task(Resize, "soon").queue("slow").schedule()
    ids = map(int, (dead, done, retried, waiting, suspended, running, scheduled))
    cause = f"kind=Mail&fingerprint={jobs.get_task(dead).fingerprint}"
    bulk = jobs.bulks.create("replay", ids=[int(dead)], fields={"to": "ada@example.com"})
    found = Filled(url, *ids, cause, bulk.name)
    jobs.close()
    return found
