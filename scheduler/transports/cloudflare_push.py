"""The source that a Worker posts batches of a Cloudflare queue to: ``share/schedd/cloudflare/worker.js``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from scheduler.model.json_text import decode_leniently
from scheduler.model.secrets import Secret
from scheduler.transports.cloudflare import MAX_BATCH, MAX_DELAY, MAX_SIZE, RETENTION, read_body
from scheduler.transports.ports import (
    Answer,
    Auth,
    Dead,
    Delivery,
    Finding,
    Limits,
    Request,
    Retry,
    Unreadable,
    Verdict,
    instant_of_ms,
)


class CloudflarePushSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``token``, ``secret``: who may post, see :class:`scheduler.transports.ports.Auth`.

    ``dead_letter_queue``: the name of the queue that the Worker, or ``max_retries``, moves dead messages to.
    """

    token: Annotated[str | None, Secret] = None
    secret: Annotated[str | None, Secret] = None
    dead_letter_queue: str | None = None


class Posted(msgspec.Struct):
    """A message, as the Worker posts it. ``body``: base64 of content type bytes, else the text or the JSON."""

    id: str
    body: str
    attempts: int | None = None
    timestamp_ms: float | None = None
    content_type: str = "json"


class PushBatch(msgspec.Struct):
    """What the Worker posts."""

    queue: str
    messages: list[Posted]


class CloudflarePushSource:
    """Batches posted to ``/v1/sources/NAME``; the answer has a verdict for each message, after the commit."""

    Settings: ClassVar[type[msgspec.Struct]] = CloudflarePushSettings

    def __init__(self, name: str, settings: CloudflarePushSettings, /) -> None:
        self.name = name
        self.auth = Auth(token=settings.token, secret=settings.secret)
        self.limits = Limits(
            max_size=MAX_SIZE, max_batch=MAX_BATCH, max_delay=MAX_DELAY, retention=RETENTION,
            has_dlq=settings.dead_letter_queue is not None, counts=True,
        )  # fmt: skip

    def accept(self, request: Request) -> Sequence[Delivery]:
        """Raises Unreadable."""
        try:
            batch = msgspec.convert(decode_leniently(request.body), PushBatch)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"no batch of a queue: {error}") from None
        if len(batch.messages) > MAX_BATCH:
            raise Unreadable(f"expected at most {MAX_BATCH} messages")
        once = {one.id: one for one in batch.messages}  # one that comes twice has one verdict
        return [_delivery(batch.queue, one) for one in once.values()]

    def answer(self, verdicts: Sequence[Verdict]) -> Answer:
        """200, with what is to become of each message."""
        return Answer(status=200, body=msgspec.json.encode({"verdicts": [_verdict(one) for one in verdicts]}))

    def check(self) -> Sequence[Finding]:
        """Whether the Worker may post."""
        ok = bool(self.auth.token or self.auth.secret)
        return [Finding(ok, "the Worker has to show who it is" if ok else "set token or secret: may the Worker post?")]

    def close(self) -> None:
        """Nothing is open."""


def _delivery(queue: str, one: Posted) -> Delivery:
    body, why = read_body(one.content_type, one.body, coded=one.content_type == "bytes")
    return Delivery(
        message_id=one.id, body=body, receipt=one.id, attempts=one.attempts,
        sent_at=instant_of_ms(one.timestamp_ms),
        headers={"cf-queue": queue, "cf-content-type": one.content_type}, content_type=one.content_type,
        unreadable=why,
    )  # fmt: skip


def _verdict(one: Verdict) -> dict[str, Any]:
    if isinstance(one, Retry):
        return {"id": one.receipt, "verdict": "retry", "delay_seconds": math.ceil(one.after)}
    if isinstance(one, Dead):
        return {"id": one.receipt, "verdict": "dead", "reason": one.reason}
    return {"id": one.receipt, "verdict": "ack"}
