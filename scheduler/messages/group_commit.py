"""PushedIntake: stores the messages of requests that come at the same time in one transaction."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future

from scheduler.errors import SchedulerError
from scheduler.messages.duties import SourceDuties
from scheduler.messages.intake import Intake, Taken
from scheduler.model.state import TaskState
from scheduler.store import inbox
from scheduler.transports.ports import Ack, Delivery, PushSource, Retry, Verdict

MOST_AT_ONCE = 1000  # messages of one transaction
FIRST_LOOK, MAX_LOOK = 0.05, 0.5  # seconds between looks at tasks whose ends are waited for
HOLD = 20.0  # seconds that a request waits for ends of tasks, if they settle its messages

Waiting = tuple[Sequence[Delivery], "Future[list[Verdict]]"]


class Busy(SchedulerError):
    """The source is paused, or too many of its tasks wait. ``after``: seconds."""

    def __init__(self, text: str, after: int) -> None:
        super().__init__(text)
        self.after = after


class PushedIntake(SourceDuties):
    """A thread that takes what requests bring. While none comes it waits for the next, and asks nothing, unless the
    source has duties that are due by time."""

    def __init__(self, source: PushSource, intake: Intake) -> None:
        super().__init__(intake, source.limits)
        self._source = source
        self._waiting: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._lock = threading.Lock()  # nothing is put behind the last one

    def start(self) -> None:
        name = f"schedd-source-{self._intake.name}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End once all that waits is stored."""
        with self._lock:
            self._stopped = True
            self._waiting.put(None)
        if self._thread is not None:
            self._thread.join(3.0)
        self._source.close()

    def put(self, deliveries: Sequence[Delivery]) -> Future[list[Verdict]]:
        """The verdicts, once the messages are committed; or Busy, or StoreUnavailableError.

        Raises Busy once it is stopped.
        """
        done: Future[list[Verdict]] = Future()
        done.set_running_or_notify_cancel()  # a request that is given up ends no thread that answers it
        with self._lock:
            if self._stopped:
                raise Busy("the source is being changed", 1)
            self._waiting.put((deliveries, done))
        return done

    def _run(self) -> None:
        while True:
            self.look()
            try:
                first = self._waiting.get() if (look := self.until_look()) is None else self._waiting.get(timeout=look)
            except queue.Empty:
                continue
            if first is None:
                return
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
        flat = [delivery for deliveries, _ in batch for delivery in deliveries]
        try:
            why = self.held_back()
            if why is not None:
                raise Busy(why, max(1, round(self._intake.section.retry)))
            self.came(flat)
            taken = self._intake.take(flat)
        except Exception as error:
            if not isinstance(error, SchedulerError) and len(batch) > 1:  # one of them is to blame: the others go on
                for one in batch:
                    self._take([one])
                return
            if not isinstance(error, Busy):
                self.failed(error)
            for _, done in batch:
                done.set_exception(error)
            return
        self.is_well()
        self.look_at_ages(flat)
        at = 0
        for deliveries, done in batch:
            part = taken[at : at + len(deliveries)]
            at += len(deliveries)
            if self._intake.section.ack == "stored":
                self._answer(done, [one.verdict for one in part if one.verdict is not None])
            else:  # in a thread of its own: other requests do not wait for these tasks
                try:
                    threading.Thread(target=self._await_ends, args=(part, done), daemon=True).start()
                except RuntimeError as error:  # the system's limit; what is stored is known when it comes again
                    done.set_exception(Busy(str(error), max(1, round(self._intake.section.retry))))

    def _answer(self, done: Future[list[Verdict]], verdicts: list[Verdict]) -> None:
        for one in verdicts:
            self.settled(one)
        done.set_result(verdicts)

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
