"""What the conformance suite of sinks needs of each transport: settings, a server that stops, and what has arrived."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any, NamedTuple

from support.cloudflare_api import ACCOUNT, TOKEN
from support.cloudflare_rig import CloudflareRig
from support.endpoint import Endpoint
from support.nats_rig import NatsRig
from support.rabbitmq_rig import RabbitRig
from support.redis_rig import STREAM, RedisRig
from support.spool import SpoolRig
from support.sqs_rig import KEYS, SqsRig


class Arrived(NamedTuple):
    """One message at the receiving side: its key, and its envelope's payload or pointer."""

    key: str
    payload: Any


def _arrived(body: bytes) -> Arrived:
    fields = json.loads(body)
    return Arrived(fields["idempotency_key"], fields.get("payload_inline", fields.get("payload_ref")))


class SpoolSinkRig(SpoolRig):
    """``refuses``: a message whose payload says ``refuse`` is refused for good, by the receiving side."""

    sink_factory = "support.spool:SpoolSink"
    refuses = True

    @property
    def sink_table(self) -> str:
        return self.table

    def arrived(self) -> list[Arrived]:
        return [_arrived(body) for body in self.bodies()]


class SqsSinkRig(SqsRig):
    sink_factory = "scheduler.transports.sqs:SqsSink"
    refuses = False

    @property
    def sink_table(self) -> str:
        keys = "".join(f'{name} = "{value}"\n' for name, value in KEYS.items())
        return f'queue_url = "{self.url}"\nendpoint_url = "{self.endpoint}"\n{keys}'

    def arrived(self) -> list[Arrived]:
        """They are deleted: a FIFO queue gives nothing more of a group before."""
        found = []
        while more := self.client.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10).get("Messages"):
            for one in more:
                found.append(_arrived(one["Body"].encode()))
                self.client.delete_message(QueueUrl=self.url, ReceiptHandle=one["ReceiptHandle"])
        return found


class FifoSinkRig(SqsSinkRig):
    def __init__(self, place: Path) -> None:
        super().__init__(place)
        self.client.delete_queue(QueueUrl=self.url)
        name = f"{uuid.uuid4().hex}.fifo"
        self.url = self.client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]


class CloudflareSinkRig(CloudflareRig):
    sink_factory = "scheduler.transports.cloudflare:CloudflareSink"
    refuses = False

    @property
    def sink_table(self) -> str:
        texts = {"account": ACCOUNT, "queue": self.queue, "token": TOKEN, "api": self.fake.url}
        return "".join(f'{name} = "{value}"\n' for name, value in texts.items())

    def arrived(self) -> list[Arrived]:
        return [_arrived(json.dumps(one.body).encode()) for one in self.fake.queues[self.queue].held]


class NatsSinkRig(NatsRig):
    sink_factory = "scheduler.transports.nats:NatsSink"
    refuses = True

    @property
    def sink_table(self) -> str:
        return f'url = "{self.server.url}"\nsubject = "{self.subject}"\n'

    def refuse(self) -> None:
        """Messages above 2,000 bytes from now on."""

        async def change(_: Any, jetstream: Any) -> None:
            config = (await jetstream.stream_info(self.stream)).config
            config.max_msg_size = 2000
            await jetstream.update_stream(config)

        self.server.ask(change)

    def arrived(self) -> list[Arrived]:
        return [_arrived(one.data) for one in self.stored(self.stream)]


class RedisSinkRig(RedisRig):
    sink_factory = "scheduler.transports.redis:RedisSink"
    refuses = False

    @property
    def sink_table(self) -> str:
        return f'url = "{self.server.url}"\nstream = "{STREAM}"\n'

    def arrived(self) -> list[Arrived]:
        with self.client() as client:
            return [_arrived(fields[b"body"]) for _, fields in client.xrange(STREAM)]


class RabbitSinkRig(RabbitRig):
    sink_factory = "scheduler.transports.rabbitmq:RabbitSink"
    refuses = False

    @property
    def sink_table(self) -> str:
        return f'url = "{self.node.url}"\nqueue = "{self.queue}"\n'

    def arrived(self) -> list[Arrived]:
        return [_arrived(body) for _, body in self.take(self.queue)]


class CloudEventsSinkRig:
    name = type_name = "cloudevents"
    sink_factory = "scheduler.transports.cloudevents:CloudEventsSink"
    refuses = True

    def __init__(self, _place: Path) -> None:
        self.endpoint = Endpoint()
        self.endpoint.start()

    @property
    def sink_table(self) -> str:
        return f'url = "{self.endpoint.url}"\n'

    def arrived(self) -> list[Arrived]:
        return [Arrived(event["id"], event.get("data", event.get("payloadref"))) for _, event in self.endpoint.came]

    def stop_server(self) -> None:
        self.endpoint.stop()

    def start_server(self) -> None:
        self.endpoint.start()

    def close(self) -> None:
        self.endpoint.stop()
