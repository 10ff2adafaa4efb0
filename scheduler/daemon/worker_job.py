"""The process of an elastic worker: ``python -P -m scheduler.daemon.worker_job EXECUTOR JOB --queues A,B …``.

An executor with ``place = "worker"`` starts it. It is a daemon with the same configuration, but for what belongs to one
process: it places nothing, receives no messages, and opens no listener.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.config.alerts import Alerts
from scheduler.config.executors import Gateway
from scheduler.config.load import load
from scheduler.config.messages import DoorSection
from scheduler.config.model import Config, ConsoleSection, MetricsSection
from scheduler.daemon.bounded_run import BoundedRun, add_options
from scheduler.daemon.main import build, leave, prepare, serve
from scheduler.errors import SchedulerError, StoreUnavailableError
from scheduler.model.placement import CANNOT_RUN, NOT_MINE
from scheduler.model.texts import printable
from scheduler.nonblocking import say
from scheduler.system.signals import ignore_hangup

if TYPE_CHECKING:
    from scheduler.daemon.supervisor import Service
    from scheduler.engine.placed import ElasticEngine

UNREACHABLE = 5


def main(argv: Sequence[str] | None = None) -> int:
    """Run the worker until it has nothing to do, or its lifetime is over; returns the exit status."""
    ignore_hangup()
    prepare()
    parser = argparse.ArgumentParser(prog="scheduler.daemon.worker_job", description="Runs an executor's worker.")
    parser.add_argument("executor")
    parser.add_argument("job")
    add_options(parser)
    given = parser.parse_args(argv)
    bounds = BoundedRun.of(given)
    engines: list[ElasticEngine] = []

    def build_worker(config: Config) -> Service:
        from scheduler.app import Scheduler
        from scheduler.engine.placed import ElasticEngine

        def make(*args: Any, **options: Any) -> ElasticEngine:
            engines.append(ElasticEngine(*args, **options))
            return engines[-1]

        jobs = build(config)
        assert isinstance(jobs, Scheduler)
        jobs.be_worker_of(given.executor, given.job, make)
        return jobs

    try:
        ended = serve(_own_part(bounds.applied(load())), build_worker, bounds)
    except SchedulerError as error:
        say(printable(f"schedd worker: {error}"))
        return UNREACHABLE if isinstance(error, StoreUnavailableError) else CANNOT_RUN
    return NOT_MINE if any(engine.not_wanted for engine in engines) else ended.status


def _own_part(config: Config) -> Config:
    """The configuration without what one daemon of a machine, or of the fleet, does."""
    return msgspec.structs.replace(
        config,
        metrics=msgspec.structs.replace(config.metrics, listen=MetricsSection().listen),
        console=msgspec.structs.replace(config.console, listen=ConsoleSection().listen),
        alerts=Alerts(),
        door=DoorSection(),
        gateway=Gateway(),
        sources={},
        sinks={},
        executors={},
    )


if __name__ == "__main__":
    leave(main())
