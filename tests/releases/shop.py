"""A program of a user of schedd, which runs with the last release and with this checkout.

``shop.py fill URL`` makes a store with tasks in each state that no worker holds. ``shop.py feed URL`` stores tasks
until its input has a line, and prints their ids. Handlers note what they did in the file $SHOP_NOTES.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from scheduler import Context, RetryPolicy, Scheduler, task


def note(ctx: Context, what: str) -> None:
    place = os.open(os.environ["SHOP_NOTES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(place, f"{ctx.id} {os.getpid()} {what}\n".encode())
    os.close(place)


@task
def pick(ctx: Context, number: int) -> int:
    note(ctx, "done")
    return number


@task
def pack(ctx: Context, number: int) -> int:
    time.sleep(0.1)
    note(ctx, "done")
    return number


@task(isolation="process")
def label(ctx: Context, number: int) -> int:
    note(ctx, "done")
    return number


@task
def order(ctx: Context, number: int) -> int:
    ctx.step("reserve", lambda: note(ctx, "reserved"))
    ctx.sleep_for(0.5)
    ctx.step("charge", lambda: note(ctx, "charged"))
    note(ctx, "done")
    return number


@task
def paid(ctx: Context, number: int) -> Any:
    ctx.step("invoice", lambda: note(ctx, "invoiced"))
    found = ctx.await_event(f"paid:{number}")
    note(ctx, "done")
    return found


@task(retry=RetryPolicy(min_wait=3600, max_wait=3600, jitter=0.0, max_attempts=2))
def call(ctx: Context, fails: int = 1) -> str:
    if ctx.attempt <= fails:
        raise TimeoutError("no answer within 5 s")
    note(ctx, "done")
    return "answered"


AHEAD = 4
MADE = datetime(2026, 11, 26, 12, tzinfo=UTC)
KINDS = (pick, pack, label, order, paid, call)


def program(url: str) -> Scheduler:
    """A caller, which runs nothing."""
    jobs = Scheduler(url)
    jobs.stop()
    for kind in KINDS:
        jobs.register(kind)
    return jobs


def some(jobs: Scheduler, number: int) -> list[int]:
    """Store six tasks, two of which wait for others."""
    with jobs.batch() as batch:
        picked = batch.task(pick, number)
        packed = batch.task(pack, number).depend_on([picked])
        batch.task(label, number).depend_on([packed])
        batch.task(order, number).key(f"order-{os.getpid()}-{number}")
        batch.task(pick, number).priority("high")
        batch.task(pick, number).priority("low")
    return [int(one) for one in batch.ids]


def store(jobs: Scheduler, enough: Callable[[], object]) -> Iterator[list[int]]:
    """Store tasks until it is enough, a few ahead of what has ended: as much load as the machine bears."""
    stored: list[list[int]] = []
    while not enough():
        stored.append(some(jobs, len(stored) + 1))
        yield stored[-1]
        if len(stored) > AHEAD:
            jobs.wait(stored[-AHEAD], timeout=300)


def feed(url: str) -> None:
    jobs = program(url)
    for ids in store(jobs, lambda: select.select([sys.stdin], [], [], 0)[0]):
        print(*ids, flush=True)
    jobs.close()


def fill(url: str) -> None:
    """Tasks that are ready, wait, retry, are suspended, have ended in each way; a schedule, a dead letter, a pause."""
    from scheduler.testing import FakeClock, drain

    clock = FakeClock(MADE)
    jobs = Scheduler.for_testing(url=url, clock=clock)
    for kind in KINDS:
        jobs.register(kind)
    jobs.task(pick, 1).key("done").schedule()
    jobs.task(call).key("retried").schedule()
    dead = jobs.task(call, 9).key("dead").schedule()
    drain(jobs)
    clock.advance(3700)
    jobs.task(call).key("retries").schedule()
    jobs.task(paid, 1).key("suspended").schedule()
    jobs.task(pick, 2).depend_on([dead], otherwise="wait").key("waits").schedule()
    drain(jobs)
    jobs.task(pick, 3).key("ready").schedule()
    jobs.task(pick, 4).after(86_400).key("later").schedule()
    jobs.task(pick, 5).key("nightly").daily_at(2, 30).schedule()
    jobs.task(pick, 6).queue("slow").key("held").schedule()
    jobs.pause(queue="slow")
    jobs.close()


if __name__ == "__main__":
    {"feed": feed, "fill": fill}[sys.argv[1]](*sys.argv[2:])
