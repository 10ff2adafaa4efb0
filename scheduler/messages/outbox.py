"""The kinds of sinks: each message that goes out is a task, and tasks that run at the same time share a batch."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec

from scheduler.config.messages import SinkSection
from scheduler.config.model import Config
from scheduler.config.scheduler_options import task_settings
from scheduler.engine.execution.context import AsyncContext
from scheduler.errors import ConfigError, PermanentError, Retry
from scheduler.messages.ending import Serving
from scheduler.model.fingerprint import describe
from scheduler.model.outgoing import OUTBOX, sink_kind
from scheduler.model.problem import TransportProblem
from scheduler.model.retry import RetryPolicy
from scheduler.model.task import Task
from scheduler.model.texts import storable
from scheduler.ports import FAILPOINTS
from scheduler.store import outbox
from scheduler.store.db.database import Database
from scheduler.tasks.files.blob_store import BlobStore
from scheduler.telemetry.metrics import MESSAGES_PUBLISHED, MESSAGES_REFUSED
from scheduler.telemetry.traffic import Traffic
from scheduler.transports.envelope import EnvelopeError, Message, encode, from_fields
from scheduler.transports.ports import Limits, Outgoing, Published, Refused, Sink, TransportError
from scheduler.transports.types import make_sink

HEADROOM = 0.02  # of each limit in bytes: transports count more than the body, and not all say how much


TROUBLE_LASTS = 60.0  # seconds that a failed try counts, beside the wait for the next one
_Waiting = tuple[Outgoing, "Future[Published | Refused]"]


def too_large(one: Outgoing, limits: Limits) -> str | None:
    """Why a message can never be published there; None if it can."""
    most = _room(_least(limits.max_size, limits.max_batch_size))
    size = one.size + limits.overhead
    return None if most is None or size <= most else f"the message has {size:,} bytes, more than {most:,}"


def pack(messages: Sequence[Outgoing], limits: Limits, most: int) -> Iterator[list[Outgoing]]:
    """Batches in the order of the messages. Each of these fits by itself. ``most``: messages of a batch."""
    most, room = min(most, limits.max_batch), _room(limits.max_batch_size)
    batch: list[Outgoing] = []
    size = 0
    for one in messages:
        more = one.size + limits.overhead
        if batch and (len(batch) >= most or (room is not None and size + more > room)):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += more
    if batch:
        yield batch


def _least(*limits: int | None) -> int | None:
    return min((one for one in limits if one is not None), default=None)


def _room(limit: int | None) -> int | None:
    return None if limit is None else int(limit * (1 - HEADROOM))


class Publisher(Serving):
    """A thread that publishes what waits, in batches, to one sink. It starts with the first message, and ends at
    :meth:`stop`."""

    def __init__(self, name: str, sink: Sink, settings: SinkSection, now: Callable[[], int], traffic: Traffic) -> None:
        super().__init__(sink, f"sink {name}")
        self.sink = sink
        self._now = now
        self._traffic = traffic
        self._name = name
        self._settings = settings
        self._waiting: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()  # None: the last one
        self._lock = threading.Lock()
        self._stopped = False

    def put(self, one: Outgoing) -> Future[Published | Refused]:
        """What the transport says of a message, once it has; TransportError if it is away."""
        done: Future[Published | Refused] = Future()
        with self._lock:
            if self._stopped:
                done.set_exception(TransportError(f"sink {self._name} is closed"))
                return done
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=f"schedd-sink-{self._name}", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the system's limit: the next message tries again
                    done.set_exception(TransportError(f"sink {self._name}: {error}"))
                    return done
                self._thread = thread
            self._waiting.put((one, done))
        return done

    def stop(self) -> None:
        """Take nothing more, publish what waits, and close the sink."""
        with self._lock:
            self._stopped = True
            if self._thread is not None:
                self._waiting.put(None)
                return
        self._close()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            # Whose task has given up waiting is left out: its next attempt publishes it.
            waiting = {id(one): done for one, done in found if done.set_running_or_notify_cancel()}
            wanted = [one for one, _ in found if id(one) in waiting]
            for batch in pack(wanted, self.sink.limits, self._settings.batch):
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
            if len(answers) != len(batch):
                raise ValueError(f"the sink gave {len(answers)} answers to {len(batch)} messages")
        except Exception as error:
            if len(batch) > 1 and not isinstance(error, TransportError):  # one is to blame: the others go out
                for one in batch:
                    self._publish([one], waiting)
                return
            self._traffic.count(MESSAGES_REFUSED, self._name, number=len(batch))
            self.failed(str(error) if isinstance(error, TransportError) else describe(error).text)
            for one in batch:
                waiting[id(one)].set_exception(error)
            return
        self._look_at(answers)
        for one, answer in zip(batch, answers, strict=True):
            self._traffic.count(MESSAGES_PUBLISHED if isinstance(answer, Published) else MESSAGES_REFUSED, self._name)
            waiting[id(one)].set_result(answer)

    def _look_at(self, answers: Sequence[Published | Refused]) -> None:
        """A sink that takes none of a batch, and would have all of it again, is in trouble; one bad message is not."""
        again = [one for one in answers if isinstance(one, Refused) and not one.final]
        if again and len(again) == len(answers):
            self.failed(again[0].reason)
        else:
            self._traffic.is_well("sink", self._name)

    def failed(self, text: str) -> None:
        """Tell where people look, until a message goes out or no try has failed for a while."""
        lasts = TROUBLE_LASTS + 2 * self._settings.max_wait  # until the next try has failed
        self._traffic.tell(TransportProblem("sink", self._name, self._now(), storable(text)), lasts)


class Outlet:
    """What the tasks of a sink publish through. A reload may put other parts into it while they run."""

    def __init__(self, name: str, settings: SinkSection, publisher: Publisher, blobs: BlobStore | None) -> None:
        self.name = name
        self.settings = settings
        self.publisher = publisher
        self.blobs = blobs

    def replace(self, other: Outlet) -> None:
        """Publish as the other one from now on. What waits is published as before, and then that sink is closed."""
        before = self.publisher
        self.settings, self.publisher, self.blobs = other.settings, other.publisher, other.blobs
        before.stop()

    def wait(self, attempt: int) -> float:
        """Seconds before the next try after this one."""
        own = self.settings
        waits = RetryPolicy(min_wait=own.min_wait, max_wait=own.max_wait, max_attempts=own.max_attempts)
        return waits.wait_us(attempt, 0.0) / 1e6


def make_outlet(config: Config, name: str, database: Database, traffic: Traffic) -> Outlet:
    """The outlet of a sink. Raises ConfigError."""
    settings = config.sinks[name]
    if settings.large == "pointer" and config.files.blobs is None:
        raise ConfigError(f'[sinks.{name}] large = "pointer" needs a place for payloads: set blobs in [files]')
    blobs = None if config.files.blobs is None else BlobStore.from_settings(task_settings(config))
    return Outlet(name, settings, Publisher(name, make_sink(config, name), settings, database.now, traffic), blobs)


def make_kind(outlet: Outlet, database: Database) -> Any:
    """The task type of a sink."""
    name = outlet.name

    class PublishTask(Task, kind=sink_kind(name), queue=OUTBOX):
        """Publishes one message."""

        key: str
        message: dict[str, Any]
        group: str | None = None
        result_of: int | None = None

        async def run(self, ctx: AsyncContext) -> dict[str, Any]:
            settings = outlet.settings
            outgoing = await asyncio.to_thread(self.outgoing)
            try:
                answer = await asyncio.wait_for(asyncio.wrap_future(outlet.publisher.put(outgoing)), settings.timeout)
            except TransportError as error:
                answer = Refused(self.key, str(error), after=error.after)
            except TimeoutError:
                answer = Refused(self.key, f"no answer within {settings.timeout:g} s")
                outlet.publisher.failed(answer.reason)
            except Exception as error:  # of a transport's library; tried again like any other refusal
                answer = Refused(self.key, describe(error).text)
            if isinstance(answer, Published):
                return {"message_id": answer.message_id, "duplicate": answer.duplicate}
            if answer.final:
                raise PermanentError(answer.reason)
            if ctx.attempt >= settings.max_attempts:
                raise PermanentError(f"{answer.reason}; tried {ctx.attempt} times")
            raise Retry(after=max(outlet.wait(ctx.attempt), answer.after or 0.0), reason=answer.reason)

        def outgoing(self) -> Outgoing:
            """The message as it goes out; over the transport's limit with a pointer in place of its payload."""
            fields, limits = dict(self.message), outlet.publisher.sink.limits
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
            why = too_large(made, limits)
            if why is None:
                return made
            blobs = outlet.blobs
            if outlet.settings.large != "pointer" or blobs is None or message.payload_inline is None:
                raise PermanentError(f'{why}: pass its data as payload_ref, or say large = "pointer" in [sinks.{name}]')
            uri = blobs.put_json(message.payload_inline)
            pointing = msgspec.structs.replace(message, payload_inline=None, payload_ref=uri)
            made = _made(self.key, pointing, self.group)
            why = too_large(made, limits)
            if why is not None:
                raise PermanentError(f"{why}, even without its payload")
            return made

    return PublishTask


def _made(key: str, message: Message, group: str | None) -> Outgoing:
    return Outgoing(key=key, body=encode(message), message=message, group=group)
