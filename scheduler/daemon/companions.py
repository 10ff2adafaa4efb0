"""What runs in a daemon beside its Scheduler, and how a reload changes it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from scheduler.config.validation import check
from scheduler.errors import ConfigError

if TYPE_CHECKING:
    from scheduler.config.model import Config


class Companion(Protocol):
    """What runs in the daemon beside the Scheduler, in threads of its own."""

    def start(self) -> object: ...
    def stop(self) -> object: ...


@runtime_checkable
class Reloads(Companion, Protocol):
    """A companion that changes while it runs. ``sections``: of the configuration, those that it takes over."""

    sections: tuple[str, ...]

    def prepare(self, config: Config) -> Callable[[], object] | None:
        """Check a changed configuration, and change nothing yet. Raises ConfigError.

        Returns what puts the change into effect, for another thread; None if nothing of it concerns this companion.
        """
        ...


class AlertCompanion:
    """Evaluates alerts while ``[alerts]`` says so. A change of it starts another service, which reads the store."""

    sections = ("alerts",)

    def __init__(self, config: Config) -> None:
        """Raises ConfigError."""
        self._settings = config.alerts
        self._service = _alert_service(config)
        self._stopped = False
        self._changing = threading.Lock()

    def start(self) -> None:
        """Start the threads, if there are any."""
        if self._service is not None:
            self._service.start()

    def stop(self) -> None:
        """Stop; waits for a change that is under way."""
        with self._changing:
            self._stopped = True
            if self._service is not None:
                self._service.stop()

    def prepare(self, config: Config) -> Callable[[], object] | None:
        """See :class:`Reloads`."""
        if config.alerts == self._settings:
            return None
        try:
            check(config)
        except ConfigError as error:  # it needs a setting that a reload leaves as it was
            raise ConfigError(f"{error} (as long as the other changes wait for a restart)") from None
        made = _alert_service(config)

        def change() -> None:
            with self._changing:
                if self._stopped:
                    return
                if self._service is not None:
                    self._service.stop()
                self._service, self._settings = made, config.alerts
                self.start()

        return change


def _alert_service(config: Config) -> Companion | None:
    if not config.alerts.on:
        return None
    from scheduler.alerts.service import AlertService

    return AlertService(config)
