"""PushedIntake: stores the messages of requests that come at the same time in one transaction."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from scheduler.errors import SchedulerError
from scheduler.messages.intake import Intake, Taken
from scheduler.model.state import TaskState
from scheduler.store import inbox, pauses
from scheduler.telemetry.metrics import MESSAGES_RECEIVED, MESSAGES_SETTLED
from scheduler.transports.ports import Ack, Delivery, PushSource, Retry, Verdict

MOST_AT_ONCE = 1000  # messages of one transaction
LOOK_EVERY = 1.0  # seconds between looks at pauses and the backlog, while requests come
FIRST_LOOK, MAX_LOOK = 0.05, 0.5  # seconds between looks at tasks whose ends are waited for
HOLD = 20.0  # seconds that a request waits for ends of tasks, if they settle its messages

Waiting = tuple[Sequence[Delivery], "Future[list[Verdict]]"]


class Busy(SchedulerError):
    """The source is paused, or too many of its tasks wait. ``after``: seconds."""

    def __init__(self, text: str, after: int) -> None:
        super().__init__(text)
        self.after = after


class PushedIntake:
    """A thread that takes what requests bring. While none comes it waits for the next, and asks nothing."""

    def __init__(self, source: PushSource, intake: Intake) -> None:
        self._source = source
        self._intake = intake
        self._waiting: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._lock = threading.Lock()  # nothing is put behind the last one
        self._looked_at = float("-inf")
        self._held_back: Busy | None = None

    def start(self) -> None:
        """Start the thread."""
        name = f"schedd-source-{self._intake.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End once all that waits is stored."""
        with self._lock:
            self._stopped = True
            self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(5.0)
        self._source.close()

    def put(self, deliveries: Sequence[Delivery]) -> Future[list[Verdict]]:
        """The verdicts, once the messages are committed; or Busy, or StoreUnavailableError.

        Raises Busy once it is stopped.
        """
        done: Future[list[Verdict]] = Future()
        with self._lock:
            if self._stopped:
                raise Busy("the source is being changed", 1)
            self._waiting.put((deliveries, done))
        return done

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            batch, size, over = [first], len(first[0]), False
            while size < MOST_AT_ONCE:
                try:
                    more = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if more is None:
                    over = True
                    break
                batch.append(more)
                size += len(more[0])
            self._take(batch)
            if over:
                return

    def _take(self, batch: Sequence[Waiting]) -> None:
        try:
            self._refuse_if_held_back()
            flat = [delivery for deliveries, _ in batch for delivery in deliveries]
            self._intake.traffic.count(MESSAGES_RECEIVED, self._intake.name, number=len(flat))
            taken = self._intake.take(flat)
        except Exception as error:
            for _, done in batch:
                done.set_exception(error)
            return
        at = 0
        for deliveries, done in batch:
            part = taken[at : at + len(deliveries)]
            at += len(deliveries)
            if self._intake.section.ack == "stored":
                self._answer(done, [one.verdict for one in part if one.verdict is not None])
            else:  # in a thread of its own: other requests do not wait for these tasks
                threading.Thread(target=self._await_ends, args=(part, done), daemon=True).start()

    def _answer(self, done: Future[list[Verdict]], verdicts: list[Verdict]) -> None:
        for one in verdicts:
            self._intake.traffic.count(MESSAGES_SETTLED, self._intake.name, type(one).__name__.lower())
        done.set_result(verdicts)

    def _refuse_if_held_back(self) -> None:
        """Raises Busy."""
        if time.monotonic() >= self._looked_at + LOOK_EVERY:
            self._looked_at = time.monotonic()
            self._held_back = self._why_held_back()
        if self._held_back is not None:
            raise self._held_back

    def _why_held_back(self) -> Busy | None:
        section, name = self._intake.section, self._intake.name
        after = max(1, round(section.retry))
        unknown = self._intake.unknown_kind()
        if unknown is not None:
            return Busy(f"no worker has registered the kind {unknown}", after)
        with self._intake.database.read() as tx:
            if pauses.of_source(tx, name) is not None:
                return Busy("the source is paused", after)
            most = section.max_backlog
            if inbox.backlog(tx, sorted(self._intake.queues), most + 1) > most:
                return Busy("too many tasks wait", after)
        return None

    def _await_ends(self, part: Sequence[Taken], done: Future[list[Verdict]]) -> None:
        """Answer once all tasks have ended; after HOLD seconds the rest is to be sent again, when it may have."""
        deadline, pause = time.monotonic() + HOLD, FIRST_LOOK
        ids = [one.entry.task_id for one in part if one.entry is not None and one.entry.task_id is not None]
        try:
            while True:
                with self._intake.database.read() as tx:
                    ends, now = inbox.ends(tx, ids), tx.now
                open_ = [i for i in ids if (state := ends[i][0]) is None or not state.terminal]
                waits_long = any(ends[i][0] is TaskState.RETRY for i in open_)
                if not open_ or waits_long or time.monotonic() >= deadline:
                    break
                time.sleep(pause)
                pause = min(2 * pause, MAX_LOOK)
            verdicts: list[Verdict] = []
            for one in part:
                assert one.verdict is not None
                if isinstance(one.verdict, Ack) and one.entry is not None and one.entry.task_id is not None:
                    verdicts.append(self._at_last(one.delivery.receipt, *ends[one.entry.task_id], now))
                else:
                    verdicts.append(one.verdict)
            self._answer(done, verdicts)
        except Exception as error:
            done.set_exception(error)

    def _at_last(self, receipt: str, state: TaskState | None, run_at: int | None, now: int) -> Ack | Retry:
        if state is not None and state.terminal:
            return Ack(receipt)
        after = max(1.0, ((run_at or now) - now) / 1e6) if state is TaskState.RETRY else self._intake.section.retry
        return self._intake.retry(receipt, after, "its task has not ended")
