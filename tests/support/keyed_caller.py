"""A program that asks ten times for a task with one key, once it is told to: url, conflict and its own name."""

import sys
from typing import Any

from scheduler import DuplicateKeyError, Scheduler, task


@task(kind="echo")
def echo(ctx: Any, text: str) -> None: ...


if __name__ == "__main__":
    url, conflict, name = sys.argv[1:]
    jobs = Scheduler(url)
    jobs.register(echo)
    jobs.database.open()
    print("ready", flush=True)
    sys.stdin.readline()
    made: list[int] = []
    for n in range(10):
        try:
            made.append(jobs.task(echo, f"{name} {n}").key("k", conflict=conflict).schedule())
        except DuplicateKeyError as error:
            made.append(error.existing_id)
    print("got", *[f"{int(i)}:{getattr(i, 'created', False)}" for i in made], flush=True)
