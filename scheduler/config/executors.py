"""``[executors.NAME]``: where tasks run that name an executor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from msgspec import Meta, field

from scheduler.config.section import Section
from scheduler.config.sources import Duration
from scheduler.model.names import is_name
from scheduler.model.resources import is_executor_name

Count = Annotated[int, Meta(ge=0)]


class Executor(Section, frozen=True):
    """``[executors.NAME]``: tasks with ``executor="NAME"`` run as jobs there.

    ``queues``: tasks of these queues that name no executor run there, too. ``max_running``: jobs at a time, those that
    wait in the engine included; 0: no bound. ``max_pending``: of these so many that have not begun; 0: twice as many as
    run, 4 at least. ``interval``: seconds between two looks at the engine. ``submit_grace``: after so many seconds
    without an answer a submitted job is looked for by its name, and submitted again if the engine does not know it.
    ``grace``: seconds that a job has to end by itself when it is cancelled.
    """

    type: str = ""
    queues: tuple[str, ...] = ()
    max_running: Count = 0
    max_pending: Count = 0
    interval: Annotated[Duration, Meta(ge=0.02)] = 1.0
    submit_grace: Annotated[Duration, Meta(gt=0)] = 30.0
    grace: Annotated[Duration, Meta(gt=0)] = 10.0
    options: dict[str, Any] = field(default_factory=dict)


def executor_mistakes(executors: Mapping[str, Executor]) -> Iterator[tuple[str, str]]:
    """What is wrong with these settings: (dotted name, why)."""
    taken: dict[str, str] = {}
    for name, executor in executors.items():
        if not is_executor_name(name):
            yield (
                f"executors.{name}.type",
                f"an executor cannot be called {name!r:.60}: small letters, digits, _ and - after a letter, 40 at "
                'most, and not "local"',
            )
        if not executor.type:
            yield f"executors.{name}.type", "an executor needs the type of its engine, such as process"
        for queue in executor.queues:
            if not is_name(queue):
                yield f"executors.{name}.queues", f"{queue!r:.80} is not a queue's name"
            elif queue in taken:
                yield f"executors.{name}.queues", f"executor {taken[queue]} has queue {queue} already"
            taken[queue] = name
