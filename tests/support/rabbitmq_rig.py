"""A RabbitMQ node of the tests' own (Debian's rabbitmq-server), on loopback, and what the conformance suite needs."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from support.redis_rig import free_port

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one on PATH becomes another user
PATIENCE = 120.0
VISIBILITY = 0.3  # seconds: a delivery is its connection's for as long as that lasts; tests wait in these steps


class RabbitServer:
    """A node, and the shell in it, which answers at once; a rabbitmqctl starts a virtual machine for each question."""

    def __init__(self) -> None:
        assert Path(SERVER).exists(), (
            "rabbitmq-server is missing. On Debian and Ubuntu: apt-get install rabbitmq-server"
        )
        self.place = Path(tempfile.mkdtemp(prefix="schedd-rabbitmq-"))
        self.port, dist, epmd = free_port(), free_port(), free_port()
        (self.place / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{self.port}\nlog.console = false\n")
        (self.place / "plugins").write_text("[].")
        self.environ = {
            **os.environ, "HOME": str(self.place), "RABBITMQ_NODENAME": f"schedd-{uuid.uuid4().hex[:8]}@localhost",
            "RABBITMQ_MNESIA_BASE": f"{self.place}/data", "RABBITMQ_LOG_BASE": f"{self.place}/log",
            "RABBITMQ_CONFIG_FILE": f"{self.place}/rabbitmq.conf", "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{self.place}/plugins", "RABBITMQ_DIST_PORT": str(dist),
            "RABBITMQ_ALLOW_INPUT": "1", "ERL_EPMD_ADDRESS": "127.0.0.1", "ERL_EPMD_PORT": str(epmd),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }  # fmt: skip
        # It ends when its input does, so also with these tests.
        self.process = subprocess.Popen(
            [SERVER], env=self.environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self._wait()

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F?heartbeat=0"

    def ask(self, expression: str) -> str:
        """The value of an Erlang expression in the node."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f'io:format("~n>>>~w<<<~n",[(fun() -> {expression} end)()]).\n'.encode())
        self.process.stdin.flush()
        said = b""
        while (found := re.search(rb">>>(.*?)<<<|\*\* .*", said, re.DOTALL)) is None or found[1] is None:
            more = os.read(self.process.stdout.fileno(), 65536)
            assert more, said
            said += more
            assert b"** exception" not in said, said
        return found[1].decode()

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            assert self.process.poll() is None, self.process.stdout and self.process.stdout.read()
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)

    def stop(self) -> None:
        """All connections end; what is durable stays."""
        assert self.ask("rabbit:stop()") == "ok"

    def start(self) -> None:
        assert self.ask("rabbit:start()") == "ok"  # it has begun to start
        assert self.ask("rabbit:await_startup()") == "ok"
        self._wait()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        subprocess.run(["epmd", "-kill"], env=self.environ, stdout=subprocess.DEVNULL, check=False)
        shutil.rmtree(self.place, ignore_errors=True)


class RabbitRig:
    """A queue of its own and its dead-letter queue; the node is shared. See ``support.spool.SpoolRig``."""

    name = type_name = "rabbitmq"
    factory = "scheduler.transports.rabbitmq:RabbitSource"
    visibility = VISIBILITY

    server: ClassVar[RabbitServer | None] = None  # shared by the tests of a process, and closed by close_server()

    def __init__(self, _place: Path) -> None:
        if RabbitRig.server is None:
            RabbitRig.server = RabbitServer()
        self.node = RabbitRig.server
        self.queue = f"orders-{uuid.uuid4().hex[:8]}"
        self.dead_queue, self.retry_queue = f"{self.queue}.dead", f"{self.queue}.retry"
        self._connection: Any = None
        for queue in (self.queue, self.dead_queue):
            self.declare(queue)

    @classmethod
    def close_server(cls) -> None:
        server, cls.server = cls.server, None
        if server is not None:
            server.close()

    @property
    def table(self) -> str:
        return f'url = "{self.node.url}"\nqueue = "{self.queue}"\ndead = "{self.dead_queue}"\nbatch = 10\n'

    def channel(self) -> Any:
        """A channel with publisher confirms."""
        import pika

        if self._connection is None:
            self._connection = pika.BlockingConnection(pika.URLParameters(self.node.url))
            self._channel = self._connection.channel()
            self._channel.confirm_delivery()
        return self._channel

    def declare(self, queue: str, durable: bool = True, **arguments: Any) -> None:
        self.channel().queue_declare(queue, durable=durable, arguments={"x-queue-type": "quorum", **arguments})

    def send(self, body: bytes, headers: Mapping[str, str] | None = None, message_id: str | None = None) -> str:
        import pika

        name = message_id or uuid.uuid4().hex
        made = pika.BasicProperties(message_id=name, headers=dict(headers or {}), delivery_mode=2)
        self.channel().basic_publish("", self.queue, body, made, mandatory=True)
        return name

    def left(self) -> int:
        return self.total(self.queue) + self.total(self.retry_queue)

    def total(self, queue: str) -> int:
        """Messages of a quorum queue, delivered ones as well. A command in its log waits for what was sent before."""
        return int(self.node.ask(
            f'case rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)) of '
            "{error, _} -> 0; {ok, Q} -> {ok, _, At} = "
            "ra:process_command(amqqueue:get_pid(Q), rabbit_fifo:make_garbage_collection()), "
            "element(2, ra:consistent_query(At, fun rabbit_fifo:query_messages_total/1)) end"
        ))  # fmt: skip

    def dead(self) -> list[bytes]:
        return [body for _, body in self.take(self.dead_queue)]

    def take(self, queue: str) -> list[tuple[Any, bytes]]:
        """All that is in a queue: properties and body."""
        found = []
        while True:
            method, properties, body = self.channel().basic_get(queue, auto_ack=True)
            if method is None:
                return found
            found.append((properties, body))

    def stop_server(self) -> None:
        self._disconnect()
        self.node.stop()

    def start_server(self) -> None:
        self.node.start()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection.is_open:
            connection.close()

    def close(self) -> None:
        """Its queues are deleted."""
        for queue in (self.queue, self.dead_queue, self.retry_queue):
            self.channel().queue_delete(queue)
        self._disconnect()
