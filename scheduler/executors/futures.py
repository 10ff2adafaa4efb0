"""The executor ``futures``: jobs run in whatever has ``submit(function, *arguments)`` and gives futures.

Pools of ``concurrent.futures``, Dask's Client, Parsl's, executorlib's and submitit's executors have it. The pool runs
a function that starts the job's process and waits for it: ``job_process.run_in_pool``. The job's files say
what became of it, in a directory that the daemon and the pool share; futures tell only what has not begun, and why it
never will.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor as PoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from scheduler.engine.child.pickling import resolve
from scheduler.errors import ConfigError
from scheduler.executors.directory import DirectoryExecutor
from scheduler.executors.job_files import explained
from scheduler.executors.job_process import ask_to_end, look, run_in_pool, was_started
from scheduler.executors.ports import (
    Capabilities,
    ExecutorError,
    Finding,
    Job,
    PlacementPhase,
    Refused,
    Seen,
    Submitted,
)

CLOSE_S = 5.0  # that a pool has for its end
_NEVER_BEGAN = "it was to end before it began"


class FuturesExecutor(DirectoryExecutor):
    """Jobs in a pool that gives futures. See the module."""

    capabilities = Capabilities(names_unique=True, has_logs=True)

    class Settings(msgspec.Struct, frozen=True, kw_only=True):
        """``directory``: of the jobs' files, the same on the daemon's machine and wherever the pool runs functions, on
        a file system with locks. ``factory``: ``module:function``, called once without arguments: it returns the pool.
        """

        directory: str
        factory: str

    def __init__(self, name: str, settings: Settings) -> None:
        super().__init__(name, settings.directory)
        if ":" not in settings.factory:
            raise ConfigError(f'executors.{name}.factory must be "module:function", not {settings.factory!r}')
        self._factory = settings.factory
        self._pool: Any = None
        self._futures: dict[str, Any] = {}

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        """See :class:`scheduler.executors.ports.Executor`.

        A task's options are keywords of the pool's ``submit``. Its resources are not passed on: each pool takes them in
        a way of its own.
        """
        with explained(self._place):
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            return [self._submit(job) for job in jobs]

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        """See :class:`scheduler.executors.ports.Executor`."""
        waiting = {name: name for name in names if name in self._futures}
        return waiting | dict(super().find(names))

    def observe(self) -> Sequence[Seen]:
        """See :class:`scheduler.executors.ports.Executor`."""
        started = super().observe()
        known = {seen.name for seen in started}
        for name in known:
            self._futures.pop(name, None)
        return [*started, *(_seen(name, future) for name, future in self._futures.items())]

    def _look(self, place: Path) -> Seen | None:
        to_end = (place / "cancel").exists()  # before the look: what the pool takes up from here on does not begin
        seen = look(place)
        if seen is None and to_end:  # whichever daemon had its future
            return Seen(name=place.name, handle=place.name, phase=PlacementPhase.CANCELLED, reason=_NEVER_BEGAN)
        return seen

    def cancel(self, handles: Sequence[str], grace: float) -> None:
        """See :class:`scheduler.executors.ports.Executor`. What runs is ended by the function that has started it."""
        with explained(self._place):
            for place in self._places(handles):
                if place.is_dir():
                    ask_to_end(place, grace)
        for handle in handles:
            future = self._futures.get(handle)
            # One of executorlib's that waits would end the whole pool: its thread does not expect it.
            if future is not None and _library(self._pool) != "executorlib":
                with suppress(Exception):  # a pool that is broken runs nothing
                    future.cancel()

    def forget(self, handles: Sequence[str]) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        for handle in handles:
            self._futures.pop(handle, None)
        super().forget(handles)

    def check(self) -> Sequence[Finding]:
        """See :class:`scheduler.executors.ports.Executor`. Makes the pool."""
        found = list(super().check())
        try:
            pool = self._made_pool()
        except ExecutorError as error:
            return [*found, Finding(False, str(error))]
        return [*found, Finding(True, f"{self._factory} made {pool!r:.200}")]

    def close(self) -> None:
        """See :class:`scheduler.executors.ports.Executor`. What runs goes on, and so does a cluster."""
        pool, self._pool = self._pool, None
        if pool is not None:
            closing = threading.Thread(target=_close, args=(pool,), name="schedd-pool-close", daemon=True)
            closing.start()
            closing.join(CLOSE_S)  # some wait for what runs

    def _made_pool(self) -> Any:
        if self._pool is None:
            try:
                self._pool = resolve(self._factory)()
            except Exception as error:
                raise ExecutorError(f"{self._factory} has failed: {type(error).__name__}: {error}") from error
            if not callable(getattr(self._pool, "submit", None)):
                self._pool = None
                raise ExecutorError(f"{self._factory} returns nothing that has submit(function, *arguments)")
        return self._pool

    def _submit(self, job: Job) -> Submitted | Refused:
        place = self._place / job.name
        place.mkdir(mode=0o700, exist_ok=True)
        if was_started(place) or self._is_waiting(job.name):
            return Submitted(job.name, job.name)
        pool = self._made_pool()
        given = (str(place), list(job.argv), dict(job.env), job.limit, sys.executable, list(job.without))
        try:
            future = pool.submit(run_in_pool, *given, **job.options)
        except TypeError as error:
            return Refused(job.name, False, f"submit() of the pool refuses it: {error}")
        except Exception as error:
            self._pool = None  # broken, or closed: the next submission makes another one
            raise ExecutorError(f"the pool takes no job: {type(error).__name__}: {error}") from error
        self._futures[job.name] = future
        if _library(future) == "distributed":
            from distributed import fire_and_forget

            fire_and_forget(future)  # type: ignore[no-untyped-call]  # or else the cluster drops it with the daemon
        return Submitted(job.name, job.name)

    def _is_waiting(self, name: str) -> bool:
        future = self._futures.get(name)
        return future is not None and not future.done()


def _library(made: object) -> str:
    return type(made).__module__.partition(".")[0]


def _close(pool: Any) -> None:
    with suppress(Exception):
        if isinstance(pool, PoolExecutor):
            pool.shutdown(wait=False)
        elif callable(getattr(pool, "close", None)):  # shutdown() of Dask's client ends the cluster
            pool.close()


def _seen(name: str, future: Any) -> Seen:
    """What a future says of a job that has no files of its own."""
    if not future.done():
        return Seen(name=name, handle=name, phase=PlacementPhase.QUEUED)
    if getattr(future, "cancelled", bool)():  # submitit's have no such method
        return Seen(name=name, handle=name, phase=PlacementPhase.CANCELLED)
    error = future.exception()
    if error is None:  # it was to end before it had begun
        return Seen(name=name, handle=name, phase=PlacementPhase.CANCELLED, reason=_NEVER_BEGAN)
    return Seen(name=name, handle=name, phase=PlacementPhase.FAILED, reason=f"{type(error).__name__}: {error}"[:500])
