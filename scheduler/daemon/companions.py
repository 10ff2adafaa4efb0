"""What runs in a daemon beside its Scheduler, and how a reload changes it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from msgspec.structs import replace

from scheduler.config.validation import check
from scheduler.errors import ConfigError

if TYPE_CHECKING:
    from scheduler.config.model import Config
    from scheduler.messages.service import MessageService
    from scheduler.store.db.database import Database
    from scheduler.store.db.server_clock import ServerClock

logger = logging.getLogger("scheduler.daemon")


class Companion(Protocol):
    """What runs in the daemon beside the Scheduler, in threads of its own."""

    def start(self) -> object: ...
    def stop(self) -> object: ...


@runtime_checkable
class Reloads(Companion, Protocol):
    """A companion that changes while it runs."""

    def adopt(self, kept: Config, wanted: Config) -> Config:
        """The configuration in force with what this companion takes over of the changed one."""
        ...

    def prepare(self, config: Config) -> Callable[[], object] | None:
        """Check a changed configuration, and change nothing yet. Raises ConfigError.

        Returns what puts the change into effect, for another thread; None if nothing of it concerns this companion.
        """
        ...


def stop_all(companions: Sequence[Companion], seconds: float) -> None:
    """Stop them, side by side. One that does not stop in time is left: the process ends soon."""
    threads = [
        threading.Thread(target=_stop, args=(one,), name=f"schedd-stop-{type(one).__name__}", daemon=True)
        for one in companions
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
        if thread.is_alive():
            logger.warning("%s does not stop: the daemon ends without it", thread.name.removeprefix("schedd-stop-"))


def _stop(companion: Companion) -> None:
    try:
        companion.stop()
    except Exception:
        logger.exception("%s did not stop in order", type(companion).__name__)


class _Holder:
    """A companion that holds a service, or none; a change may put another one in its place."""

    def __init__(self, service: Companion | None) -> None:
        self._service = service
        self._stopped = False
        self._changing = threading.Lock()

    def start(self) -> None:
        """Start the service, if there is one. Raises ConfigError if its address cannot be taken."""
        if self._service is not None:
            self._service.start()

    def stop(self) -> None:
        """Stop; waits for a change that is under way."""
        with self._changing:
            self._stopped = True
            if self._service is not None:
                self._service.stop()

    def _put(self, make: Callable[[], Companion | None]) -> None:
        """Stop the service, and start another one in its place, unless this has been stopped."""
        with self._changing:
            if not self._stopped:
                if self._service is not None:
                    self._service.stop()
                self._service = make()
                self.start()


class AlertCompanion(_Holder):
    """Evaluates alerts while ``[alerts]`` says so. A change of it starts another service, which reads the store.

    ``outage``: what the engine says of the store; set once there is one.
    """

    _engine_clock: ServerClock | None = None

    def __init__(self, config: Config) -> None:
        """Raises ConfigError."""
        self.outage: Callable[[], str | None] = lambda: None
        super().__init__(self._make(config))
        self._settings = config.alerts

    def _make(self, config: Config) -> Companion | None:
        if not config.alerts.on:
            return None
        from scheduler.alerts.service import AlertService

        return AlertService(config, outage=lambda: self.outage())

    def keep_to(self, database: Database) -> None:
        """Look at a file by the engine's clock, which keeps to that of the other workers."""
        if database.path is not None:
            self._engine_clock = database.server_clock
            self._set_clock(self._service)

    def _set_clock(self, service: Companion | None) -> None:
        keep_to = getattr(service, "keep_to", None)
        if keep_to is not None and self._engine_clock is not None:
            keep_to(self._engine_clock)

    def watch(self) -> None:
        """Look at the store from now on, before :meth:`start`: it may be away already."""
        watch = getattr(self._service, "watch", None)
        if watch is not None:
            watch()

    def adopt(self, kept: Config, wanted: Config) -> Config:
        """See :class:`Reloads`."""
        return replace(kept, alerts=wanted.alerts)

    def prepare(self, config: Config) -> Callable[[], object] | None:
        """See :class:`Reloads`."""
        if config.alerts == self._settings:
            return None
        with _beside_what_waits():
            check(config)
        made = self._make(config)
        self._set_clock(made)

        def change() -> None:
            self._put(lambda: made)
            self._settings = config.alerts

        return change


class MessageCompanion(_Holder):
    """Receives and publishes once there is a source, a sink or a door."""

    def __init__(self, config: Config, jobs: object) -> None:
        """Raises ConfigError."""
        self._jobs = jobs
        self._messages: MessageService | None = None
        wanted = config.sources or config.sinks or config.door.listen is not None
        super().__init__(self._make(config) if wanted else None)

    def _make(self, config: Config) -> MessageService:
        from scheduler.app import Scheduler
        from scheduler.messages.service import MessageService

        assert isinstance(self._jobs, Scheduler)
        self._messages = MessageService(config, self._jobs)
        return self._messages

    def adopt(self, kept: Config, wanted: Config) -> Config:
        """See :class:`Reloads`. A sink that is no longer there stays until a restart: tasks of its kind may run."""
        gone = {name: sink for name, sink in kept.sinks.items() if name not in wanted.sinks}
        return replace(kept, sources=wanted.sources, sinks={**gone, **wanted.sinks}, origins=wanted.origins)

    def prepare(self, config: Config) -> Callable[[], object] | None:
        """See :class:`Reloads`."""
        with _beside_what_waits():
            if self._messages is not None:
                return self._messages.prepare(config)
            if not config.sources and not config.sinks:
                return None
            from scheduler.messages.service import check_ends

            check_ends(config)

        return lambda: self._put(lambda: self._make(config))


@contextmanager
def _beside_what_waits() -> Iterator[None]:
    """Adds to a ConfigError that what it asks for may be in a part of the file that a reload leaves as it was."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{error} (as long as the other changes wait for a restart)") from None
