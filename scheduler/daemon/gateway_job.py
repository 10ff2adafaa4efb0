"""A job that has no database: a daemon's gateway writes and reads for it, by a token that is good for one claim."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from scheduler.backoff import Backoff
from scheduler.errors import StoreUnavailableError
from scheduler.model.placement import GATEWAY_VARIABLE, TOKEN_VARIABLE

if TYPE_CHECKING:
    from scheduler.app import Scheduler
    from scheduler.engine.gateway.client import GatewayClient
    from scheduler.engine.gateway.messages import Terms
    from scheduler.engine.placed import Claim, PlacedEngine

NO_DATABASE = {"SCHEDD_STORE__URL": "sqlite:////nowhere/of-a-job"}  # never opened
WAIT_S = 120.0  # for a gateway, before a job takes its claim over
PAUSES_S = (0.1, 2.0)  # between tries: first, longest


def take(claim: Claim) -> GatewayClient | None:
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


def terms(jobs: Scheduler, client: GatewayClient, stopping: threading.Event) -> Terms | None:
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


def start(jobs: Scheduler, claim: Claim, client: GatewayClient, given: Terms | None) -> PlacedEngine:
    """Run the claim."""
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
