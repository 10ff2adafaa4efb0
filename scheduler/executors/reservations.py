"""Reservations: which due tasks an executor places next, claimed under its own row among the workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.engine.dispatch.lane_turns import LaneTurns
from scheduler.engine.dispatch.limits import Admission, Limits
from scheduler.engine.dispatch.planner import PRIORITIES, Plan, allocate
from scheduler.engine.options import EngineOptions
from scheduler.model.lanes import executor_of, kind_of
from scheduler.model.pauses import Pauses
from scheduler.model.registry import Registry
from scheduler.ports import FAILPOINTS
from scheduler.store import placements
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.tasks import claim as claims
from scheduler.store.tasks.claim import Claimed, LaneHead

LANES_PER_LOOK = 2000  # lanes that one look reads; the next one goes on behind them
MAX_BATCH = 200  # jobs of one submission


@dataclass(frozen=True)
class _Scope:
    """What limits are read for: all queues, and the kinds of this program."""

    registry: Registry
    options: EngineOptions


class Reservations:
    """Claims for one executor. ``queues``: those whose tasks it takes though they name no executor."""

    def __init__(self, name: str, queues: tuple[str, ...], database: Database, registry: Registry) -> None:
        self._name = name
        self._queues = frozenset(queues)
        self._database = database
        self._registry = registry
        self._limits = Limits(_Scope(registry, EngineOptions()))
        self._after: LaneHead | None = None  # where the next look at the lanes begins
        self._rotation = 0
        self._turns = LaneTurns()

    def make(self, worker: int, budget: int) -> list[Claimed]:
        """Claim up to ``budget`` due tasks, the most urgent priority first. Raises StoreUnavailableError."""
        budget = min(budget, MAX_BATCH)
        if budget <= 0:
            return []
        with self._database.read() as tx:
            wanted = placements.commands(tx, worker)
            heads = claims.lane_heads(tx, self._after, LANES_PER_LOOK)
            now = tx.now
        self._after = heads[-1] if len(heads) >= LANES_PER_LOOK else None
        pauses = Pauses.of(wanted.pauses)
        due = [head for head in heads if head.run_at <= now and self._takes(head, pauses)]
        if wanted.drain or not due:
            return []
        return self._database.change(lambda tx: self._claim(tx, worker, due, budget))

    def _takes(self, head: LaneHead, pauses: Pauses) -> bool:
        named, kind = executor_of(head.lane), kind_of(head.lane)
        ours = named == self._name or (named is None and head.queue in self._queues)
        return ours and self._registry.get(kind) is not None and not pauses.hold(head.queue, kind)

    def _claim(self, tx: Tx, worker: int, due: list[LaneHead], budget: int) -> list[Claimed]:
        self._rotation += 1
        self._limits.learn(tx)
        self._turns.weights = self._limits.known.weights
        admission = Admission(self._limits, tx)
        before, due = -1, admission.admitted(due)
        plan = Plan([], {})
        while len(due) != before:
            plan = allocate(due, _own_level(budget), budget, self._rotation, budget, PRIORITIES, self._turns.share)
            admission.lock(plan.picks, due)
            before, due = len(due), admission.admitted(due)
        identity = self._database.same.identity
        assert identity is not None, "an open store has one"
        picks = admission.cut(plan.picks, self._turns.start_of)
        claimed = self._turns.charge(claims.claim(tx, worker, picks, above=identity.claims_above), picks)
        self._turns.record([claims.LANE_OF(pick) for pick in picks])
        admission.count(claimed)
        if not claimed:
            return []
        placements.reserve(tx, self._name, claimed, identity.store)
        FAILPOINTS.hit("before placement commit")
        return claimed


def _own_level(budget: int) -> Callable[[int, LaneHead], int]:
    return lambda pool, head: budget if pool == head.priority else 0
