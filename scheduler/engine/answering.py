"""What running attempts ask for: taken from the desk, done in a turn's transaction, and told once that is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scheduler.engine.desk import Desk, Request
from scheduler.ports import SECOND
from scheduler.store import workers
from scheduler.store.asked import Answer, Asked
from scheduler.store.requests import answer

if TYPE_CHECKING:
    import sqlalchemy as sa

MOST = 500  # that one turn answers
PATIENT = 0.1  # seconds that one is asked again at once; from then on with every turn that there is anyway


class Answering:
    """One turn's requests. ``woken``: how many tasks their answers have woken."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._requests: list[Request] = []
        self._answers: list[Answer | None] = []
        self.woken = 0

    def __bool__(self) -> bool:
        return bool(self._requests)

    def take(self) -> None:
        """The next ones, and those that were put off: half a turn's at most, in turn, or many would leave no room."""
        desk, again = self._desk, MOST // 2
        self._requests, desk.put_off = desk.put_off[:again], desk.put_off[again:]
        while len(self._requests) < MOST:
            try:
                self._requests.append(desk.requests.popleft())
            except IndexError:  # the guard may have answered the last one at this moment
                break

    def put_back(self) -> None:
        """They wait for the next turn: this one has failed, perhaps when all was committed."""
        self._desk.requests.extendleft(r._replace(again=True) for r in reversed(self._requests))

    def answer(self, connection: sa.Connection, worker: int, now: int, *, one_by_one: bool) -> None:
        """Do what is asked for; whatever is written extends the lease."""
        desk = self._desk
        asked = [Asked(r.attempt.claimed.id, r.attempt.claimed.claim, r.what, r.args, r.again) for r in self._requests]
        dialect = desk.database.dialect
        self._answers, self.woken = answer(connection, dialect, worker, asked, now, one_by_one=one_by_one)
        if any(one is None or one["held"] for one in self._answers):
            workers.renew(connection, worker, now, round(desk.options.lease * SECOND))

    def tell(self) -> bool:
        """Tell those who asked. Returns whether some that could not be answered are to be asked again at once."""
        desk = self._desk
        again = False
        for r, given in zip(self._requests, self._answers, strict=True):
            if given is None:
                desk.put_off.append(r)
                again = again or desk.monotonic() - r.at < PATIENT
            elif r.answer.set_running_or_notify_cancel():  # else an async body was cancelled while it waited
                r.attempt.last_sign = desk.monotonic()
                r.answer.set_result(given)
        return again
