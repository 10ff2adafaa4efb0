"""Cloudflare Queues over its HTTP API: a source that pulls from a queue, and a sink that sends to one.

The API polls shortly, extends no lease, and gives a message that was sent no id. See ``cloudflare_push`` for the
source that a Worker posts to.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec

from scheduler.backoff import Backoff
from scheduler.config.sources import Duration
from scheduler.errors import ConfigError
from scheduler.model.json_text import decode_leniently
from scheduler.model.secrets import Secret
from scheduler.transports.ports import (
    Dead,
    Delivery,
    Finding,
    Limits,
    Outgoing,
    Published,
    Refused,
    Retry,
    Settled,
    TransportError,
    Verdict,
    instant_of_ms,
    require,
)

API = "https://api.cloudflare.com/client/v4"
MAX_SIZE = 128_000  # bytes of a message, with OVERHEAD
MAX_BATCH = 100  # messages of one request
MAX_BATCH_SIZE = 256_000  # bytes of the messages of one request, with OVERHEAD for each
OVERHEAD = 100  # bytes of its own that Cloudflare counts for a message, at most
MAX_DELAY = 43_200.0  # seconds that a message waits, when it is sent or tried again
MAX_VISIBILITY = 43_200.0
VISIBILITY = 60.0
RETENTION = 14 * 86_400.0  # seconds: the longest that a queue keeps a message
FIRST_POLL = 0.2  # seconds after the first pull that brought nothing
ANSWER_TIMEOUT = 30.0
MAX_SHOWN = 200  # characters of an answer that an error shows
# Codes of what was wrong with the messages of a request, which no other try mends: metadata, sizes, counts, the JSON.
FINAL = frozenset({10202, 10203, 10204, 10205, 10206, 10207, 10208})
_ID = re.compile(r"[0-9a-f]{32}")


class _CloudflareQueue(msgspec.Struct, frozen=True, kw_only=True):
    account: str
    queue: str
    token: Annotated[str, Secret]
    api: str = API


class CloudflareSourceSettings(_CloudflareQueue, frozen=True, kw_only=True):
    """``account``, ``queue``: their ids. ``token``: of the API, with the permission Queues Edit.

    ``dead_letter_queue``: the id of the queue of dead messages. ``visibility``: seconds that a message is this
    consumer's; nothing extends that, so it is 12 h with ``ack = "end"`` unless set. ``poll``: the longest pause, in
    seconds, between two pulls from an empty queue. ``api``: another address of the API.
    """

    dead_letter_queue: str | None = None
    visibility: Duration | None = None
    poll: Duration = 5.0
    ack: Literal["stored", "end"] = "stored"


class CloudflareSinkSettings(_CloudflareQueue, frozen=True, kw_only=True):
    """The first four are those of :class:`CloudflareSourceSettings`. ``timeout``: seconds for one request.

    ``content_type``: ``json``, a Worker gets the envelope as an object; ``text``, as the text that was sent.
    """

    content_type: Literal["json", "text"] = "json"
    timeout: Duration = ANSWER_TIMEOUT


class CloudflareSource:
    """Messages of a queue with an HTTP pull consumer. A receipt is a lease, which is no fence: late ones are taken."""

    Settings: ClassVar[type[msgspec.Struct]] = CloudflareSourceSettings

    def __init__(self, name: str, settings: CloudflareSourceSettings, /) -> None:
        if settings.dead_letter_queue is not None:
            _check_id(f"sources.{name}.dead_letter_queue", settings.dead_letter_queue, "queue")
        usual = MAX_VISIBILITY if settings.ack == "end" else VISIBILITY
        self._visibility = usual if settings.visibility is None else settings.visibility
        if not 0 < self._visibility <= MAX_VISIBILITY:
            raise ConfigError(f"setting sources.{name}.visibility: expected at most 12 h, not {self._visibility:g} s")
        self._settings = settings
        self._api = _CloudflareApi(f"sources.{name}", f"the source {name}", settings)
        self._backoff = Backoff(min(FIRST_POLL, settings.poll), settings.poll)
        self._poll_at = 0.0  # monotonic
        self._closing = threading.Event()
        self.limits = Limits(
            max_size=MAX_SIZE, max_batch=MAX_BATCH, max_delay=MAX_DELAY, visibility=self._visibility,
            retention=RETENTION, has_dlq=settings.dead_letter_queue is not None, counts=True,
        )  # fmt: skip

    def receive(self, most: int, wait: float) -> Sequence[Delivery]:
        """One pull, after the pause that is due since the last one brought nothing. Raises TransportError."""
        pause = self._poll_at - time.monotonic()
        if pause > 0 and (self._closing.wait(min(pause, wait)) or pause > wait):
            return []
        result = self._api.post(
            f"{self._settings.queue}/messages/pull",
            {
                "batch_size": max(1, min(most, MAX_BATCH)),
                "visibility_timeout_ms": max(1, round(self._visibility * 1000)),
            },
        )
        found = [_delivery(message) for message in result.get("messages") or ()]
        if found:
            self._backoff.reset()
        self._poll_at = 0.0 if found else time.monotonic() + self._backoff.next()
        return found

    def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Settled]:
        """Raises TransportError."""
        settled = self._bury([one for one in verdicts if isinstance(one, Dead)])
        left = [one for one in verdicts if one.receipt not in settled]
        for start in range(0, len(left), MAX_BATCH):
            part = left[start : start + MAX_BATCH]
            result = self._api.post(
                f"{self._settings.queue}/messages/ack",
                {
                    "acks": [{"lease_id": one.receipt} for one in part if not isinstance(one, Retry)],
                    "retries": [
                        {"lease_id": one.receipt, "delay_seconds": _seconds(one.after)}
                        for one in part
                        if isinstance(one, Retry)
                    ],
                },
            )
            warnings = result.get("warnings")
            by_receipt = warnings if isinstance(warnings, Mapping) else {}
            settled |= {one.receipt: _settled(one.receipt, by_receipt.get(one.receipt)) for one in part}
        return [settled[one.receipt] for one in verdicts]

    def _bury(self, dead: Sequence[Dead]) -> dict[str, Settled]:
        """Send dead messages to their queue; those that it has not confirmed, by receipt, which come again."""
        queue = self._settings.dead_letter_queue
        if not dead or queue is None:
            return {}
        answers = self._api.send(queue, [_grave(one) for one in dead])
        return {
            one.receipt: Settled(one.receipt, f"its dead-letter queue refused it: {answer}")
            for one, answer in zip(dead, answers, strict=True)
            if answer is not None
        }

    def redrive(self, most: int) -> int:
        """The dead-letter queue has to have an HTTP pull consumer, too. Raises TransportError."""
        dead, moved = self._settings.dead_letter_queue, 0
        while moved < most:
            wanted = {"batch_size": min(most - moved, MAX_BATCH), "visibility_timeout_ms": round(VISIBILITY * 1000)}
            found = [_delivery(one) for one in self._api.post(f"{dead}/messages/pull", wanted).get("messages") or ()]
            if not found:
                break
            answers = self._api.send(self._settings.queue, [_grave(Dead(one.receipt, "", one)) for one in found])
            done = [one.receipt for one, why in zip(found, answers, strict=True) if why is None]
            acks = [{"lease_id": receipt} for receipt in done]
            self._api.post(f"{dead}/messages/ack", {"acks": acks, "retries": []})
            moved += len(done)
            if len(done) < len(found):
                raise TransportError(f"{next(why for why in answers if why is not None)}; {moved} have moved")
        return moved

    def extend(self, receipts: Sequence[str], seconds: float) -> Sequence[Settled]:
        """Asks nothing: the API has no way to do it."""
        return [Settled(receipt, "Cloudflare extends no lease") for receipt in receipts]

    def check(self) -> Sequence[Finding]:
        """Raises TransportError."""
        queue = self._api.look(self._settings.queue)
        found = [Finding(True, f"the queue {queue.get('queue_name')} is there")]
        consumers = [one for one in queue.get("consumers") or () if one.get("type") == "http_pull"]
        if not consumers:
            found.append(Finding(False, "it has no HTTP pull consumer: wrangler queues consumer http add QUEUE"))
        elif not consumers[0].get("dead_letter_queue"):
            found.append(
                Finding(False, "its consumer names no dead_letter_queue: what was tried too often would be deleted")
            )
        if self._settings.dead_letter_queue is not None:
            name = self._api.look(self._settings.dead_letter_queue).get("queue_name")
            found.append(Finding(True, f"the dead-letter queue {name} is there"))
        return found

    def close(self) -> None:
        """Close the connections; a pause of :meth:`receive` ends."""
        self._closing.set()
        self._api.close()


class CloudflareSink:
    """Sends messages to a queue. The envelope's key is all that its consumer can know a repeated one by."""

    Settings: ClassVar[type[msgspec.Struct]] = CloudflareSinkSettings
    limits = Limits(
        max_size=MAX_SIZE, max_batch=MAX_BATCH, max_batch_size=MAX_BATCH_SIZE, overhead=OVERHEAD, max_delay=MAX_DELAY
    )

    def __init__(self, name: str, settings: CloudflareSinkSettings, /) -> None:
        self._settings = settings
        self._api = _CloudflareApi(f"sinks.{name}", f"the sink {name}", settings, settings.timeout)

    def publish(self, batch: Sequence[Outgoing]) -> Sequence[Published | Refused]:
        """Raises TransportError."""
        content = self._settings.content_type
        answers = self._api.send(self._settings.queue, [_Entry(one.body, content, one.delay) for one in batch])
        return [
            Published(one.key) if answer is None else Refused(one.key, answer, final=True)
            for one, answer in zip(batch, answers, strict=True)
        ]

    def check(self) -> Sequence[Finding]:
        """Raises TransportError."""
        return [Finding(True, f"the queue {self._api.look(self._settings.queue).get('queue_name')} is there")]

    def close(self) -> None:
        """Close the connections."""
        self._api.close()


class _Entry(NamedTuple):
    """A message to be sent. ``body`` is JSON where ``content`` is ``json``, else UTF-8."""

    body: bytes
    content: str
    delay: float = 0.0

    def fields(self) -> dict[str, Any]:
        body: Any = msgspec.Raw(self.body) if self.content == "json" else self.body.decode()
        made = {"body": body, "content_type": self.content}
        return {**made, "delay_seconds": _seconds(self.delay)} if self.delay > 0 else made


class _RefusedError(TransportError):
    """The API has refused the messages of a request for good."""


class _CloudflareApi:
    """The client, made at the first call. What it raises has no secrets."""

    def __init__(self, table: str, what: str, settings: _CloudflareQueue, timeout: float = ANSWER_TIMEOUT) -> None:
        require("httpx2", "http", f"{what}, of type cloudflare,")
        _check_id(f"{table}.account", settings.account, "account")
        _check_id(f"{table}.queue", settings.queue, "queue")
        if not settings.api.startswith(("http://", "https://")):
            raise ConfigError(f"setting {table}.api: expected an address that begins with https://")
        self._base = f"{settings.api.rstrip('/')}/accounts/{settings.account}/queues/"
        self._headers = {"authorization": f"Bearer {settings.token}", "content-type": "application/json"}
        self._what, self._timeout = what, timeout
        self._lock = threading.Lock()
        self._client: Any = None

    def post(self, path: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The result of a request. Raises TransportError."""
        return self._ask("POST", path, msgspec.json.encode(fields))

    def look(self, queue: str) -> Mapping[str, Any]:
        """What the API says of a queue. Raises TransportError."""
        return self._ask("GET", queue, None)

    def send(self, queue: str, entries: Sequence[_Entry]) -> list[str | None]:
        """Why each was refused for good; None: the queue has confirmed it. Raises TransportError."""
        return [answer for batch in _batches(entries) for answer in self._send(queue, batch)]

    def _send(self, queue: str, batch: Sequence[_Entry]) -> list[str | None]:
        try:
            if len(batch) == 1:
                self.post(f"{queue}/messages", batch[0].fields())
            else:
                self.post(f"{queue}/messages/batch", {"messages": [one.fields() for one in batch]})
        except _RefusedError as error:
            if len(batch) == 1:
                return [str(error)]
            return [answer for one in batch for answer in self._send(queue, [one])]  # one bad message harms no other
        return [None] * len(batch)

    def _ask(self, method: str, path: str, content: bytes | None) -> Mapping[str, Any]:
        import httpx2

        from scheduler.tasks.http.client_log import unlogged

        with self._lock:
            if self._client is None:
                self._client = httpx2.Client(timeout=self._timeout, headers=self._headers, follow_redirects=False)
            client = self._client
        try:
            with unlogged():
                answer = client.request(method, self._base + path, content=content)
        except (httpx2.HTTPError, RuntimeError) as error:  # RuntimeError: the client was closed under it
            raise TransportError(f"{self._what}: {str(error) or type(error).__name__}") from None
        return self._result(answer)

    def _result(self, answer: Any) -> Mapping[str, Any]:
        try:
            found = decode_leniently(answer.content)  # one message's text ends no batch
        except (ValueError, RecursionError):
            found = None
        fields: Mapping[str, Any] = found if isinstance(found, dict) else {}
        if 200 <= answer.status_code < 300 and fields.get("success"):
            result = fields.get("result")
            return result if isinstance(result, dict) else {}
        errors = [one for one in fields.get("errors") or () if isinstance(one, dict)]
        shown = "; ".join(f"{one.get('code')} {one.get('message')}" for one in errors) or answer.text
        text = f"{self._what}: the API answered {answer.status_code}: {' '.join(shown.split())[:MAX_SHOWN]}"
        if answer.status_code == 413 or any(one.get("code") in FINAL for one in errors):
            raise _RefusedError(text)
        after = answer.headers.get("retry-after", "")
        raise TransportError(text, float(after) if after.isdecimal() else None)

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()


def _check_id(setting: str, value: str, what: str) -> None:
    if not _ID.fullmatch(value):
        raise ConfigError(f"setting {setting}: expected the id of {what}, 32 hexadecimal digits, not {value!r:.80}")


def _seconds(span: float) -> int:
    return math.ceil(min(max(0.0, span), MAX_DELAY))


def _batches(entries: Sequence[_Entry]) -> Iterator[list[_Entry]]:
    batch: list[_Entry] = []
    size = 0
    for one in entries:
        more = len(one.body) + OVERHEAD
        if batch and (len(batch) >= MAX_BATCH or size + more > MAX_BATCH_SIZE):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += more
    if batch:
        yield batch


def _delivery(message: Mapping[str, Any]) -> Delivery:
    own = message.get("metadata") or {}
    content = str(own.get("CF-Content-Type") or "json")
    body, why = read_body(content, message.get("body") or "", coded=content != "text")
    return Delivery(
        message_id=message["id"], body=body, receipt=message["lease_id"], attempts=message.get("attempts"),
        sent_at=instant_of_ms(message.get("timestamp_ms")), content_type=content,
        headers={name.lower(): value for name, value in own.items() if isinstance(value, str)}, unreadable=why,
    )  # fmt: skip


def read_body(content: str, body: str, *, coded: bool) -> tuple[bytes, str | None]:
    """The bytes of a body, and why it cannot be read, if that is so. ``coded``: it is base64."""
    if not coded:
        data = body.encode("utf-8", "surrogatepass")
    else:
        try:
            data = base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):  # the API's own examples show such bodies as they are
            data = body.encode("utf-8", "surrogatepass")
    if content in ("json", "text", "bytes"):
        return data, None
    return data, f"its content type is {content:.20}, which only Workers can read: send it as json, text or bytes"


def _grave(one: Dead) -> _Entry:
    """A dead message as it was; one that is no text in an object, since the API takes only JSON and text."""
    body, content = one.delivery.body, one.delivery.content_type
    try:
        body.decode()
    except UnicodeDecodeError:
        fields = {"body_base64": base64.b64encode(body).decode(), "content_type": content, "reason": one.reason[:1000]}
        return _Entry(msgspec.json.encode(fields), "json")
    return _Entry(body, "json" if content == "json" and _is_json(body) else "text")


def _is_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _settled(receipt: str, warning: str | None) -> Settled:
    return Settled(receipt) if warning is None else Settled(receipt, str(warning), gone=True)
