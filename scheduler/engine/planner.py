"""What a turn claims of the lanes that have something due: how much of each, and for which slots."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter

from scheduler.engine.attempt import Attempt
from scheduler.engine.desk import Desk
from scheduler.engine.levels import Turns
from scheduler.engine.limits import Admission, Limits
from scheduler.engine.plan import LEVELS, Plan, Share, allocate
from scheduler.engine.pools import Slots, waiting_since
from scheduler.model.registry import PROCESS, SlotKey
from scheduler.store import claim as claims
from scheduler.store.claim import SUSPECT_LANE, LaneHead, Pick

log = logging.getLogger("scheduler.engine")

_SORT_OF = attrgetter("sort")
HIGH = 0
NEWER = 5.0  # seconds that a kind is left to newer programs after one of its tasks went back as too new
ALONE = 10.0  # seconds: how long a suspect runs by itself, and how old what runs beside it must be
BATCH = (100, 256)  # tasks that one turn records, and that it claims: least, most (one statement on SQLite)
AHEAD = 2  # batches that a pool may have ahead: one runs while the other is recorded
QUICK = 0.0005  # seconds: bodies that one thread runs sooner than eight


class Planner:
    """See the module. ``alone``: a suspect that runs by itself; ``batch``: how much fits into a turn at present."""

    def __init__(self, desk: Desk, slots: Mapping[SlotKey, Slots], limits: Limits) -> None:
        self.desk = desk
        self.slots = slots
        self.limits = limits
        self.alone: Attempt | None = None
        self.batch = BATCH[1]
        self._rotation = 0
        self._places, self._children = Turns(), Turns()  # under max_concurrent_tasks, and of the child processes
        self._share_places: list[int] = []  # the levels that the present plan shares them out among
        self._share_children: list[int] = []
        self._left: dict[str, float] = {}  # kinds left to newer programs, and until when (monotonic)
        self._told: set[str] = set()

    def serves(self, head: LaneHead) -> bool:
        queues = self.desk.options.queues
        if "*" not in queues and head.queue not in queues:
            return False
        kind = claims.kind_of(head.lane)
        if self.desk.registry.get(kind) is None:
            return False
        return not self._left or self._left.get(kind, 0.0) <= self.desk.monotonic()

    def leave_to_newer(self, attempts: Iterable[Attempt]) -> None:
        """These go back since only newer programs can read them: leave their kinds to those for a while."""
        for attempt in attempts:
            kind, options = attempt.kind.name, attempt.kind.options
            self._left[kind] = self.desk.monotonic() + NEWER
            if kind not in self._told:
                self._told.add(kind)
                log.warning(
                    "tasks of kind %s have schema_version %d, this program knows %d: they are left to newer workers",
                    *(kind, attempt.claimed.schema_version, options.schema_version),
                )

    def plan(self, admission: Admission, due: list[LaneHead], held: Sequence[Attempt]) -> Plan:
        """The plan for those lanes that are not at their cap or rate: they take no room from the others. ``held``: what
        this worker holds once the turn has recorded what has ended."""
        if not self.limits.known:
            plan = self._shares(due, held)
            self._note(plan)
            return plan
        before, due = -1, admission.admitted(due)
        while len(due) != before:
            plan = self._shares(due, held)
            admission.look(plan.picks, due)
            before, due = len(due), admission.admitted(due)
        plan = Plan(admission.cut(plan.picks), plan.shares)
        self._note(plan)
        return plan

    def _note(self, plan: Plan) -> None:
        """Whose turn it was, where levels shared something."""
        if self._share_places:
            got = {share.pool for pick in plan.picks for share in plan.shares[claims.LANE_OF(pick)]}
            self._places.gave(self._share_places, got)
        if self._share_children:
            got = {pick.pool for pick in plan.picks if self.sort_of(LaneHead(*claims.LANE_OF(pick), 0)) == PROCESS}
            self._children.gave(self._share_children, got)

    def one_of(self, head: LaneHead) -> Plan:
        """The plan for one task of this lane, while nothing is held; empty if that is not for a thread of its level."""
        kind = self.desk.registry.get(claims.kind_of(head.lane))
        if kind is None or kind.sort == PROCESS or self.desk.options.max_concurrent:
            return Plan([], {})
        slots = self.slots.get((head.pool, kind.sort))
        if slots is None or head.lane.startswith(SUSPECT_LANE) or not self.serves(head):
            return Plan([], {})
        lane = claims.LANE_OF(head)
        return Plan([Pick(*lane, 1)], {lane: [Share(head.pool, 1)]})

    def _shares(self, due: list[LaneHead], held: Sequence[Attempt]) -> Plan:
        desk = self.desk
        self._share_places = self._share_children = []
        if not due or self.alone is not None:
            return Plan([], {})
        self._rotation += 1
        ordinary = [h for h in due if not h.lane.startswith(SUSPECT_LANE) or self.sort_of(h) == PROCESS]
        if len(ordinary) < len(due):
            # A suspect runs beside nothing young: claim nothing until what is held has ended or has shown, by running
            # for a while, that it is not what kills workers. Bounded by ALONE, and by give_back for what waits.
            since = desk.monotonic() - ALONE
            old = [a for a in held if a.started_at is not None and a.started_mono <= since]
            plan = self._plan_suspect([h for h in due if h not in ordinary], old)
            if plan.picks:
                return plan if len(old) == len(held) else Plan([], {})
        budget, pools = self.batch, list(LEVELS)
        if desk.options.max_concurrent:
            budget = max(0, desk.options.max_concurrent - len(held))
            self._share_places = sorted({h.pool for h in ordinary}) if budget else []
            first = self._places.order(self._share_places)
            pools = [*first, *(level for level in LEVELS if level not in first)]
        taken = Counter(map(_SORT_OF, held))
        room = self._room(held, taken, self._in_processes(ordinary, taken))
        return allocate(ordinary, room, budget, self._rotation, self.batch, pools)

    def sort_of(self, head: LaneHead) -> int:
        """What sort of slots runs the tasks of this lane. Suspects run in processes, where they can harm nobody."""
        kind = self.desk.registry.get(claims.kind_of(head.lane))
        assert kind is not None, "only lanes of registered kinds are claimed"
        processes = self.desk.processes
        if processes is not None and head.lane.startswith(SUSPECT_LANE) and processes.can_run(kind):
            return PROCESS
        return kind.sort

    def _in_processes(self, heads: list[LaneHead], taken: Counter[SlotKey]) -> dict[int, int]:
        """How many tasks of each level to claim for the children, which the levels share: not more than are free, or
        they would wait for each other's."""
        due = sorted({h.pool for h in heads if (h.pool, PROCESS) in self.slots and self.sort_of(h) == PROCESS})
        shares = dict.fromkeys(due, 0)
        if not due:
            return shares
        count = self.slots[due[0], PROCESS].size
        held = {level: taken[level, PROCESS] for level in LEVELS}
        free = count - sum(held.values())
        order = self._children.order(due)
        self._share_children = due if free > 0 else []
        for turn in range(max(0, free)):
            shares[order[turn % len(order)]] += 1
        if HIGH in shares and count and not held[HIGH]:
            shares[HIGH] = max(1, shares[HIGH])  # for which the pool has one child more
        return shares

    def _plan_suspect(self, suspects: list[LaneHead], old: list[Attempt]) -> Plan:
        """One suspect that can start once nothing but these old bodies is held; empty if each of its slots has one."""
        desk = self.desk
        taken: dict[SlotKey, int] = {}
        for attempt in old:
            taken[attempt.sort] = taken.get(attempt.sort, 0) + 1

        def room(pool: int, head: LaneHead) -> int:
            kind = desk.registry.get(claims.kind_of(head.lane))
            assert kind is not None
            slots = self.slots.get((pool, kind.sort))
            return 0 if slots is None else max(0, slots.size - taken.get((pool, kind.sort), 0))

        if desk.options.max_concurrent and len(old) >= desk.options.max_concurrent:
            return Plan([], {})
        return allocate(suspects, room, 1, self._rotation, 1)

    def _room(
        self, held: Sequence[Attempt], taken: Counter[SlotKey], in_processes: dict[int, int]
    ) -> Callable[[int, LaneHead], int]:
        desk = self.desk
        horizon = desk.monotonic() - desk.options.ahead
        busy: Counter[SlotKey] = Counter()  # slots whose body outlasts the horizon: they start nothing within the next
        for attempt in held:
            if attempt.started_at is not None and not attempt.ended and attempt.started_mono < horizon:
                busy[attempt.sort] += 1
        in_children = sum(busy[level, PROCESS] for level in LEVELS)

        def moving_of(sort: SlotKey, size: int) -> int:
            if sort[1] != PROCESS:
                return max(0, size - busy[sort])  # lost bodies may be more than its slots
            own = 1 if sort[0] == HIGH and size and not busy[sort] else 0  # the one that the pool has more for it
            return max(own, size - in_children)  # the levels share the others

        def room(pool: int, head: LaneHead) -> int:
            kind = desk.registry.get(claims.kind_of(head.lane))
            assert kind is not None
            sort = (pool, self.sort_of(head))
            slots = self.slots.get(sort)
            if slots is None or (sort[1] == PROCESS and pool != head.pool):
                return 0  # the levels share the processes, so none has to help another
            ahead, moving = 0, moving_of(sort, slots.size)
            mean = desk.means.get(kind.name)
            if mean is not None and kind.name not in self.limits.known and not desk.options.max_concurrent:
                # What the slots will start within the horizon; nothing, while what waits is not moving. Else what a
                # stuck pool has just handed back would be claimed again at once, before others see it.
                ahead = min(AHEAD * self.batch, int(moving * desk.options.ahead / max(mean, 1e-5)))
                if waiting_since(slots) < horizon or (pool != head.pool and mean < QUICK):
                    ahead = 0
            free = slots.size + ahead - taken[sort]
            if sort[1] == PROCESS and not ahead:
                free = min(free, in_processes[pool])
            if free < 0 < moving and waiting_since(slots) >= horizon:
                # The line is longer than the slots, and moves: what quick kinds have ahead keeps no other kind out.
                own = sum(1 for a in held if a.kind is kind and a.sort == sort)
                free = max(free, max(1, slots.size // 2) - own)
            return max(0, free)

        return room
