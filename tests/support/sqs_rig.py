"""SQS as moto serves it on loopback, for the conformance suite: its queues outlive a stop of the server."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from moto.server import ThreadedMotoServer

VISIBILITY = 2.0  # seconds: SQS counts whole ones, and one is not enough on a busy machine
REGION = "us-east-1"
KEYS = {"access_key_id": "test", "secret_access_key": "test"}


class SqsRig:
    """A queue and its dead-letter queue."""

    name = type_name = "sqs"
    factory = "scheduler.transports.sqs:SqsSource"
    visibility = VISIBILITY

    server: ClassVar[ThreadedMotoServer | None] = None  # shared by the tests of a process, and ends with it
    port: ClassVar[int] = 0

    def __init__(self, _place: Path) -> None:
        if SqsRig.server is None:
            self.start_server()
        self.client = self._connect()
        name = uuid.uuid4().hex
        self.url = self.client.create_queue(QueueName=name)["QueueUrl"]
        self.dead_url = self.client.create_queue(QueueName=f"{name}-dead")["QueueUrl"]

    @property
    def table(self) -> str:
        keys = "".join(f'{name} = "{value}"\n' for name, value in KEYS.items())
        return (
            f'queue_url = "{self.url}"\ndead_letter_url = "{self.dead_url}"\nendpoint_url = "{self.endpoint}"\n'
            f"visibility = {VISIBILITY}\n{keys}"
        )

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_server(self) -> None:
        from moto.server import ThreadedMotoServer  # takes as long to import as all files of tests of a room

        SqsRig.server = ThreadedMotoServer(ip_address="127.0.0.1", port=self.port)
        SqsRig.server.start()
        SqsRig.port = SqsRig.server.get_host_and_port()[1]

    def stop_server(self) -> None:
        assert SqsRig.server is not None
        SqsRig.server.stop()

    def _connect(self) -> Any:
        import boto3

        return boto3.client(
            "sqs", region_name=REGION, endpoint_url=self.endpoint, aws_access_key_id="test",
            aws_secret_access_key="test",
        )  # fmt: skip

    def send(self, body: bytes, headers: Mapping[str, str] | None = None, message_id: str | None = None) -> str:
        more = {name: {"DataType": "String", "StringValue": value} for name, value in (headers or {}).items()}
        sent = self.client.send_message(QueueUrl=self.url, MessageBody=body.decode("latin-1"), MessageAttributes=more)
        return message_id or str(sent["MessageId"])

    def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(value) for value in found.values())

    def dead(self) -> list[bytes]:
        found: list[bytes] = []
        while more := self.client.receive_message(QueueUrl=self.dead_url, MaxNumberOfMessages=10).get("Messages"):
            found += [one["Body"].encode("latin-1") for one in more]
        return found

    def close(self) -> None:
        """Its queues are dropped; the server is shared."""
        for url in (self.url, self.dead_url):
            self.client.delete_queue(QueueUrl=url)
        self.client.close()
