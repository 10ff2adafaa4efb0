"""How long children may take, and what becomes of those that take longer. Used by the pool's thread."""

from __future__ import annotations

import logging
import time

from scheduler.engine.brood import Brood
from scheduler.engine.children import Child
from scheduler.engine.feeding import Feeding
from scheduler.engine.hearing import Hearing
from scheduler.engine.options import ProcessOptions
from scheduler.engine.parting import Parting
from scheduler.engine.runtime import Runtime
from scheduler.engine.waiting import Waiting
from scheduler.ports import SECOND

log = logging.getLogger("scheduler.engine")

STUCK = 0.02  # seconds that a body may run before what waits behind it is taken back
START_PATIENCE = 120.0  # seconds that a child may take to import the tasks' modules
DEAF = 10.0  # seconds that a child may take to begin what it was given, while it does nothing else
LEASE_LOOK = 0.1  # seconds between looks whether the lease was extended, at least
ASK = 1.0  # seconds without an answer after which the fork server is asked for a sign of life
SILENT = 10.0  # seconds without one until no child is tried any more, and that is told
SILENT_TOO_LONG = 60.0  # seconds until it is ended, and every child with it
LOOK = 1.0  # seconds between two looks at that; if there were more, this process stood still
IDLE = 300.0  # seconds after which a child that has nothing to do is ended
HOOK_PATIENCE = 60.0  # seconds that a hook may take


class Patience:
    """See the module."""

    def __init__(
        self,
        brood: Brood,
        waiting: Waiting,
        feeding: Feeding,
        parting: Parting,
        hearing: Hearing,
        options: ProcessOptions,
        runtime: Runtime,
    ) -> None:
        self._brood = brood
        self._waiting = waiting
        self._feeding = feeding
        self._parting = parting
        self._hearing = hearing
        self._options = options
        self._runtime = runtime
        self._silence = 0.0  # seconds, of those in which we looked
        self._looked_at = 0.0  # monotonic

    def wait(self) -> float | None:
        """Seconds until there is something to do, if nothing happens."""
        now = time.monotonic()
        moments = []
        for child in self._brood.children.values():
            if child.kill_at is not None:
                moments.append(child.kill_at)
            if not child.ready:
                moments.append(now + 0.2)  # those who wait for it are told that it goes on
            elif child.current is None:
                if not child.on_its_way_out:
                    moments.append(child.idle_since + (DEAF if child.jobs else IDLE))
            else:
                if child.waiting:
                    moments.append(child.current_since + STUCK)
                deadline = _deadline(child)
                if deadline is not None and child.kill_at is None:
                    moments.append(deadline)
        left = self._runtime.lapses_at - now
        if 0 < left < float("inf") and self._brood.children:
            moments.append(now + max(LEASE_LOOK, left / 4))
        if self._brood.again_at > now:
            moments.append(self._brood.again_at)
        if not self._brood.children and self._brood.nursery is not None:
            moments.append(self._brood.empty_since + IDLE)
        if self._brood.awaits:
            moments.append(now + LOOK)
        return max(0.0, min(moments) - now) if moments else None

    def look(self) -> None:
        now = time.monotonic()
        self._look_at_nursery(now)
        ready = any(child.ready for child in self._brood.children.values())
        if self._brood.children and not ready and not self._brood.silent:
            # Importing the tasks' modules may take longer than the engine lets tasks wait: they are about to start.
            for attempt in self._waiting.attempts():
                attempt.handed_at = now
        for child in list(self._brood.children.values()):
            job = child.current
            if child.kill_at is not None and now >= child.kill_at:
                child.kill_at = None
                self._brood.kill(child)
            elif not child.ready:
                if now > child.began + START_PATIENCE and child.unfit is None:
                    child.unfit = f"not ready after {START_PATIENCE:g} s"
                    self._brood.kill(child)
            elif job is None:
                if child.on_its_way_out:
                    continue
                if child.jobs and now > child.idle_since + DEAF:
                    self._hearing.take_all(child, child.heard())  # it may have begun while this process stood still
                    if child.jobs and child.current is None and not child.on_its_way_out:
                        # Somebody has stopped it, or what a body left there never lets Python run.
                        log.warning("child process %d does not begin what it was given: it is ended", child.pid)
                        self._feeding.take_back(child)
                        self._brood.kill(child)
                elif not child.jobs and now > child.idle_since + IDLE:
                    self._parting.retire(child, "idle")
            else:
                if child.waiting and now > child.current_since + STUCK:
                    self._feeding.take_back(child)
                deadline = _deadline(child)
                if deadline is not None and now >= deadline and child.kill_at is None and not child.killed:
                    job.attempt.timed_out = True
                    self._parting.stop(child, job, "timed_out")
        if not self._brood.children and self._brood.nursery is not None and now > self._brood.empty_since + IDLE:
            self._brood.drop_nursery()

    def _look_at_nursery(self, now: float) -> None:
        """It may have been stopped, or hang: then no child comes, and none is killed that has to be."""
        nursery, brood = self._brood.nursery, self._brood
        passed, self._looked_at = min(now - self._looked_at, LOOK), now
        if nursery is None or nursery.heard or not brood.awaits:
            self._silence, brood.silent = 0.0, False
            if nursery is not None:
                nursery.heard = False
            return
        before, self._silence = self._silence, self._silence + passed
        if before < ASK <= self._silence:
            nursery.ask()
        elif before < SILENT <= self._silence:
            brood.silent = True
            log.warning(
                "the process that forks child processes, %d, has not answered for %g s: no child is started until it "
                "does, and it is ended after %g s",
                *(nursery.pid, SILENT, SILENT_TOO_LONG),
            )
            nursery.go_on()
        elif before < SILENT_TOO_LONG <= self._silence:
            nursery.kill_it()

    def tell_lease(self) -> None:
        """Should this process stand still when its lease runs out, what others may begin then ends without it."""
        until = self._runtime.lapses_at
        if not self._brood.children or until <= time.monotonic():
            return
        for child in self._brood.children.values():
            if child.told_until != until:
                child.told_until = until
                self._brood.say(child, "lease", until)
        self._brood.kill_at(until + self._options.grace)


def _deadline(child: Child) -> float | None:
    """Until when what the child does may take."""
    job = child.current
    if job is None or job.answer is not None:
        return None
    if job.slots is None:
        return child.current_since + HOOK_PATIENCE
    timeout = job.attempt.claimed.timeout
    if timeout is None or job.attempt.timed_out:
        return None
    return child.current_since + timeout / SECOND
