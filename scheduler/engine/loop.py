"""The engine: one worker in one process. Waits, wakes, takes turns, keeps its lease, drains and stops."""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from scheduler.engine.alerts import Alerts, Hook
from scheduler.engine.attempt import Attempt
from scheduler.engine.desk import Desk
from scheduler.engine.duties import CANCEL_EVERY, EARLY, Duties
from scheduler.engine.guard import Guard
from scheduler.engine.logs import Capture
from scheduler.engine.membership import Membership
from scheduler.engine.options import EngineOptions
from scheduler.engine.pools import InlineSlots, make_slots, waiting_since
from scheduler.engine.recorder import Recorder
from scheduler.engine.runtime import StoredDrafts
from scheduler.engine.turn import Turner
from scheduler.engine.upkeep import Lease
from scheduler.engine.verdict import hand_back
from scheduler.errors import StoreUnavailableError
from scheduler.model.outcome import Outcome
from scheduler.model.registry import Registry
from scheduler.ports import FOREVER, SECOND, Spawner, random_incarnation, spawn_thread
from scheduler.store import read_counts, waits, workers
from scheduler.store.database import Database
from scheduler.store.doorbell import Bell
from scheduler.store.wires import let_go

if TYPE_CHECKING:
    import sqlalchemy as sa

log = logging.getLogger("scheduler.engine")

URGENT_OVER = 50  # outcomes to be written from which on a high task that was rung for does not wait for them
STUCK = 0.005  # seconds after which what waits in a pool gets more slots woken
GIVE_WAY = 0.0002  # seconds for slots that were just woken to begin: they wait for the interpreter, which we have
AGAIN = 0.1  # seconds until outcomes are tried again whose rows somebody's transaction holds
BACK_OFF = (0.1, 2.0)  # seconds between tries while the database is away: first, most
HAND_BACK_DELAY = 2 * SECOND
COUNTED = 10_000  # tasks of each sort that the first line in the log counts, at most
JOIN = 15.0  # seconds to wait for the end of a turn


class Engine:
    """See the module. ``inline``: no threads at all, attempts run when :meth:`step` is told so (tests)."""

    def __init__(
        self,
        database: Database,
        registry: Registry,
        options: EngineOptions,
        *,
        state: Any = None,
        settings: dict[str, Any] | None = None,
        around_run: Callable[[Any], AbstractContextManager[Any]] | None = None,
        on_dead_letter: Hook | None = None,
        drafts: StoredDrafts | None = None,
        rng: random.Random | None = None,
        spawn: Spawner = spawn_thread,
        incarnation: Callable[[], str] = random_incarnation,
        inline: bool = False,
        version: str = "",
    ) -> None:
        self.database = database
        self.desk = Desk(database, registry, options, state=state, settings=settings, around_run=around_run, rng=rng)
        self.desk.drafts = drafts
        self.desk.alerts = Alerts(on_dead_letter, None if inline else spawn)
        self.options = options
        self.inline = inline
        self._spawn = spawn
        self.slots = make_slots(self.desk, spawn, inline=inline)
        beside = database.dialect.name == "postgresql"
        recorder = Recorder(database, options.lease, None if inline else spawn) if beside else None
        self.turner = Turner(self.desk, self.slots, recorder)
        self.lease = Lease(self.desk, lapses=not inline)
        self.guard = Guard(self.desk, self._last_sign, lambda: self._thread.ident if self._thread else None)
        self.duties = Duties(self.desk, self.turner, self.lease)
        self.membership = Membership(
            self.desk,
            self.turner,
            self.duties,
            self.guard,
            spawn=None if inline else spawn,
            new_incarnation=incarnation,
            version=version,
        )
        self.draining = False  # it is about to stop
        self.handed_back: list[int] = []  # tasks that still ran at a hard stop, and now wait for a worker
        self.pid = os.getpid()
        self.turns = 0
        self._connection: sa.Connection | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._stopping = threading.Lock()
        self._quiet = threading.Event()  # draining, and no turn that began before it is under way any more
        self._ended = threading.Event()
        self._ready = threading.Event()
        self._went_round = 0.0
        self._next_due = 0
        self._rescan = True  # there may be work where there was none
        self._go_on = False  # the last turn did not get to the end of what it knew
        self._away = 0.0
        self._told = ""
        self.capture = Capture(everything=options.capture_root)
        if inline:
            self.desk.inline = self._inline_requests

    # starting

    @property
    def worker(self) -> int:
        """The id of this engine's row in the workers table; 0 before it has one."""
        return self.membership.worker

    @property
    def claims(self) -> bool:
        """Whether it takes new work: neither about to stop nor told to drain."""
        return not (self.draining or self.membership.told_to_drain)

    def loop_age(self) -> float:
        """Seconds since the loop last went round; it goes round while the database is away, too."""
        return self.desk.monotonic() - self._went_round

    def _last_sign(self) -> float:
        """When it last went round, or got an answer from the server: a long turn is not one that waits in vain."""
        return max(self._went_round, self.database.answered_at)

    def start(self) -> None:
        """Start the loop in a thread of its own. Raises StoreUnavailableError if the database cannot be opened."""
        self.database.open()
        self._went_round = self.desk.monotonic()
        self.capture.attach()
        self._thread = self._spawn(self._run, "schedd-engine")
        self.guard.start(self._spawn)

    def wait_ready(self, timeout: float | None = None) -> bool:
        """Wait for the end of the first turn. False if it did not come in time."""
        return self._ready.wait(timeout)

    def is_running(self) -> bool:
        return self._thread is not None and not self._ended.is_set()

    def ring(self) -> None:
        """There may be new work."""
        self.desk.ring()

    @property
    def bell(self) -> Bell:
        """By which it wakes the engines of other processes."""
        return self.membership.bell

    def _conn(self) -> sa.Connection:
        if self._connection is None or self._connection.closed or self._connection.invalidated:
            self._drop_connection()
            self._connection = self.database.connect(idle_limit=self.options.lease)
        return self._connection

    def _drop_connection(self) -> None:
        connection, self._connection = self._connection, None
        let_go(connection)
        if self.turner.ledger.recorder is not None:
            self.turner.ledger.recorder.drop_connection()

    # going round

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                pause = self._round()
                if self._stop.is_set():
                    break
                self.desk.sleep(pause)
        except BaseException:
            log.critical("the engine's loop failed", exc_info=True)
            raise
        finally:
            self._ended.set()
            self._ready.set()

    def _round(self) -> float:
        """One pass: upkeep that is due, a turn if there is reason for one. Returns seconds to sleep."""
        self._went_round = self.desk.monotonic()
        if self.draining:
            self._quiet.set()
        try:
            pause = self.step()
            if self._away:
                log.info("the database is back")
                self._away, self._told = 0.0, ""
            if not self._ready.is_set():
                self._ready.set()
                self._report_start()
            return pause
        except StoreUnavailableError as error:
            if self._told != str(error):
                log.error("the database is away, trying again: %s", error)
            self._told = str(error)
            self.lease.be_patient()  # it may be away for the others, too
        except Exception as error:
            # A row or a statement that we did not foresee must not end the loop; it is tried again, and told once.
            if self._told != repr(error):
                log.exception("a turn failed, trying again")
            self._told = repr(error)
        most = min(BACK_OFF[1], self.options.lease / 3)  # the others wait a lease before they take us for dead
        self._away = min(most, max(BACK_OFF[0], self._away * 2))
        self._drop_connection()
        self._rescan = True  # what the turn was for is still to be done
        self._stop.wait(self._away)
        return 0.0

    def step(self) -> float:
        """Upkeep that is due and one turn. Returns how many seconds nothing is due. Raises StoreUnavailableError."""
        connection = self._conn()
        if not self.worker:
            self.membership.join(connection)
        rung = self.desk.was_rung()
        timers = self.duties.timers
        if self.lease.watch_clocks():
            timers.bring_forward("renew")
        # Not under a lease that may have run out, nor what its policies should have cancelled meanwhile.
        on_time = min(timers.left("renew"), timers.left("looks")) > 0
        if rung and self.claims and on_time and self.turner.guess(connection):
            self._give_way()
        fired = self._upkeep(connection)
        self.membership.may_be_asked |= rung  # looked at after the turn
        for slots in self.slots.values():
            if waiting_since(slots) < self.desk.monotonic() - STUCK:
                slots.nudge()
        if rung and self.claims and len(self.desk.outcomes) > URGENT_OVER:
            self.turner.turn(connection, claiming=True, urgent=True)
        if self._wants_turn(rung):
            self._turn(connection, rung)
        if rung:
            self._heed(connection, fired)
        return self._pause()

    def _turn(self, connection: sa.Connection, rung: bool) -> None:
        if not (rung or self._rescan or self._go_on or self.inline):
            self.turner.gather()
        fresh = rung or self._rescan or self.desk.now() >= self._next_due or self._poll_is_due()
        result = self.turner.turn(connection, claiming=self.claims, fresh=fresh)
        self.turns += 1
        self.duties.timers.put("poll", AGAIN if self.turner.ledger.deferred else self._poll_every())
        self._next_due = result.next_due
        self._rescan, self._go_on = False, result.busy
        if not self.claims:
            self.turner.return_waiting()
        if result.schedule_ended:
            self.duties.schedules.look_again()
        # Where it takes a transaction, not for nobody; who has come since the last look polls until the next one, which
        # follows its ring.
        if (result.ready or result.opened) and not (self.bell.dear and self.lease.alone()):
            self.bell.ring()
        if result.schedule_ended or result.unseen or (result.ready and not self.turner.lanes.whole):
            self._rescan = True
        if waits.OVERLOOKED in connection.info:
            self._rescan = True  # so that the next step comes at once and looks for them
        if result.claimed and not (result.finished or self._go_on or self.turner.has_work()):
            self._give_way()

    def _give_way(self) -> None:
        """Let slots that were just handed something begin."""
        if not self.inline:
            time.sleep(GIVE_WAY)

    def _wants_turn(self, rung: bool) -> bool:
        if rung or self._rescan or self._go_on or self.turner.has_work() or self.desk.now() >= self._next_due:
            return True
        if self._poll_is_due():
            return True
        horizon = self.desk.monotonic() - self.options.give_back
        return self.turner.unmarked() or any(waiting_since(s) < horizon for s in self.slots.values())

    def _poll_is_due(self) -> bool:
        return self.duties.timers.left("poll") <= EARLY * self._poll_every()

    def _pause(self) -> float:
        if self._rescan or self._go_on or self.turner.has_work() or self.duties.behind:
            return 0.0
        left = self.duties.timers.left
        wait = min(self._poll_every(), left("poll"))
        if self._next_due < FOREVER:
            wait = min(wait, (self._next_due - self.desk.now()) / SECOND)
        wait = min(wait, left("renew"), left("reap"))
        if self.claims:
            wait = min(wait, self.duties.schedules.seconds_until_due())
        if self.membership.may_be_asked:
            wait = min(wait, left("told"))
        if any(s.waiting for s in self.slots.values()):
            wait = min(wait, STUCK)
        elif self.desk.held:
            # A body that has just begun is to be marked running soon.
            unmarked = any(a.started_at is not None and not (a.marked or a.lost) for a in list(self.desk.held.values()))
            wait = min(wait, CANCEL_EVERY / 5 if unmarked else CANCEL_EVERY)
        return max(0.0, wait)

    def _poll_every(self) -> float:
        return self.options.poll if self.bell.works else 0.1

    def _upkeep(self, connection: sa.Connection) -> bool:
        """What is due. Returns whether schedules were fired."""
        duties, timers = self.duties, self.duties.timers
        # An engine renews before it reaps.
        if timers.at("renew", self.options.lease / 3):
            self.membership.renew(connection, claims=self.claims)
            if self.turner.ledger.recorder is not None:
                self.turner.ledger.recorder.forget_plans()
            duties.learn_limits(connection)
        duties.publish(connection)
        if timers.at("look", self.options.lease / 3):
            self.membership.may_be_asked = True
        self._rescan |= self.membership.obey_if_asked(connection)
        polls = self._poll_is_due()
        reclaimed = duties.reap(connection, self.bell, polls=polls)
        duties.make_way(connection)
        if not duties.look(connection, polls=polls and self.turner.at_rest()):
            timers.put("poll", self._poll_every())
        fired = duties.fire(connection, rung=False, claims=self.claims)
        woken = duties.wake_overlooked(connection)
        freed = duties.apply_policies(connection)
        freed |= duties.watch(connection, self._reported, rung=False)
        if freed:
            self.bell.ring()
        self._rescan |= reclaimed or fired or woken or freed
        return fired

    def _heed(self, connection: sa.Connection, fired: bool) -> None:
        """What a ring may mean besides work that waits. Looked for after the turn: mostly it is that."""
        self._rescan |= self.membership.obey_if_asked(connection)
        made = not fired and self.duties.fire(connection, rung=True, claims=self.claims)
        freed = self.duties.watch(connection, self._reported, rung=True)
        if freed:
            self.bell.ring()
        self._rescan |= made or freed

    def _report_start(self) -> None:
        try:
            with self.database.read() as connection:
                counts, more = read_counts.about(connection, COUNTED)  # a million took the loop a second, and 70 MB
        except StoreUnavailableError:
            return
        told: dict[str, Any] = {"worker": self.worker, "incarnation": self.membership.incarnation, **counts}
        log.info("ready", extra=told | {"counted_up_to": COUNTED} if more else told)

    # stopping

    def drain(self) -> None:
        """Claim nothing more; what no slot has started goes back at once."""
        self.draining = True
        self.duties.timers.bring_forward("renew")
        self.turner.return_waiting()
        self.desk.ring()

    def wait_idle(self, timeout: float) -> bool:
        """Wait until nothing is held any more. False if the time was not enough."""
        deadline = self.desk.monotonic() + timeout
        idle = threading.Event()
        # A turn under way when draining began may be claiming at this moment: nothing held says little before its end.
        settled = self.desk.monotonic() + JOIN
        while not self._quiet.is_set() and self.is_running() and self.desk.monotonic() < settled:
            self._quiet.wait(0.01)
        while self.desk.held and self.is_running():
            left = deadline - self.desk.monotonic()
            if left <= 0:
                return False
            idle.wait(min(0.01, left))
        return not self.desk.held

    def running_ids(self) -> list[int]:
        """Ids of the tasks held, in order, but for those that have ended and are about to be recorded."""
        done = self._reported()
        return sorted({key[0] for key in list(self.desk.held) if key not in done})

    def _reported(self) -> set[tuple[int, int]]:
        """Claims whose outcome is known and about to be recorded."""
        return {(o.task_id, o.claim) for _, o in [*self.desk.outcomes, *self.turner.ledger.deferred]}

    def stop(self, *, hand_back_running: bool) -> StoreUnavailableError | None:
        """End the loop. ``hand_back_running``: the last write gives running tasks back, due in 2 s, without using an
        attempt (for a process that is about to end); ``handed_back`` has their ids then. Otherwise nothing may be held.

        Returns what kept that last write from being made; then the lease runs out by itself, and others take over.
        """
        with self._stopping:
            if self.desk.closed:
                return None
            return self._stop_once(hand_back_running)

    def _stop_once(self, hand_back_running: bool) -> StoreUnavailableError | None:
        trouble: StoreUnavailableError | None = None
        self._stop.set()
        self.desk.ring()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=JOIN)
        if hand_back_running:
            for slots in self.slots.values():
                slots.abandon()
        try:
            if self._thread is not None and self._thread.is_alive() and not self._ended.is_set():
                raise StoreUnavailableError("the last turn is still under way")  # its connection is not ours to use
            self._goodbye(hand_back_running)
        except StoreUnavailableError as error:
            log.error("could not say goodbye to the database: %s; the lease runs out by itself", error)
            trouble = error
        except Exception as error:
            log.exception("could not say goodbye to the database; the lease runs out by itself")
            trouble = StoreUnavailableError(f"the last write failed: {error}")
        self.guard.stop()
        self.desk.closed = True
        self.desk.give_up_requests()
        for slots in self.slots.values():
            slots.close()
        self.desk.alerts.close()
        self.bell.close()
        if self.turner.ledger.recorder is not None:
            self.turner.ledger.recorder.close()
        self.capture.detach()
        self._drop_connection()
        return trouble

    def _goodbye(self, hand_back_running: bool) -> None:
        if not self.worker:
            return
        connection = self._conn()
        extra: list[tuple[Attempt, Outcome]] = []
        if hand_back_running:
            done = self._reported()
            now = self.desk.now()
            extra = [
                (a, hand_back(a, now, now + HAND_BACK_DELAY) if a.settled is None else a.settled)
                for key, a in list(self.desk.held.items())
                if key not in done
            ]
        self.handed_back = sorted(self.turner.turn(connection, claiming=False, extra=extra).given_back)
        with self.database.write(connection) as c:
            workers.stop(c, self.worker, self.desk.now())
        self.bell.ring()

    # inline (tests)

    def _inline_requests(self) -> None:
        self.turner.turn(self._conn(), claiming=False)

    def inline_slots(self) -> Iterable[InlineSlots]:
        for slots in self.slots.values():
            if isinstance(slots, InlineSlots):
                yield slots
