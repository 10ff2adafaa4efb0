"""What all parts of an engine share: held attempts, unwritten outcomes, and requests of attempts.

Attempts append outcomes and requests from their own threads; the dispatch cycle takes them. Appends and pops of a deque
are atomic. No wake-up is lost: the engine sets its sleeping flag before its last check, and a producer reads that flag
after its append.
"""

from __future__ import annotations

import queue
import random
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import compress, repeat
from operator import attrgetter, sub
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.runtime import CpuFuture, StoredDrafts
from scheduler.engine.dead_letter_hook import DeadLetterHook
from scheduler.engine.moves import Moves
from scheduler.engine.options import Adjustable, EngineOptions
from scheduler.errors import StoreUnavailableError
from scheduler.model.capacity import Capacity, HungHandler, OrphanedAttempts, SlotKey, UnmovedHandler
from scheduler.model.defaults import RETENTION
from scheduler.model.outcome import Lifetimes, Outcome, OutcomeColumns
from scheduler.model.pauses import Pauses
from scheduler.model.registry import Registry
from scheduler.model.rollup import RollupCounter
from scheduler.ports import SECOND, spawn_thread
from scheduler.store.db import migrate
from scheduler.store.db.begun import Begun
from scheduler.store.db.database import Database
from scheduler.store.db.identity import Identity
from scheduler.store.durable import checkpoints
from scheduler.store.graph import parents
from scheduler.store.requests import children
from scheduler.store.requests.request import Answer
from scheduler.store.tasks.claim import DUE_AT, GROUP_OF
from scheduler.system import LINUX
from scheduler.telemetry.registry import MetricsRegistry
from scheduler.telemetry.traffic import Traffic

if TYPE_CHECKING:
    from scheduler.model.registry import Kind
    from scheduler.store.tasks.claim import Claimed
    from scheduler.telemetry.otel import Tracing

_POLL_S = 0.0003  # seconds between polls of the outcomes
_MAX_IDLE_POLLS = 3  # polls without a new outcome that end the wait
_MEAN_WEIGHT = 0.2  # weight of a new duration in a kind's moving mean
_KIND_OF = attrgetter("kind.name")

_OUTAGE_POLL_S = 0.1  # seconds between tries to read while the database is away
_MAX_NAMED_ORPHANS = 50  # tasks in the published capacity, for each slot type
_MAX_INLINE_CYCLES = 1000  # cycles that an inline attempt waits for another transaction


def _not_noted(_task_id: int, _claim: int) -> None:
    """Note nothing: no file could be made."""


def _no_slots(_pools: Mapping[str, tuple[int, int]]) -> None:
    """Resize nothing: the engine has not made its slots yet."""


class PendingRequest(NamedTuple):
    """A running attempt's request that waits for its commit; see ``store/requests/handle.py``.

    ``at``: monotonic; ``again``: a cycle that failed may have committed it.
    """

    attempt: Attempt
    what: str
    args: Mapping[str, Any]
    answer: Future[Answer]
    at: float
    again: bool = False


class ChildProcesses(Protocol):
    """What the engine needs of its pool of child processes; see ``engine/processes/pool.py``."""

    @property
    def ready_count(self) -> int: ...
    @property
    def backing_off(self) -> bool: ...
    def can_run(self, kind: Kind) -> bool: ...
    def look(self, attempt: Attempt) -> None: ...
    def submit_function(
        self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]
    ) -> CpuFuture[Any]: ...


class EngineState:
    """The shared state; the Runtime of in-process attempts."""

    def __init__(
        self,
        database: Database,
        registry: Registry,
        options: EngineOptions,
        *,
        state: Any = None,
        settings: dict[str, Any] | None = None,
        around_run: Callable[[Any], AbstractContextManager[Any]] | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.database = database
        self.now = database.now
        self.monotonic = database.clock.monotonic
        self.registry = registry
        self.options = options
        self.configured = Adjustable(options.pools, options.max_concurrent)  # live settings hold over it
        self.resize: Callable[[Mapping[str, tuple[int, int]]], None] = _no_slots
        kept = {**RETENTION, **options.retention}
        self.lifetimes = Lifetimes(round(kept["results"] * SECOND), round(kept["keys"] * SECOND))
        self.state = state
        self.settings = settings if settings is not None else {}
        self.around_run = around_run
        self.outcomes: deque[tuple[Attempt, Outcome]] = deque()
        self.requests: deque[PendingRequest] = deque()
        self.put_off: list[PendingRequest] = []  # another transaction blocks them: the next cycle retries
        self.freed: deque[int] = deque()  # counts of tasks that attempts' own commits have made ready
        self.worker = 0  # the id that this engine's claims are held under
        self.identity: Identity | None = None  # of the store that this worker is registered in
        self.pauses = Pauses()  # what this engine knows to be paused
        self.pauses_read: str | None = None  # as it was stored
        self.claims_above = 0  # what the numbers of its claims are above
        self.begun: Begun | None = None  # notes which handlers have begun; None: nowhere
        self.began: Callable[[int, int], None] = _not_noted
        self.lease_expires_at = float("inf")  # when the lease runs out unless it is renewed (monotonic)
        self.lease_needed: float | None = None  # seconds: see ``Lease.measure``
        self.failing = ""  # why two cycles or more in a row have failed
        self.made_for = migrate.HEAD  # the schema that this program knows
        self.unknown_schema: str | None = None  # of the database, if this program does not know it: it claims nothing
        self.held: dict[tuple[int, int], Attempt] = {}
        self.reserved: list[Attempt] = []  # by callers who store what is to take the slot
        self.started_here: deque[Claimed] = deque()  # claimed as they were stored; no cycle has counted them yet
        self.dispatching = False  # a cycle is under way, from its plan to its hand-out
        self.busy_at = self.monotonic()  # when tasks were last claimed, or an attempt ended
        self.losing: set[tuple[int, int]] = set()  # claims taken from attempts that still run
        self.hung: tuple[HungHandler, ...] = ()  # handlers that hang
        self.unmoved: tuple[UnmovedHandler, ...] = ()  # handlers that may hang
        self.moves = Moves()  # of running attempts, not written yet
        self.traffic = Traffic()  # of this process's sources and sinks
        self.means: dict[str, float] = {}  # seconds by kind
        counted = options.rollups or options.metrics
        self.rollups = RollupCounter(GROUP_OF, DUE_AT) if counted else None  # of what the loop recorded
        self.metrics = MetricsRegistry(self.monotonic, self.rollups) if options.metrics else None
        self.tracing: Tracing | None = None  # None: no attempt is traced
        self.dead_letter_hook = DeadLetterHook(None, None)
        self.on_wake: tuple[Callable[[], None], ...] = ()  # called from any thread, when there may be new work
        self.on_ends: Callable[[], None] | None = None  # wakes programs that subscribe to the ends of tasks
        self.processes: ChildProcesses | None = None
        self.drafts: StoredDrafts | None = None
        self.inline: Callable[[], None] | None = None  # set when attempts run in the engine's own thread
        self._rng = rng if rng is not None else random.Random()
        self.closed = False  # the engine has stopped and answers nothing
        self._sleeping = False
        self._rung = False
        self._wakeups: queue.SimpleQueue[None] = queue.SimpleQueue()

    # what attempts call

    @property
    def waits_through_outages(self) -> bool:
        """Whether attempts wait while the database is away; inline ones would wait for ever."""
        return self.inline is None and not self.closed

    def random(self) -> float:
        return self._rng.random()

    def request(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Future[Answer]:
        """Queue a request; the answer comes after its commit, or when the fence is lost."""
        answer: Future[Answer] = Future()
        self.requests.append(PendingRequest(attempt, what, args, answer, self.monotonic()))
        if self.closed:
            self.abort_requests()
        elif self.inline is not None:
            for _ in range(_MAX_INLINE_CYCLES):
                self.inline()
                if answer.done():
                    break
            else:
                raise StoreUnavailableError(f"{what}: another session's open transaction holds what it needs")
        else:
            self._wake()
        return answer

    def is_just_claimed(self, attempt: Attempt) -> bool:
        """Whether no other worker can have claimed the attempt's task since it was submitted."""
        return self.monotonic() - attempt.submitted_at < self.options.renew_every

    def load(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Any:
        """Read something for a running attempt; the answer is JSON-able, as the arguments are.

        ``recorded``: rows (name, type, value, failure) of what earlier attempts recorded, None if this one is no longer
        the task's. ``ends`` of the tasks ``ids``: rows (result as JSON text, failure), in that order; None
        if one has not ended. ``results`` and ``failures`` of its parents, see ``store/graph/parents.py``. While the
        database is away it waits, as a request does, until the lease is lost: None then.
        """
        c = attempt.claimed
        if what == "recorded" and attempt.recorded is not None and self.is_just_claimed(attempt):
            return attempt.recorded
        while True:
            try:
                with self.database.read() as tx:
                    if what == "recorded":
                        found = checkpoints.read(tx, self.worker, c.id, c.claim)
                        return None if found is None else [(name, *recorded) for name, recorded in found.items()]
                    if what == "results":
                        return parents.parent_results(tx, c.id)
                    if what == "failures":
                        return parents.dependency_failures(tx, c.id)
                    assert what == "ends", what
                    return children.results(tx, args["ids"])
            except StoreUnavailableError:
                if not self.waits_through_outages:
                    raise
                if attempt.lost:
                    return None
            time.sleep(_OUTAGE_POLL_S)

    def store(self, attempt: Attempt | None) -> tuple[Database, int, float, Lifetimes]:
        """Where an attempt's own transaction takes place: the database, the worker that holds it, its lease in seconds,
        and how long its result and key are kept."""
        return self.database, self.worker, self.options.lease, self.lifetimes

    def settled(self, attempt: Attempt, outcome: Outcome | None, ready: int) -> None:
        """An attempt's own transaction has committed its success, and ``ready`` tasks may run because of it."""
        attempt.committed_outcome = outcome
        self.freed.append(ready)
        self.wake()

    def decided(self, attempt: Attempt, outcome: Outcome) -> None:
        attempt.decided = outcome

    def cpu(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> CpuFuture[Any]:
        """Run a function in a child process. Where there are none, in a thread; in the caller's own in tests."""
        if self.processes is not None:
            return self.processes.submit_function(attempt, function, args)
        done: CpuFuture[Any] = CpuFuture()
        if LINUX:
            done.set_result(function(*args))
        else:
            spawn_thread(lambda: done.set_by(function, args), "schedd-cpu")
        return done

    def report(self, attempt: Attempt, outcome: Outcome) -> None:
        """An attempt has ended."""
        attempt.marked = True  # it has ended: its row need not say any more that it runs
        self.outcomes.append((attempt, outcome))
        if self._sleeping:  # as nudge() does, without a call: each attempt comes here
            self._wake()

    # what the engine calls

    def note_begins(self, begun: Begun | None) -> None:
        """Note in this file from now on which handlers have begun."""
        before, self.begun = self.begun, begun
        self.began = _not_noted if begun is None else begun.note
        if before is not None:
            before.close()

    def wake(self) -> None:
        """There may be new work, or a request from outside. From any thread."""
        self._rung = True
        self._wake()
        for wake in self.on_wake:
            wake()

    def _wake(self) -> None:
        self._sleeping = False
        self._wakeups.put(None)

    def nudge(self) -> None:
        """A sleeping loop is to see how long it may sleep now."""
        if self._sleeping:
            self._wake()

    @property
    def rung(self) -> bool:
        """Whether a notification came that the loop has not seen yet."""
        return self._rung

    def was_woken(self) -> bool:
        """Whether a notification came since the last call."""
        if not self._rung:
            return False
        self._rung = False  # a later notification counts for the next call
        return True

    def sleep(self, seconds: float) -> None:
        """Wait for an outcome, a request or a notification, at most this long."""
        self._sleeping = True
        if self.outcomes or self.requests or self._rung:
            self._sleeping = False
            return
        try:
            self._wakeups.get(timeout=max(0.0, seconds))
            while True:
                self._wakeups.get_nowait()
        except queue.Empty:
            pass
        self._sleeping = False

    def wait_for_outcomes(self, count: int, seconds: float) -> None:
        """Wait while outcomes keep coming, up to ``count``; a notification or a request ends the wait."""
        until = time.monotonic() + seconds
        seen, idle = len(self.outcomes), 0
        while (
            seen < count and idle < _MAX_IDLE_POLLS and not (self._rung or self.requests) and time.monotonic() < until
        ):
            time.sleep(_POLL_S)
            idle = 0 if len(self.outcomes) > seen else idle + 1
            seen = len(self.outcomes)

    def add_held(self, attempts: Sequence[Attempt]) -> None:
        """Attempts were claimed."""
        if self.claims_above and self.identity is not None:
            for attempt in attempts:
                c = attempt.claimed
                attempt.claimed = c._replace(epoch=self.identity.epoch_of(c.original_id or c.id))
        self.held.update({(a.claimed.id, a.claimed.claim): a for a in attempts})
        self.busy_at = self.monotonic()

    def remove_held(self, attempts: Sequence[Attempt], ends: OutcomeColumns) -> None:
        """Remove attempts whose outcomes (``ends``, in the same order) are recorded, or never can be."""
        found = list(map(self.held.pop, zip(ends.task_ids, ends.claims, strict=True), repeat(None)))
        self.busy_at = self.monotonic()
        started, finished = ends.started_at, ends.finished_at
        if None in found:  # some were removed before
            known = [one is not None for one in found]
            attempts = list(compress(attempts, known))
            started, finished = tuple(compress(started, known)), tuple(compress(finished, known))
        if self.losing:
            self.losing.difference_update(zip(ends.task_ids, ends.claims, strict=True))
        took: dict[str, list[int]] = {}
        kinds = list(map(_KIND_OF, attempts))
        if len(set(kinds)) == 1 and None not in started:  # mostly
            took[kinds[0]] = list(map(sub, finished, started))  # pyright: ignore[reportArgumentType]
        else:
            for kind, begun, ended in zip(kinds, started, finished, strict=True):
                if begun is not None:
                    took.setdefault(kind, []).append(ended - begun)
        for kind, spans in took.items():
            if min(spans) < 0:  # the clock was set back meanwhile
                spans = [span for span in spans if span >= 0]
                if not spans:
                    continue
            newest = sum(spans) / len(spans) / 1e6
            mean = self.means.get(kind)
            old = (1 - _MEAN_WEIGHT) ** len(spans)
            self.means[kind] = newest if mean is None else newest + old * (mean - newest)

    @property
    def orphans(self) -> list[Attempt]:
        """Attempts that still run, but have lost their claims for certain."""
        found = (self.held.get(key) for key in self.losing)
        return [attempt for attempt in found if attempt is not None and attempt.lost]

    def mark_lost(self, attempt: Attempt) -> None:
        """Mark an attempt whose claim was taken; its task does not run here again before it ends."""
        attempt.lost = True
        self.losing.add((attempt.claimed.id, attempt.claimed.claim))
        if attempt.slot is not None:
            attempt.slot.interrupt(attempt)

    def reject_requests(self) -> None:
        """Answer waiting requests as if the claims were lost: the lease has run out."""
        for answer in self._take_requests():
            answer.set_result({"held": False})

    def abort_requests(self) -> None:
        """Fail waiting requests: the engine has stopped, and no commit will follow."""
        self.requests.extend(self.put_off)
        self.put_off = []
        for answer in self._take_requests():
            answer.set_exception(StoreUnavailableError("the engine has stopped"))

    def _take_requests(self) -> Iterator[Future[Answer]]:
        while True:
            try:
                answer = self.requests.popleft().answer
            except IndexError:
                return
            if answer.set_running_or_notify_cancel():
                yield answer

    def capacity(self) -> Capacity:
        """What this worker publishes of its slots, and of the orphans that fill some of them without a claim."""
        options = self.options
        return Capacity(
            **options.pools,
            processes=options.processes.children if LINUX else 0,
            most=options.max_concurrent,
            childless=self.processes is not None and self.processes.backing_off,
            orphans=self._orphaned_attempts(),
            hung=self.hung,
            unmoved=self.unmoved,
            begun="" if self.begun is None else str(self.begun.path),
            lease_needed=self.lease_needed,
            failing=self.failing,
            troubles=self.traffic.troubles,
            job=options.job,
            scale=None,
            schema=self.made_for,
            short_first=options.short_first,
        )

    def _orphaned_attempts(self) -> tuple[OrphanedAttempts, ...]:
        tasks: dict[SlotKey, list[int]] = {}
        for attempt in self.orphans:
            tasks.setdefault(attempt.slot_key, []).append(attempt.claimed.id)
        return tuple(
            OrphanedAttempts(*slot_key, len(ids), tuple(sorted(ids)[:_MAX_NAMED_ORPHANS]))
            for slot_key, ids in sorted(tasks.items())
        )
