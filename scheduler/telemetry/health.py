"""Health checks of a worker: alive, ready, started. They look at its engine's memory, never at the database."""

from __future__ import annotations

import os
import sys
import threading
from typing import NamedTuple

from scheduler import store

_STORE = os.path.dirname(store.__file__) + os.sep
MAX_ANSWER_AGE_S = 10.0  # since the database last answered; an idle engine asks it once a second


class Vitals(NamedTuple):
    """What the checks look at.

    ``running``: the engine's loop has begun and not ended; ``started``: its first dispatch cycle is over; ``draining``:
    it claims nothing more; ``loop_age``: seconds since its last round, or since the database last answered it;
    ``answer_age``: seconds since the database last answered; ``in_store``: the loop is within a call of the store
    just now, and may wait for the database; ``lease``: seconds.
    """

    running: bool
    started: bool
    draining: bool
    loop_age: float
    answer_age: float
    in_store: bool
    lease: float


def is_in_store(thread: threading.Thread | None) -> bool:
    """Whether a thread is within a call of the store, where it may wait for the database.

    Looks at its stack, so that the store need not note each statement.
    """
    frame = None if thread is None or thread.ident is None else sys._current_frames().get(thread.ident)
    while frame is not None:
        if frame.f_code.co_filename.startswith(_STORE):
            return True
        frame = frame.f_back
    return False


def not_alive(vitals: Vitals | None) -> list[str]:
    """Why the process should be restarted; empty: it is well. None: it is starting, and waits for its database."""
    if vitals is None:
        return []
    if not vitals.running:
        return ["the engine's loop has ended"]
    limit = vitals.lease / 2
    if vitals.loop_age >= limit and not vitals.in_store:  # an outage of the database must not restart a fleet
        return [f"the engine's loop has not gone round for {vitals.loop_age:.1f} s; half a lease is {limit:g} s"]
    return []


def not_started(vitals: Vitals | None) -> list[str]:
    """Why the start is not over; empty: it is."""
    if vitals is None:
        return ["the engine has not started: it waits for its database, or for a setup() of a task module"]
    return [] if vitals.started else ["the first dispatch cycle is not over"]


def not_ready(vitals: Vitals | None) -> list[str]:
    """Why it takes no tasks now; empty: it does."""
    found = not_started(vitals) + not_alive(vitals)
    if vitals is None:
        return found
    if vitals.draining:
        found.append("draining: no new tasks are claimed")
    if vitals.answer_age >= MAX_ANSWER_AGE_S:
        found.append(f"the database has not answered for {vitals.answer_age:.0f} s")
    return found
