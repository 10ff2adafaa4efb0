"""Handles requests of running attempts: written in a cycle's transaction, answered after its commit."""

from __future__ import annotations

from scheduler.engine.state import EngineState, PendingRequest
from scheduler.ports import SECOND
from scheduler.store import workers
from scheduler.store.db.tx import Tx
from scheduler.store.requests.handle import answer
from scheduler.store.requests.request import Answer, AttemptRequest

MAX_REQUESTS = 500  # in one cycle
RETRY_AT_ONCE_S = 0.1  # how long a blocked request is retried at once; then with later cycles


class RequestBatch:
    """The requests of one cycle. ``woken``: how many tasks they have woken."""

    def __init__(self, engine_state: EngineState) -> None:
        self._state = engine_state
        self._requests: list[PendingRequest] = []
        self._answers: list[Answer | None] = []
        self.woken = 0

    def __bool__(self) -> bool:
        return bool(self._requests)

    def take(self) -> None:
        """Take new requests, and blocked ones, which may fill half of the batch. Requests of one attempt stay
        in their order: a grouped step is not to be recorded without one before it."""
        engine_state, again = self._state, MAX_REQUESTS // 2
        self._requests, engine_state.put_off = engine_state.put_off[:again], engine_state.put_off[again:]
        behind = {id(r.attempt) for r in engine_state.put_off}
        while len(self._requests) < MAX_REQUESTS:
            try:
                taken = engine_state.requests.popleft()
            except IndexError:  # the watchdog may have answered the last one
                break
            (engine_state.put_off if id(taken.attempt) in behind else self._requests).append(taken)

    def requeue(self) -> None:
        """Keep the requests for the next cycle; this one failed, perhaps after its commit."""
        engine_state = self._state
        left, engine_state.put_off = engine_state.put_off, []
        engine_state.requests.extendleft(reversed([*(r._replace(again=True) for r in self._requests), *left]))

    def answer(self, tx: Tx, worker: int, *, one_by_one: bool) -> None:
        """Write what the requests ask for; each write renews the lease."""
        engine_state = self._state
        asked = [
            AttemptRequest(r.attempt.claimed.id, r.attempt.claimed.claim, r.what, r.args, r.again)
            for r in self._requests
        ]
        self._answers, self.woken = answer(tx, worker, asked, one_by_one=one_by_one)
        if any(one is None or one["held"] for one in self._answers):
            workers.renew(tx, worker, round(engine_state.options.lease * SECOND))

    def send_answers(self) -> bool:
        """Send the answers. Returns whether a blocked request is to be retried at once."""
        engine_state = self._state
        again, blocked = False, []
        for r, given in zip(self._requests, self._answers, strict=True):
            if given is None:
                blocked.append(r)
                again = again or engine_state.monotonic() - r.at < RETRY_AT_ONCE_S
            elif r.answer.set_running_or_notify_cancel():  # else an async handler was cancelled while it waited
                r.attempt.last_activity = engine_state.monotonic()
                r.answer.set_result(given)
        if blocked:  # they go behind those that were not asked for now, but before others of the same attempts
            before, left = {id(r.attempt) for r in blocked}, engine_state.put_off
            others = [r for r in left if id(r.attempt) not in before]
            engine_state.put_off = [*others, *blocked, *(r for r in left if id(r.attempt) in before)]
        return again
