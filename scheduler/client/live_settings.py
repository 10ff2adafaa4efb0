"""``jobs.live_settings``: slots, caps and rates that are changed while workers run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from scheduler.client.builder import check_text
from scheduler.client.threads import CallThreads, in_thread
from scheduler.errors import ConfigError
from scheduler.model.lanes import LANE_SEPARATOR
from scheduler.model.live_settings import KEY, KIND, POOL, QUEUE, pool_name, rate_value, shown, whole
from scheduler.model.registry import MAX_KEY
from scheduler.model.times import to_datetime
from scheduler.store import settings

if TYPE_CHECKING:
    from scheduler.client.tasks import TaskOperations

MAX_CAP = 1_000_000


class LiveSetting(msgspec.Struct, frozen=True):
    """One live setting. ``subject``: ``pool high``, ``kind Mail``, ``key Mail/ada``, ``queue etl``; it holds since
    ``at``."""

    subject: str
    value: dict[str, Any]
    at: datetime
    actor: str | None
    reason: str | None


class LiveSettings:
    """``jobs.live_settings``. A change is stored, recorded in the audit, and in effect on every worker within about a
    second; what runs goes on. Each method returns whether it changed something, and raises ConfigError."""

    def __init__(self, owner: TaskOperations) -> None:
        self._owner = owner

    @property
    def threads(self) -> CallThreads:
        """What the awaited forms wait in."""
        return self._owner.threads

    def pool(
        self, name: str, *, slots: int | None = None, async_slots: int | None = None, worker: int | None = None
    ) -> bool:
        """Change the slots of a pool (high, medium, low), of every worker or of the one with this id, until that ends.

        None: stays. What runs in a slot that is too many goes on.
        """
        given = {"slots": slots, "async_slots": async_slots}
        values = {key: whole(value, key) for key, value in given.items() if value is not None}
        if worker is not None:
            whole(worker, "worker", 1, 2**63 - 1)
        return self._change(POOL, pool_name(name, worker), values)

    def kind(
        self,
        name: str,
        *,
        max_concurrency: int | UnsetType | None = UNSET,
        rate_limit: str | UnsetType | None = UNSET,
        max_per_worker: int | UnsetType | None = UNSET,
    ) -> bool:
        """Change a kind's cap and rate (``"100/min"``), over what its type says, and how many of its tasks each worker
        holds at a time; None: no limit."""
        values = _limits(max_concurrency, rate_limit)
        if max_per_worker is not UNSET:
            values["max_per_worker"] = _cap(max_per_worker, "max_per_worker")
        return self._change(KIND, check_text(name, "a kind"), values)

    def queue(
        self,
        name: str,
        *,
        max_concurrency: int | UnsetType | None = UNSET,
        rate_limit: str | UnsetType | None = UNSET,
    ) -> bool:
        """Change the cap and the rate (``"100/min"``) of a queue, over all kinds in it and beside their own; None: no
        limit."""
        return self._change(QUEUE, check_text(name, "a queue"), _limits(max_concurrency, rate_limit))

    def key(
        self,
        kind: str,
        key: str,
        *,
        max_concurrency: int | UnsetType | None = UNSET,
        rate_limit: str | UnsetType | None = UNSET,
    ) -> bool:
        """Change the limits of one concurrency key of a kind: its cap, over the kind's, and a rate beside the kind's;
        None: no limit."""
        lane = f"{check_text(kind, 'a kind')}{LANE_SEPARATOR}{check_text(key, 'a concurrency key', MAX_KEY)}"
        return self._change(KEY, lane, _limits(max_concurrency, rate_limit))

    def reset(
        self,
        *,
        pool: str | None = None,
        worker: int | None = None,
        kind: str | None = None,
        key: str | None = None,
        queue: str | None = None,
    ) -> bool:
        """Let hold again what the configuration (``pool``, of all workers or one), or the type (``kind``, or one
        concurrency ``key`` of it) says. A ``queue`` has no limits then."""
        one = sum(given is not None for given in (pool, kind, queue)) == 1
        if not one or (worker is not None and pool is None) or (key is not None and not kind):
            raise ConfigError("say what to reset: a pool (and a worker), a kind (and a key), or a queue")
        if pool is not None:
            scope, name = POOL, pool_name(pool, worker)
        elif queue is not None:
            scope, name = QUEUE, queue
        else:
            scope, name = (KIND, str(kind)) if key is None else (KEY, f"{kind}{LANE_SEPARATOR}{key}")
        return self._change(scope, name, {}, reset=True)

    def list(self) -> Sequence[LiveSetting]:
        """All live settings."""
        with self._owner.database.read() as tx:
            found = settings.records(tx)
        return [LiveSetting(s.subject, shown(s.value), to_datetime(s.at), s.actor, s.reason) for s in found]

    def _change(self, scope: str, name: str, values: Mapping[str, Any], *, reset: bool = False) -> bool:
        if not values and not reset:
            raise ConfigError("say what to change")
        done = self._owner.database.change(lambda tx: settings.change(tx, scope, name, values, reset=reset))
        if done:
            self._owner._notify()
        return done

    pool_async = in_thread(pool)
    kind_async = in_thread(kind)
    queue_async = in_thread(queue)
    key_async = in_thread(key)
    reset_async = in_thread(reset)
    list_async = in_thread(list)


def _limits(max_concurrency: int | UnsetType | None, rate_limit: str | UnsetType | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if max_concurrency is not UNSET:
        values["max_concurrency"] = _cap(max_concurrency)
    if rate_limit is not UNSET:
        values["rate_limit"] = None if rate_limit is None else rate_value(rate_limit)
    return values


def _cap(value: int | None, what: str = "max_concurrency") -> int | None:
    return None if value is None else whole(value, what, 1, MAX_CAP)
