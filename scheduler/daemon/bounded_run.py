"""BoundedRun: what a daemon's command line says beside the configuration: its queues, and when it ends by itself."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass, field

import msgspec

from scheduler.config.model import Config
from scheduler.config.sources import parse_duration
from scheduler.errors import ConfigError
from scheduler.model.names import is_name

ALL_QUEUES = "*"
MAX_DRAIN_FRACTION = 0.5  # of a lifetime: tasks are claimed for the rest of it, however long the drain may take
POLL_FRACTION = 0.25  # of the seconds without a task that end the daemon: so often they are looked at
POLL_BOUNDS_S = 0.05, 10.0


def queues_of(text: str) -> tuple[str, ...]:
    """The queues of ``a,b``. Raises argparse.ArgumentTypeError."""
    found = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for queue in found:
        if queue != ALL_QUEUES and not is_name(queue):
            raise argparse.ArgumentTypeError(f"{queue!r:.80} is not a queue's name; write a,b or *")
    return found


def span_of(text: str) -> float:
    """Seconds from 90, 90s or 55m. Raises argparse.ArgumentTypeError."""
    try:
        return parse_duration(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def lifetime_of(text: str) -> float:
    """:func:`span_of` that is not 0. Raises argparse.ArgumentTypeError."""
    span = span_of(text)
    if not span:
        raise argparse.ArgumentTypeError("a lifetime is longer than 0 s")
    return span


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a bounded run to a command line."""
    parser.add_argument(
        "--queues", metavar="A,B", type=queues_of, help="claim tasks of these queues, instead of [worker] queues"
    )
    parser.add_argument(
        "--exit-when-idle",
        metavar="SECONDS",
        type=span_of,
        help="end, with status 0, after so long without a task to run",
    )
    parser.add_argument(
        "--lifetime",
        metavar="DURATION",
        type=lifetime_of,
        help="end, with status 0, within so long: the last [worker] drain of it claims no task",
    )


@dataclass(frozen=True)
class BoundedRun:
    """``queues`` None: those of the configuration; ``idle``, ``lifetime``: seconds, None: it does not end by itself.

    ``began``: monotonic, from when the lifetime counts.
    """

    queues: tuple[str, ...] | None = None
    idle: float | None = None
    lifetime: float | None = None
    began: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, options: argparse.Namespace) -> BoundedRun:
        """What a parsed command line says."""
        return cls(options.queues, options.exit_when_idle, options.lifetime)

    def applied(self, config: Config) -> Config:
        """The configuration with the queues of the command line."""
        if self.queues is None:
            return config
        worker = msgspec.structs.replace(config.worker, queues=self.queues)
        return msgspec.structs.replace(config, worker=worker, origins={**config.origins, "worker.queues": "--queues"})

    def poll(self, longest: float, drain: float) -> float:
        """How long to wait at most until :meth:`over` is asked again, in seconds."""
        waits = [longest]
        if self.idle is not None:
            least, most = POLL_BOUNDS_S
            waits.append(min(most, max(least, self.idle * POLL_FRACTION)))
        if self.lifetime is not None:
            waits.append(max(0.0, self._drain_at(self.lifetime, drain) - time.monotonic()))
        return min(waits)

    def over(self, idle_for: float | None, drain: float) -> str | None:
        """Why the daemon is to stop now; None: it goes on.

        ``idle_for``: seconds that it has been without a task, None: it has some; ``drain``: of the configuration.
        """
        if self.idle is not None and idle_for is not None and idle_for >= self.idle:
            return f"no task to run for {self.idle:g} s"
        if self.lifetime is not None and time.monotonic() >= self._drain_at(self.lifetime, drain):
            return f"its lifetime of {self.lifetime:g} s is about to end"
        return None

    def drain(self, drain: float) -> float:
        """How long running tasks may go on once it stops: not beyond the lifetime."""
        if self.lifetime is None:
            return drain
        return max(0.0, min(drain, self.began + self.lifetime - time.monotonic()))

    def _drain_at(self, lifetime: float, drain: float) -> float:
        return self.began + lifetime - min(drain, lifetime * MAX_DRAIN_FRACTION)
