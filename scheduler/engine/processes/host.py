"""The engine as child processes see it: its messages to them, what they may ask, and how their jobs end in it."""

from __future__ import annotations

import logging
import pickle
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from scheduler.config import user_modules
from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.capture import TASK_LOGGER, current_attempt
from scheduler.engine.attempt.outcomes import (
    crashed_in_quarantine,
    internal_failure,
    outcome_of_external_end,
    with_log,
)
from scheduler.engine.options import ProcessOptions
from scheduler.engine.processes.child_handle import ChildJob
from scheduler.engine.processes.fork_client import import_path
from scheduler.engine.processes.messages import GarbledError
from scheduler.engine.processes.orders import Asker, Orders, ReplyOrder
from scheduler.engine.state import EngineState
from scheduler.errors import ConfigError, ProcessDied, SchedulerError
from scheduler.model.checkpoint import failure_of
from scheduler.model.outcome import AttemptEnd, Outcome
from scheduler.model.reference import main_source, reference_of
from scheduler.model.state import SUCCESS
from scheduler.ports import Spawner
from scheduler.store.tasks.claim import Claimed

if TYPE_CHECKING:
    from scheduler.model.registry import Kind

log = logging.getLogger("scheduler.engine")


class ChildHost:
    """What the process pool has of its engine. Answers the children's requests by orders to the pool's thread."""

    def __init__(self, engine_state: EngineState, options: ProcessOptions, spawn: Spawner) -> None:
        self.runtime = engine_state
        self.options = options
        self.spawn = spawn
        self.report = engine_state.report
        self.means = engine_state.means  # seconds that attempts take, by kind
        self.orders = Orders()
        self._around_reference: str | None = None
        self._reads: queue.SimpleQueue[tuple[Callable[[], Any], Asker] | None] = queue.SimpleQueue()
        self._reader_started = False
        self._lock = threading.Lock()

    # messages to children

    def message(self) -> dict[str, Any]:
        """The first message to a child."""
        engine_state = self.runtime
        kinds = [(k.name, *k.reference) for k in list(engine_state.registry) if k.options.isolation == "process"]
        root = logging.getLogger()
        return {
            "path": import_path(),
            "users_places": user_modules.guarded(),
            "main": main_source(),
            "kinds": kinds,
            "claimed": Claimed._fields,
            "state": self.options.state,
            "has_state": engine_state.state is not None,
            "settings": msgspec.to_builtins(engine_state.settings, enc_hook=str),
            "around_run": self._around(),
            "root_level": root.level,
            "task_level": logging.getLogger(TASK_LOGGER).getEffectiveLevel(),
            "structlog": engine_state.options.capture_root,
            "recycle_memory": self.options.recycle_memory,
            "otel": None if engine_state.tracing is None else engine_state.tracing.for_child(),
        }

    def _around(self) -> str | None:
        """Where a child finds ``around_run``; once found it stays, as a kind's. Raises ConfigError."""
        around = self.runtime.around_run
        if around is not None and self._around_reference is None:
            self._around_reference = reference_of(around, "around_run")
        return self._around_reference

    def can_run(self, kind: Kind) -> bool:
        """Whether a child can do for this kind what a thread does."""
        if self.runtime.state is not None and self.options.state is None:
            return False
        try:
            self.check(kind)
        except ConfigError:
            return False
        return True

    def check(self, kind: Kind) -> None:
        """Raises ConfigError for a kind that no child can run, and for an ``around_run`` that none can import."""
        _ = kind.reference
        self._around()

    # what their attempts ask

    def answer(self, attempt: Attempt | None, method: str, args: list[Any], asker: Asker) -> None:
        """Answer a request of an attempt in a child (None: it has ended). Never waits: some answers come later."""
        engine_state = self.runtime
        if method == "request":
            if attempt is None:
                self.reply(asker, {"held": False})
                return
            engine_state.request(attempt, *args).add_done_callback(lambda done: self._reply_with(done.result, asker))
        elif method == "load":
            if attempt is None:
                self.reply(asker, None)
                return
            self._read(partial(engine_state.load, attempt, *args), asker)
        elif method == "store":
            self._reply_with(partial(self._where, attempt), asker)
        elif method == "settled":
            if attempt is not None:
                self._settled(attempt, *args)
            self.reply(asker, None)
        elif method == "path":
            self.reply(asker, [import_path(), user_modules.guarded()])
        elif method == "spec":
            self._read(partial(self._stored, *args), asker)
        else:
            self.reply_error(asker, SchedulerError(f"a child process asked for {method!r}, which there is not"))

    def reply(self, asker: Asker, value: Any) -> None:
        self.orders.post(ReplyOrder(asker, True, value))

    def reply_error(self, asker: Asker, error: Exception) -> None:
        self.orders.post(ReplyOrder(asker, False, failure_of(error)))

    def _reply_with(self, value_of: Callable[[], Any], asker: Asker) -> None:
        try:
            value = value_of()
        except Exception as error:
            if not isinstance(error, SchedulerError):
                log.exception("a question of a child process could not be answered")
            self.reply_error(asker, error)
        else:
            self.reply(asker, value)

    def _where(self, attempt: Attempt | None) -> dict[str, Any]:
        database, worker, lease, lifetimes = self.runtime.store(attempt)
        return {"url": database.absolute_url(), "worker": worker, "lease": lease, "lifetimes": list(lifetimes)}

    def _settled(self, attempt: Attempt, ready: int) -> None:
        """Its success is in the database; its end is reported when its handler has returned."""
        c, now = attempt.claimed, self.runtime.now()
        outcome = Outcome(
            c.id, c.claim, c.attempt, AttemptEnd.SUCCEEDED, SUCCESS, c.claimed_at, attempt.started_at, now
        )
        self.runtime.settled(attempt, outcome, ready)

    def _stored(self, kind: str, payload: str) -> dict[str, Any]:
        drafts = self.runtime.drafts
        assert drafts is not None, "an engine that runs handlers is given a drafter"
        spec: dict[str, Any] = msgspec.to_builtins(drafts.stored(kind, payload).finish())
        return spec

    def _read(self, read: Callable[[], Any], asker: Asker) -> None:
        """Read the database in a thread of its own: the pool's thread must not wait for it."""
        with self._lock:
            if not self._reader_started:
                self.spawn(self._serve_reads, "schedd-processes-reader")
                self._reader_started = True
        self._reads.put((read, asker))

    def _serve_reads(self) -> None:
        while (asked := self._reads.get()) is not None:
            self._reply_with(*asked)

    def close(self) -> None:
        """End the thread that reads."""
        self._reads.put(None)

    # how jobs end

    def failed(self, job: ChildJob, error: Exception) -> None:
        """Something about a job cannot be done: it ends by that, so that the others go on."""
        if job.future is not None:
            resolve(job, error=error)
        elif job.is_attempt:
            self.report(job.attempt, with_log(job.attempt, internal_failure(job.attempt, self.runtime, error)))
        else:
            log.error("a hook of %s could not be called", job.attempt.kind.name, exc_info=error)

    def died(self, job: ChildJob, how: str) -> ChildJob | None:
        """A job that had begun ended with its process. Returns the hook that another child has to run, if any."""
        attempt = job.attempt
        if job.future is not None:
            resolve(job, error=ProcessDied(how))
            return None
        if not job.is_attempt:
            log.error("a hook of %s ended its process: %s", attempt.kind.name, how)
            return None
        if attempt.decided is not None:
            log.error("a hook of %s, or what its handler had left, ended its process: %s", attempt.kind.name, how)
            self.report(attempt, with_log(attempt, attempt.decided))
            return None
        if job.quarantined and not (attempt.cancelled or attempt.timed_out or attempt.loss_delivered):
            self.report(attempt, crashed_in_quarantine(attempt, self.runtime, how))
            return None
        error: SchedulerError = ProcessDied(how)
        if attempt.timed_out:
            error = attempt.timeout_error("; its process was killed")
        outcome, hook = outcome_of_external_end(attempt, self.runtime, error)
        self.report(attempt, outcome)
        if hook is None:
            return None
        name = "on_attempt_failed" if outcome.end is AttemptEnd.RETRIED else "on_failed"
        about = (type(error).__name__, str(error))
        where = (attempt.kind.name, *attempt.kind.reference)
        return ChildJob(
            job.priority, ("hook", *where, tuple(attempt.claimed), name, attempt.started_at, *about), attempt
        )


def resolve(job: ChildJob, value: Any = None, *, error: BaseException | None = None) -> None:
    """Set the future of a function, unless its caller has cancelled it."""
    future = job.future
    if future is None or not future.set_running_or_notify_cancel():
        return
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def resolve_pickled(job: ChildJob, fine: bool, data: bytes) -> None:
    """A function has returned or raised what was pickled into ``data``."""
    try:
        value = pickle.loads(data)
    except BaseException as error:  # a class that cannot be made here
        fine, value = False, error if isinstance(error, Exception) else ProcessDied(f"its message raised {error!r}")
    if not fine and not isinstance(value, BaseException):
        value = ProcessDied("its process sent what it had raised, but that is no error")
    resolve(job, value) if fine else resolve(job, error=value)


def replay_record(attempt: Attempt, fields: dict[str, Any]) -> None:
    """Hand a log record of a child to this process's loggers, as if it had been made here inside the attempt.

    Raises GarbledError if it is none.
    """
    types = (("name", str), ("levelno", int), ("msg", str))
    if not all(type(fields.get(name)) is expected for name, expected in types) or fields.get("args"):
        raise GarbledError("it logged what is no record")
    logger = logging.getLogger(fields["name"])
    if not logger.isEnabledFor(fields["levelno"]):
        return
    token = current_attempt.set(attempt)
    try:
        logger.handle(logging.makeLogRecord(fields))
    finally:
        current_attempt.reset(token)
