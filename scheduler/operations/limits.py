"""Limits that are set while workers run: slots of pools; caps and rates of kinds, their keys, and queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET, UnsetType

from scheduler.errors import ConfigError, UnknownWorkerError
from scheduler.model.lanes import LANE_SEPARATOR, check_fairness_key, check_weight
from scheduler.model.live_settings import (
    KEY,
    KIND,
    MAX_SLOTS,
    POOL,
    QUEUE,
    WEIGHT,
    pool_name,
    pool_of,
    rate_value,
    shown,
)
from scheduler.model.names import check_text, check_whole
from scheduler.model.spec import MAX_KEY
from scheduler.model.texts import rfc3339
from scheduler.model.times import instant_us, to_datetime
from scheduler.operations.desk import Desk
from scheduler.store import settings
from scheduler.store.db.tx import Tx
from scheduler.store.read.kinds import KindRecord, get_kind, kind_names, unknown_kind
from scheduler.store.read.names import unknown_queue
from scheduler.store.read.workers import workers

MAX_CAP = 1_000_000
OF_KIND = ("max_concurrency", "rate_limit", "max_per_worker")


class LiveSetting(msgspec.Struct, frozen=True):
    """One live setting. ``subject``: ``pool high``, ``kind Mail``, ``key Mail/ada``, ``queue etl``; it holds since
    ``at``."""

    subject: str
    value: dict[str, Any]
    at: datetime
    actor: str | None
    reason: str | None

    @property
    def source(self) -> str:
        """``schedctl set by alice since 2026-11-24T02:30:00Z: provider down``."""
        by = "" if self.actor is None else f" by {self.actor}"
        why = "" if self.reason is None else f": {self.reason}"
        return f"schedctl set{by} since {rfc3339(instant_us(self.at, 'at'), exact=False)}{why}"


class LimitTarget(NamedTuple):
    """Where a limit holds."""

    scope: str
    name: str

    @property
    def subject(self) -> str:
        """For people, as :class:`LiveSetting` has it."""
        return settings.subject_of(self.scope, self.name)

    def fields(self) -> dict[str, str]:
        """The same as words for a door: ``{"kind": "Mail", "key": "ada"}``."""
        if self.scope == POOL:
            name, worker = pool_of(self.name)
            return {"pool": name, "worker": "" if worker is None else str(worker)}
        if self.scope == KEY:
            kind, key = self.name.split(LANE_SEPARATOR, 1)
            return {KIND: kind, KEY: key} if kind else {KEY: key}
        return {self.scope: self.name}


class SetResult(NamedTuple):
    """``value``: what is set now, empty: nothing; ``unknown``: a sentence about a kind or queue that nothing knows."""

    place: LimitTarget
    value: dict[str, Any]
    changed: bool
    unknown: str | None


class LimitInEffect(NamedTuple):
    """A limit in effect. ``value`` None: there is none; ``setting``: who set it while workers run."""

    name: str
    value: Any
    setting: LiveSetting | None


class InEffect(NamedTuple):
    """``setting``: ``kind Mail max_concurrency``; ``source``: who or what says so."""

    setting: str
    value: Any
    source: str


def place(
    *,
    pool: str | None = None,
    worker: int | None = None,
    kind: str | None = None,
    key: str | None = None,
    queue: str | None = None,
) -> LimitTarget:
    """A pool of all workers or of one, a kind or one key of it, a fairness key of all kinds, or a queue.

    Raises ConfigError.
    """
    one = sum(given is not None for given in (pool, kind if key is None else key, queue)) == 1
    if not one or (worker is not None and pool is None) or (kind is not None and (pool or queue) is not None):
        raise ConfigError("say what to reset: a pool (and a worker), a kind (and a key), a fairness key, or a queue")
    if pool is not None:
        return LimitTarget(
            POOL, pool_name(pool, None if worker is None else check_whole(worker, "worker", 1, 2**63 - 1))
        )
    if kind is None and key is not None:
        return LimitTarget(KEY, f"{LANE_SEPARATOR}{check_fairness_key(key)}")
    if kind is None:
        return LimitTarget(QUEUE, check_text(queue, "a queue"))
    check_text(kind, "a kind")
    if key is None:
        return LimitTarget(KIND, kind)
    return LimitTarget(KEY, f"{kind}{LANE_SEPARATOR}{check_text(key, 'a concurrency key', MAX_KEY)}")


def slots(slots: int | None, async_slots: int | None) -> dict[str, Any]:
    """Values of a pool; None: stays. Raises ConfigError."""
    given = {"slots": slots, "async_slots": async_slots}
    return {name: check_whole(value, name, 0, MAX_SLOTS) for name, value in given.items() if value is not None}


def caps(
    max_concurrency: int | UnsetType | None = UNSET,
    rate_limit: str | UnsetType | None = UNSET,
    max_per_worker: int | UnsetType | None = UNSET,
    weight: float | UnsetType | None = UNSET,
) -> dict[str, Any]:
    """Values of a kind, key or queue; None: no limit, or the weight that the tasks have. Raises ConfigError."""
    given = {"max_concurrency": max_concurrency, "max_per_worker": max_per_worker}
    values: dict[str, Any] = {
        name: None if value is None else check_whole(value, name, 1, MAX_CAP)
        for name, value in given.items()
        if value is not UNSET
    }
    if rate_limit is not UNSET:
        values["rate_limit"] = None if rate_limit is None else rate_value(rate_limit)
    if weight is not UNSET:
        values[WEIGHT] = None if weight is None else check_weight(weight)
    return values


def change(desk: Desk, where: LimitTarget, values: Mapping[str, Any]) -> SetResult:
    """Let these values hold on every worker, beside what is set there already. What runs goes on.

    Raises UnknownWorkerError for a pool of a worker that is not live, ConfigError, StoreUnavailableError.
    """
    if not values:
        raise ConfigError("say what to change")
    if WEIGHT in values and where.scope != KEY:
        raise ConfigError("a weight is that of a fairness key: name the key")
    if where.scope == KEY and KIND not in where.fields() and values.keys() != {WEIGHT}:
        raise ConfigError("caps and rates are those of one kind's key: name the kind, too")
    return _change(desk, where, values, reset=False)


def reset(desk: Desk, where: LimitTarget) -> SetResult:
    """Let hold again what the configuration or the type says; a queue has no limits then."""
    return _change(desk, where, {}, reset=True)


def records(tx: Tx) -> dict[LimitTarget, LiveSetting]:
    """All live settings."""
    return {
        LimitTarget(one.scope, one.name): LiveSetting(
            one.subject, shown(one.value), to_datetime(one.at), one.actor, one.reason
        )
        for one in settings.records(tx)
    }


def of_kind(record: KindRecord | None, live: LiveSetting | None) -> list[LimitInEffect]:
    """The limits of a kind in effect, each with who set it; those without one are left out."""
    given = {} if record is None else shown(record.options)
    value = {} if live is None else live.value
    return [
        LimitInEffect(name, value[name], live) if name in value else LimitInEffect(name, given[name], None)
        for name in OF_KIND
        if name in value or given.get(name) is not None
    ]


def in_effect(desk: Desk) -> list[InEffect]:
    """The slots of each live worker, and the caps and rates of kinds, keys and queues."""
    with desk.read() as tx:
        live = records(tx)
        found = list(_pools(tx, live))
        for name in kind_names(tx):
            for one in of_kind(get_kind(tx, name), live.get(LimitTarget(KIND, name))):
                source = "its type" if one.setting is None else one.setting.source
                found.append(InEffect(f"kind {name} {one.name}", one.value, source))
    return found + [
        InEffect(f"{setting.subject} {name}", value, setting.source)
        for where, setting in live.items()
        if where.scope in (KEY, QUEUE)
        for name, value in setting.value.items()
    ]


def _pools(tx: Tx, live: Mapping[LimitTarget, LiveSetting]) -> Iterator[InEffect]:
    for worker in workers(tx):
        for pool, (threads, tasks) in worker.capacity.pools.items():
            places = (
                LimitTarget(POOL, pool_name(pool, worker.id)),
                LimitTarget(POOL, pool_name(pool)),
            )  # its own weighs more
            found = [live[one] for one in places if one in live]
            for name, size in (("slots", threads), ("async_slots", tasks)):
                stored = next((one for one in found if name in one.value), None)
                source = "its configuration"
                if stored is not None:
                    pending = "" if stored.value[name] == size else f"{stored.value[name]} soon, "
                    source = pending + stored.source
                yield InEffect(f"worker {worker.id} pool {pool} {name}", size, source)


def _change(desk: Desk, where: LimitTarget, values: Mapping[str, Any], *, reset: bool) -> SetResult:
    def work(tx: Tx) -> SetResult:
        unknown = _unknown(tx, where, reset=reset)
        done = settings.change(tx, *where, values, reset=reset)
        live = records(tx).get(where)
        return SetResult(where, {} if live is None else live.value, done, unknown)

    return desk.write(work)


def _unknown(tx: Tx, where: LimitTarget, *, reset: bool) -> str | None:
    """A sentence about a kind or queue that nothing knows. Raises UnknownWorkerError."""
    if where.scope == QUEUE:
        return unknown_queue(tx, where.name)
    if where.scope != POOL:
        kind = where.fields().get(KIND)
        return None if kind is None else unknown_kind(tx, kind)
    worker = pool_of(where.name)[1]
    if worker is not None and not reset and all(found.id != worker for found in workers(tx)):
        raise UnknownWorkerError(worker)
    return None
