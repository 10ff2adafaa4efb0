"""The engine's desk: what it holds, what came in, and what running attempts may ask of it.

Attempts put outcomes and requests here from their own threads; the one turn at a time takes them away. The deques'
appends and pops are atomic, and the wake-up cannot be lost: the engine says that it sleeps before it looks a last
time, a producer looks whether it sleeps after it has put.
"""

from __future__ import annotations

import queue
import random
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from itertools import compress, repeat
from operator import attrgetter, sub
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler.engine import functions
from scheduler.engine.alerts import Alerts
from scheduler.engine.attempt import Attempt
from scheduler.engine.options import EngineOptions
from scheduler.engine.runtime import StoredDrafts
from scheduler.errors import StoreUnavailableError
from scheduler.model.outcome import Ends, Outcome
from scheduler.model.registry import Registry
from scheduler.store import asked_children, checkpoints, relatives
from scheduler.store.asked import Answer
from scheduler.store.database import Database

if TYPE_CHECKING:
    from scheduler.engine.procpool import ProcessPool

_GLANCE = 0.0003  # seconds between looks at what comes in
_GLANCES = 3  # looks after which it has stopped to come in
_WEIGHT = 0.2  # of each duration in a kind's moving mean
_KIND_OF = attrgetter("kind.name")

_AWAY = 0.1  # seconds between tries to read while the database is away
_PATIENCE = 1000  # turns that an attempt in the engine's own thread waits for somebody's transaction to end


class Request(NamedTuple):
    """What a running attempt asks for, waiting for its commit; see ``store/requests.py``. ``at``: monotonic;
    ``again``: it may have been committed already, by a turn that failed then."""

    attempt: Attempt
    what: str
    args: Mapping[str, Any]
    answer: Future[Answer]
    at: float
    again: bool = False


class Desk:
    """See the module. Implements what attempts see as their Runtime."""

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
        self.state = state
        self.settings = settings if settings is not None else {}
        self.around_run = around_run
        self.outcomes: deque[tuple[Attempt, Outcome]] = deque()
        self.requests: deque[Request] = deque()
        self.put_off: list[Request] = []  # somebody's transaction kept them from being answered: the next turn's
        self.freed: deque[int] = deque()  # tasks that may run as attempts' own transactions have committed
        self.worker = 0  # the id that this engine's claims are held under
        self.lapses_at = float("inf")  # when the lease runs out unless it is renewed (monotonic)
        self.held: dict[tuple[int, int], Attempt] = {}
        self.losing: set[tuple[int, int]] = set()  # claims that were taken from bodies that are still under way
        self.means: dict[str, float] = {}  # seconds by kind
        self.alerts = Alerts(None, None)
        self.processes: ProcessPool | None = None
        self.drafts: StoredDrafts | None = None
        self.inline: Callable[[], None] | None = None  # set when attempts run in the engine's own thread
        self._rng = rng if rng is not None else random.Random()
        self.closed = False  # the engine has stopped: nobody will answer
        self._sleeping = False
        self._rung = False
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()

    # what attempts call

    @property
    def patient(self) -> bool:
        """Whether attempts wait for a database that is away: those in the engine's own thread would for ever."""
        return self.inline is None and not self.closed

    def random(self) -> float:
        return self._rng.random()

    def request(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Future[Answer]:
        """Ask for something to be written. The answer comes once it is committed, or the fence is known to be lost."""
        answer: Future[Answer] = Future()
        self.requests.append(Request(attempt, what, args, answer, self.monotonic()))
        if self.closed:
            self.give_up_requests()
        elif self.inline is not None:
            for _ in range(_PATIENCE):
                self.inline()
                if answer.done():
                    break
            else:
                raise StoreUnavailableError(f"{what}: somebody's open transaction holds what it needs")
        else:
            self._wake()
        return answer

    def load(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Any:
        """Read something for a running attempt; the answer is JSON-able, as the arguments are.

        ``recorded``: rows (name, sort, value, failure) of what earlier attempts recorded, None if this one is no longer
        the task's. ``ends`` of the tasks ``ids``: rows (result as JSON text, failure), in that order; None
        if one has not ended. ``results`` and ``failures`` of its parents, see ``store/relatives.py``. While the
        database is away it waits, as a request does, until the lease is lost: None then.
        """
        c = attempt.claimed
        while True:
            try:
                with self.database.read() as connection:
                    if what == "recorded":
                        found = checkpoints.read(connection, self.worker, c.id, c.claim)
                        return None if found is None else [(name, *recorded) for name, recorded in found.items()]
                    if what == "results":
                        return relatives.parent_results(connection, c.id)
                    if what == "failures":
                        return relatives.dependency_failures(connection, c.id)
                    assert what == "ends", what
                    return asked_children.results(connection, self.database.dialect, args["ids"])
            except StoreUnavailableError:
                if not self.patient:
                    raise
                if attempt.lost:
                    return None
            time.sleep(_AWAY)

    def store(self, attempt: Attempt) -> tuple[Database, int, float]:
        """Where an attempt's own transaction takes place: the database, the worker that holds it, and its lease in
        seconds."""
        return self.database, self.worker, self.options.lease

    def settled(self, attempt: Attempt, outcome: Outcome | None, ready: int) -> None:
        """An attempt's own transaction has committed its success, and ``ready`` tasks may run because of it."""
        attempt.settled = outcome
        self.freed.append(ready)
        self.ring()

    def cpu(self, attempt: Attempt, function: Callable[..., Any], args: tuple[Any, ...]) -> functions.Answer[Any]:
        """Run a function in a child process; in the caller's own thread where there are none (tests)."""
        if self.processes is not None:
            return self.processes.compute(attempt, function, args)
        done: functions.Answer[Any] = functions.Answer()
        done.set_result(function(*args))
        return done

    def report(self, attempt: Attempt, outcome: Outcome) -> None:
        """An attempt has ended."""
        attempt.marked = True  # it has ended: its row need not say any more that it runs
        self.outcomes.append((attempt, outcome))
        if self._sleeping:
            self._wake()

    # what the engine calls

    def ring(self) -> None:
        """There may be new work, or a request from outside. From any thread."""
        self._rung = True
        self._wake()

    def _wake(self) -> None:
        self._sleeping = False
        self._bell.put(None)

    def was_rung(self) -> bool:
        """Whether somebody rang since the last call."""
        if not self._rung:
            return False
        self._rung = False  # whoever rings from here on is heard next time
        return True

    def sleep(self, seconds: float) -> None:
        """Wait for something to come in, at most this long."""
        self._sleeping = True
        if self.outcomes or self.requests or self._rung:
            self._sleeping = False
            return
        try:
            self._bell.get(timeout=max(0.0, seconds))
            while True:
                self._bell.get_nowait()
        except queue.Empty:
            pass
        self._sleeping = False

    def gather(self, count: int, seconds: float) -> None:
        """Let outcomes come in, up to so many, at most this long and while they come. Who rings or asks ends it."""
        until = time.monotonic() + seconds
        seen, idle = len(self.outcomes), 0
        while seen < count and idle < _GLANCES and not (self._rung or self.requests) and time.monotonic() < until:
            time.sleep(_GLANCE)
            idle = 0 if len(self.outcomes) > seen else idle + 1
            seen = len(self.outcomes)

    def take_up(self, attempts: Sequence[Attempt]) -> None:
        """Attempts were claimed."""
        self.held.update({(a.claimed.id, a.claimed.claim): a for a in attempts})

    def put_down(self, attempts: Sequence[Attempt], ends: Ends) -> None:
        """These attempts' outcomes (``ends``, in the same order) are recorded, or can never be."""
        found = list(map(self.held.pop, zip(ends.task_ids, ends.claims, strict=True), repeat(None)))
        started, finished = ends.started_at, ends.finished_at
        if None in found:  # put down before
            known = [one is not None for one in found]
            attempts = list(compress(attempts, known))
            started, finished = tuple(compress(started, known)), tuple(compress(finished, known))
        if self.losing:
            self.losing.difference_update(zip(ends.task_ids, ends.claims, strict=True))
        took: dict[str, list[int]] = {}
        kinds = list(map(_KIND_OF, attempts))
        if len(set(kinds)) == 1 and None not in started:  # mostly
            took[kinds[0]] = list(map(sub, finished, started))
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
            old = (1 - _WEIGHT) ** len(spans)
            self.means[kind] = newest if mean is None else newest + old * (mean - newest)

    @property
    def strays(self) -> list[Attempt]:
        """Bodies under way that have lost their claims for certain."""
        found = (self.held.get(key) for key in self.losing)
        return [attempt for attempt in found if attempt is not None and attempt.lost]

    def lose(self, attempt: Attempt) -> None:
        """Its claim was taken from this attempt: should this process claim it again, it does not run beside it."""
        attempt.lost = True
        self.losing.add((attempt.claimed.id, attempt.claimed.claim))
        if attempt.slot is not None:
            attempt.slot.interrupt(attempt)

    def refuse_requests(self) -> None:
        """Answer what waits as if the claims were lost: their lease has run out."""
        while True:
            try:
                answer = self.requests.popleft().answer
            except IndexError:
                return
            if answer.set_running_or_notify_cancel():
                answer.set_result({"held": False})

    def give_up_requests(self) -> None:
        """Answer what waits when the engine has ended: there is no other commit."""
        self.requests.extend(self.put_off)
        self.put_off = []
        while True:
            try:
                answer = self.requests.popleft().answer
            except IndexError:
                return
            if answer.set_running_or_notify_cancel():
                answer.set_exception(StoreUnavailableError("the engine has stopped"))
