"""What attempts have ended with, until that is recorded: in the turn's own transaction, or in another one beside it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from operator import attrgetter
from typing import TYPE_CHECKING

from scheduler.engine import deaths
from scheduler.engine.desk import Desk
from scheduler.engine.limits import Limits
from scheduler.engine.planner import Planner
from scheduler.engine.recorder import Recorder
from scheduler.engine.settling import Ended, Pairs, settle
from scheduler.errors import StoreUnavailableError
from scheduler.model.outcome import AttemptEnd
from scheduler.model.state import TaskState
from scheduler.ports import FAILPOINTS
from scheduler.store import attempts, waits
from scheduler.store.finish import Finished, finish
from scheduler.store.outcomes import ContendedError
from scheduler.store.salvage import finish_one_by_one

if TYPE_CHECKING:
    import sqlalchemy as sa

LOCKING = 1.0  # seconds that turns lock rows before they write them, after somebody held one that a turn wrote at once
MANY = 50  # ends from which on they are recorded beside the claim, in a transaction of their own
_SCHEDULE_OF = attrgetter("claimed.schedule")


class Ledger:
    """See the module. Not thread-safe: the engine's loop calls it.

    ``recorder``: records ends beside the claim where that helps, None where it never does (SQLite has one writer).
    """

    def __init__(self, desk: Desk, planner: Planner, limits: Limits, recorder: Recorder | None) -> None:
        self.desk = desk
        self.planner = planner
        self.limits = limits
        self.recorder = recorder
        self.deferred: Pairs = []  # to be written with the next turn
        self.careful = False  # the last turn met something unforeseen: each end by itself
        self.backlog = False  # some lane gave the last turn all that it asked for
        self.released = False  # what the last turn recorded made others ready
        self.schedule_ended = self.overlooked = False  # by what was recorded, and not told yet
        self._locks_first_until = 0.0  # somebody held what was written without locking it (monotonic)

    def take(self, most: int | None) -> Pairs:
        """What is to be recorded now: all that was deferred, and what else makes it up to ``most``."""
        pairs, self.deferred = self.deferred, []
        outcomes = self.desk.outcomes
        count = len(outcomes) if most is None else min(len(outcomes), most - len(pairs))
        take = outcomes.popleft
        pairs += [take() for _ in range(count)]
        return pairs

    def put_back(self, pairs: Pairs) -> None:
        """They could not be recorded, as far as is known, and are to be written before all others."""
        self.deferred = pairs + self.deferred

    def lock_first(self) -> None:
        """Somebody held what was written without locking it."""
        self._locks_first_until = self.desk.monotonic() + LOCKING

    def may_be_quick(self, pairs: Pairs) -> bool:
        """Whether ends may be written without locking them first: no row is known to be held, and nothing follows for
        caps, rates and suspects."""
        return (
            self.planner.alone is None
            and self.desk.monotonic() >= self._locks_first_until
            and not self.limits.concern(pairs)
        )

    def write(
        self,
        connection: sa.Connection,
        worker: int,
        ended: Ended,
        now: int,
        *,
        quick: bool,
        claims: bool,
        meanwhile: Callable[[], None],
    ) -> tuple[Ended, Finished]:
        """Record them in this transaction, and all that follows. Returns them as they were judged, and what came of it.

        ``quick``, ``claims``, ``meanwhile``: see ``finish``.
        """
        dialect = self.desk.database.dialect
        if ended.died:
            ended = Ended.of(deaths.judge(connection, ended.pairs))
        if self.careful:
            finished = finish_one_by_one(connection, dialect, worker, ended.outcomes, now)
        else:
            finished = finish(
                connection,
                dialect,
                worker,
                ended.outcomes,
                now,
                ended.ends,
                quick=quick,
                meanwhile=meanwhile,
                claims=claims,
            )
        finished = self._recognised(connection, ended, finished)
        if self.limits.known:
            self.limits.recorded(connection, ended.pairs, finished)
        if ended.died:
            deaths.count(connection, ended.pairs, finished)
        return ended, finished

    def _recognised(self, connection: sa.Connection, ended: Ended, finished: Finished) -> Finished:
        """What an attempt's own transaction has committed was not to be written again, and is not lost; nor is what a
        commit recorded that was not answered. What that made ready is not known any more: others may look."""
        finished = _own(ended.pairs, finished)
        if not finished.lost:
            return finished
        lost = [(o.task_id, o.claim) for o in finished.lost]
        found = attempts.recorded(connection, self.desk.database.dialect, lost)
        ends = {key: end for key, end in found.items() if end is not AttemptEnd.LOST}  # which somebody else recorded
        return finished._replace(
            lost=[o for o in finished.lost if (o.task_id, o.claim) not in ends],
            told={**finished.told, **{task_id: end for (task_id, _), end in ends.items()}},
            ended={**finished.ended, **{i: TaskState.DEAD for (i, _), end in ends.items() if end is AttemptEnd.DEAD}},
            ready=finished.ready + bool(ends),
        )

    # beside the claim

    def begin(self, worker: int, ended: Ended) -> Future[Finished] | None:
        """Begin to record these beside the claim, which then does not see what they make ready: mostly nothing, there
        is more to claim than the slots take anyway, and more to record than a transaction of its own costs. None if
        that is not so, or not possible at present."""
        if self.recorder is None or self.careful or self.released or not self.backlog or len(ended.pairs) < MANY:
            return None
        desk, rows = self.desk, ended.outcomes

        def write(connection: sa.Connection) -> Finished:
            finished = finish(connection, desk.database.dialect, worker, rows, desk.now(), ended.ends, quick=True)
            finished = self._recognised(connection, ended, finished)
            FAILPOINTS.hit("before commit beside the claim")
            return finished

        return self.recorder.begin(write)

    def see_through(self, recording: Future[Finished], ended: Ended) -> Finished | None:
        """Wait until they are recorded, and settle them. None: they wait for the next turn.

        Raises what kept them from being recorded; then they wait, too. What else it brought about is told by this turn,
        or by the next one that succeeds.
        """
        assert self.recorder is not None
        try:
            finished = recording.result()
        except BaseException as error:
            self.put_back(ended.pairs)
            self.backlog = False
            if isinstance(error, ContendedError):
                self.lock_first()
                return None
            self.careful = self.careful or not isinstance(error, StoreUnavailableError)
            self.recorder.failed()
            raise
        self.overlooked |= self.recorder.flagged(waits.OVERLOOKED)
        self.desk.freed.append(finished.ready + ended.back)
        self.settle(ended, finished)
        FAILPOINTS.hit("after commit beside the claim")
        return finished

    # once they are recorded

    def settle(self, ended: Ended, finished: Finished) -> None:
        """Put down what is recorded, and keep the rest for the next turn."""
        if finished.deferred:
            deferred = {(o.task_id, o.claim) for o in finished.deferred}
            self.deferred += [pair for pair in ended.pairs if (pair[1].task_id, pair[1].claim) in deferred]
            ended = Ended.of([pair for pair in ended.pairs if (pair[1].task_id, pair[1].claim) not in deferred])
        self.schedule_ended |= any(map(_SCHEDULE_OF, ended.attempts))
        settle(self.desk, ended, finished)


def _own(pairs: Pairs, finished: Finished) -> Finished:
    """What attempts' own transactions have committed was not to be written again, and is not lost."""
    if not finished.lost:
        return finished
    own = {(o.task_id, o.claim) for a, o in pairs if a.settled is not None and o.end is AttemptEnd.SUCCEEDED}
    return finished._replace(lost=[o for o in finished.lost if (o.task_id, o.claim) not in own])
