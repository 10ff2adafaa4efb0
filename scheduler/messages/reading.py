"""Reads a delivery: its envelope, its key, its kind, and the task that it is to become."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import msgspec

from scheduler.client.submitter import TaskSubmitter
from scheduler.config.messages import SourceSection
from scheduler.errors import PayloadError, SchedulerError, StoreUnavailableError, UnregisteredKindError, shown_as
from scheduler.messages.texts import as_reason, checked_key, digest, key_of_unknown
from scheduler.model.envelope import CREATED_AT
from scheduler.model.fingerprint import describe
from scheduler.model.inbox import UNREADABLE, sender_key
from scheduler.model.json_text import encode_json
from scheduler.model.outgoing import PREFIX
from scheduler.model.registry import Kind
from scheduler.model.spec import TaskSpec
from scheduler.operations.new_task import encode_headers
from scheduler.operations.published import PublishedKind, encode_payload, read_kind, usual_task
from scheduler.transports.envelope import MAX_TEXT, EnvelopeError, Message, decode, from_fields, json_of
from scheduler.transports.ports import Delivery

BUILT_IN = frozenset(
    {
        *("ActionCreatorTask", "ActionDeliveryTask", "ActionVerifierTask", "BackupTask", "BatchTask", "CommandTask"),
        *("EmailTask", "FileIdGeneratorTask", "HttpTask", "ImageResizerTask", "TempFileCleanupTask"),
    }
)
"""The names of ``scheduler.tasks.BUILTIN``: what workers of older versions have published does not say it."""


log = logging.getLogger("scheduler.messages")
_IN_HEADERS = (
    *("message_type", "correlation_id", "causation_id", "idempotency_key", "subject", "created_at", "payload_ref"),
    *("schema_version", "sequence"),
)
_NUMBERS = ("schema_version", "sequence")
MAX_DIGITS = 19  # of a number in a text
KINDS_LAST = 2.0  # seconds until it is looked again at what workers have published
NEWEST = 0  # the schema version of a payload that says none


@shown_as(PayloadError)
class OwnKindError(PayloadError):
    """A stranger's message asks for what is schedd's own."""


def refuse_own(kind: Kind | PublishedKind, named: Collection[str], where: str) -> None:
    """Refuse a kind of schedd's own that the settings ``where`` do not name. Raises OwnKindError."""
    if kind.name not in named and is_own(kind):
        raise OwnKindError(f"kind {kind.name} is schedd's own: it is taken here only if {where} names it")


def is_own(kind: Kind | PublishedKind) -> bool:
    """Whether a kind is schedd's own."""
    if kind.name.startswith(PREFIX) or kind.name == UNREADABLE:
        return True
    if isinstance(kind, Kind):
        return kind.built_in
    return bool(kind.record.options.get("built_in", kind.name in BUILT_IN))


def refuse_results(kind: Kind | PublishedKind, payload: Any) -> None:
    """Refuse a message of strangers that is to carry the result of a task which it names. Raises OwnKindError."""
    if kind.name.startswith(PREFIX) and isinstance(payload, Mapping) and payload.get("result_of") is not None:
        raise OwnKindError(f"result_of is not taken from outside: it would send any task's result to {kind.name}")


class Letter(NamedTuple):
    """A message that was read. ``spec`` None: it can become no task, and ``error`` says why.

    ``key``: the message's; of one without a key the transport's id, marked as such.
    """

    key: str
    message: Message | None
    spec: TaskSpec | None
    error: str | None = None


class SourceReader:
    """Reads the deliveries of one source."""

    def __init__(self, name: str, section: SourceSection, caller: TaskSubmitter) -> None:
        self._name = name
        self._section = section
        self._caller = caller
        self._published: dict[str, tuple[PublishedKind, float]] = {}  # and until when each is taken to be the newest

    def read(self, delivery: Delivery) -> Letter:
        """Never raises for a message; raises StoreUnavailableError."""
        key, message = key_of_unknown(delivery), None
        try:
            message = self._message(delivery)
            found = message.idempotency_key or self._key(delivery, message)
            if found is None:
                raise EnvelopeError(
                    "it has no idempotency key; the setting key_from says where else one is, if that is meant"
                )
            key = found
            return Letter(key, message, self._spec(message, key))
        except StoreUnavailableError:
            raise
        except SchedulerError as error:
            return Letter(key, message, None, as_reason(f"{error}{self._hint(message)}"))
        except Exception as error:  # of a type's own upgrade() or serialize()
            log.exception("source %s: message %s cannot be read", self._name, as_reason(delivery.message_id))
            return Letter(
                key, message, None, as_reason(f"it cannot be read: {describe(error).text}{self._hint(message)}")
            )

    def _hint(self, message: Message | None) -> str:
        """A sender's first mistake is a body that is the payload itself: its fields were taken for headers."""
        lost = message is not None and message.headers and message.payload_inline is message.payload_ref is None
        if self._section.body != "envelope" or not lost:
            return ""
        own = f'say body = "payload" in [sources.{self._name}] if the body is the payload itself'
        return f"; the body has no payload_inline: {own}"

    def _message(self, delivery: Delivery) -> Message:
        if delivery.unreadable is not None:
            raise EnvelopeError(delivery.unreadable)
        if self._section.body == "envelope":
            return decode(delivery.body, self._section.max_size)
        if len(delivery.body) > self._section.max_size:
            raise EnvelopeError(f"the message has {len(delivery.body):,} bytes, more than {self._section.max_size:,}")
        fields: dict[str, Any] = {name: delivery.headers[name] for name in _IN_HEADERS if name in delivery.headers}
        for name in _NUMBERS:
            if name in fields:
                if not str(fields[name]).isdecimal() or len(str(fields[name])) > MAX_DIGITS:
                    raise EnvelopeError(f"{name}: expected a whole number")
                fields[name] = int(fields[name])
        made = from_fields({**fields, "payload_inline": json_of(delivery.body)})
        return made if "schema_version" in fields else msgspec.structs.replace(made, schema_version=NEWEST)

    def _key(self, delivery: Delivery, message: Message) -> str | None:
        way = self._section.key_from
        if way is None:
            return None
        if way == "id":
            own = delivery.message_id
            return None if not own else checked_key(own if len(own) <= MAX_TEXT else digest(own.encode()), way)
        where, _, name = way.partition(".")
        if where == "header":
            found: Any = delivery.headers.get(name)
        else:
            found = message.payload_inline
            for part in name.split("."):
                found = found.get(part) if isinstance(found, Mapping) else None
        if isinstance(found, bool) or not isinstance(found, str | int) or not str(found):
            raise EnvelopeError(f"it has no {way}, which key_from says is its idempotency key")
        return checked_key(str(found), way)

    def _spec(self, message: Message, key: str) -> TaskSpec:
        name = self._section.kind_of(message.message_type)
        if name is None:
            detail = (
                "it has no message_type" if message.message_type is None else f"of type {message.message_type!r:.80}"
            )
            raise EnvelopeError(f"{detail}, and the source's settings name no kind for that")
        kind = self._kind(name, message.schema_version)
        refuse_own(kind, self._section.named_kinds, f"kind or kinds in [sources.{self._name}]")
        payload = {} if message.payload_inline is None else message.payload_inline
        refuse_results(kind, payload)
        spec = _registered(kind, payload, message) if isinstance(kind, Kind) else _published(kind, payload, message)
        spec.message_type = message.message_type
        spec.correlation, spec.causation = message.correlation_id, message.causation_id
        spec.subject, spec.sequence, spec.payload_ref = message.subject, message.sequence, message.payload_ref
        if message.headers or message.created_at is not None:
            spec.headers = _headers(message)
        if self._section.task_queue is not None:
            spec.queue = self._section.task_queue
        if not kind.makes_keys:
            spec.key = key if self._section.shared_keys else sender_key(self._name, key)
            spec.conflict = "keep"
            spec.key_retention = kind.options.key_retention
        return spec

    def _published_kind(self, name: str, version: int) -> PublishedKind:
        known, until = self._published.get(name, (None, 0.0))
        now = time.monotonic()
        if known is None or now >= until or version > known.record.schema_version:
            known = read_kind(self._caller.database, name)
            self._published[name] = known, now + KINDS_LAST
        return known

    def _kind(self, name: str, version: int) -> Kind | PublishedKind:
        """The kind as this program has it, or as workers have published it where they have a newer schema."""
        kind = self._caller.registry.get(name)
        if kind is not None and version <= kind.options.schema_version:
            return kind
        try:
            published = self._published_kind(name, version)
        except UnregisteredKindError:
            if kind is None:
                raise
            return kind
        return published if kind is None or version <= published.record.schema_version else kind


def _headers(message: Message) -> str:
    """The task's: the message's own, and when it was created, which ``ctx.created_at`` says then."""
    own = encode_headers(message.headers)
    if message.created_at is None:
        return own
    try:
        return encode_headers({**message.headers, CREATED_AT: message.created_at.isoformat().replace("+00:00", "Z")})
    except PayloadError:  # there is no room for it
        return own


def _registered(kind: Kind, payload: Any, message: Message) -> TaskSpec:
    version = message.schema_version
    newest = kind.options.schema_version
    if version > newest:
        raise PayloadError(f"it has schema_version {version}, newer than the {newest} that {kind.name} knows")
    text = encode_json(payload, f"payload of {kind.name}")
    return kind.spec(kind.decode(text, newest if version == NEWEST else version))


def _published(kind: PublishedKind, payload: Any, message: Message) -> TaskSpec:
    version, newest = message.schema_version, kind.record.schema_version
    if version > newest:
        raise PayloadError(f"it has schema_version {version}, newer than the {newest} that workers know of {kind.name}")
    if version in (NEWEST, newest):
        return kind.spec(payload)
    if kind.record.options.get("concurrency_key"):
        raise PayloadError(
            f"it has schema_version {version}: only a program with {kind.name} can make its concurrency key"
        )
    # The worker upgrades it: the schema is that of the newest version.
    spec = usual_task(kind.name, kind.record)
    spec.payload, spec.schema_version = encode_payload(kind.name, payload), version
    return spec
