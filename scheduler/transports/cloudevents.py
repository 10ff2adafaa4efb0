"""CloudEvents 1.0 over HTTP: events are posted to the door, and posted to an address; signed as Standard Webhooks."""

from __future__ import annotations

import base64
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from scheduler.config.sources import Duration
from scheduler.errors import ConfigError
from scheduler.model.json_text import decode_leniently, elements, too_deep
from scheduler.model.secrets import Secret
from scheduler.model.webhooks import key_of, signature
from scheduler.transports.envelope import MAX_TEXT, TOO_DEEP, EnvelopeError, Message, encode, from_fields
from scheduler.transports.ports import (
    Answer,
    Auth,
    Dead,
    Delivery,
    Finding,
    Limits,
    Outgoing,
    Published,
    Refused,
    Request,
    Retry,
    TransportError,
    Unreadable,
    Verdict,
    require,
)

EVENT, BATCH = "application/cloudevents+json", "application/cloudevents-batch+json"
MAX_EVENTS = 1000  # of one batch
MAX_DIGITS = 19  # of a number that is written as a text
MAX_SHOWN = 200  # characters of an answer that an error shows
_OWN = ("specversion", "id", "source", "type", "subject", "time", "datacontenttype", "dataschema")
_DATA = ("data", "data_base64")
# Extension attributes, whose names have small letters and digits only, and the fields of the envelope.
_EXTENSIONS = {
    "correlationid": "correlation_id",
    "causationid": "causation_id",
    "schemaversion": "schema_version",
    "sequence": "sequence",
    "payloadref": "payload_ref",
}
_NUMBERS = ("schema_version", "sequence")
_LATER = (408, 425, 429)  # statuses below 500 after which the same request may succeed


class CloudEventsSourceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``token``, ``secret``: who may post, see :class:`scheduler.transports.ports.Auth`."""

    token: Annotated[str | None, Secret] = None
    secret: Annotated[str | None, Secret] = None


class CloudEventsSource:
    """Events posted to ``/v1/sources/NAME``: structured, binary, or a batch. The key is ``source`` and ``id``.

    2xx: all are stored. 422: one can never be taken, as the answer says; the others of its batch are stored. 503: send
    all again. A sender that gets no answer sends again, too: an event is taken once.
    """

    Settings: ClassVar[type[msgspec.Struct]] = CloudEventsSourceSettings
    limits = Limits(max_batch=MAX_EVENTS, has_dlq=True)

    def __init__(self, name: str, settings: CloudEventsSourceSettings, /) -> None:
        self.name = name
        self.auth = Auth(token=settings.token, secret=settings.secret)

    def accept(self, request: Request) -> Sequence[Delivery]:
        """Raises Unreadable."""
        content = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if content not in (EVENT, BATCH):
            if "ce-specversion" not in request.headers:
                raise Unreadable(f"expected {EVENT}, {BATCH}, or the headers ce-…", 415)
            return [self._delivery(_binary(request, content), 0)]
        if content == EVENT:
            if too_deep(request.body):
                return [_spoilt(request.body, 0, TOO_DEEP)]
            return [self._delivery(_json(request.body), 0)]
        if too_deep(request.body):  # one of them is: it costs no other
            texts = list(elements(request.body))
        else:
            found = _decoded(request.body, decode_leniently)
            if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
                raise Unreadable("expected a list of events")
            texts = list(elements(request.body))
        if not 0 <= len(texts) <= MAX_EVENTS:
            raise Unreadable(f"expected a list of at most {MAX_EVENTS:,} events")
        return [self._of_batch(text, number) for number, text in enumerate(texts)]

    def _of_batch(self, text: bytes, number: int) -> Delivery:
        """One event of a batch, which spoils itself alone."""
        if too_deep(text):
            return _spoilt(text, number, TOO_DEEP)
        try:
            return self._delivery(_json(text), number)
        except Unreadable as error:
            return _spoilt(text, number, str(error))

    def _delivery(self, event: Any, number: int) -> Delivery:
        if not isinstance(event, Mapping):
            raise Unreadable(f"event {number} is no object")
        for name in ("id", "source", "type"):
            if not isinstance(event.get(name), str) or not event[name]:
                raise Unreadable(f"event {number} has no {name}")
        if event.get("specversion") != "1.0":
            raise Unreadable(f"event {number}: expected specversion 1.0")
        key, former = _key(event["source"], event["id"])
        return Delivery(message_id=event["id"], body=_envelope(event, key), receipt=str(number), former_key=former)

    def answer(self, verdicts: Sequence[Verdict]) -> Answer:
        """204, or why not."""
        dead = [{"event": int(one.receipt), "error": one.reason} for one in verdicts if isinstance(one, Dead)]
        waits = [one.after for one in verdicts if isinstance(one, Retry)]
        if waits:
            after = str(max(1, round(max(waits))))
            return Answer(status=503, headers={"retry-after": after}, body=b'{"error": "send it again later"}')
        if dead:
            return Answer(status=422, body=msgspec.json.encode({"error": dead[0]["error"], "events": dead}))
        return Answer(status=204)

    def check(self) -> Sequence[Finding]:
        """Whether a sender may post."""
        ok = bool(self.auth.token or self.auth.secret)
        text = "senders have to show who they are" if ok else "set token or secret: until then no sender may post"
        return [Finding(ok, text)]

    def close(self) -> None:
        """Nothing is open."""


def _json(body: bytes) -> Any:
    """Raises Unreadable."""
    return _decoded(body, msgspec.json.decode)


def _decoded(body: bytes, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(body)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"no JSON: {error}") from None


def _spoilt(body: bytes, number: int, why: str) -> Delivery:
    """An event that is dead as soon as it has come."""
    return Delivery(message_id="", body=body, receipt=str(number), unreadable=why)


def _binary(request: Request, content: str) -> dict[str, Any]:
    event: dict[str, Any] = {
        name.removeprefix("ce-"): value for name, value in request.headers.items() if name.startswith("ce-")
    }
    if not request.body:
        return event
    if content in ("", "application/json") or content.endswith("+json"):
        if too_deep(request.body):
            raise Unreadable(TOO_DEEP)
        try:
            event["data"] = msgspec.json.decode(request.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Unreadable(f"its data is no JSON: {error}") from None
    else:
        event["datacontenttype"] = content
        event["data_base64"] = base64.b64encode(request.body).decode()
    return event


def _key(source: str, id_: str) -> tuple[str, str | None]:
    """The key of an event, which no other pair of source and id has; and its former one, if that could be another's."""
    joined = f"{source} {id_}"
    plain = joined if len(joined) <= MAX_TEXT else hashlib.sha256(joined.encode("utf-8", "surrogatepass")).hexdigest()
    if joined.count(" ") == 1:
        return plain, None
    parts = f"{len(source)} {source}{id_}".encode("utf-8", "surrogatepass")
    return hashlib.sha256(parts).hexdigest(), plain


def _envelope(event: Mapping[str, Any], key: str) -> bytes:
    """The event as an envelope; what does not fit is read again, and refused, with the rest of its batch stored."""
    fields: dict[str, Any] = {name: value for name, value in event.items() if name not in (*_OWN, *_DATA, *_EXTENSIONS)}
    fields |= {
        "message_type": event["type"],
        "idempotency_key": key,
        "subject": event.get("subject"),
        "created_at": event.get("time"),
        "payload_inline": event["data"] if "data" in event else event.get("data_base64"),
    }
    for name in ("datacontenttype", "dataschema"):
        if name in event:
            fields[name] = event[name]
    for name, field in _EXTENSIONS.items():
        value = event.get(name)
        if field in _NUMBERS and isinstance(value, str) and value.isdecimal() and len(value) < MAX_DIGITS:
            value = int(value)
        fields[field] = value
    try:
        return encode(from_fields(fields))
    except EnvelopeError:
        return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


class CloudEventsSinkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``url``: where events are posted. ``source``: what they say of their origin. ``mode``: one request for each
    event, or for a batch. ``timeout``: seconds for one request."""

    url: str
    source: str = "schedd"
    mode: Literal["structured", "batch"] = "structured"
    token: Annotated[str | None, Secret] = None
    secret: Annotated[str | None, Secret] = None
    timeout: Duration = 30.0
    max_size: int = 1_000_000


class CloudEventsSink:
    """Posts events. 2xx: taken. 408, 425, 429 and 5xx: again later. Any other answer: refused for good."""

    Settings: ClassVar[type[msgspec.Struct]] = CloudEventsSinkSettings

    def __init__(self, name: str, settings: CloudEventsSinkSettings, /) -> None:
        require("httpx2", "http", "a sink of type cloudevents")
        if not settings.url.startswith(("http://", "https://")):
            raise ConfigError(f"setting sinks.{name}.url: expected an address that begins with https:// or http://")
        self.name = name
        self.limits = Limits(
            max_size=settings.max_size, max_batch=100 if settings.mode == "batch" else 1, overhead=1024
        )
        self._settings = settings
        self._key = None if settings.secret is None else key_of(settings.secret)
        self._lock = threading.Lock()
        self._client: Any = None

    def publish(self, batch: Sequence[Outgoing]) -> Sequence[Published | Refused]:
        """Raises TransportError."""
        if self._settings.mode == "batch":
            events = msgspec.json.encode([self._event(one) for one in batch])
            answer = self._post(batch[0].key, events, BATCH)
            return [self._answer(one.key, answer) for one in batch]
        return [
            self._answer(one.key, self._post(one.key, msgspec.json.encode(self._event(one)), EVENT)) for one in batch
        ]

    def _event(self, one: Outgoing) -> dict[str, Any]:
        message: Message = one.message
        found: dict[str, Any] = {
            "specversion": "1.0",
            "id": one.key,
            "source": self._settings.source,
            "type": message.message_type or "schedd.message",
            "subject": message.subject,
            "time": message.created_at,
            "data": message.payload_inline,
        }
        found |= {name: getattr(message, field) for name, field in _EXTENSIONS.items()}
        found |= {
            name: value
            for name, value in message.headers.items()
            if name not in found and name.isalnum() and name.islower() and isinstance(value, str | int | bool)
        }
        return {name: value for name, value in found.items() if value is not None}

    def _post(self, message_id: str, data: bytes, content: str) -> Any:
        import httpx2

        from scheduler.tasks.http.client_log import unlogged

        headers = {"content-type": f"{content}; charset=utf-8"}
        if self._settings.token is not None:
            headers["authorization"] = f"Bearer {self._settings.token}"
        if self._key is not None:
            at = str(int(time.time()))
            headers |= {
                "webhook-id": message_id,
                "webhook-timestamp": at,
                "webhook-signature": signature(self._key, message_id, at, data),
            }
        with self._lock:
            if self._client is None:
                self._client = httpx2.Client(timeout=self._settings.timeout, follow_redirects=False)
            client = self._client
        try:
            with unlogged():
                return client.post(self._settings.url, content=data, headers=headers)
        except httpx2.HTTPError as error:
            raise TransportError(f"{_host(self._settings.url)}: {str(error) or type(error).__name__}") from None

    def _answer(self, key: str, answer: Any) -> Published | Refused:
        status = answer.status_code
        if 200 <= status < 300:
            return Published(key)
        shown = " ".join(answer.text.split())[:MAX_SHOWN]
        reason = f"{_host(self._settings.url)} answered {status}: {shown}".rstrip(": ")
        if status >= 500 or status in _LATER:
            return Refused(key, reason, after=_seconds(answer.headers.get("retry-after")))
        return Refused(key, reason, final=True)

    def check(self) -> Sequence[Finding]:
        """Whether the address answers at all. Raises TransportError."""
        import httpx2

        try:
            status = httpx2.head(self._settings.url, timeout=self._settings.timeout).status_code
        except httpx2.HTTPError as error:
            raise TransportError(f"{_host(self._settings.url)}: {str(error) or type(error).__name__}") from None
        return [Finding(status < 500, f"{_host(self._settings.url)} answers {status} to HEAD")]

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None


def _host(url: str) -> str:
    return url.partition("://")[2].partition("/")[0].rpartition("@")[2]


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    if text.isdecimal():
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError):
        return None
