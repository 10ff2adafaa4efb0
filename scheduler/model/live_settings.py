"""Live settings: what operators have changed while daemons run; stored, and in effect over what programs say. Pure.

``pool``: slots of a pool, of all workers or of one; ``kind``: a kind's cap, rate, and cap of each worker; ``key``: cap
and rate of one concurrency key of a kind, and the weight of a fairness key, of one kind or of all; ``queue``: cap and
rate of a queue, over all kinds in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.defaults import POOLS
from scheduler.model.rate import Rate, parse_rate

POOL, KIND, KEY, QUEUE = "pool", "kind", "key", "queue"
WEIGHT = "weight"  # of a fairness key, among the values of a key
MAX_SLOTS = 10_000
_WORKER = "@"  # between a pool's name and a worker's id


def pool_name(pool: str, worker: int | None = None) -> str:
    """The name under which a pool's slots are stored. Raises ConfigError."""
    if pool not in POOLS:
        raise ConfigError(f"there is no pool {pool!r}; there are {', '.join(POOLS)}")
    return pool if worker is None else f"{pool}{_WORKER}{worker}"


def pool_of(name: str) -> tuple[str, int | None]:
    """The pool and the worker of a name that :func:`pool_name` made."""
    pool, _, worker = name.partition(_WORKER)
    return pool, int(worker) if worker else None


def rate_value(text: str) -> list[int]:
    """A rate as it is stored. Raises ConfigError."""
    rate = parse_rate(text)
    return [rate.count, rate.period]


class EffectiveSettings:
    """Parsed live settings, as engines apply them."""

    def __init__(self, rows: Mapping[tuple[str, str], Mapping[str, Any]] | None = None) -> None:
        self.rows = {} if rows is None else rows

    @classmethod
    def of(cls, stored: str | None) -> EffectiveSettings:
        """From JSON rows (scope, name, value as JSON text); what no version of ours wrote is left out."""
        found: dict[tuple[str, str], Mapping[str, Any]] = {}
        try:
            rows = [] if stored is None else msgspec.json.decode(stored, type=list[tuple[str, str, str]])
        except msgspec.MsgspecError:
            rows = []
        for scope, name, text in rows:
            value = decode(text)
            if value:
                found[scope, name] = value
        return cls(found)

    def pools(self, configured: Mapping[str, tuple[int, int]], worker: int) -> dict[str, tuple[int, int]]:
        """(thread slots, async slots) by pool of this worker, over what is configured."""
        made = {}
        for pool in POOLS:
            threads, tasks = configured.get(pool, (0, 0))
            for name in (pool, f"{pool}{_WORKER}{worker}"):  # the worker's own weighs more
                value = self.rows.get((POOL, name), {})
                threads, tasks = _slots(value, "slots", threads), _slots(value, "async_slots", tasks)
            made[pool] = (threads, tasks)
        return made

    def limits(self) -> dict[tuple[str, str], Mapping[str, Any]]:
        """What is set of kinds, keys and queues."""
        return {place: value for place, value in self.rows.items() if place[0] in (KIND, KEY, QUEUE)}


def decode(text: str | None) -> dict[str, Any]:
    """A stored value; empty for a text that no version of ours wrote."""
    try:
        return {} if text is None else msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError:
        return {}


def _slots(value: Mapping[str, Any], name: str, present: int) -> int:
    found = value.get(name)
    return found if isinstance(found, int) and 0 <= found <= MAX_SLOTS else present


def shown(value: Mapping[str, Any]) -> dict[str, Any]:
    """A stored value for people: a rate as ``100/min``."""
    rate = value.get("rate_limit")
    return {**value, "rate_limit": str(Rate(*rate))} if rate is not None else dict(value)
