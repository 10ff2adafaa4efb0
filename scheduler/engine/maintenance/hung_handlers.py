"""Handlers that hang: past their timeout and impossible to interrupt, or blocking the event loop that others share.

A thread cannot be ended from outside, nor can a coroutine that does not await. So a hang is reported with the stack of
its thread: in the log, in ``schedctl show``, and in the worker's published capacity.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.place import Threads, stack_of
from scheduler.engine.slots import AsyncSlots, Slots
from scheduler.engine.state import EngineState
from scheduler.model.capacity import PROCESS, HungHandler, SlotKey
from scheduler.model.defaults import POOLS
from scheduler.model.texts import rfc3339, storable
from scheduler.ports import SECOND
from scheduler.store.tasks.attempts import stack_name, write_values

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

HUNG_AFTER_S = 5.0  # past its timeout, or without a round of its event loop
MAX_NAMED = 50  # tasks that stand still because of one


class HungHandlers:
    """See the module. Only the engine's loop uses it."""

    def __init__(self, engine_state: EngineState, slots: Mapping[SlotKey, Slots]) -> None:
        self._state = engine_state
        self._slots = slots
        self._known: dict[tuple[int, int, bool], HungHandler] = {}
        self._counts: Counter[SlotKey] = Counter()  # of hanging handlers, orphans included

    def check(self, connection: sa.Connection, worker: int) -> None:
        """Find hanging handlers, and report the new ones."""
        stacks: dict[tuple[int, int, bool], str] = {}
        found: dict[tuple[int, int, bool], HungHandler] = {}
        self._counts.clear()
        for hang, attempt, thread in self._found():
            key = (hang.task, hang.claim, hang.blocks)
            if attempt is not None:
                self._counts[attempt.slot_key] += 1
                if attempt.lost:
                    continue  # it is published as an orphan
            known = self._known.get(key)
            if known is None:
                stacks[key] = storable(stack_of(attempt, Threads(), thread))
            found[key] = hang if known is None else msgspec.structs.replace(hang, since=known.since)
        for key, stack in stacks.items():
            _log_hang(found[key], worker, stack)
        for key in self._known.keys() - found.keys():
            log.info("a handler no longer hangs", extra={"task": key[0], "kind": self._known[key].kind})
        self._known = found
        self._state.hung = tuple(found[key] for key in sorted(found))
        rows = [(task, stack_name(claim), text) for (task, claim, _), text in stacks.items() if task]
        if rows:
            with self._state.database.write(connection) as tx:
                write_values(tx, rows)

    def clear(self) -> None:
        """Forget all: nothing runs."""
        self._known = {}
        self._counts.clear()
        self._state.hung = ()

    def full_pool(self) -> str | None:
        """The pool whose slots of one type are all taken by hanging handlers; None if there is none."""
        for (priority, slot_type), slots in self._slots.items():
            if slots.size and slot_type != PROCESS and self._counts[priority, slot_type] >= slots.size:
                return POOLS[priority]
        return None

    def only_hung(self) -> bool:
        """Whether all held attempts hang, or wait for one that does; False if none is held."""
        hung = {(hang.task, hang.claim) for hang in self._state.hung}
        hung |= {pair for hang in self._state.hung for pair in hang.behind}
        return bool(hung) and all(key in hung for key in list(self._state.held))

    def _found(self) -> Iterator[tuple[HungHandler, Attempt | None, int]]:
        """Those that hang, and the ident of the thread that blocks a loop, else 0."""
        engine_state = self._state
        mono, now = engine_state.monotonic(), engine_state.now()
        blocked: set[int] = set()
        for (priority, slot_type), slots in self._slots.items():
            if not isinstance(slots, AsyncSlots):
                continue
            for stuck in slots.blocked(mono, HUNG_AFTER_S):
                attempt, behind = stuck.attempt, [a.claimed for a in stuck.behind[:MAX_NAMED]]
                blocked |= {id(a) for a in (attempt, *stuck.behind)}
                task, claim, kind = (0, 0, "") if attempt is None else _named(attempt)
                since = now - round((mono - stuck.since) * SECOND)
                pairs = tuple((c.id, c.claim) for c in behind)
                yield (
                    HungHandler(task, claim, kind, priority, slot_type, since, True, pairs),
                    attempt,
                    stuck.thread,
                )
        for attempt in list(engine_state.held.values()):
            late = attempt.deadline is not None and mono >= attempt.deadline + HUNG_AFTER_S
            if not late or attempt.ended or attempt.slot_key[1] == PROCESS or id(attempt) in blocked:
                continue
            since = (attempt.started_at or now) + (attempt.claimed.timeout or 0)
            yield HungHandler(*_named(attempt), *attempt.slot_key, since), attempt, 0


def _named(attempt: Attempt) -> tuple[int, int, str]:
    return attempt.claimed.id, attempt.claimed.claim, attempt.claimed.kind


def _log_hang(hang: HungHandler, worker: int, stack: str) -> None:
    since = rfc3339(hang.since, exact=False)
    what = f"blocks the event loop of {POOLS[hang.priority]} tasks" if hang.blocks else "is past its timeout"
    log.error(
        "a handler hangs: task %d (%s) %s since %s; %s",
        hang.task,
        hang.kind,
        what,
        since,
        hang.remedy(worker),
        extra={"task": hang.task, "kind": hang.kind, "behind": len(hang.behind), "stack": stack},
    )
