"""What a child process has to know of the engine it works for, and what its attempts may ask of it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.engine.attempt.capture import TASK_LOGGER
from scheduler.engine.options import ProcessOptions
from scheduler.engine.processes.fork_client import import_path
from scheduler.errors import ConfigError, SchedulerError
from scheduler.model import state as st
from scheduler.model.checkpoint import failure_of
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.reference import main_source, reference_of
from scheduler.ports import Spawner
from scheduler.store.tasks.claim import Claimed

if TYPE_CHECKING:
    from scheduler.engine.attempt.attempt import Attempt
    from scheduler.engine.state import EngineState
    from scheduler.model.registry import Kind

Answer = Callable[[bool, Any], None]  # whether it went well, and the answer, or the error as failure_of() tells it
log = logging.getLogger("scheduler.engine")


class ChildHost:
    """See the module."""

    def __init__(self, engine_state: EngineState, options: ProcessOptions, spawn: Spawner) -> None:
        self._state = engine_state
        self._options = options
        self._spawn = spawn
        self._references: dict[str, tuple[str, str | None]] = {}
        self._questions: queue.SimpleQueue[tuple[Callable[[], Any], Answer] | None] = queue.SimpleQueue()
        self._reader = False
        self._lock = threading.Lock()

    def message(self) -> dict[str, Any]:
        """What a child is told first."""
        engine_state = self._state
        kinds = [(k.name, *self.reference(k)) for k in list(engine_state.registry) if k.options.isolation == "process"]
        root = logging.getLogger()
        return {
            "path": import_path(),
            "main": main_source(),
            "kinds": kinds,
            "claimed": Claimed._fields,
            "state": self._options.state,
            "has_state": engine_state.state is not None,
            "settings": msgspec.to_builtins(engine_state.settings, enc_hook=str),
            "around_run": self._around(),
            "root_level": root.level,
            "task_level": logging.getLogger(TASK_LOGGER).getEffectiveLevel(),
            "structlog": engine_state.options.capture_root,
            "recycle_memory": self._options.recycle_memory,
        }

    def reference(self, kind: Kind) -> tuple[str, str | None]:
        """Where a child finds a kind's type and its ``build``. Raises ConfigError."""
        found = self._references.get(kind.name)
        if found is None:
            build = None
            if kind.build is not None and kind.build != getattr(kind.source, "build", None):
                build = reference_of(kind.build, f"build of task type {kind.name}")
            found = self._references[kind.name] = (reference_of(kind.source, f"task type {kind.name}"), build)
        return found

    def _around(self) -> str | None:
        around = self._state.around_run
        return None if around is None else reference_of(around, "around_run")

    def can_run(self, kind: Kind) -> bool:
        """Whether a child can do for this kind what a thread does."""
        if self._state.state is not None and self._options.state is None:
            return False
        try:
            self.reference(kind)
            self._around()
        except ConfigError:
            return False
        return True

    def check(self, kind: Kind) -> None:
        """Raises ConfigError for a kind that no child can run, and for what surrounds it."""
        self.reference(kind)
        self._around()

    # what attempts ask

    def answer(self, attempt: Attempt | None, method: str, args: list[Any], answer: Answer) -> None:
        """Answer what an attempt in a child asks. Never waits: what has to be waited for is answered later."""
        engine_state = self._state
        if method == "request":
            if attempt is None:
                answer(True, {"held": False})  # it has ended
                return
            engine_state.request(attempt, *args).add_done_callback(lambda done: _pass_on(done.result, answer))
        elif method == "load":
            if attempt is None:
                answer(True, None)
                return
            self._read(lambda: engine_state.load(attempt, *args), answer)
        elif method == "store":
            where = {"url": engine_state.database.absolute_url(), "worker": engine_state.worker}
            answer(True, where | {"lease": engine_state.options.lease, "lives": list(engine_state.lives)})
        elif method == "settled":
            if attempt is not None:
                self._settled(attempt, *args)
            answer(True, None)
        elif method == "path":
            answer(True, import_path())
        elif method == "spec":
            self._read(lambda: self._stored(*args), answer)
        else:
            answer(False, failure_of(SchedulerError(f"a child process asked for {method!r}, which there is not")))

    def _settled(self, attempt: Attempt, ready: int) -> None:
        """Its success is in the database; how it ended comes when its body has."""
        c, now = attempt.claimed, self._state.now()
        outcome = Outcome(
            c.id, c.claim, c.attempt, AttemptEnd.SUCCEEDED, st.SUCCESS, c.claimed_at, attempt.started_at, now
        )
        self._state.settled(attempt, outcome, ready)

    def _stored(self, kind: str, payload: str) -> dict[str, Any]:
        drafts = self._state.drafts
        assert drafts is not None, "an engine that runs handlers is given a drafter"
        spec: dict[str, Any] = msgspec.to_builtins(drafts.stored(kind, payload).finish())
        return spec

    def _read(self, question: Callable[[], Any], answer: Answer) -> None:
        """Ask the database in a thread of its own: the one that looks after the children must not wait for it."""
        with self._lock:
            if not self._reader:
                self._spawn(self._answer_readers, "schedd-processes-reader")
                self._reader = True
        self._questions.put((question, answer))

    def close(self) -> None:
        """Nobody asks any more."""
        self._questions.put(None)

    def _answer_readers(self) -> None:
        while (asked := self._questions.get()) is not None:
            _pass_on(*asked)


def _pass_on(question: Callable[[], Any], answer: Answer) -> None:
    try:
        value = question()
    except Exception as error:
        if not isinstance(error, SchedulerError):
            log.exception("a question of a child process could not be answered")
        answer(False, failure_of(error))
    else:
        answer(True, value)
