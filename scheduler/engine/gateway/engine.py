"""GatewayEngine: the worker of a job that has no database. A daemon's gateway writes and reads for it.

It keeps nothing in a daemon: each message is one transaction there under the fence, so that any daemon may take the
next one. While no gateway answers, the handler goes on, until the lease runs out.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.outcomes import outcome_at_stop, permanent_failure
from scheduler.engine.dispatch.completion import CompletedBatch, finalize
from scheduler.engine.engine import LOCKED_RETRY_S, RELEASE_DELAY_US
from scheduler.engine.gateway.client import GatewayClient
from scheduler.engine.gateway.messages import Attach, GatewayLoad, GatewayRequest, Sync, Synced
from scheduler.engine.maintenance.movement import LOOK_EVERY
from scheduler.engine.maintenance.stalls import stalled_text
from scheduler.engine.placed import NotMineError, PlacedEngine
from scheduler.engine.state import EngineState, PendingRequest
from scheduler.errors import PayloadError, PermanentError, StoreUnavailableError
from scheduler.model.checkpoint import failure_of, revived
from scheduler.model.fingerprint import describe
from scheduler.model.outcome import AttemptEnd, Lifetimes, Outcome
from scheduler.ports import FAILPOINTS, random_incarnation
from scheduler.store.db.database import Database
from scheduler.store.tasks.complete import Completion

log = logging.getLogger("scheduler.engine")

POLL_S = 1.0  # between two questions whether the task was cancelled
MAX_ASKED = 100  # requests in one message; fewer after one that was too long
LOAD_RETRY_S = 0.2
LAST_TRIES = 5  # to record the outcome, while another transaction has the row
GIVE_UP_LEASES = 10  # after so many leases without an answer the task is another job's
NO_STORE = (
    "this job has no database, since it speaks to a daemon's gateway: ctx.transaction() and ctx.publish() need "
    '[executors.NAME] store = "direct", or a worker'
)


class GatewayState(EngineState):
    """The shared state of such an engine: its reads go to the gateway."""

    client: GatewayClient
    life = ""

    def load(self, attempt: Attempt, what: str, args: Mapping[str, Any]) -> Any:
        """See :meth:`EngineState.load`."""
        if what == "recorded" and attempt.recorded is not None and self.is_just_claimed(attempt):
            return attempt.recorded
        while True:
            try:
                loaded = self.client.load(GatewayLoad(self.life, self.worker, what, dict(args)))
            except StoreUnavailableError as error:
                if attempt.lost or isinstance(error, NotMineError):
                    return None
            else:
                if loaded.error is not None:
                    raise revived(loaded.error)
                return loaded.value
            time.sleep(LOAD_RETRY_S)

    def store(self, attempt: Attempt | None) -> tuple[Database, int, float, Lifetimes]:
        """Raises PermanentError: there is none."""
        raise PermanentError(NO_STORE)


class GatewayEngine(PlacedEngine):
    """Runs the attempt of one claim. See the module."""

    state_type = GatewayState
    engine_state: GatewayState

    def __init__(self, *args: Any, client: GatewayClient, **options: Any) -> None:
        super().__init__(*args, **options)
        self._client = client
        self.engine_state.client = client
        self.engine_state.life = self.registration.incarnation = random_incarnation()
        self._outcome: tuple[Attempt, Outcome] | None = None  # until it is recorded
        self._left = False  # its worker has stopped
        self._most_asked = MAX_ASKED

    def _open(self) -> None:
        """There is no database to be opened."""

    def _report_start(self) -> None:
        log.info("ready", extra={"worker": self.worker})

    def step(self) -> float:
        """Join, or exchange what is due. Returns seconds to sleep. Raises StoreUnavailableError, NotMineError."""
        try:
            if not self.worker:
                self._join()
            if self._attached is not None:
                self._begin(*self._attached)
            if self.engine_state.held and self.periodic.timers.due("movement", LOOK_EVERY):
                self.periodic.movement.check()
            if self._is_due():
                self._exchange()
            return self._pause()
        except NotMineError:
            raise
        except StoreUnavailableError as error:
            since = self.engine_state.monotonic() - self.engine_state.lease_expires_at
            if since > GIVE_UP_LEASES * self.options.lease:
                raise NotMineError(f"{error}; it has not for {since:.0f} s after the end of the lease") from None
            raise
        finally:
            self._step_ended_at = self.engine_state.monotonic()

    def _join(self) -> None:
        """Become the worker of the claim; the first commit, however often its answer is lost."""
        state, begun = self.engine_state, self.engine_state.monotonic()
        given = self._client.attach(Attach(state.life, socket.gethostname(), os.getpid(), self.registration.version))
        self._know_time(given.now, begun)
        self.dispatch.worker = state.worker = given.worker
        self._extended(begun)
        self.periodic.timers.restart(poll=POLL_S)
        self._attached = given.claimed, given.recorded
        FAILPOINTS.hit("after attach")

    def _extended(self, begun: float) -> None:
        self.lease.acquired(begun)
        self.guard.renewed()
        self.periodic.timers.set("renew", self.options.renew_every)

    def _know_time(self, now: int, begun: float) -> None:
        """Keep to the gateway's clock, as far as an answer that took its time can tell."""
        self.database.server_clock.agree(self.database.clock, now, self.engine_state.monotonic() - begun)

    # Exchanging

    def _is_due(self) -> bool:
        left = self.periodic.timers.remaining
        more = self.dispatch.has_work() or self._outcome is not None or min(left("renew"), left("poll")) <= 0
        return more and not self._left

    def _exchange(self, *, leaves: bool = False) -> None:
        """Send what there is to be written; take what the answer brings."""
        state, timers = self.engine_state, self.periodic.timers
        self._tell_of_moves(renews=timers.remaining("renew") <= 0)
        if self._outcome is None and state.outcomes:
            self._outcome = state.outcomes.popleft()
        state.requests.extendleft(reversed(state.put_off))  # before those since: records are written in their order
        state.put_off = []
        asked = [state.requests.popleft() for _ in range(min(self._most_asked, len(state.requests)))]
        attempt = next(iter(list(state.held.values())), None)
        tail = None if attempt is None else attempt.tail
        added = 0 if tail is None else tail.added
        message = Sync(
            state.life,
            self.worker,
            renew=timers.remaining("renew") <= 0,
            log=tail.text() if attempt is not None and tail is not None and added != attempt.tail_written else None,
            asked=[GatewayRequest(one.what, dict(one.args)) for one in asked],
            take=None if attempt is None or self._outcome is not None else stalled_text(state, attempt),
            outcome=None if self._outcome is None else self._outcome[1],
            leaves=leaves or self._outcome is not None,
        )
        if message.outcome is not None:
            FAILPOINTS.hit("before finish commit")
        begun = state.monotonic()
        try:
            given = self._client.sync(message)
        except PayloadError as error:
            if len(asked) > 1:  # records of grouped steps come together
                state.requests.extendleft(reversed(asked))
                self._most_asked = len(asked) // 2
            else:
                self._send_less(asked, error)
            return
        except BaseException:
            state.requests.extendleft(reversed(asked))
            raise
        self._most_asked = min(MAX_ASKED, 2 * self._most_asked)
        timers.set("poll", POLL_S)
        self._know_time(given.now, begun)
        if given.renewed:
            self._extended(begun)
        if attempt is not None and message.log is not None:
            attempt.tail_written = added
        self._answer(asked, given)
        if self._outcome is not None and given.recorded is not None:
            self._conclude(*self._outcome, given)
        elif not given.held:
            raise NotMineError(f"claim {self.claim.number} of task {self.claim.task_id} is not this job's any more")
        elif given.cancelled and attempt is not None and not attempt.cancelled:
            attempt.cancelled = True
            if attempt.slot is not None:
                attempt.slot.interrupt(attempt)

    def _tell_of_moves(self, *, renews: bool) -> None:
        """Have a handler that moves stamped, with a message that renews the lease."""
        state = self.engine_state
        state.moves.standing.clear()  # the gateway has no place for it
        moved, attempt = state.moves.stamps, next(iter(list(state.held.values())), None)
        if renews and moved and attempt is not None and self._outcome is None:
            state.request(attempt, "beat", {"percent": None, "message": None})
            moved.clear()

    def _answer(self, asked: Sequence[PendingRequest], given: Synced) -> None:
        answers = given.answers if given.held else [{"held": False}] * len(asked)
        for one, answer in zip(asked, answers, strict=True):
            if answer is None:
                self.engine_state.put_off.append(one)
            elif one.answer.set_running_or_notify_cancel():
                one.attempt.last_activity = self.engine_state.monotonic()
                one.answer.set_result(answer)
        if self.engine_state.put_off:
            self.periodic.timers.bring_forward("poll", LOCKED_RETRY_S)

    def _send_less(self, asked: Sequence[PendingRequest], error: PayloadError) -> None:
        """What is too long for the gateway fails the request, or the task."""
        for one in asked:
            if one.answer.set_running_or_notify_cancel():
                one.answer.set_result({"held": True, "error": failure_of(PermanentError(str(error)))})
        if self._outcome is not None:
            attempt = self._outcome[0]
            attempt.tail = None
            self._outcome = attempt, permanent_failure(attempt, self.engine_state, describe(PermanentError(str(error))))
        elif not asked:
            raise error

    def _conclude(self, attempt: Attempt, outcome: Outcome, given: Synced) -> None:
        """The outcome is in the store, or never will be."""
        self._outcome = None
        ended = {} if given.state is None else {outcome.task_id: given.state}
        overridden: dict[int, AttemptEnd] = {} if given.end is None else {outcome.task_id: given.end}
        lost, self._left = ([], True) if given.recorded else ([outcome], True)
        batch = CompletedBatch.of([(attempt, outcome)])
        finalize(self.engine_state, batch, Completion(ended, lost, [], 0, overridden))
        if outcome.end is AttemptEnd.HANDED_BACK and given.recorded:
            self.handed_back = [outcome.task_id]

    def _pause(self) -> float:
        if self.dispatch.has_work() or self._outcome is not None:
            return LOCKED_RETRY_S if self._outcome is not None else 0.0
        left = self.periodic.timers.remaining
        return max(0.0, min(left("renew"), left("poll")))

    def _last_write(self, hand_back_running: bool) -> None:
        """Record what has ended, hand back what has not, and leave."""
        state = self.engine_state
        if not self.worker or self._left:
            return
        held = [attempt for key, attempt in list(state.held.items()) if key not in self._reported()]
        if self._outcome is None and not state.outcomes and held and hand_back_running:
            self._outcome = held[0], outcome_at_stop(held[0], state, RELEASE_DELAY_US)
        for _ in range(LAST_TRIES):
            self._exchange(leaves=True)
            if self._outcome is None:
                break
            time.sleep(LOCKED_RETRY_S)
        self._client.close()
