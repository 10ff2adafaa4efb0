"""Amazon SQS: a source that fetches from a queue, and a sink that sends to one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import msgspec

from scheduler.config.sources import Duration
from scheduler.errors import ConfigError
from scheduler.model.secrets import Secret
from scheduler.transports.ports import (
    Ack,
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
    dedupe_id,
    require,
)

MAX_BATCH = 10  # messages of one request
MAX_SIZE = 1_048_576  # bytes of a message, and of one request
MAX_DELAY = 900.0  # seconds that a message which is sent can wait
MAX_VISIBILITY = 43_200.0  # seconds in all, from the receive on
MAX_RETRY = 43_000.0  # seconds: the rest of the visibility is spent before a message is given back
MAX_POLL = 20.0  # seconds of one long poll
LOOK = 1  # seconds of the shortest one: without a wait SQS asks only some of its servers, and may find nothing
RETENTION = 14 * 86_400.0  # seconds: the longest that a queue keeps a message
CONNECT_TIMEOUT, READ_TIMEOUT = 5.0, 30.0  # seconds; a read outlasts a long poll
REASON, MAX_ATTRIBUTES = "reason", 10  # an attribute of dead messages; how many one may have
REASON_SIZE = 256  # characters of a reason that go with a dead message


class _SqsQueue(msgspec.Struct, frozen=True, kw_only=True):
    queue_url: str
    region: str = "us-east-1"
    endpoint_url: str | None = None
    access_key_id: str | None = None
    secret_access_key: Annotated[str | None, Secret] = None


class SqsSourceSettings(_SqsQueue, frozen=True, kw_only=True):
    """``queue_url``: the queue. ``dead_letter_url``: the queue of dead messages. ``visibility``: seconds, from 1.

    ``endpoint_url``: another address of the API. Without ``access_key_id`` the environment has the credentials.
    """

    dead_letter_url: str | None = None
    visibility: Duration = 30.0


class SqsSinkSettings(_SqsQueue, frozen=True, kw_only=True):
    """``queue_url``: the queue; a name that ends in ``.fifo`` keeps the order of a group and drops a repeated key."""


class SqsSource:
    """Messages of a queue. A receipt is the receipt handle."""

    Settings: ClassVar[type[msgspec.Struct]] = SqsSourceSettings

    def __init__(self, name: str, settings: SqsSourceSettings, /) -> None:
        if not 1 <= settings.visibility <= MAX_VISIBILITY:
            raise ConfigError(f"source {name}: visibility is from 1 s to 12 h, not {settings.visibility:g} s")
        self._settings = settings
        self._api = _SqsApi(settings, f"the source {name}")
        self.limits = Limits(
            max_size=MAX_SIZE, max_batch=MAX_BATCH, max_delay=MAX_RETRY, visibility=settings.visibility,
            retention=RETENTION, has_dlq=settings.dead_letter_url is not None, counts=True,
        )  # fmt: skip

    def receive(self, most: int, wait: float) -> Sequence[Delivery]:
        """One long poll. Raises TransportError."""
        answer = self._api.call(
            "receive_message", QueueUrl=self._settings.queue_url, MaxNumberOfMessages=max(1, min(most, MAX_BATCH)),
            WaitTimeSeconds=int(min(wait, MAX_POLL)), VisibilityTimeout=round(self._settings.visibility),
            AttributeNames=["All"], MessageAttributeNames=["All"],
        )  # fmt: skip
        return [_delivery(message) for message in answer.get("Messages", ())]

    def settle(self, verdicts: Sequence[Verdict]) -> Sequence[Settled]:
        """Raises TransportError."""
        dead = [one for one in verdicts if isinstance(one, Dead)]
        failed = {one.receipt: one for one in self._bury(dead) if one.error}
        done = [one.receipt for one in verdicts if isinstance(one, (Ack, Dead)) and one.receipt not in failed]
        again = {one.receipt: one.after for one in verdicts if isinstance(one, Retry)}
        settled = {one.receipt: one for one in [*self._delete(done), *self._change(again)]} | failed
        return [settled[one.receipt] for one in verdicts]

    def extend(self, receipts: Sequence[str], seconds: float) -> Sequence[Settled]:
        """Raises TransportError."""
        return self._change(dict.fromkeys(receipts, max(1.0, seconds)))

    def redrive(self, most: int) -> int:
        """Raises TransportError."""
        url, dead, moved = self._settings.queue_url, self._settings.dead_letter_url, 0
        while moved < most:
            answer = self._api.call(
                "receive_message", QueueUrl=dead, MaxNumberOfMessages=min(most - moved, MAX_BATCH),
                WaitTimeSeconds=LOOK, VisibilityTimeout=round(self._settings.visibility), MessageAttributeNames=["All"],
            )  # fmt: skip
            found = answer.get("Messages", ())
            if not found:
                break
            for one in found:
                own = {name: text for name, text in one.get("MessageAttributes", {}).items() if name != REASON}
                self._api.call(
                    "send_message", QueueUrl=url, MessageBody=one["Body"], MessageAttributes=own,
                    **_fifo_ids(url, one["MessageId"]),
                )  # fmt: skip
                self._api.call("delete_message", QueueUrl=dead, ReceiptHandle=one["ReceiptHandle"])
                moved += 1
        return moved

    def check(self) -> Sequence[Finding]:
        """Raises TransportError."""
        found = [self._api.look(self._settings.queue_url)]
        if self._settings.dead_letter_url:
            found.append(self._api.look(self._settings.dead_letter_url))
        return found

    def close(self) -> None:
        """Harmless when repeated."""
        self._api.close()

    def _bury(self, dead: Sequence[Dead]) -> list[Settled]:
        found = []
        for one in dead:  # one request each: a body may fill a request alone
            try:
                self._api.call(
                    "send_message", QueueUrl=self._settings.dead_letter_url, MessageBody=_text(one.delivery.body),
                    MessageAttributes=_attributes(one.delivery, one.reason[:REASON_SIZE] or "dead"),
                    **_fifo_ids(self._settings.dead_letter_url or "", one.delivery.message_id),
                )  # fmt: skip
                found.append(Settled(one.receipt))
            except TransportError as error:
                found.append(Settled(one.receipt, str(error)))
        return found

    def _delete(self, receipts: Sequence[str]) -> list[Settled]:
        return self._batch("delete_message_batch", receipts, lambda _: {})

    def _change(self, spans: Mapping[str, float]) -> list[Settled]:
        return self._batch(
            "change_message_visibility_batch", list(spans),
            lambda receipt: {"VisibilityTimeout": min(int(spans[receipt] + 0.999), int(MAX_VISIBILITY))},
        )  # fmt: skip

    def _batch(self, call: str, receipts: Sequence[str], more: Callable[[str], dict[str, int]]) -> list[Settled]:
        found = []
        for start in range(0, len(receipts), MAX_BATCH):
            part = receipts[start : start + MAX_BATCH]
            entries = [{"Id": str(n), "ReceiptHandle": receipt, **more(receipt)} for n, receipt in enumerate(part)]
            answer = self._api.call(call, QueueUrl=self._settings.queue_url, Entries=entries)
            wrong = {int(one["Id"]): one for one in answer.get("Failed", ())}
            found += [_settled(receipt, wrong.get(n)) for n, receipt in enumerate(part)]
        return found


class SqsSink:
    """Messages to a queue, in batches."""

    Settings: ClassVar[type[msgspec.Struct]] = SqsSinkSettings

    def __init__(self, name: str, settings: SqsSinkSettings, /) -> None:
        self._settings = settings
        self._fifo = settings.queue_url.endswith(".fifo")
        self._api = _SqsApi(settings, f"the sink {name}")
        self.limits = Limits(
            max_size=MAX_SIZE, max_batch=MAX_BATCH, max_batch_size=MAX_SIZE,
            max_delay=0.0 if self._fifo else MAX_DELAY, dedupes=self._fifo, orders=self._fifo,
        )  # fmt: skip

    def publish(self, batch: Sequence[Outgoing]) -> Sequence[Published | Refused]:
        """Raises TransportError."""
        entries = [self._entry(number, one) for number, one in enumerate(batch)]
        answer = self._api.call("send_message_batch", QueueUrl=self._settings.queue_url, Entries=entries)
        sent = {int(one["Id"]): one["MessageId"] for one in answer.get("Successful", ())}
        wrong = {int(one["Id"]): one for one in answer.get("Failed", ())}
        return [
            Published(one.key, sent[number]) if number in sent else _refused(one.key, wrong.get(number, {}))
            for number, one in enumerate(batch)
        ]

    def check(self) -> Sequence[Finding]:
        """Raises TransportError."""
        return [self._api.look(self._settings.queue_url)]

    def close(self) -> None:
        """Harmless when repeated."""
        self._api.close()

    def _entry(self, number: int, one: Outgoing) -> dict[str, Any]:
        entry: dict[str, Any] = {"Id": str(number), "MessageBody": _text(one.body)}
        if self._fifo:
            entry |= {"MessageGroupId": dedupe_id(one.group or one.key), "MessageDeduplicationId": dedupe_id(one.key)}
        else:
            entry["DelaySeconds"] = int(min(one.delay, MAX_DELAY) + 0.999)
        return entry


class _SqsApi:
    """The client, made at the first call."""

    def __init__(self, settings: _SqsQueue, what: str) -> None:
        require("boto3", "sqs", what)
        self._settings, self._what = settings, what
        self._client: Any = None

    def call(self, method: str, **arguments: Any) -> Any:
        """Raises TransportError."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return getattr(self._connected(), method)(**arguments)
        except (BotoCoreError, ClientError) as error:
            raise TransportError(f"{self._what}: {error}") from None

    def look(self, url: str) -> Finding:
        """Whether a queue can be reached. Raises TransportError."""
        self.call("get_queue_attributes", QueueUrl=url, AttributeNames=["QueueArn"])
        return Finding(True, f"the queue {url} is there")

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _connected(self) -> Any:
        if self._client is None:
            import boto3
            from botocore.config import Config

            own = self._settings
            self._client = boto3.session.Session().client(
                "sqs", region_name=own.region, endpoint_url=own.endpoint_url, aws_access_key_id=own.access_key_id,
                aws_secret_access_key=own.secret_access_key,
                config=Config(
                    connect_timeout=CONNECT_TIMEOUT, read_timeout=READ_TIMEOUT, retries={"total_max_attempts": 1}
                ),
            )  # fmt: skip
        return self._client


def _fifo_ids(url: str, message_id: str) -> dict[str, str]:
    """What a FIFO queue wants of a message that is sent on: it is a group of its own."""
    own = dedupe_id(message_id)
    return {"MessageGroupId": own, "MessageDeduplicationId": own} if url.endswith(".fifo") else {}


def _delivery(message: Mapping[str, Any]) -> Delivery:
    own, more = message.get("Attributes", {}), message.get("MessageAttributes", {})
    return Delivery(
        message_id=message["MessageId"], body=message["Body"].encode(), receipt=message["ReceiptHandle"],
        attempts=int(own.get("ApproximateReceiveCount", 1)), sent_at=int(own.get("SentTimestamp", 0)) * 1000 or None,
        headers={name.lower(): one["StringValue"] for name, one in more.items() if "StringValue" in one},
    )  # fmt: skip


def _settled(receipt: str, wrong: Mapping[str, Any] | None) -> Settled:
    if wrong is None:
        return Settled(receipt)
    code = wrong.get("Code", "")
    return Settled(receipt, f"{code}: {wrong.get('Message', '')}", gone="ReceiptHandle" in code or "Inflight" in code)


def _refused(key: str, wrong: Mapping[str, Any]) -> Refused:
    return Refused(key, wrong.get("Message") or "it was not confirmed", final=bool(wrong.get("SenderFault")))


def _attributes(delivery: Delivery, reason: str) -> dict[str, dict[str, str]]:
    """A dead message's own, as far as there is room for them beside the reason; none beside a body that fills it."""
    own = [(name, text) for name, text in delivery.headers.items() if text and name != REASON][: MAX_ATTRIBUTES - 1]
    made = {name: {"DataType": "String", "StringValue": text} for name, text in [*own, (REASON, reason)]}
    size = sum(len(f"{name}String{one['StringValue']}".encode()) for name, one in made.items())
    return made if len(delivery.body) + size <= MAX_SIZE else {}


def _text(body: bytes) -> str:
    return body.decode("utf-8", "replace")
