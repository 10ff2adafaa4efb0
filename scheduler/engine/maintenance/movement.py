"""Looks every few seconds where long attempts stand: which move, and where and since when the others do not.

What has moved gets its ``last_heartbeat_at``. Where the others stand is stored once they have stood there for a minute,
for ``why`` and ``show``. A long call of C code or a long query stands still, too, so nothing is ended for it. After
``[worker] unmoved_after`` an attempt without any limit of its own is published as a problem.
"""

from __future__ import annotations

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.place import Threads, look, stack_of, where
from scheduler.engine.state import EngineState
from scheduler.model.capacity import MAX_UNMOVED, PROCESS, UnmovedHandler
from scheduler.model.texts import storable
from scheduler.ports import SECOND
from scheduler.store.tasks.attempts import AttemptStanding

LOOK_EVERY = 5.0  # seconds; shorter attempts are never looked at
STANDS_AFTER = 60.0  # without a move, until its stack is stored
MAX_LOOKS = 200  # attempts at a time
MAX_STACKS = 20  # stored at a time
UNUSUAL = 3  # of a kind that has ended here before: how many times as long as usual


class Movement:
    """See the module. Only the engine's loop uses it."""

    def __init__(self, engine_state: EngineState) -> None:
        self._state = engine_state
        self._next = 0  # where the next look begins, among more than MAX_LOOKS

    def check(self) -> None:
        """Look at running attempts."""
        state, mono = self._state, self._state.monotonic()
        running = [a for a in list(state.held.values()) if _runs(a) and mono - a.started_mono >= LOOK_EVERY]
        self._next = self._next % len(running) if len(running) > MAX_LOOKS else 0
        some = (running[self._next :] + running[: self._next])[:MAX_LOOKS]
        self._next += len(some)
        if some:
            threads, stacks = Threads(), MAX_STACKS
            for attempt in some:
                stacks -= self._look(attempt, threads, mono, tell=stacks > 0)
        state.unmoved = self._unmoved(running, mono)

    def clear(self) -> None:
        """Forget all: nothing runs."""
        self._state.unmoved = ()

    def _look(self, attempt: Attempt, threads: Threads, mono: float, *, tell: bool) -> bool:
        """Whether its stack is to be stored."""
        moved = self._has_moved(attempt, threads)
        key = attempt.claimed.id, attempt.claimed.claim
        if moved is None:
            attempt.moved_mono = mono  # whatever it did before
        elif moved:
            attempt.moved_mono = mono
            if attempt.kind.options.stall_after is None:  # else its own signs count alone
                self._state.moves.stamps.add(key)
            if attempt.place is not None:
                attempt.place = None
                self._state.moves.standing[key] = None
        elif attempt.place is None and tell and mono - attempt.moved_mono >= STANDS_AFTER:
            at, stack = attempt.child_place or ("", "")
            if not at:  # no child, or it is in a function that is not Python's
                at, stack = where(attempt, threads), stack_of(attempt, threads)
            since = self._state.now() - round((mono - attempt.moved_mono) * SECOND)
            attempt.place = storable(at)
            self._state.moves.standing[key] = AttemptStanding(since, attempt.place, storable(stack))
            return True
        return False

    def _has_moved(self, attempt: Attempt, threads: Threads) -> bool | None:
        """Whether it has moved since the last look; None: this is the first one."""
        in_child = attempt.slot_key[1] == PROCESS
        by_child, attempt.child_moved = attempt.child_moved, False
        before, attempt.seen = attempt.seen, None if in_child else look(attempt, threads)
        first = not attempt.looked_at
        attempt.looked_at = True
        if self._state.processes is not None and (in_child or attempt.in_child):
            self._state.processes.look(attempt)
        else:
            attempt.child_place = None
        if first:
            return None
        if before is None or attempt.seen is None:
            return by_child
        return by_child or attempt.seen.moved_since(before)

    def _unmoved(self, running: list[Attempt], mono: float) -> tuple[UnmovedHandler, ...]:
        state, after = self._state, self._state.options.unmoved_after
        if not after:
            return ()
        found = [a for a in running if a.place is not None and self._is_unbounded(a, mono)]
        found = [a for a in found if mono - a.moved_mono >= after]
        found.sort(key=lambda a: (a.moved_mono, a.claimed.id))
        now = state.now()
        known = {(one.task, one.claim): one for one in state.unmoved}
        named = []
        for attempt in found[:MAX_UNMOVED]:
            c = attempt.claimed
            since = now - round((mono - attempt.moved_mono) * SECOND)
            fresh = UnmovedHandler(c.id, c.claim, c.kind, since, attempt.place or "")
            same = known.get((c.id, c.claim))
            named.append(fresh if same is None or same.where != fresh.where else same)
        return tuple(named)

    def _is_unbounded(self, attempt: Attempt, mono: float) -> bool:
        """Whether nothing else names it: no timeout, no heartbeat, no usual time."""
        usual = self._state.means.get(attempt.claimed.kind, 0.0)
        bounded = attempt.claimed.timeout is not None or attempt.kind.options.stall_after is not None
        return not bounded and mono - attempt.started_mono >= UNUSUAL * usual


def _runs(attempt: Attempt) -> bool:
    return attempt.started_at is not None and not (attempt.ended or attempt.lost)
