"""What schedd needs of an executor: it starts jobs in a backend, says what the backend knows of them, and ends them.

An executor runs no task. Each job that it starts is a schedd worker for exactly one claim: its first statement takes
the claim over, and a job that cannot have it ends with exit status 75 (``NOT_MINE``). So a job that was submitted
twice runs once, and what the backend says of a job is a hint: the store says how a task ended. With
``place = "worker"`` a job is a worker for queues, and its first statement marks its row in the same way.

An executor is a class, found by the ``type`` of ``[executors.NAME]``: one of schedd's own, or an entry point of the
group ``schedd.executors``. The class has the attribute ``Settings``, and is called as ``ProcessExecutor(name,
settings)``: see :class:`ExecutorFactory`. Constructing one does no I/O. Import the backend's library in the
constructor, not at the top of a module, and raise ConfigError with the extra to install if it is missing.

The daemon that holds the executor's lease calls it, from one thread, one call at a time. Another daemon may take over
at any moment, and ask :meth:`Executor.find` for what this one has submitted.

Spans are seconds. A job's name is its identity: a backend's own numbers may come twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import msgspec

from scheduler.backoff import bounded_wait
from scheduler.errors import SchedulerError
from scheduler.model.placement import NOT_MINE as NOT_MINE
from scheduler.model.placement import PlacementPhase as PlacementPhase
from scheduler.model.resources import Resources as Resources
from scheduler.model.texts import storable


class ExecutorError(SchedulerError):
    """The backend cannot be reached, or refuses everything; the text says why, without secrets.

    The caller asks again after a pause that grows, and finds by their names the jobs that it may have submitted.
    ``after``: seconds that the backend asked to be left alone.
    """

    def __init__(self, text: str, after: float | None = None) -> None:
        super().__init__(storable(text))
        self.after = bounded_wait(after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do.

    ``names_unique``: it never has two jobs of one name. ``can_find``: :meth:`Executor.find` knows jobs that another
    daemon submitted. ``has_logs``: it keeps what a job wrote.
    """

    names_unique: bool = False
    can_find: bool = True
    has_logs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job to be started.

    ``name``: its identity, at most 63 characters, a DNS label. ``argv``: the command, without secrets. ``env``: set
    beside what the job inherits; it may hold secrets, so that only the job's own user may read it. ``without``: names
    of the daemon's variables that the job does not inherit. ``limit``: seconds that it may run, None: for ever.
    ``options``: the task's ``executor_options``. ``labels``: to tell jobs apart in the backend's own tools: store,
    task, claim, kind, queue; of a worker for queues the task is 0.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    without: Sequence[str] = ()
    resources: Resources = field(default_factory=Resources)
    limit: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Submitted:
    """The backend has the job. ``handle``: its own id of it, with which it can be cancelled."""

    name: str
    handle: str


@dataclass(frozen=True, slots=True)
class Refused:
    """The backend does not take the job.

    ``later``: it may take it another time, ``after`` seconds at the earliest if it says so; else it never will, and the
    task fails with ``reason``. Neither uses an attempt before that.
    """

    name: str
    later: bool
    reason: str
    after: float | None = None

    def __post_init__(self) -> None:
        _make_storable(self, "reason")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the backend says of a job. ``at``: when it was so, in microseconds since 1970 UTC, if the backend tells."""

    name: str
    handle: str
    phase: PlacementPhase
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    node: str | None = None
    at: int | None = None

    def __post_init__(self) -> None:
        _make_storable(self, "reason", "node")


def _make_storable(one: object, *names: str) -> None:
    """A backend's words are stored: what no database takes in them would keep all jobs of an executor waiting."""
    for name in names:
        text = getattr(one, name)
        if text is not None:
            object.__setattr__(one, name, storable(text))


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``schedctl executors check``: ``ok``, and what was found or what to do."""

    ok: bool
    text: str


@runtime_checkable
class Executor(Protocol):
    """Starts jobs. Every method may raise ExecutorError if the backend is away."""

    capabilities: Capabilities

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        """Start these jobs; one answer for each, in their order. Never raises for one of them.

        A job of a name that the backend has already is not started again, where the backend can tell.
        """
        ...

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        """The handles of those of these jobs that the backend knows now, by their names: also of some that ended."""
        ...

    def observe(self) -> Sequence[Seen]:
        """What the backend says of all jobs of this executor, in as few questions as it can: never one for each."""
        ...

    def cancel(self, handles: Sequence[str], grace: float) -> None:
        """End these jobs: ask them (SIGTERM), and kill what still runs after ``grace`` seconds.

        Returns at once. Harmless when repeated, and for jobs that are over or unknown.
        """
        ...

    def logs(self, handle: str, tail: int) -> str | None:
        """The last ``tail`` characters that the job wrote; None if there is nothing."""
        ...

    def forget(self, handles: Sequence[str]) -> None:
        """Remove what the backend keeps of these jobs, which are over. Harmless when repeated."""
        ...

    def check(self) -> Sequence[Finding]:
        """Look whether jobs can be started: is the backend there, may we use it? Starts no job."""
        ...

    def close(self) -> None:
        """Give up connections; jobs go on. Harmless when repeated."""
        ...


class ExecutorFactory(Protocol):
    """The class that an entry point of ``schedd.executors`` names.

    ``Settings`` is a frozen, keyword-only ``msgspec.Struct``: the settings of ``[executors.NAME]`` beside the common
    ones (:class:`scheduler.config.executors.Executor`), as those of transports are:
    see :class:`scheduler.transports.ports.SourceFactory`.
    """

    Settings: ClassVar[type[msgspec.Struct]]

    def __call__(self, name: str, settings: Any, /) -> Executor:
        """Raises ConfigError for settings that do not fit together, or a library that is missing."""
        ...
