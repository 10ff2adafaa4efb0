"""Two daemons and a caller that goes on while a primary is replaced by its standby; then everything is checked.

What the caller was acknowledged and what handlers noted is held against what the new primary has.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from faults.harness import Fleet, Process, rows, unfinished, until
from faults.words import Word, WordRun, word_runs
from scheduler import Scheduler, StoreUnavailableError, UnknownTaskError
from scheduler.model import state as st
from scheduler.model.outcome import AttemptEnd
from scheduler.model.spec import TaskId
from support.patroni_pair import PatroniPair
from support.replication import Pair

SOON = 5.0  # seconds after which everything is to work on the new primary
PATIENCE = 60.0  # seconds that a busy machine may take where no promise is measured
LEASE = 3.0  # seconds
DAEMONS = 2
SLOTS = 8  # of each daemon
BACKLOG = 1500  # tasks that are stored at once, ahead of the calls
BEFORE, AFTER = 2.0, 3.0  # seconds of calls around the fault
PAUSE = 0.005  # seconds between two calls
PROBES = 5  # tasks that are scheduled one by one when all is quiet
SAMPLE = 50  # ids whose result the caller asks for
LISTENERS = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'schedd listener'"
_LOST_ENDS = (AttemptEnd.LOST, AttemptEnd.HANDED_BACK)


class Report(NamedTuple):
    """One row of the table."""

    calls: int  # tasks that the caller was acknowledged
    stall: float  # seconds: the longest time between two acknowledgements
    resumed: float  # seconds from the end of the fault until a call is acknowledged
    handlers_stall: float  # seconds: the longest time in which no handler began or ended
    lost: int  # acknowledged tasks that are gone
    wrong: int  # ids, results or keys that belong to another task than they should
    again: int  # tasks whose handler began more than once
    notified: float  # seconds from the promotion until every daemon's notifier listens on the new primary
    begins: float  # seconds from schedule() until the handler begins, when all is quiet; a median
    strayed: int  # tasks that the old primary acknowledged to a program that had not seen the new one

    def text(self) -> str:
        return (
            f"{self.calls:5} acknowledged, calls stalled {self.stall:5.2f} s "
            f"({self.resumed:.2f} s after the fault), handlers {self.handlers_stall:5.2f} s, "
            f"{self.lost:4} lost, {self.wrong} wrong, {self.again:3} run again, "
            f"notifiers back in {self.notified:.2f} s, a handler begins after {1000 * self.begins:.0f} ms"
            + (f", {self.strayed} acknowledged by the old primary" if self.strayed else "")
        )


class Caller:
    """A thread that schedules one task after the other, and remembers what it was acknowledged."""

    def __init__(self, url: str, prefix: str, rng: random.Random) -> None:
        self.jobs = Scheduler(url)
        self.jobs.register(Word)
        self.acknowledged: list[tuple[TaskId[Any], str]] = []
        self.moments: list[float] = []
        self._prefix = prefix
        self._rng = rng
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._calls, name=f"caller-{prefix}")

    def store_backlog(self, count: int) -> None:
        """Store so many short tasks in one transaction."""
        words = [f"{self._prefix}-backlog-{number}" for number in range(count)]
        with self.jobs.batch() as batch:
            for word in words:
                batch.task(Word(word, self._rng.uniform(0.0, 3.0)))
        self.acknowledged += zip(batch.ids, words, strict=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make no more calls. Returns when the last one has returned."""
        self._over.set()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "a call does not return"

    def close(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE)
        self.jobs.close()

    def _calls(self) -> None:
        for number in itertools.count():
            word = f"{self._prefix}-{number}"
            ms = self._rng.choices([self._rng.uniform(0.0, 3.0), 300.0, 2000.0], [95, 4, 1])[0]
            try:
                found = self.jobs.task(Word(word, ms)).schedule()
            except StoreUnavailableError:
                pass  # not acknowledged; it may be stored all the same
            else:
                self.acknowledged.append((found, word))
                self.moments.append(time.monotonic())
            if self._over.wait(PAUSE):
                return


class Trial:
    """See the module. ``commit``: async, or the level of ``synchronous_commit`` that waits for the standby."""

    def __init__(self, pair: Pair | PatroniPair, fleet: Fleet, commit: str) -> None:
        self.pair: Any = pair  # as the fault knows it
        self.fleet = fleet
        self.synchronous = commit != "async"
        if self.synchronous:
            pair.be_synchronous(commit)
        self.url = pair.url()
        self.rng = random.Random(0)
        self.caller = Caller(self.url, "word", self.rng)
        self.newcomer: Caller | None = None
        self.daemons: list[Process] = []

    def close(self) -> None:
        self.caller.close()
        if self.newcomer is not None:
            self.newcomer.close()

    def run(self, fault: Callable[[Trial], None], *, stays: bool = False) -> Report:
        """Let the fault happen under calls, wait for the end of everything that is left, and check all.

        ``stays``: the primary is the same afterwards.
        """
        for _ in range(DAEMONS):
            slots = {"pools__medium__slots": str(SLOTS)}
            self.daemons.append(self.fleet.daemon(module="faults.words", worker__lease=str(LEASE), **slots))
        until(lambda: self._listeners(self.pair.primary) == DAEMONS, "the notifiers listen", PATIENCE)
        self.caller.store_backlog(BACKLOG)
        self.caller.start()
        time.sleep(BEFORE)
        fault(self)
        promoted = time.monotonic()
        new = self.pair.primary if stays else self.pair.standby
        until(lambda: self._listeners(new) == DAEMONS, "the notifiers listen anew", PATIENCE)
        notified = time.monotonic() - promoted
        assert notified < SOON
        until(lambda: self.caller.moments[-1] > promoted, "calls are acknowledged", SOON)
        time.sleep(AFTER)
        self.caller.stop()
        until(lambda: not unfinished(self.caller.jobs), "everything that is left ends", PATIENCE, 0.1)
        return self._check(promoted, notified, self._probe())

    def called(self) -> int:
        """How many calls have been acknowledged."""
        return len(self.caller.moments)

    @staticmethod
    def _listeners(server: Any) -> int:
        return int(server.sql(LISTENERS)[0][0])

    def _probe(self) -> float:
        """How long it takes a handler to begin when nothing else happens: no cycle comes by for another reason."""
        found = []
        for number in range(PROBES):
            time.sleep(0.37)
            begun = time.monotonic_ns()
            task_id = self.caller.jobs.task(Word(f"probe-{number}")).schedule()
            starts = [r.start for r in self._ended(task_id)]
            found.append((starts[0] - begun) / 1e9)
        return statistics.median(found)

    def _ended(self, task_id: int) -> list[WordRun]:
        self.caller.jobs.wait([task_id], timeout=PATIENCE)
        return [run for run in word_runs(self.fleet.notes) if run.task == task_id]

    # afterwards

    def _check(self, promoted: float, notified: float, begins: float) -> Report:
        jobs = self.caller.jobs
        tasks = {row.id: row for row in rows(jobs, "SELECT id, state, payload, result FROM schedd_tasks")}
        words = {number: json.loads(row.payload)["word"] for number, row in tasks.items()}
        runs = word_runs(self.fleet.notes)
        acknowledged = self.caller.acknowledged
        newcomers = self.newcomer.acknowledged if self.newcomer is not None else []
        given = Counter(int(number) for number, _ in acknowledged)
        wrong = [f"id {number} was given out {count} times" for number, count in given.items() if count > 1]
        wrong += [f"{i} is {words[i]}, not {w}" for i, w in acknowledged if words.get(i, w) != w]
        wrong += [f"{i} has {r.result}" for i, r in tasks.items() if r.result and json.loads(r.result) != words[i]]
        wrong += self._shared_keys(runs)
        lost = [number for number, _ in acknowledged if number not in tasks]
        again = self._again(words, runs)
        quiet = 1e9 * self.caller.moments[-1]
        moments = sorted(at for run in runs for at in (run.start, run.end) if at is not None and at < quiet)
        report = Report(
            len(acknowledged),
            _longest(self.caller.moments),
            next(at for at in self.caller.moments if at > promoted) - promoted,
            _longest(moments) / 1e9,
            len(lost),
            len(wrong),
            again,
            notified,
            begins,
            sum(words.get(number) != word for number, word in newcomers),
        )
        assert not wrong, wrong[:10]
        ended = Counter(row.state for row in tasks.values())
        assert set(ended) == {st.SUCCESS}, ended
        self._ask(lost)
        for process in self.fleet.processes:
            assert "Traceback" not in process.text(), process.tail()
        if self.synchronous:
            assert not lost, f"acknowledged and gone: {lost[:10]} of {report}"
            assert not report.strayed
        return report

    @staticmethod
    def _shared_keys(runs: list[WordRun]) -> list[str]:
        """Default idempotency keys that two tasks had."""
        by_key: dict[str, set[str]] = defaultdict(set)
        for run in runs:
            by_key[run.key].add(run.word)
        return [f"{key} was that of {names}" for key, names in by_key.items() if len(names) > 1]

    def _again(self, words: dict[int, str], runs: list[WordRun]) -> int:
        """How many tasks began more than once. Each of their runs but the recorded one must have lost its lease, or its
        claim and its end be among what the failover lost."""
        recorded = rows(self.caller.jobs, "SELECT task_id, claim, outcome FROM schedd_attempts")
        outcomes = {(row.task_id, row.claim): AttemptEnd.from_code(row.outcome) for row in recorded}
        by_task: dict[int, list[WordRun]] = defaultdict(list)
        for run in runs:
            if words.get(run.task) == run.word:  # else it was lost, and another one may have its id
                by_task[run.task].append(run)
        again = 0
        for task_id, its in by_task.items():
            its.sort(key=lambda run: run.start)
            winners = [run for run in its if outcomes.get((task_id, run.claim)) is AttemptEnd.SUCCEEDED]
            assert len(winners) == 1, f"not one recorded success: {its}"
            assert winners[0].end is not None, f"recorded by a handler that never ended: {its}"
            for run in its:
                if run is winners[0]:
                    continue
                end = outcomes.get((task_id, run.claim))
                forgotten = end is None and not self.synchronous
                assert end in _LOST_ENDS or forgotten, f"ran twice without a lost lease: {its}, {end}"
                assert run.start < winners[0].start, f"began again after a recorded success: {its}"
            again += len(its) > 1
        return again

    def _ask(self, lost: list[TaskId[Any]]) -> None:
        """The caller asks for what it was promised: the right word, or that the task is gone."""
        gone = set(lost)
        known = [pair for pair in self.caller.acknowledged if pair[0] not in gone]
        for number, word in self.rng.sample(known, min(SAMPLE, len(known))):
            assert self.caller.jobs.result(number, timeout=PATIENCE) == word
        for number in lost[:SAMPLE]:
            try:
                found = self.caller.jobs.result(number, timeout=PATIENCE)
            except UnknownTaskError:
                continue
            raise AssertionError(f"task {number} is lost, and yet has the result {found!r}")


def _longest(moments: list[Any]) -> Any:
    return max(b - a for a, b in itertools.pairwise(moments))
