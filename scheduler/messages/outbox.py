"""The kinds of sinks: each message that goes out is a task, and tasks that run at the same time share a batch."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from scheduler.config.messages import Sink as Settings
from scheduler.config.model import Config
from scheduler.config.scheduler_options import task_settings
from scheduler.engine.execution.context import AsyncContext
from scheduler.errors import ConfigError, PermanentError, Retry
from scheduler.messages.packing import pack, too_large
from scheduler.model.outgoing import OUTBOX, sink_kind
from scheduler.model.retry import RetryPolicy
from scheduler.model.task import Task
from scheduler.model.trouble import Trouble
from scheduler.ports import FAILPOINTS
from scheduler.store import outbox
from scheduler.store.db.database import Database
from scheduler.tasks.files.blob_store import BlobStore
from scheduler.telemetry.metrics import MESSAGES_PUBLISHED, MESSAGES_REFUSED
from scheduler.telemetry.traffic import Traffic
from scheduler.transports.envelope import EnvelopeError, Message, encode, from_fields
from scheduler.transports.ports import Outgoing, Published, Refused, Sink, TransportError
from scheduler.transports.types import make_sink

TROUBLE_LASTS = 60.0  # seconds that a failed try counts, beside the wait for the next one
log = logging.getLogger("scheduler.messages")
_Waiting = tuple[Outgoing, "Future[Published | Refused]"]


class Publisher:
    """A thread that publishes what waits, in batches, to one sink. It starts with the first message, and ends at
    :meth:`stop`."""

    def __init__(self, name: str, sink: Sink, settings: Settings, now: Callable[[], int], traffic: Traffic) -> None:
        self.sink = sink
        self._now = now
        self._traffic = traffic
        self._name = name
        self._settings = settings
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()  # None: the last one
        self._lock = threading.Lock()
        self._stopped = False
        self._thread: threading.Thread | None = None

    def put(self, one: Outgoing) -> Future[Published | Refused]:
        """What the transport says of a message, once it has; TransportError if it is away."""
        done: Future[Published | Refused] = Future()
        with self._lock:
            if self._stopped:
                done.set_exception(TransportError(f"sink {self._name} is closed"))
                return done
            self._waiting.put((one, done))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"schedd-sink-{self._name}", daemon=True)
                self._thread.start()
        return done

    def stop(self) -> None:
        """Take nothing more, publish what waits, and close the sink."""
        with self._lock:
            self._stopped = True
            if self._thread is not None:
                self._waiting.put(None)
                return
        self._close()

    def join(self, timeout: float) -> bool:
        """Wait until it has stopped; False if it has not. Then gives the connection up under it."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                self._close()
                return False
        return True

    def _close(self) -> None:
        try:
            self.sink.close()
        except Exception as error:
            log.info("sink %s: closing it failed: %s", self._name, error)

    def _run(self) -> None:
        while (found := self._next()) is not None:
            waiting = {id(one): done for one, done in found}
            for batch in pack([one for one, _ in found], self.sink.limits, self._settings.batch):
                self._publish(batch, waiting)
        self._close()

    def _next(self) -> list[_Waiting] | None:
        """The next messages, up to a batch; None at the end."""
        one = self._waiting.get()
        if one is None:
            return None
        found = [one]
        while len(found) < self._settings.batch:
            try:
                one = self._waiting.get_nowait()
            except queue.Empty:
                break
            if one is None:
                self._waiting.put(None)  # for the next call: nothing comes behind it
                break
            found.append(one)
        return found

    def _publish(self, batch: Sequence[Outgoing], waiting: Mapping[int, Future[Published | Refused]]) -> None:
        try:
            FAILPOINTS.hit("outbox.publishing")
            answers = self.sink.publish(batch)
            FAILPOINTS.hit("outbox.published")
            self._traffic.is_well("sink", self._name)
            for one, answer in zip(batch, answers, strict=True):
                self._traffic.count(
                    MESSAGES_PUBLISHED if isinstance(answer, Published) else MESSAGES_REFUSED, self._name
                )
                _resolve(waiting[id(one)], answer)
        except Exception as error:
            self._traffic.count(MESSAGES_REFUSED, self._name, number=len(batch))
            if isinstance(error, TransportError):
                lasts = TROUBLE_LASTS + 2 * self._settings.max_wait  # until the next try has failed
                self._traffic.tell(Trouble("sink", self._name, self._now(), str(error)), lasts)
            for one in batch:
                done = waiting[id(one)]
                if not done.done():
                    done.set_exception(error)


def _resolve(done: Future[Published | Refused], answer: Published | Refused) -> None:
    if not done.done():  # its task may have been cancelled
        done.set_result(answer)


def make_kind(name: str, settings: Settings, publisher: Publisher, database: Database, blobs: BlobStore | None) -> Any:
    """The task type of a sink."""
    waits = RetryPolicy(min_wait=settings.min_wait, max_wait=settings.max_wait, max_attempts=settings.max_attempts)

    class PublishTask(Task, kind=sink_kind(name), queue=OUTBOX):
        """Publishes one message."""

        key: str
        message: dict[str, Any]
        group: str | None = None
        result_of: int | None = None

        async def run(self, ctx: AsyncContext) -> dict[str, Any]:
            outgoing = await asyncio.to_thread(self.outgoing)
            try:
                answer = await asyncio.wait_for(asyncio.wrap_future(publisher.put(outgoing)), settings.timeout)
            except TransportError as error:
                answer = Refused(self.key, str(error), after=error.after)
            except TimeoutError:
                answer = Refused(self.key, f"no answer within {settings.timeout:g} s")
            if isinstance(answer, Published):
                return {"message_id": answer.message_id, "duplicate": answer.duplicate}
            if answer.final:
                raise PermanentError(answer.reason)
            if ctx.attempt >= settings.max_attempts:
                raise PermanentError(f"{answer.reason}; tried {ctx.attempt} times")
            own = waits.wait_us(ctx.attempt, 0.0) / 1e6
            raise Retry(after=max(own, answer.after or 0.0), reason=answer.reason)

        def outgoing(self) -> Outgoing:
            """The message as it goes out; over the transport's limit with a pointer in place of its payload."""
            fields = dict(self.message)
            if self.result_of is not None:
                with database.read() as tx:
                    text = outbox.result_of(tx, self.result_of)
                if text is None:
                    raise PermanentError(f"the result of task {self.result_of} is gone, which was to be the payload")
                fields["payload_inline"] = msgspec.json.decode(text)
            try:
                message = from_fields(fields)
            except EnvelopeError as error:
                raise PermanentError(str(error)) from None
            made = _made(self.key, message, self.group)
            why = too_large(made, publisher.sink.limits)
            if why is None:
                return made
            if settings.large != "pointer" or blobs is None or message.payload_inline is None:
                raise PermanentError(f'{why}: pass its data as payload_ref, or say large = "pointer" in [sinks.{name}]')
            uri = blobs.put_json(message.payload_inline)
            pointing = msgspec.structs.replace(message, payload_inline=None, payload_ref=uri)
            made = _made(self.key, pointing, self.group)
            why = too_large(made, publisher.sink.limits)
            if why is not None:
                raise PermanentError(f"{why}, even without its payload")
            return made

    return PublishTask


def _made(key: str, message: Message, group: str | None) -> Outgoing:
    return Outgoing(key=key, body=encode(message), message=message, group=group)


def sink_kinds(config: Config, database: Database, traffic: Traffic) -> dict[str, tuple[Publisher, Any]]:
    """The publishers and task types of all sinks of a configuration, by name. Raises ConfigError."""
    found: dict[str, tuple[Publisher, Any]] = {}
    for name, settings in config.sinks.items():
        if settings.large == "pointer" and config.files.blobs is None:
            raise ConfigError(f'[sinks.{name}] large = "pointer" needs a place for payloads: set blobs in [files]')
        blobs = None if config.files.blobs is None else BlobStore.from_settings(task_settings(config))
        publisher = Publisher(name, make_sink(config, name), settings, database.now, traffic)
        found[name] = publisher, make_kind(name, settings, publisher, database, blobs)
    return found
