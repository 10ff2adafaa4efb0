"""MessageService: what a daemon runs for its sources, its sinks and its door."""

from __future__ import annotations

import base64
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from scheduler.app import Scheduler
from scheduler.config.model import Config
from scheduler.engine.execution.context import Context
from scheduler.errors import ConfigError, PermanentError, StoreUnavailableError
from scheduler.messages.intake import UNREADABLE, Intake
from scheduler.messages.outbox import Outlet, Publisher, make_kind, make_outlet
from scheduler.messages.receiver import Receiver
from scheduler.model.inbox import INBOX
from scheduler.model.task import Task
from scheduler.model.webhooks import key_of
from scheduler.store import inbox
from scheduler.transports.ports import Delivery, Finding, PushSource, Redrives, Sink, Source, TransportError
from scheduler.transports.types import make_sink, make_source

if TYPE_CHECKING:
    from scheduler.messages.door import Door

PURGE_EVERY = 3600.0  # seconds between removals of messages whose time is over
AT_ONCE = 8  # sources and sinks that are examined at a time
STOP_WITHIN = 3.0  # seconds that a stop waits for all receivers
log = logging.getLogger("scheduler.messages")


class UnreadableMessage(Task, kind=UNREADABLE, queue=INBOX):
    """Reads its message again: a replay, once the settings or the program have changed, makes the task of it."""

    source: str
    message_id: str
    reason: str
    body: str
    complete: bool
    headers: dict[str, Any]

    intakes: ClassVar[Mapping[str, Intake]] = {}
    """Of the sources of this process. Their receipts are of no use: the messages were acknowledged long ago."""

    def run(self, _ctx: Context) -> dict[str, Any]:
        intake = self.intakes.get(self.source)
        if intake is None:
            raise PermanentError(f"{self.reason}; this worker has no source {self.source}")
        if not self.complete:
            raise PermanentError(f"{self.reason}; only the beginning of the message was kept")
        delivery = Delivery(
            message_id=self.message_id, body=base64.b64decode(self.body), receipt="", headers=self.headers
        )
        letter = intake.reader.read(delivery)
        if letter.spec is None:
            raise PermanentError(letter.error or self.reason)
        (taken,) = intake.take([delivery])
        return {"task": None if taken.entry is None else taken.entry.task_id}


def make_sources(config: Config) -> dict[str, Source | PushSource]:
    """The sources of a configuration, checked as far as that needs no connection. Raises ConfigError."""
    return {name: checked_source(config, name) for name in config.sources}


def checked_source(config: Config, name: str) -> Source | PushSource:
    """One of them. Raises ConfigError."""
    section, source = config.sources[name], make_source(config, name)
    if not source.limits.has_dlq and section.dlq != "none":
        raise ConfigError(
            f"source {name} has no dead-letter queue for messages that cannot be read: name one, or say "
            f'dlq = "none" in [sources.{name}] to keep them as dead tasks'
        )
    if isinstance(source, PushSource):
        if config.door.listen is None:
            raise ConfigError(f"messages of source {name} are posted to the door: set listen in [door]")
        if not source.auth.token and not source.auth.secret:
            raise ConfigError(f"source {name} needs token or secret: who may post to it?")
        if source.auth.secret is not None:
            key_of(source.auth.secret)
    return source


def check_ends(config: Config) -> None:
    """Make all sources and sinks, and use none. Raises ConfigError."""
    make_sources(config)
    for name in config.sinks:
        make_sink(config, name)


def check_source(config: Config, name: str) -> list[Finding]:
    """What is found about a source by connecting to it; a failure is a finding, too. Raises ConfigError."""
    return _checked(checked_source(config, name))


def check_sink(config: Config, name: str) -> list[Finding]:
    """What is found about a sink by connecting to it. Raises ConfigError."""
    return _checked(make_sink(config, name))


def redrive(config: Config, name: str, most: int) -> int:
    """Send up to ``most`` dead messages of a source to it again; how many. Raises ConfigError, TransportError."""
    source = checked_source(config, name)
    try:
        if not isinstance(source, Redrives) or not source.limits.has_dlq:
            raise ConfigError(
                f"source {name} has no dead-letter queue that can be read from here: what schedd keeps itself is "
                f"a dead task, see `schedctl dlq list --kind {UNREADABLE}`"
            )
        return source.redrive(most)
    finally:
        source.close()


class Examined(NamedTuple):
    """What was found of one source or sink. ``reached`` False: it could not be asked, from here at least."""

    what: str
    ok: bool
    reached: bool
    text: str


def examine(config: Config) -> list[Examined]:
    """Connect to all sources and sinks of a configuration, several at a time."""
    ends: dict[str, Callable[[], Source | PushSource | Sink]] = {
        **{f"source {name}": partial(checked_source, config, name) for name in config.sources},
        **{f"sink {name}": partial(make_sink, config, name) for name in config.sinks},
    }
    if not ends:
        return []
    with ThreadPoolExecutor(min(len(ends), AT_ONCE), "schedd-examine") as pool:
        return list(pool.map(_examine, ends, ends.values()))


def _examine(what: str, make: Callable[[], Source | PushSource | Sink]) -> Examined:
    try:
        end = make()
    except ConfigError as error:
        return Examined(what, False, True, str(error))
    try:
        found = end.check()
    except TransportError as error:
        return Examined(what, False, False, str(error))
    finally:
        end.close()
    wrong = [one.text for one in found if not one.ok]
    return Examined(what, not wrong, True, "; ".join(wrong or [one.text for one in found]))


def _checked(end: Source | PushSource | Sink) -> list[Finding]:
    try:
        return list(end.check())
    except TransportError as error:
        return [Finding(False, str(error))]
    finally:
        end.close()


class MessageService:
    """Receives and publishes between :meth:`start` and :meth:`stop`, in threads of its own. Raises ConfigError."""

    def __init__(self, config: Config, jobs: Scheduler) -> None:
        self._jobs = jobs
        self._config = config
        self._stopping = threading.Event()
        self._changing = threading.Lock()
        self._thread: threading.Thread | None = None
        self._rereading: dict[str, Intake] = {}
        self.receivers, pushed = self._receiving(config, make_sources(config))
        self.outlets: dict[str, Outlet] = {}
        self._publish({name: make_outlet(config, name, jobs.database, jobs.traffic) for name in config.sinks})
        self.door = self._make_door(config, pushed)

    @property
    def publishers(self) -> dict[str, Publisher]:
        """What publishes to the sinks, by their names."""
        return {name: outlet.publisher for name, outlet in self.outlets.items()}

    def _receiving(
        self, config: Config, sources: Mapping[str, Source | PushSource]
    ) -> tuple[dict[str, Receiver], dict[str, tuple[PushSource, Intake]]]:
        """What receives from these sources: those that are fetched, and those that are posted to the door."""
        jobs = self._jobs
        jobs.traffic.know(sources, ())
        receivers: dict[str, Receiver] = {}
        pushed: dict[str, tuple[PushSource, Intake]] = {}
        holder = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        for name, source in sources.items():
            section, limits = config.sources[name], source.limits
            self._rereading[name] = Intake(name, section, limits, jobs.submitter, traffic=jobs.traffic)
            if isinstance(source, PushSource):
                pushed[name] = source, self._rereading[name]
            else:
                intake = Intake(name, section, limits, jobs.submitter, holder, jobs.traffic)
                receivers[name] = Receiver(source, intake, jobs.database, holder)
        if sources:
            UnreadableMessage.intakes = self._rereading
            jobs.register(UnreadableMessage)
        return receivers, pushed

    def _publish(self, outlets: Mapping[str, Outlet]) -> None:
        """Publish to these sinks from now on."""
        self._jobs.traffic.know((), outlets)
        for name, outlet in outlets.items():
            present = self.outlets.get(name)
            if present is not None:
                present.replace(outlet)
            else:
                self._jobs.register(make_kind(outlet, self._jobs.database))
                self.outlets[name] = outlet

    def _make_door(self, config: Config, pushed: Mapping[str, tuple[PushSource, Intake]]) -> Door | None:
        if config.door.listen is None:
            return None
        from scheduler.transports.ports import require

        require("uvicorn", "door", "[door] listen")
        from scheduler.messages.door import Door

        return Door(config, self._jobs, pushed)

    def start(self) -> None:
        """Start the threads. Raises ConfigError if the door's address cannot be taken."""
        if self.door is not None:
            self.door.start()
        for receiver in self.receivers.values():
            receiver.start()
        self._thread = threading.Thread(target=self._purge, name="schedd-inbox", daemon=True)
        self._thread.start()

    def prepare(self, config: Config) -> Callable[[], None] | None:
        """What puts changed sources and sinks into effect; None if none has changed. The others go on meanwhile.

        Sinks that are no longer there stay: tasks of their kinds may run. Raises ConfigError, and changes nothing then.
        """
        sources = {
            name: checked_source(config, name)
            for name, section in config.sources.items()
            if section != self._config.sources.get(name)
        }
        outlets = {
            name: make_outlet(config, name, self._jobs.database, self._jobs.traffic)
            for name, section in config.sinks.items()
            if section != self._config.sinks.get(name)
        }
        changed = {*sources, *(name for name in self._config.sources if name not in config.sources)}
        if not changed and not outlets:
            return None

        def change() -> None:
            with self._changing:
                if not self._stopping.is_set():
                    self._change(config, sources, changed)
                    self._publish(outlets)
                    self._config = config

        return change

    def _change(self, config: Config, sources: Mapping[str, Source | PushSource], changed: Collection[str]) -> None:
        self._end([self.receivers.pop(name) for name in changed if name in self.receivers])
        for name in changed:
            self._rereading.pop(name, None)
        receivers, pushed = self._receiving(config, sources)
        if self.door is not None:
            self.door.replace(pushed, changed)
        self.receivers |= receivers
        for receiver in receivers.values():
            receiver.start()

    def stop(self) -> None:
        """Receive and publish nothing more. What was not settled comes again.

        Returns within ``STOP_WITHIN`` seconds or so, whatever sources and sinks do.
        """
        deadline = time.monotonic() + STOP_WITHIN
        self._stopping.set()
        with self._changing:  # a change that is under way comes to its end
            receivers = list(self.receivers.values())
        for publisher in self.publishers.values():
            publisher.stop()
        for receiver in receivers:
            receiver.stop()
        if self.door is not None:
            self.door.stop()
        self._end(receivers, deadline)
        for name, publisher in self.publishers.items():
            if not publisher.join(max(0.1, deadline - time.monotonic())):
                log.warning("sink %s hangs: what it was publishing is published again", name)

    def _end(self, receivers: Collection[Receiver], deadline: float | None = None) -> None:
        until = time.monotonic() + STOP_WITHIN if deadline is None else deadline
        for receiver in receivers:
            receiver.stop()
        for receiver in receivers:
            if not receiver.join(max(0.1, until - time.monotonic())):
                log.warning("source %s hangs: what it received comes again", receiver.name)

    def _purge(self) -> None:
        while True:
            try:
                while self._jobs.database.change(inbox.purge) and not self._stopping.is_set():
                    pass
            except StoreUnavailableError as error:
                log.info("old messages were not removed from the inbox: %s", error)
            if self._stopping.wait(PURGE_EVERY):
                return
