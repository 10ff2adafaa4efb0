"""The trace of one attempt: its span's ids, and what its handler records before the span is written.

The engine writes the span once the attempt's end is committed. Until then the handler's code sees a span that only
takes notes, in threads, in coroutines and in child processes alike. Its own spans become children of that one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry.trace import (
    Span,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    get_current_span,
    set_span_in_context,
)

from scheduler.errors import Interrupted
from scheduler.model.trace import TraceContext
from scheduler.telemetry.notes import Attributes, AttributeValue, EventNote, SpanNote

if TYPE_CHECKING:
    from scheduler.store.tasks.traces import Linked

MAX_SPANS = 1_000  # of one attempt, its own spans apart
MAX_EVENTS = 128  # of one span, the newest are left out
MAX_ATTRIBUTES = 128
MAX_TEXT = 4_096  # characters of an attribute
_SCALARS = (str, bool, int, float)
_INT64 = 2**63


def new_span_id() -> int:
    """A random id of a span; from the system, so that a forked process does not repeat its parent's."""
    return int.from_bytes(os.urandom(8)) or 1


def new_trace_id() -> int:
    """A random id of a trace."""
    return int.from_bytes(os.urandom(16)) or 1


def api_context(context: TraceContext, *, remote: bool = False) -> SpanContext:
    """These ids as OpenTelemetry has them."""
    state = TraceState.from_header([context.state]) if context.state else None
    flags = TraceFlags(TraceFlags.SAMPLED if context.sampled else TraceFlags.DEFAULT)
    return SpanContext(context.trace_id, context.span_id, remote, flags, state)


class NotedSpan(Span):
    """A span that takes notes. ``now``: microseconds."""

    def __init__(self, name: str, context: TraceContext, parent: int, now: Callable[[], int]) -> None:
        self.name = name
        self.context = context
        self.parent = parent
        self.error: str | None = None
        self.attributes: Attributes = {}
        self.events: list[EventNote] = []
        self.start = now() * 1000
        self._now = now
        self._span_context = api_context(context)
        self._recording = True

    def note(self) -> SpanNote:
        """What it has noted so far."""
        return SpanNote(
            *(self.name, self.context.span_id, self.parent, self.start, self._now() * 1000),
            *(dict(self.attributes), list(self.events), self.error),
        )

    def stop(self) -> None:
        """Take no more notes."""
        self._recording = False

    def end(self, end_time: int | None = None) -> None:
        """Does nothing: schedd ends it."""

    def get_span_context(self) -> SpanContext:
        return self._span_context

    def set_attribute(self, key: str, value: Any) -> None:
        if self._recording and (key in self.attributes or len(self.attributes) < MAX_ATTRIBUTES):
            plain = plain_value(value)
            if plain is not None:
                self.attributes[clean_text(str(key))] = plain

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Mapping[str, Any] | None = None, timestamp: int | None = None) -> None:
        if self._recording and len(self.events) < MAX_EVENTS:
            at = self._now() * 1000 if timestamp is None else timestamp
            self.events.append(EventNote(clean_text(str(name)), max(0, at), plain_attributes(attributes)))

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        """Left out: the span's links are the task's own."""

    def update_name(self, name: str) -> None:
        if self._recording:
            self.name = clean_text(str(name))

    def is_recording(self) -> bool:
        return self._recording

    def set_status(self, status: Any, description: str | None = None) -> None:
        code = status.status_code if isinstance(status, Status) else status
        if self._recording and code is StatusCode.ERROR and self.error is None:
            self.error = "_OTHER"

    def record_exception(
        self,
        exception: BaseException,
        attributes: Mapping[str, Any] | None = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        known = {"exception.type": type(exception).__qualname__, "exception.message": str(exception)}
        self.add_event("exception", {**known, **(attributes or {})}, timestamp)


def plain_value(value: Any) -> AttributeValue | None:
    """An attribute's value as it is written; None for one that OpenTelemetry has no type for."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int) and not isinstance(value, bool) and not -_INT64 <= value < _INT64:
        return None
    if isinstance(value, _SCALARS):
        return value
    if isinstance(value, Sequence) and len({type(one) for one in value}) <= 1:
        plain = [plain_value(one) for one in value]
        return [one for one in plain if one is not None and not isinstance(one, list)]
    return None


def plain_attributes(attributes: Mapping[str, Any] | None) -> Attributes:
    """Attributes as they are written, without those that OpenTelemetry has no type for."""
    values = {clean_text(str(key)): plain_value(value) for key, value in (attributes or {}).items()}
    return {key: value for key, value in values.items() if value is not None}


def clean_text(text: str) -> str:
    """A text that UTF-8 can carry, of a bounded length."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


class AttemptTrace:
    """The trace of one attempt.

    ``creation``: the context that the task was sent in. ``send``: takes each note at once, for another process;
    None: they are kept here until the engine writes the spans.
    """

    def __init__(
        self,
        context: TraceContext,
        creation: TraceContext | None,
        now: Callable[[], int],
        *,
        logs: bool = True,
        send: Callable[[SpanNote], None] | None = None,
    ) -> None:
        self.context = context
        self.creation = creation
        self.notes: list[SpanNote] = []
        self.own: SpanNote | None = None
        self.dropped = 0  # spans inside it beyond MAX_SPANS
        self.linked: Linked | None = None
        self.log_fields: dict[str, str] = (
            {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"} if logs else {}
        )
        self._now = now
        self._send = send
        self._span: NotedSpan | None = None

    @property
    def span(self) -> NotedSpan:
        """The attempt's span, as its handler sees it."""
        if self._span is None:
            self._span = NotedSpan("", self.context, 0, self._now)
        return self._span

    def around(
        self, users: Callable[[Any], AbstractContextManager[Any]] | None
    ) -> Callable[[Any], AbstractContextManager[Any]]:
        """What surrounds the handler: the span is current, and then comes the program's own ``around_run``."""
        return partial(self._around, users)

    @contextmanager
    def _around(self, users: Callable[[Any], AbstractContextManager[Any]] | None, ctx: Any) -> Iterator[None]:
        token = contexts.attach(set_span_in_context(self.span))
        try:
            if users is None:
                yield
            else:
                with users(ctx):
                    yield
        finally:
            contexts.detach(token)
            self.add(self.span.note())
            self.span.stop()

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """A span inside the attempt, such as ``step charge``. It is current meanwhile."""
        current = get_current_span().get_span_context()
        parent = current.span_id if current.trace_id == self.context.trace_id else self.context.span_id
        span = NotedSpan(clean_text(name), self.context._replace(span_id=new_span_id()), parent, self._now)
        token = contexts.attach(set_span_in_context(span))
        try:
            yield
        except BaseException as error:
            if not isinstance(error, Interrupted):
                span.error = type(error).__qualname__
            raise
        finally:
            contexts.detach(token)
            self.add(span.note())
            span.stop()

    def event(self, name: str, **attributes: Any) -> None:
        """An event on the attempt's span."""
        self.span.add_event(name, {f"schedd.{key}": value for key, value in attributes.items() if value is not None})

    def current(self) -> TraceContext:
        """The context of the innermost span here, which what is sent from here belongs to."""
        current = get_current_span().get_span_context()
        if current.trace_id != self.context.trace_id:
            return self.context
        return self.context._replace(span_id=current.span_id, sampled=current.trace_flags.sampled)

    def add(self, note: SpanNote) -> None:
        """Take a note here, or send it to the process that writes it."""
        if self._send is not None:
            self._send(note)
        else:
            self.receive(note)

    def receive(self, note: SpanNote) -> None:
        """Take a note, of this process or of the child in which the handler runs."""
        if not note.parent:
            self.own = note
        elif len(self.notes) < MAX_SPANS:
            self.notes.append(note)
        else:
            self.dropped += 1
