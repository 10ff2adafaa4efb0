"""The process of a job: ``python -P -m scheduler.daemon.job EXECUTOR TASK CLAIM``. Executors start it.

It reads the daemon's own configuration, so that no secret is in its arguments, imports the task modules, takes its
claim over as a worker, runs the task, records how it ended, and leaves. A job that is to speak to a gateway has a
token instead of a database, good for one claim, by which a daemon's gateway writes and reads for it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from scheduler.backoff import Backoff
from scheduler.config.load import load
from scheduler.config.paths import settled
from scheduler.config.task_modules import TaskModules
from scheduler.daemon import log
from scheduler.daemon.main import build, leave, prepare
from scheduler.engine.child import cgroups
from scheduler.errors import SchedulerError, StoreUnavailableError
from scheduler.model.placement import CANNOT_RUN, GATEWAY_VARIABLE, GRACE_VARIABLE, NOT_MINE, TOKEN_VARIABLE
from scheduler.model.texts import printable
from scheduler.nonblocking import say

if TYPE_CHECKING:
    from scheduler.app import Scheduler
    from scheduler.engine.gateway.client import GatewayClient
    from scheduler.engine.gateway.messages import Terms
    from scheduler.engine.placed import PlacedClaim, PlacedEngine


DEFAULT_GRACE_S = 10.0
HAND_BACK_AT = 0.5  # of the grace: then a handler that still runs is handed back
DONE, UNREACHABLE = 0, 5
POLL_S = 0.5  # a signal ends the wait at once

logger = logging.getLogger("scheduler.daemon")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one claim; returns the exit status."""
    prepare()
    parser = argparse.ArgumentParser(prog="scheduler.daemon.job", description="Runs one task that an executor placed.")
    parser.add_argument("executor")
    parser.add_argument("task", type=int)
    parser.add_argument("claim", type=int)
    given = parser.parse_args(argv)
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    from scheduler.engine.placed import NotMineError, PlacedClaim

    try:
        return _run(PlacedClaim(given.executor, given.task, given.claim), stopping)
    except SchedulerError as error:
        say(printable(f"schedd job: {error}"))
        if isinstance(error, NotMineError):
            return NOT_MINE
        return UNREACHABLE if isinstance(error, StoreUnavailableError) else CANNOT_RUN


def _run(claim: PlacedClaim, stopping: threading.Event) -> int:
    from scheduler.app import Scheduler

    gateway = take_gateway(claim)
    config = load() if gateway is None else load(environ={**os.environ, **NO_DATABASE})
    config = settled(config)
    config = msgspec.structs.replace(config, log=log.settled(config.log))
    log.configure(config.log)
    cgroups.set_up()
    jobs = build(config)
    assert isinstance(jobs, Scheduler)
    TaskModules(jobs).register(config)
    terms = None if gateway is None else _terms_of(jobs, gateway, stopping)
    if stopping.is_set():  # before the claim is taken over
        return CANNOT_RUN
    if not _can_run(jobs, claim, terms):
        return CANNOT_RUN
    engine = jobs.start_job(claim) if gateway is None else _start(jobs, claim, gateway, terms)
    grace = _grace()
    while not engine.over.wait(POLL_S) and not stopping.is_set():
        if engine.deaf_for() > grace:
            logger.warning("the handler hears nothing: the job ends without it", extra={"task": claim.task_id})
            break
    if stopping.is_set() and not engine.over.is_set():
        logger.info("the job is to end: its task has %g s, then it is handed back", grace * HAND_BACK_AT)
        engine.end_within(grace * HAND_BACK_AT)
        engine.over.wait(grace * HAND_BACK_AT)
    if engine.not_mine:
        jobs.engine.stop(hand_back_running=False)
        say(printable(f"schedd job: {engine.replaced}"))
        return NOT_MINE
    jobs.stop_now()
    return DONE


def _can_run(jobs: Scheduler, claim: PlacedClaim, terms: Terms | None) -> bool:
    """Whether this program has the task's kind, and can read its payload. If not, the claim stays as it is."""
    from scheduler.store import placements

    if terms is not None:
        name, version = terms.kind, terms.schema_version
    else:
        with jobs.database.read() as tx:
            found = placements.kind_of_claim(tx, claim.task_id, claim.number)
        if found is None:
            return True  # which the attach finds, too
        name, version = found
    kind = jobs.registry.get(name)
    if kind is None:
        say(f"schedd job: kind {name!r} is not among the task modules of this configuration")
    elif kind.options.schema_version < version:
        known = kind.options.schema_version
        say(f"schedd job: the task has schema_version {version} of {name}, this code {known}")
    else:
        return True
    return False


def _grace() -> float:
    """Seconds from SIGTERM to SIGKILL, and that a handler has to end after a cancel or its timeout."""
    try:
        return float(os.environ.get(GRACE_VARIABLE, DEFAULT_GRACE_S))
    except ValueError:
        return DEFAULT_GRACE_S


NO_DATABASE = {"SCHEDD_STORE__URL": "sqlite:////nowhere/of-a-job"}  # never opened
WAIT_S = 120.0  # for a gateway, before a job takes its claim over
PAUSES_S = (0.1, 2.0)  # between tries: first, longest


def take_gateway(claim: PlacedClaim) -> GatewayClient | None:
    """A client of the gateway that the environment names; None: this job uses the database.

    The token is taken out of the environment: programs that the handler starts have no use for it.
    """
    urls, token = os.environ.pop(GATEWAY_VARIABLE, ""), os.environ.pop(TOKEN_VARIABLE, "")
    if not urls:
        return None
    for name, value in os.environ.items():
        if token and token in value:  # Ray writes all that a job is given into a variable of its own
            os.environ[name] = value.replace(token, "")
    from scheduler.engine.gateway.client import GatewayClient

    return GatewayClient(urls.split(), claim, token)


def _terms_of(jobs: Scheduler, client: GatewayClient, stopping: threading.Event) -> Terms | None:
    """What the gateway says of the claim; None: the job is to end. Waits for a gateway that is away.

    Raises NotMineError, and StoreUnavailableError after ``WAIT_S``.
    """
    from scheduler.engine.gateway.engine import NO_STORE
    from scheduler.engine.placed import NotMineError

    jobs.database.refusal = NO_STORE
    pauses, until = Backoff(*PAUSES_S), time.monotonic() + WAIT_S
    while not stopping.is_set():
        try:
            return client.look()
        except StoreUnavailableError as error:
            if isinstance(error, NotMineError) or time.monotonic() > until:
                raise
            stopping.wait(pauses.next())
    return None


def _start(jobs: Scheduler, claim: PlacedClaim, client: GatewayClient, given: Terms | None) -> PlacedEngine:
    from functools import partial

    from scheduler.engine.gateway.engine import GatewayEngine

    assert given is not None, "the job is not to end"
    return jobs.start_job(
        claim,
        partial(GatewayEngine, client=client),
        lease=given.lease,
        default_timeout=given.default_timeout,
        rollups=False,
    )


if __name__ == "__main__":
    leave(main())
