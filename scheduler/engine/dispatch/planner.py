"""Plans a claim: how many tasks of each due lane, and for which slots.

Each pool serves its own priority first and, when none of it is ready, the ones above, highest first; high serves only
high. So no flood of one priority takes another's slots, and idle slots help upwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.dispatch.lane_turns import LaneTurns, Starts, Take, evenly
from scheduler.engine.dispatch.lanes import Due, Turn, by_turn, turn_of
from scheduler.engine.dispatch.limits import Admission, DispatchLimits
from scheduler.engine.dispatch.newer_payloads import NewerPayloads
from scheduler.engine.fair_rotation import FairRotation
from scheduler.engine.slots import Slots, waiting_since
from scheduler.engine.state import EngineState
from scheduler.model.capacity import PROCESS, SlotKey
from scheduler.model.defaults import SUSPECT_ALONE_S
from scheduler.model.lanes import (
    QUARANTINE_LANE,
    WAIT_FOR_WORK,
    base_lane,
    delay_of,
    executor_of,
    fairness_of,
    kind_of,
    rank_of,
)
from scheduler.ports import SECOND
from scheduler.store.tasks import claim
from scheduler.store.tasks.claim import LaneClaim, LaneHead
from scheduler.store.tasks.lane_offsets import Lane

_SLOT_KEY_OF = attrgetter("slot_key")
HIGH_PRIORITY = 0
PASS_OVER_S = 5.0  # a suspect that could not be claimed, as another session has locked its row
LANES_LOOKED_AT = 8  # of a limited kind in one plan, and two for each free slot; more if these are full
BATCH_BOUNDS = (100, 256)  # tasks in one cycle: least, most
MAX_BATCHES_AHEAD = 2  # one runs while the other is recorded
FEW_STARTS = 16  # fewer go to the lanes with the shortest graphs first
SHORT_TASK_S = 0.0005  # one thread runs shorter tasks faster than eight
PRIORITIES = (0, 1, 2)
_new = tuple.__new__  # faster than the named tuple's own constructor
Share = Callable[[Sequence[LaneHead]], Take]
PlaceOf = Callable[[LaneHead], float | None]


class PoolShare(NamedTuple):
    """Up to ``most`` of the tasks claimed from a lane are for this pool."""

    pool: int
    most: int


class ClaimPlan(NamedTuple):
    picks: list[LaneClaim]
    shares: dict[tuple[str, str, int], tuple[PoolShare, ...]]  # by (queue, lane, priority), in the order of hand-out


class ClaimPlanner:
    """Plans claims. ``alone``: a suspect that runs by itself; ``batch``: tasks that fit into a cycle now."""

    def __init__(self, engine_state: EngineState, slots: Mapping[SlotKey, Slots], limits: DispatchLimits) -> None:
        self.engine_state = engine_state
        self.slots = slots
        self.limits = limits
        self.alone: Attempt | None = None
        self.chosen: Callable[[LaneHead], bool] | None = None  # the lanes that a test drains; None: all
        self.batch = BATCH_BOUNDS[1]
        self._rotation = 0
        self.turns = LaneTurns()
        self._places, self._children = (
            FairRotation(),
            FairRotation(),
        )  # under max_concurrent_tasks, and of the child processes
        self._share_places: list[int] = []  # the priorities that the present plan shares them out among
        self._share_children: list[int] = []
        self.newer = NewerPayloads(engine_state)
        self._passed_over: dict[tuple[Lane, int], float] = {}  # suspects by lane and id, and until when (monotonic)

    def serves(self, head: LaneHead, *, chosen: bool = False) -> bool:
        """Whether this worker claims tasks of the lane: of its queues and kinds, none paused, none for an executor but
        the one that has started it. ``chosen``: whatever a test drains."""
        options = self.engine_state.options
        if not options.any_executor and executor_of(head.lane) not in (None, options.executor):
            return False
        if self.chosen is not None and not (chosen or self.chosen(head)):
            return False
        return self.serves_kind(head.queue, kind_of(head.lane))

    def serves_kind(self, queue: str, kind: str) -> bool:
        """Whether this worker claims tasks of the kind in this queue, if no executor is to start their workers."""
        state = self.engine_state
        queues, pauses = state.options.queues, state.pauses
        if state.registry.get(kind) is None or ("*" not in queues and queue not in queues):
            return False
        return not (pauses and pauses.hold(queue, kind))

    def pass_over(self, due: Due, picks: Iterable[LaneClaim]) -> None:
        """Leave alone for a while the suspects of these picks, which gave nothing: all other tasks would wait for them.

        ``due``: what the picks were made of.
        """
        now = self.engine_state.monotonic()
        lanes = {claim.LANE_OF(pick) for pick in picks if pick.lane.startswith(QUARANTINE_LANE)}
        if not lanes:
            return
        self._passed_over = {suspect: until for suspect, until in self._passed_over.items() if until > now}
        found = ((claim.LANE_OF(head), head.id) for heads in due.values() for head in heads)
        self._passed_over |= {suspect: now + PASS_OVER_S for suspect in found if suspect[0] in lanes}

    def _to_try(self, suspects: Due) -> Due:
        """The suspects that are not passed over."""
        if not self._passed_over:
            return suspects
        now, until = self.engine_state.monotonic(), self._passed_over
        some = {
            turn: [head for head in heads if until.get((claim.LANE_OF(head), head.id), 0.0) <= now]
            for turn, heads in suspects.items()
        }
        return {turn: heads for turn, heads in some.items() if heads}

    def plan(self, admission: Admission, due: Due, held: Sequence[Attempt]) -> ClaimPlan:
        """The plan for those lanes that are not at their cap or rate: they take no room from the others. ``held``: what
        this worker holds once the cycle has recorded what has ended."""
        if self.turns.weights is not self.limits.known.weights:
            self.turns.weights = self.limits.known.weights
        if not self.limits.known:
            plan = self._plan(due, held)
            if sum(map(len, due.values())) > 1:
                self.turns.record(plan.shares)
            self._note(plan)
            return plan
        waiting = {turn: self.turns.in_turn(lanes) for turn, lanes in due.items()}
        most = self._most(waiting, held)
        looked: list[LaneHead] = []
        plan = ClaimPlan([], {})
        while waiting:
            for turn, lanes in list(waiting.items()):
                looked += lanes[: most[turn]]
                waiting[turn] = lanes[most[turn] :]
            before, allowed = -1, admission.admitted(looked)
            while len(allowed) != before:
                plan = self._plan(by_turn(allowed), held)
                admission.lock(plan.picks, allowed)
                before, allowed = len(allowed), admission.admitted(allowed)
            # A kind whose lanes are full, each by itself, may have others that are not.
            refused = admission.full_lanes(looked)
            full, spent = {turn_of(head) for head in refused}, {(head.queue, base_lane(head.lane)) for head in refused}
            enough = Counter(map(turn_of, allowed))
            waiting = {
                turn: left
                for turn, lanes in waiting.items()
                if turn in full
                and enough[turn] < most[turn] // 2
                and (left := [head for head in lanes if (head.queue, base_lane(head.lane)) not in spent])
            }
        self.turns.record([claim.LANE_OF(head) for head in admission.full_lanes(looked)])
        plan = ClaimPlan(admission.cut(plan.picks, self.turns.start_of), plan.shares)
        self.turns.record([claim.LANE_OF(pick) for pick in plan.picks])
        self._note(plan)
        return plan

    def _most(self, waiting: Mapping[Turn, list[LaneHead]], held: Sequence[Attempt]) -> dict[Turn, int]:
        """How many lanes of each kind to look at: no row is read for those of a kind without a limit."""
        taken = Counter(map(_SLOT_KEY_OF, held))
        most = {}
        for turn, lanes in waiting.items():
            most[turn] = len(lanes)
            if len(lanes) > LANES_LOOKED_AT and self.limits.known.concern(turn[0], kind_of(turn[2])):
                sort = self.slot_type_of(lanes[0])
                free = [s.size - taken[key] for key, s in self.slots.items() if key[0] >= turn[1] and key[1] == sort]
                most[turn] = LANES_LOOKED_AT + 2 * sum(n for n in free if n > 0)
        return most

    def _note(self, plan: ClaimPlan) -> None:
        """Record which priorities got something, where priorities share slots."""
        if self._share_places:
            got = {share.pool for pick in plan.picks for share in plan.shares[claim.LANE_OF(pick)]}
            self._places.record(self._share_places, got)
        if self._share_children:
            in_children = [p for p in plan.picks if self.slot_type_of(LaneHead(*claim.LANE_OF(p), 0)) == PROCESS]
            got = {pick.priority for pick in in_children}
            self._children.record(self._share_children, got)

    def plan_single(self, head: LaneHead) -> ClaimPlan:
        """The plan for one task of this lane while nothing is held; empty if no slot of its priority fits."""
        kind = self.engine_state.registry.get(kind_of(head.lane))
        if kind is None or kind.slot_type == PROCESS or self.engine_state.options.max_concurrent or self.newer.kinds:
            return ClaimPlan([], {})
        slots = self.slots.get((head.priority, kind.slot_type))
        if slots is None or head.lane.startswith(QUARANTINE_LANE) or not self.serves(head):
            return ClaimPlan([], {})
        lane = claim.LANE_OF(head)
        return ClaimPlan([LaneClaim(*lane, 1)], {lane: (PoolShare(head.priority, 1),)})

    def _plan(self, due: Due, held: Sequence[Attempt]) -> ClaimPlan:
        engine_state = self.engine_state
        self._share_places = self._share_children = []
        if not due or self.alone is not None:
            return ClaimPlan([], {})
        self._rotation += 1
        ordinary = due
        suspects = {
            turn: lanes
            for turn, lanes in due.items()
            if turn[2][:1] == QUARANTINE_LANE and self.slot_type_of(lanes[0]) != PROCESS
        }
        if suspects:
            ordinary = {turn: lanes for turn, lanes in due.items() if turn not in suspects}
            # A suspect runs beside no young attempt: if the process dies, only the suspect can be blamed. An attempt
            # that has run for a while is not the one that kills workers.
            since = engine_state.monotonic() - SUSPECT_ALONE_S
            old = [a for a in held if a.started_at is not None and a.started_mono <= since]
            plan = self._plan_suspect(self._to_try(suspects), old)
            if plan.picks:
                return plan if len(old) == len(held) else ClaimPlan([], {})
        budget, pools = self.batch, list(PRIORITIES)
        if engine_state.options.max_concurrent:
            budget = max(0, engine_state.options.max_concurrent - len(held))
            self._share_places = sorted({turn[1] for turn in ordinary}) if budget else []
            first = self._places.order(self._share_places)
            pools = [*first, *(priority for priority in PRIORITIES if priority not in first)]
        taken = Counter(map(_SLOT_KEY_OF, held))
        room = self._capacity(held, taken, self._in_processes(ordinary, taken))
        return allocate(
            ordinary,
            room,
            budget,
            self._rotation,
            self.batch,
            pools,
            self.turns.share,
            self._place if engine_state.options.short_first else None,
        )

    def _place(self, head: LaneHead) -> float | None:
        """The time by which a lane goes among those of its queue where short graphs go first; None: it takes turns."""
        if not self.engine_state.options.starts_short_first(head.queue) or fairness_of(head.lane).key:
            return None
        delay: float | None = delay_of(head.lane)
        if delay is None:  # a graph of one task
            mean = self.engine_state.means.get(kind_of(head.lane), 0.0)
            slots = self.slots.get((head.priority, self.slot_type_of(head)))
            delay = WAIT_FOR_WORK * mean * SECOND / max(1, slots.size if slots is not None else 1)
        return head.run_at + delay

    def slot_type_of(self, head: LaneHead) -> int:
        """The slot type for this lane. Suspects run in child processes, where a crash harms no other task."""
        kind = self.engine_state.registry.get(kind_of(head.lane))
        assert kind is not None, "only lanes of registered kinds are claimed"
        processes = self.engine_state.processes
        if processes is not None and head.lane.startswith(QUARANTINE_LANE) and processes.can_run(kind):
            return PROCESS
        return kind.slot_type

    def _in_processes(self, due: Due, taken: Counter[SlotKey]) -> dict[int, int]:
        """How many tasks of each priority to claim for the shared child processes: not more than are free."""
        if not any(sort == PROCESS for _, sort in self.slots):
            return {}
        firsts = [lanes[0] for lanes in due.values() if (lanes[0].priority, PROCESS) in self.slots]
        levels = sorted({head.priority for head in firsts if self.slot_type_of(head) == PROCESS})
        shares = dict.fromkeys(levels, 0)
        if not levels:
            return shares
        count = self.slots[levels[0], PROCESS].size
        held = {priority: taken[priority, PROCESS] for priority in PRIORITIES}
        free = count - sum(held.values())
        order = self._children.order(levels)
        self._share_children = levels if free > 0 else []
        for turn in range(max(0, free)):
            shares[order[turn % len(order)]] += 1
        if HIGH_PRIORITY in shares and count and not held[HIGH_PRIORITY]:
            shares[HIGH_PRIORITY] = max(1, shares[HIGH_PRIORITY])  # for which the pool has one child more
        return shares

    def _plan_suspect(self, quarantine: Due, old: list[Attempt]) -> ClaimPlan:
        """One suspect that can start beside these old attempts; empty if no slot is free for it."""
        engine_state = self.engine_state
        taken: dict[SlotKey, int] = {}
        for attempt in old:
            taken[attempt.slot_key] = taken.get(attempt.slot_key, 0) + 1

        def room(pool: int, head: LaneHead) -> int:
            kind = engine_state.registry.get(kind_of(head.lane))
            assert kind is not None
            slots = self.slots.get((pool, kind.slot_type))
            return 0 if slots is None else max(0, slots.size - taken.get((pool, kind.slot_type), 0))

        if engine_state.options.max_concurrent and len(old) >= engine_state.options.max_concurrent:
            return ClaimPlan([], {})
        return allocate(quarantine, room, 1, self._rotation, 1)

    def _capacity(
        self, held: Sequence[Attempt], taken: Counter[SlotKey], in_processes: dict[int, int]
    ) -> Callable[[int, LaneHead], int]:
        engine_state = self.engine_state
        horizon = engine_state.monotonic() - engine_state.options.ahead
        busy: Counter[SlotKey] = Counter()  # slots whose attempt outlasts the horizon
        for attempt in held:
            if attempt.started_at is not None and not attempt.ended and attempt.started_mono < horizon:
                busy[attempt.slot_key] += 1
        in_children = sum(busy[priority, PROCESS] for priority in PRIORITIES)

        def moving_of(slot_key: SlotKey, size: int) -> int:
            if slot_key[1] != PROCESS:
                return max(0, size - busy[slot_key])  # lost attempts may outnumber the slots
            own = (
                1 if slot_key[0] == HIGH_PRIORITY and size and not busy[slot_key] else 0
            )  # the one that the pool has more for it
            return max(own, size - in_children)  # the priorities share the others

        def room(pool: int, head: LaneHead) -> int:
            kind = engine_state.registry.get(kind_of(head.lane))
            assert kind is not None
            slot_key = (pool, self.slot_type_of(head))
            slots = self.slots.get(slot_key)
            if slots is None or (slot_key[1] == PROCESS and pool != head.priority):
                return 0  # the priorities share the processes, so none has to help another
            ahead, moving = 0, moving_of(slot_key, slots.size)
            mean = engine_state.means.get(kind.name)
            limited = self.limits.known.concern(head.queue, kind.name)
            if mean is not None and not limited and not engine_state.options.max_concurrent:
                # What the slots will start within the horizon; nothing, while what waits is not moving. Else what a
                # stuck pool has just handed back would be claimed again at once, before others see it.
                ahead = min(MAX_BATCHES_AHEAD * self.batch, int(moving * engine_state.options.ahead / max(mean, 1e-5)))
                if waiting_since(slots) < horizon or (pool != head.priority and mean < SHORT_TASK_S):
                    ahead = 0
            free = slots.size + ahead - taken[slot_key]
            if slot_key[1] == PROCESS and not ahead:
                free = min(free, in_processes[pool])
            if free < 0 < moving and waiting_since(slots) >= horizon and self._place(head) is None:
                # The line is longer than the slots, and moves: what quick kinds have ahead keeps no other kind out.
                own = sum(1 for a in held if a.kind is kind and a.slot_key == slot_key)
                free = max(free, max(1, slots.size // 2) - own)
            return max(0, free)

        return room


def in_order(heads: Sequence[LaneHead]) -> Take:
    """Starts are shared out evenly."""
    return partial(evenly, heads)


class _Group:
    """Lanes that take their kinds' turns as one: those of a kind, or those of a queue that have a place.

    ``kinds``: how many turns of a round are theirs.
    """

    __slots__ = ("_share", "_take", "heads", "kinds", "placed")

    def __init__(self, heads: list[LaneHead], kinds: int, share: Share, *, placed: bool) -> None:
        self.heads = heads
        self.kinds = kinds
        self.placed = placed
        self._share = share
        self._take: Take | None = None

    def take(self, number: int) -> Starts:
        """So many starts; the next pool gets those that follow."""
        if self._take is None:
            self._take = self._share(self.heads)
        return self._take(number)


def allocate(
    due: Due,
    room: Callable[[int, LaneHead], int],
    budget: int,
    rotation: int,
    most: int,
    pools: Sequence[int] = PRIORITIES,
    share: Share = in_order,
    place: PlaceOf | None = None,
) -> ClaimPlan:
    """Share free slots out over the due lanes, within a priority evenly over their kinds. Pure.

    ``room(pool, head)``: how many more of this lane's tasks the pool can take, running and ahead; ``budget``: over all
    pools; ``rotation``: grows by one each cycle, so that no kind is always first; ``most``: for one pool; ``pools``: in
    the order in which they take of the budget; ``share``: shares starts out over the lanes of a kind; ``place``: of the
    lanes that have one those of a queue take their kinds' turns as one, the lowest first.
    """
    waiting: dict[int, dict[Turn, list[LaneHead]]] = {}
    for turn, lanes in due.items():
        waiting.setdefault(turn[1], {})[turn] = lanes
    ranks: dict[int, list[list[_Group]]] = {}  # by priority
    shares: dict[tuple[str, str, int], tuple[PoolShare, ...]] = {}
    for pool in pools:
        for priority in [pool, *range(pool)]:
            if priority not in waiting or min(budget, most) <= 0:
                continue
            if priority not in ranks:
                ranks[priority] = _by_rank(waiting[priority], share, place)
            taken = _share_out(ranks[priority], pool, room, min(budget, most), rotation)
            alike = {count: (PoolShare(pool, count),) for count in {count for _, count in taken}}
            for head, count in taken:
                lane = head[:3]
                shares[lane] = shares.get(lane, ()) + alike[count]
                budget -= count
            if taken:
                break  # this pool has work of this priority: the priorities above have pools of their own
    picks = [
        _new(LaneClaim, (*lane, of_lane[0][1] if len(of_lane) == 1 else sum(share.most for share in of_lane)))
        for lane, of_lane in shares.items()
    ]
    return ClaimPlan(picks, shares)


def _by_rank(turns: Mapping[Turn, list[LaneHead]], share: Share, place: PlaceOf | None) -> list[list[_Group]]:
    """The lanes of a priority as they take turns, the highest rank first."""
    ranks: dict[int, dict[Turn, list[LaneHead]]] = {}
    places: dict[LaneHead, float] = {}
    for turn, of_kind in turns.items():
        of_rank = ranks.setdefault(rank_of(of_kind[0].lane), {})
        if place is None:
            of_rank[turn] = of_kind
            continue
        for head in of_kind:
            at = place(head)
            if at is not None:
                places[head] = at
            of_rank.setdefault(turn if at is None else (turn[0], turn[1], ""), []).append(head)  # "": no kind's

    def group(heads: list[LaneHead]) -> _Group:
        if heads[0] not in places:
            return _Group(heads, 1, share, placed=False)
        return _Group(sorted(heads, key=places.__getitem__), len(set(map(turn_of, heads))), share, placed=True)

    return [[group(heads) for heads in ranks[rank].values()] for rank in sorted(ranks, reverse=True)]


def _share_out(
    ranks: list[list[_Group]], pool: int, room: Callable[[int, LaneHead], int], budget: int, rotation: int
) -> Starts:
    """By rank first; then evenly over the kinds, then over the lanes of each, or over those that have a place."""
    taken: Starts = []
    rooms: dict[Turn, int] = {}

    def room_of(head: LaneHead) -> int:
        turn = turn_of(head)
        if turn not in rooms:
            rooms[turn] = room(pool, head)
        return rooms[turn]

    used = 0
    for groups in ranks:
        start = rotation % len(groups)
        left = sum(group.kinds for group in groups)
        for group in (*groups[start:], *groups[:start]):
            heads = [head for head in group.heads if room_of(head) > used] if group.placed else group.heads
            free = min(room_of(heads[0]), budget) - used if heads else 0
            if free > 0:
                fair = -(-free * group.kinds // left)
                taken += _by_place(heads, fair, room_of, used).items() if group.placed else group.take(fair)
                used += fair
            left -= group.kinds
    return taken


def _by_place(
    heads: Sequence[LaneHead], number: int, room_of: Callable[[LaneHead], int], used: int
) -> dict[LaneHead, int]:
    """Half of the starts to the first lane, half of the rest to the next: how many tasks a lane has is not known, and
    what one lane leaves is not to stay free. Many are mostly quick ones ahead of the slots, so every lane gets some."""
    shares = dict(evenly(heads, number)) if number > FEW_STARTS else {}
    taken: dict[LaneHead, int] = {}
    given = 0
    for head in heads:
        most = min(number, room_of(head) - used) - given
        if most > 0:
            taken[head] = min(most, shares.get(head, -(-most // 2)))
            given += taken[head]
        if given == number:
            break
    return taken
