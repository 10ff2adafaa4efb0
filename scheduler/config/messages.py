"""``[sources.NAME]``, ``[sinks.NAME]``, ``[door]``: where messages come from and go to."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, field

from scheduler.config.sources import Duration, Section, fields_of
from scheduler.model.names import is_name
from scheduler.model.secrets import MARK, is_secret_name

Count = Annotated[int, Meta(ge=1)]
FILE = "_file"  # token_file = "/run/secrets/token" stands for the token in that file
KEY_FROM = r"id|header\.[a-z0-9_.-]+|payload\.\w+(\.\w+)*"
_KIND = r"\s*(\S+)\s*=\s*(\S+)\s*"


class SourceSection(Section, frozen=True):
    """``[sources.NAME]``: messages of this queue become tasks."""

    # The transport; its own settings are in [messages](../guides/messages.md#sources).
    type: str = ""
    # The kind of all tasks.
    kind: str | None = None
    # `"message type = kind"`; with neither, the message's type is the kind.
    kinds: tuple[str, ...] = ()
    # The queue of the tasks. Default: as their kind says.
    task_queue: str | None = None
    # A message is acknowledged once its task is `stored`, or at its task's `end`.
    ack: Literal["stored", "end"] = "stored"
    # The body is an `envelope`, or the `payload` itself, as JSON.
    body: Literal["envelope", "payload"] = "envelope"
    # The place of the idempotency key in messages whose envelope has none: `id`, `header.NAME` or `payload.FIELD`.
    key_from: str | None = None
    # The task's key is the message's own, which other senders may have taken. Without it the key is `NAME:KEY`.
    shared_keys: bool = False
    # `none` takes a source without a dead-letter queue. Default: as the transport reads it.
    dlq: str | None = None
    # While so many tasks of the source wait, no message is received.
    max_backlog: Count = 10_000
    # Larger messages are dead.
    max_size: Annotated[int, Meta(ge=1, le=16 * 1024 * 1024)] = 1_048_576
    # Messages that are received at once at most.
    batch: Annotated[int, Meta(ge=1, le=1000)] = 100
    # How long come messages are remembered. Default: four days longer than the transport may deliver one again.
    keep: Annotated[Duration, Meta(gt=0)] | None = None
    # A message that could not be stored comes again after so long.
    retry: Duration = 30.0
    # `subject`: tasks of one subject run in the order of `sequence`.
    ordered_by: Literal["subject"] | None = None
    # At a gap a message waits for those before it (`wait`), comes again later (`retry`), or goes ahead (`skip`).
    gap: Literal["wait", "retry", "skip"] = "wait"
    # A message that waits goes ahead after so long.
    gap_timeout: Duration = 300.0
    # The first sequence of each subject.
    first_sequence: Annotated[int, Meta(ge=0)] = 1
    options: dict[str, Any] = field(default_factory=dict)

    def kind_of(self, message_type: str | None) -> str | None:
        """The kind of the task that a message of this type becomes; None if the settings and the message name none."""
        for entry in self.kinds:
            found = re.fullmatch(_KIND, entry)
            if found is not None and found[1] == message_type:
                return found[2]
        return self.kind or (None if self.kinds else message_type)

    @property
    def named_kinds(self) -> frozenset[str]:
        """The kinds that the settings name."""
        found = {made[2] for entry in self.kinds if (made := re.fullmatch(_KIND, entry)) is not None}
        return frozenset(found if self.kind is None else {*found, self.kind})


class SinkSection(Section, frozen=True):
    """``[sinks.NAME]``: messages go to this queue."""

    # The transport; its own settings are in [messages](../guides/messages.md#sinks).
    type: str = ""
    # Messages that are published at once at most, within the transport's own limit.
    batch: Annotated[int, Meta(ge=1, le=1000)] = 100
    # How long one try may take.
    timeout: Annotated[Duration, Meta(gt=0, le=300)] = 30.0
    # The first wait after a try that failed.
    min_wait: Duration = 5.0
    # The longest wait.
    max_wait: Duration = 900.0
    # After so many tries the message is a dead letter.
    max_attempts: Count = 20
    # A message over the transport's limit is refused (`refuse`), or its payload goes to the blobs of `[files]` and
    # the message says where (`pointer`).
    large: Literal["refuse", "pointer"] = "refuse"
    options: dict[str, Any] = field(default_factory=dict)


class DoorSection(Section, frozen=True):
    """``[door]``: messages and tasks over HTTP."""

    # The address at which messages and tasks are taken over HTTP: `HOST:PORT` or `unix:PATH`. It needs the extra
    # `door`; see [messages](../guides/messages.md#the-door).
    listen: str | None = None
    # The token of callers of `/v1/tasks`; without it no tasks are taken there.
    token: str | None = None
    # The kinds that they may submit.
    kinds: tuple[str, ...] = ("*",)
    # A task's key is the caller's own, which other senders may have taken. Without it the key is `@door:KEY`.
    shared_keys: bool = False
    # Bytes that a request may have.
    max_body: Annotated[int, Meta(ge=1024, le=64 * 1024 * 1024)] = 4 * 1024 * 1024
    # Requests that are answered at a time; others wait.
    max_requests: Count = 64


def common_settings(section: type[Section]) -> dict[str, Any]:
    """The settings that all sources, or all sinks, have, with their annotated types."""
    return {name: kind for name, kind in fields_of(section).items() if name != "options"}


def is_secret_option(name: str) -> bool:
    """Whether the value of a transport's own setting is never shown."""
    return is_secret_name(name) and not name.endswith(FILE)


def is_marked_secret(kind: Any) -> bool:
    """Whether an annotated type has the mark of a secret."""
    notes = getattr(kind, "__metadata__", ())
    return any(isinstance(note, msgspec.Meta) and bool((note.extra_json_schema or {}).get(MARK)) for note in notes)


def warnings(sources: Mapping[str, SourceSection], door: DoorSection) -> Iterator[tuple[str, str]]:
    """What these settings leave to strangers: (dotted name, what)."""
    for name, source in sources.items():
        if not source.named_kinds:
            yield (
                f"sources.{name}.kind",
                "not set: whoever sends a message there chooses its kind, among all but schedd's own; name the kind",
            )
    if door.listen is not None and door.token is not None and "*" in door.kinds:
        yield "door.kinds", "not set: the bearer of the token may submit any kind but schedd's own; name the kinds"


def message_mistakes(
    sources: Mapping[str, SourceSection], sinks: Mapping[str, SinkSection]
) -> Iterator[tuple[str, str]]:
    """What is wrong with these settings: (dotted name, why)."""
    for name, source in sources.items():
        where = f"sources.{name}"
        if not source.type:
            yield f"{where}.type", "a source needs the type of its transport, such as sqs"
        if source.key_from is not None and not re.fullmatch(KEY_FROM, source.key_from):
            yield f"{where}.key_from", 'expected "id", "header.NAME" or "payload.FIELD"'
        for entry in source.kinds:
            if not re.fullmatch(_KIND, entry):
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
