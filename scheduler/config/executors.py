"""``[executors.NAME]``: where tasks run that name an executor."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from scheduler.config.sources import Duration, Section
from scheduler.errors import ConfigError
from scheduler.model.names import is_name
from scheduler.model.placement import MIN_SECRET
from scheduler.model.resources import Resources, is_executor_name, parse_options, parse_resources

Count = Annotated[int, Meta(ge=0)]
ALL_QUEUES = "*"


_OF_WORKERS = (
    "min_workers",
    "max_workers",
    "scale_when_older",
    "cooldown",
    "idle",
    "lifetime",
    "worker_resources",
    "worker_options",
)
_OF_TASKS = ("max_running", "max_pending")
_URL = r"https?://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})?(/[\w./~-]*)?"


class ExecutorSection(Section, frozen=True):
    """``[executors.NAME]``: tasks with ``executor="NAME"`` run as jobs there."""

    # The backend: `process`, `slurm`, `ray`, `kubernetes`, `futures`, or an entry point of `schedd.executors`; its
    # own settings are in [executors](../guides/executors.md#configuration).
    type: str = ""
    # Tasks of these queues that name no executor run there, too; of workers, the queues that they serve.
    queues: tuple[str, ...] = ()
    # Jobs at a time, with those that wait in the backend; 0: no bound.
    max_running: Count = 0
    # Of these so many that have not begun; 0: twice as many as run, 4 at least.
    max_pending: Count = 0
    # The time between two looks at the backend.
    interval: Annotated[Duration, Meta(ge=0.02)] = 1.0
    # A job that was submitted without an answer is looked for after so long, and submitted again if the backend does
    # not know it.
    submit_grace: Annotated[Duration, Meta(gt=0)] = 30.0
    # How long a cancelled job has to end by itself.
    grace: Annotated[Duration, Meta(gt=0)] = 10.0
    # `task`: each job runs one task; `worker`: jobs are [workers](../guides/executors.md#elastic-workers) for
    # `queues`.
    place: Literal["task", "worker"] = "task"
    # Workers that stay without work.
    min_workers: Count = 0
    # Workers at a time, with those that wait in the backend.
    max_workers: Count = 0
    # Another worker is started when a task has been due for so long.
    scale_when_older: Duration = 10.0
    # No other worker is started within so long of the last one's start.
    cooldown: Duration = 10.0
    # A worker ends after so long without a task.
    idle: Duration = 60.0
    # A worker ends within so long; 0: no bound.
    lifetime: Duration = 0.0
    # The `resources` of each worker, as of a task.
    worker_resources: dict[str, Any] = field(default_factory=dict)
    # The `executor_options` of each worker, as of a task.
    worker_options: dict[str, Any] = field(default_factory=dict)
    # Jobs use the database (`direct`), or a daemon's `gateway`.
    store: Literal["direct", "gateway"] = "direct"
    # The configuration file of jobs. Default: the daemon's own.
    job_config: str | None = None
    options: dict[str, Any] = field(default_factory=dict)


def resources_of_worker(executor: ExecutorSection) -> Resources:
    """What each worker of this executor asks for. Raises ConfigError."""
    return parse_resources(executor.worker_resources)


def executor_mistakes(executors: Mapping[str, ExecutorSection]) -> Iterator[tuple[str, str]]:
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
        for setting, why in _mistakes_of_place(executor):
            yield f"executors.{name}.{setting}", why
        for queue in executor.queues:
            if not is_name(queue) and not (executor.place == "worker" and queue == ALL_QUEUES):
                yield f"executors.{name}.queues", f"{queue!r:.80} is not a queue's name"
            elif queue in taken:
                yield f"executors.{name}.queues", f"executor {taken[queue]} has queue {queue} already"
            taken[queue] = name


def _mistakes_of_place(executor: ExecutorSection) -> Iterator[tuple[str, str]]:
    place, others = executor.place, _OF_WORKERS if executor.place == "task" else _OF_TASKS
    default = ExecutorSection()
    for setting in others:
        if getattr(executor, setting) != getattr(default, setting):
            yield setting, f'it has no effect with place = "{place}"'
    if place == "task":
        return
    if not executor.queues:
        yield "queues", 'with place = "worker" it needs the queues that its workers serve'
    if not executor.max_workers:
        yield "max_workers", 'with place = "worker" it needs the number of workers that there may be at a time'
    elif executor.min_workers > executor.max_workers:
        yield "min_workers", f"it is above max_workers, {executor.max_workers}"
    try:
        resources_of_worker(executor)
    except ConfigError as error:
        yield "worker_resources", str(error)
    try:
        parse_options(executor.worker_options)
    except ConfigError as error:
        yield "worker_options", str(error)


class Gateway(Section, frozen=True):
    """``[gateway]``: the address at which jobs of executors with ``store = "gateway"`` reach this daemon, instead
    of the database."""

    # The address at which jobs without a database reach this daemon: `HOST:PORT` or `unix:PATH`. It needs the extra
    # `gateway`; see [executors](../guides/executors.md#the-jobs-store).
    listen: str | None = None
    # Addresses of gateways for such jobs, of any daemons of the store.
    urls: tuple[str, ...] = ()
    # The secret of their tokens, the same in all daemons.
    secret: str | None = None
    # Bytes that a job may send at once.
    max_body: Annotated[int, Meta(ge=64 * 1024, le=256 * 1024 * 1024)] = 16 * 1024 * 1024
    # A file with a certificate, for https.
    cert: str | None = None
    # A file with its key.
    key: str | None = None


def gateway_mistakes(gateway: Gateway, executors: Mapping[str, ExecutorSection]) -> Iterator[tuple[str, str]]:
    """What is wrong with these settings: (dotted name, why)."""
    users = [name for name, executor in executors.items() if executor.store == "gateway"]
    for url in gateway.urls:
        if not re.fullmatch(_URL, url):
            yield "gateway.urls", f"expected URLs such as https://schedd.internal:8470, not {url!r:.100}"
    if users and not gateway.urls:
        yield "gateway.urls", f'jobs of executor {users[0]} have store = "gateway": say where they find one'
    if gateway.secret is None and (users or gateway.listen is not None):
        yield "gateway.secret", "tokens of jobs need it, the same in all daemons: make one with `openssl rand -hex 32`"
    if gateway.secret is not None and len(gateway.secret) < MIN_SECRET:
        yield "gateway.secret", f"it has at least {MIN_SECRET} characters"
    if (gateway.cert is None) != (gateway.key is None):
        yield "gateway.cert", "cert and key come together"
    for name in users:
        if executors[name].job_config is None:
            yield (
                f"executors.{name}.job_config",
                'with store = "gateway" jobs have a configuration file of their own, without [store] and secrets: '
                "name it, such as /etc/schedd/job.toml",
            )
        if executors[name].place == "worker":
            yield f"executors.{name}.store", 'workers need the database: store = "gateway" is for place = "task"'
