"""What a job and a daemon's gateway say to each other, as JSON. Times are microseconds, spans seconds.

Each message may come twice, or late: it changes nothing the second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.state import TaskState
from scheduler.store.tasks.claim import Claimed

LOOK, ATTACH, SYNC, LOAD = "look", "attach", "sync", "load"
PATH = "/v1/jobs"


class Terms(msgspec.Struct):
    """The answer to ``look``: what the claim is of, and what the job has to keep to. ``max_body``: bytes."""

    kind: str
    schema_version: int
    lease: float
    default_timeout: int
    max_body: int
    now: int


class Attach(msgspec.Struct, forbid_unknown_fields=True):
    """Take the claim over. ``life``: a random text of this job's process."""

    life: str
    host: str
    pid: int
    version: str


class Attached(msgspec.Struct):
    """``worker``: the id of the job's worker; ``recorded``: what earlier attempts recorded, None: to be loaded."""

    worker: int
    claimed: Claimed
    recorded: list[tuple[str, int, str | None, str | None]] | None
    now: int


class GatewayRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A request of the handler, see ``store/requests/handle.py``."""

    what: str
    args: dict[str, Any]


class Sync(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What the job has to have written, in one transaction, and the question whether it is to end.

    ``renew``: the lease is due; ``log``: the output so far; ``take``: why the claim is to be taken from the handler;
    ``leaves``: the job ends.
    """

    life: str
    worker: int
    renew: bool = False
    log: str | None = None
    asked: Sequence[GatewayRequest] = ()
    take: str | None = None
    outcome: Outcome | None = None
    leaves: bool = False


class Synced(msgspec.Struct):
    """``held``: whether the claim was still the job's; ``renewed``: whether the lease was extended.

    ``answers``: one for each request, None: to be asked again. ``recorded``: whether the outcome is in the store by
    now, None: to be sent again. ``end``: how the attempt ended, if not as the outcome says. ``state``: the task's, if
    it has ended.
    """

    held: bool
    now: int
    renewed: bool = False
    cancelled: bool = False
    answers: list[dict[str, Any] | None] = []
    recorded: bool | None = None
    end: AttemptEnd | None = None
    state: TaskState | None = None


class GatewayLoad(msgspec.Struct, forbid_unknown_fields=True):
    """A read of the handler, see ``EngineState.load``."""

    life: str
    worker: int
    what: str
    args: dict[str, Any]


class Loaded(msgspec.Struct):
    """``error``: what the read raised, for :func:`scheduler.model.checkpoint.revived`."""

    value: Any = None
    error: dict[str, Any] | None = None
