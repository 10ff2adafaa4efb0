"""A process that runs tasks which publish messages, until none is left; it may kill itself at a failpoint.

``python -m support.publishing CONFIG TYPE FACTORY STAGE POINT``: stores the tasks of the stage (a number) and runs
them, and publishes messages, until SIGKILL at the first hit of POINT; "-": runs and publishes all that there are, to
the end. What dies with two workers is run alone, which takes time: so only the last stage runs tasks of another one.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from scheduler import Context, RetryPolicy, Scheduler, Task
from scheduler.config.load import load
from scheduler.messages.outbox import make_kind, make_outlet
from scheduler.model.outgoing import OUTBOX
from scheduler.model.state import TaskState
from scheduler.ports import FAILPOINTS
from scheduler.transports import types
from support.warm import Forked, warm

PER_STAGE = 3  # tasks of each kind
PER_GROUP = 3  # messages of one group
OFTEN = RetryPolicy(max_attempts=20, min_wait=0.1, max_wait=0.1)
LIVE = [state for state in TaskState if not state.terminal]
LEASE = 1.0  # seconds: the next process waits so long for the tasks of one that was killed


class Told(Task, on_success="sinks.out", retry=OFTEN):
    number: int
    size: int = 0

    def run(self, ctx: Context) -> dict[str, object]:
        return {"number": self.number, **({"more": "x" * self.size} if self.size else {})}


class Telling(Task, retry=OFTEN):
    """Its messages are committed with its success; they are one group, and numbered."""

    number: int

    def run(self, ctx: Context) -> None:
        with ctx.transaction():
            for place in range(PER_GROUP):
                name = f"telling-{self.number}"
                ctx.publish("out", {"group": name, "place": place}, key=f"{name}-{place}", group=name)


def keys_of(stages: int) -> set[str]:
    """The keys of all messages that the tasks of so many stages publish."""
    numbers = range(stages * PER_STAGE)
    return {f"Told:told-{n}" for n in numbers} | {f"telling-{n}-{place}" for n in numbers for place in range(PER_GROUP)}


def jobs_of(config_file: str | Path, type_name: str, factory: str, queues: Sequence[str] = ("*",)) -> Scheduler:
    types.OWN[types.SINKS][type_name] = factory  # type: ignore[index]
    config = load(str(config_file), {})
    jobs = Scheduler(config.store.url, queues=queues, lease=LEASE)
    jobs.register(Told)
    jobs.register(Telling)
    for name in config.sinks:
        jobs.register(make_kind(make_outlet(config, name, jobs.database, jobs.traffic), jobs.database))
    return jobs


def start(config_file: Path, rig: object, stage: int, point: str = "-") -> Forked:
    """The process, forked from one that has imported what it needs."""
    arguments = [str(config_file), rig.type_name, rig.sink_factory, str(stage), point]  # type: ignore[attr-defined]
    return warm.start("support.publishing", arguments, Path(__file__).parents[1], dict(os.environ), [0, 1, 2])


def main() -> None:
    config_file, type_name, factory, stage, point = sys.argv[1:]
    queue = f"stage-{stage}"
    published = [OUTBOX] if point.startswith("outbox.") else []
    jobs = jobs_of(config_file, type_name, factory, ["*"] if point == "-" else [queue, *published])
    for number in range(int(stage) * PER_STAGE, (int(stage) + 1) * PER_STAGE):
        jobs.task(Told(number)).key(f"told-{number}").queue(queue).schedule()
        jobs.task(Telling(number)).queue(queue).schedule()

    def hit(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    FAILPOINTS.hit = hit
    with jobs:
        while jobs.list_tasks(LIVE, limit=1):
            time.sleep(0.05)


if __name__ == "__main__":
    main()
