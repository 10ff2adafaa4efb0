"""The state of one attempt. Knows no database."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.engine.attempt.capture import Tail
from scheduler.errors import Cancelled, LeaseLost, Suspended, TaskTimeout
from scheduler.model.capacity import SlotKey
from scheduler.model.outcome import Outcome
from scheduler.model.registry import Kind
from scheduler.ports import SECOND

if TYPE_CHECKING:
    from scheduler.store.durable.resume import Recorded
    from scheduler.store.tasks.claim import Claimed
    from scheduler.telemetry.attempt_trace import AttemptTrace


CountedStarts = tuple[tuple[str, int], ...]  # the names and times under which a start counts: see store/tasks/limits.py


class DurableCalls(Protocol):
    """What the outcome needs of an attempt's durable calls; see ``engine/durable/calls.py``."""

    def finish(self) -> list[str]:
        """End the calls. Returns the recorded names that the handler did not visit."""
        ...

    def note_unvisited(self, unvisited: list[str]) -> None: ...


class Attempt:
    """One execution of a claimed task, from its claim to its outcome."""

    # Defaults of the class: most attempts change few of them, so making one sets four attributes only.
    slot: Any = None
    on_begin: Callable[[], None] | None = None  # called right before the handler
    start_by: int | None = None  # a later start would exceed a rate (microseconds)
    counted_starts: CountedStarts = ()
    started_at: int | None = None
    started_mono = 0.0
    deadline: float | None = None
    ends_at: float | None = None  # when it is handed back, since its job has to end (monotonic)
    cancelled = False
    lost = False
    loss_delivered = False  # the handler was sent LeaseLost
    timed_out = False
    marked = False
    last_activity = 0.0  # its last heartbeat, progress or checkpoint (monotonic)
    stalled = False  # and that is logged
    looked_at = False  # where it stands: see engine/maintenance/movement.py
    seen: Any = None  # at the last look: a Look of place.py
    moved_mono = 0.0  # when it was last seen to have moved (monotonic)
    place: str | None = None  # where it has stood for a while, as that is stored
    in_child = 0  # functions of ctx.cpu that it waits for
    child_moved = False  # since the last look
    child_place: tuple[str, str] | None = None  # where its child stands, and the stack
    asyncio_task: Any = None
    thread = 0  # ident of the handler's thread; 0: an event loop's, or unknown
    isolated = False  # quarantined: it runs in a child process of its own
    tail: Tail | None = None
    tail_written = 0
    recorded: Sequence[Recorded] | None = None  # checkpoints of earlier attempts, if the claim read them
    durable: DurableCalls | None = None  # set by its first durable call
    active = 0  # coroutines that are within a call of their context: see engine/durable/async_driver.py
    committed_outcome: Outcome | None = None  # by its own ctx.transaction()
    suspended: int | None = None  # the handler is unwound; the next attempt is due then (microseconds)
    handler_done = False  # only hooks are left
    ended = False  # the hooks, too
    tasks: weakref.WeakKeyDictionary[Any, Any] | None = None  # asyncio tasks of the handler -> parent
    calls: set[Future[Any]] | None = None  # running calls in threads
    call_threads: set[int] | None = None  # idents of their threads
    kept: list[asyncio.Task[Any]] | None = None  # by ctx.wait_until
    wait_logged = False  # the wait for `kept` and `calls`
    decided: Outcome | None = None  # a failure that stands, whatever its running calls and hooks still do
    trace: AttemptTrace | None = None  # if it is traced
    transaction: Any = None  # the scope of its own, while that is open

    def __init__(self, claimed: Claimed, kind: Kind, slot_key: SlotKey, submitted_at: float) -> None:
        self.claimed = claimed
        self.kind = kind
        self.slot_key = slot_key
        self.submitted_at = submitted_at

    @property
    def pool(self) -> int:
        """The number of the pool whose slot it takes."""
        return self.slot_key[0]

    @property
    def schema_too_new(self) -> bool:
        """Whether a newer program stored the payload: only a newer worker can read it."""
        return self.claimed.schema_version > self.kind.options.schema_version

    def started_tasks(self) -> weakref.WeakKeyDictionary[Any, Any]:
        """The handler's live asyncio tasks, each with the task that started it."""
        if self.tasks is None:
            self.tasks = weakref.WeakKeyDictionary()
        return self.tasks

    def calls_in_threads(self) -> set[Future[Any]]:
        """The running calls of the handler's coroutines in threads."""
        if self.calls is None:
            self.calls = set()
        return self.calls

    def threads_of_calls(self) -> set[int]:
        """The idents of the threads that run these calls."""
        if self.call_threads is None:
            self.call_threads = set()
        return self.call_threads

    def task_ancestry(self) -> list[Any]:
        """The handler's current asyncio task, its parent, and so on; empty in a thread."""
        if not self.tasks:
            return []
        found = [asyncio.current_task()]
        while found[-1] in self.tasks:
            found.append(self.tasks[found[-1]])
        return found

    def concurrent_tasks(self) -> Collection[Any]:
        """The handler's asyncio tasks that an error in the current one does not reach."""
        own = self.task_ancestry()
        return weakref.WeakSet(one for one in list(self.tasks or ()) if one not in own)

    def capture(self, text: str) -> None:
        """Add text to the output that is stored with the attempt."""
        if self.tail is None:
            self.tail = Tail()
        self.tail.add(text)

    def is_of(self, url: object) -> bool:
        """Whether its task is in the store with this URL; yes where that is not known, as in a child process."""
        database = self._database()
        return database is None or database.url == url

    def is_by(self, database: object) -> bool:
        """Whether the Scheduler that has this Database object runs it; yes where that is not known."""
        return self._database() in (None, database)

    def _database(self) -> Any:
        return getattr(getattr(self.slot, "runtime", None), "database", None)

    def check(self, monotonic: float) -> None:
        """Raise Cancelled, LeaseLost, Suspended or TaskTimeout if the handler has to end.

        Raises LeaseLost for a context that outlived its attempt.
        """
        if self.ended:
            raise LeaseLost(f"task {self.claimed.id}: its attempt has ended, so this context is of no use")
        if self.cancelled:
            raise Cancelled(f"task {self.claimed.id} was cancelled")
        if self.lost:
            self.loss_delivered = True
            raise LeaseLost(f"task {self.claimed.id} is no longer held by this worker; nothing it does is recorded")
        if self.suspended is not None:
            raise Suspended(f"task {self.claimed.id} is suspended")
        if self.deadline is not None and monotonic >= self.deadline:
            self.timed_out = True
            raise self.timeout_error()

    def timeout_error(self, more: str = "") -> TaskTimeout:
        return TaskTimeout(f"ran longer than its timeout of {(self.claimed.timeout or 0) / SECOND:g} s{more}")
