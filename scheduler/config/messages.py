"""``[sources.NAME]``, ``[sinks.NAME]``, ``[door]``: where messages come from and go to."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from scheduler.config.section import Section
from scheduler.config.sources import Duration
from scheduler.model.names import is_name
from scheduler.model.secrets import MARK, is_secret_name

Count = Annotated[int, Meta(ge=1)]
FILE = "_file"  # token_file = "/run/secrets/token" stands for the token in that file
KEY_FROM = re.compile(r"id|header\.[a-z0-9_.-]+|payload\.\w+(\.\w+)*")
_KIND = re.compile(r"\s*(\S+)\s*=\s*(\S+)\s*")


class Source(Section, frozen=True):
    """``[sources.NAME]``: messages of this queue become tasks.

    ``kind``: of all tasks; ``kinds``: ``"message type = kind"``; neither: the message's type is the kind.
    ``task_queue``: of the tasks, if not as their kind says. ``ack``: a message is acknowledged once its task is stored,
    or at its task's end. ``body``: an envelope, or the payload itself, as JSON. ``key_from``: the idempotency key of
    messages whose envelope has none: ``id``, ``header.NAME`` or ``payload.FIELD``. ``shared_keys``: the task's key is
    the message's, which other senders may have taken; else ``NAME:KEY``. ``dlq``: ``none`` takes a source
    without a dead-letter queue; else as the transport reads it. ``max_backlog``: while so many tasks of the source wait
    to be run, no message is received. ``keep``: how long it is remembered which messages have come; None: four days
    longer than the transport may deliver one again. ``retry``: seconds after which a message that could not be stored
    comes again. ``ordered_by``: tasks of one subject run in the order of ``sequence``; at a ``gap`` a message waits
    for those before it, comes again later, or goes ahead. One that waits goes ahead after ``gap_timeout``.
    ``first_sequence``: of each subject.
    """

    type: str = ""
    kind: str | None = None
    kinds: tuple[str, ...] = ()
    task_queue: str | None = None
    ack: Literal["stored", "end"] = "stored"
    body: Literal["envelope", "payload"] = "envelope"
    key_from: str | None = None
    shared_keys: bool = False
    dlq: str | None = None
    max_backlog: Count = 10_000
    max_size: Annotated[int, Meta(ge=1, le=16 * 1024 * 1024)] = 1_048_576
    batch: Annotated[int, Meta(ge=1, le=1000)] = 100
    keep: Annotated[Duration, Meta(gt=0)] | None = None
    retry: Duration = 30.0
    ordered_by: Literal["subject"] | None = None
    gap: Literal["wait", "retry", "skip"] = "wait"
    gap_timeout: Duration = 300.0
    first_sequence: Annotated[int, Meta(ge=0)] = 1
    options: dict[str, Any] = field(default_factory=dict)

    def kind_of(self, message_type: str | None) -> str | None:
        """The kind of the task that a message of this type becomes; None if the settings and the message name none."""
        for entry in self.kinds:
            found = _KIND.fullmatch(entry)
            if found is not None and found[1] == message_type:
                return found[2]
        return self.kind or (None if self.kinds else message_type)

    @property
    def named_kinds(self) -> frozenset[str]:
        """The kinds that the settings name."""
        found = {made[2] for entry in self.kinds if (made := _KIND.fullmatch(entry)) is not None}
        return frozenset(found if self.kind is None else {*found, self.kind})


class Sink(Section, frozen=True):
    """``[sinks.NAME]``: messages go to this queue.

    ``batch``: how many messages are published at once at most, within the transport's own limit. ``timeout``: seconds
    that one try may take. ``min_wait``, ``max_wait``, ``max_attempts``: of one message; then it is a dead letter.
    ``large``: a message over the transport's limit is refused, or its payload goes to the blobs of ``[files]`` and the
    message says where.
    """

    type: str = ""
    batch: Annotated[int, Meta(ge=1, le=1000)] = 100
    timeout: Annotated[Duration, Meta(gt=0, le=300)] = 30.0
    min_wait: Duration = 5.0
    max_wait: Duration = 900.0
    max_attempts: Count = 20
    large: Literal["refuse", "pointer"] = "refuse"
    options: dict[str, Any] = field(default_factory=dict)


class Door(Section, frozen=True):
    """``[door]``: where the daemon takes messages and tasks over HTTP. ``listen``: ``HOST:PORT`` or ``unix:PATH``.

    ``token``: of callers of ``/v1/tasks``; None: no tasks are taken there. ``kinds``: those that may be submitted.
    ``shared_keys``: a task's key is the caller's, which other senders may have taken; else ``@door:KEY``.
    ``max_body``: bytes of one request. ``max_requests``: how many are answered at a time; others wait.
    """

    listen: str | None = None
    token: str | None = None
    kinds: tuple[str, ...] = ("*",)
    shared_keys: bool = False
    max_body: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 4 * 1024 * 1024
    max_requests: Count = 64


def common_settings(section: type[Section]) -> dict[str, Any]:
    """The settings that all sources, or all sinks, have, with their annotated types."""
    hints = typing.get_type_hints(section, include_extras=True)
    return {name: kind for name, kind in hints.items() if name != "options"}


def is_secret_option(name: str) -> bool:
    """Whether the value of a transport's own setting is never shown."""
    return is_secret_name(name) and not name.endswith(FILE)


def is_marked_secret(kind: Any) -> bool:
    """Whether an annotated type has the mark of a secret."""
    notes = getattr(kind, "__metadata__", ())
    return any(isinstance(note, msgspec.Meta) and bool((note.extra_json_schema or {}).get(MARK)) for note in notes)


def warnings(sources: Mapping[str, Source], door: Door) -> Iterator[tuple[str, str]]:
    """What these settings leave to strangers: (dotted name, what)."""
    for name, source in sources.items():
        if not source.named_kinds:
            yield (
                f"sources.{name}.kind",
                "not set: whoever sends a message there chooses its kind, among all but schedd's own; name the kind",
            )
    if door.listen is not None and door.token is not None and "*" in door.kinds:
        yield "door.kinds", "not set: the bearer of the token may submit any kind but schedd's own; name the kinds"


def mistakes(sources: Mapping[str, Source], sinks: Mapping[str, Sink]) -> Iterator[tuple[str, str]]:
    """What is wrong with these settings: (dotted name, why)."""
    for name, source in sources.items():
        where = f"sources.{name}"
        if not source.type:
            yield f"{where}.type", "a source needs the type of its transport, such as sqs"
        if source.key_from is not None and not KEY_FROM.fullmatch(source.key_from):
            yield f"{where}.key_from", 'expected "id", "header.NAME" or "payload.FIELD"'
        for entry in source.kinds:
            if not _KIND.fullmatch(entry):
                yield f"{where}.kinds", f'expected "message type = kind", not {entry!r:.80}'
        if source.task_queue is not None and not is_name(source.task_queue):
            yield f"{where}.task_queue", f"{source.task_queue!r:.80} is not a queue's name"
        if source.body == "payload" and source.kind is None:
            yield f"{where}.kind", 'with body = "payload" no message says its type: name the kind of the tasks'
        if source.body == "payload" and source.key_from is None:
            yield (
                f"{where}.key_from",
                'with body = "payload" no message has an idempotency key: say "payload.FIELD", "header.NAME", or "id"',
            )
    for name, sink in sinks.items():
        if not sink.type:
            yield f"sinks.{name}.type", "a sink needs the type of its transport, such as sqs"
        if sink.max_wait < sink.min_wait:
            yield f"sinks.{name}.max_wait", f"it is less than min_wait ({sink.min_wait:g})"
