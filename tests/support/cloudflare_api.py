"""Cloudflare's API of queues, as its reference describes it: queues, consumers, send, pull, acknowledge; in memory.

It has the limits of the reference, counts 100 bytes of metadata for each message, the most that there may be, and takes
late acknowledgements. It models no retention, and answers at once what it was asked, with the newest state.
"""

from __future__ import annotations

import base64
import http.server
import json
import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

ACCOUNT, TOKEN = "0" * 32, "a token of the tests"
MAX_SIZE, MAX_BATCH_SIZE, METADATA, MAX_BATCH = 128_000, 256_000, 100, 100
MAX_DELAY, MAX_VISIBILITY_MS = 43_200, 43_200_000
_PATH = re.compile(r"/client/v4/accounts/(?P<account>\w+)/queues(?:/(?P<queue>\w+)(?:/(?P<rest>[\w/]+))?)?")


@dataclass
class Held:
    """A message of a queue. ``visible_at``: when it may be delivered (again)."""

    body: Any
    content: str
    visible_at: float
    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    sent_ms: int = field(default_factory=lambda: int(time.time() * 1000))
    attempts: int = 0
    leases: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return len(raw(self.body, self.content)) + METADATA


@dataclass
class Queue:
    name: str
    key: str = field(default_factory=lambda: uuid.uuid4().hex)
    held: list[Held] = field(default_factory=list)
    consumers: list[dict[str, Any]] = field(default_factory=list)
    paused: bool = False
    most_bytes: int = 25_000_000_000


class Failure(Exception):
    def __init__(self, status: int, code: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status, self.code, self.text, self.headers = status, code, text, dict(headers or {})


def raw(body: Any, content: str) -> bytes:
    if content == "json":
        return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return body.encode() if isinstance(body, str) else bytes(body)


class CloudflareApi:
    """The server and its queues, which outlive a :meth:`stop`. ``requests``: (path, fields) of each that came."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.queues: dict[str, Queue] = {}
        self.requests: list[tuple[str, Any]] = []
        self.failures: list[Failure] = []  # what the next requests are answered
        self.port = 0
        self._server: http.server.ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/client/v4"

    def start(self) -> None:
        api, stopped = self, threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self) -> None:
                size = int(self.headers.get("content-length", 0))
                content = self.rfile.read(size)
                if stopped.is_set():  # a connection that was kept does not outlive the server
                    self.close_connection = True
                    return
                status, headers, answer = api.answer(self.command, self.path, dict(self.headers.items()), content)
                data = json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {**headers, "content-type": "application/json"}.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = answer

            def log_message(self, *_: Any) -> None: ...

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def server_close(self) -> None:
                stopped.set()
                super().server_close()

            def handle_error(self, *_: Any) -> None:
                """A client that was killed is none of its business."""

        self._server = Server(("127.0.0.1", self.port), Handler)
        self._server.block_on_close = False  # type: ignore[attr-defined]
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.server_close()

    def answer(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes
    ) -> tuple[int, Mapping[str, str], Any]:
        with self.lock:
            try:
                return 200, {}, {"success": True, "errors": [], "messages": [],
                                 "result": self._result(method, path, headers, content)}  # fmt: skip
            except Failure as error:
                wrong = [{"code": error.code, "message": error.text}]
                return error.status, error.headers, {"success": False, "errors": wrong, "messages": [], "result": None}

    def _result(self, method: str, path: str, headers: Mapping[str, str], content: bytes) -> Any:
        lower = {name.lower(): value for name, value in headers.items()}
        found = _PATH.fullmatch(path)
        if found is None:
            raise Failure(404, 7003, "No route for the URI")
        if lower.get("authorization") != f"Bearer {TOKEN}" or found["account"] != ACCOUNT:
            raise Failure(403, 10000, "Authentication error")
        try:
            fields = json.loads(content) if content else {}
        except ValueError:
            raise Failure(400, 10208, "JSON request body malformed") from None
        self.requests.append((path.partition("/queues")[2], fields))
        if self.failures:
            raise self.failures.pop(0)
        if found["queue"] is None:
            return self._create(fields)
        queue = self.queues.get(found["queue"])
        if queue is None:
            raise Failure(404, 10104, "Queue does not exist")
        return self._of_queue(method, queue, found["rest"] or "", fields)

    def _of_queue(self, method: str, queue: Queue, rest: str, fields: dict[str, Any]) -> Any:
        if (method, rest) == ("DELETE", ""):
            del self.queues[queue.key]
            return None
        if (method, rest) == ("PATCH", ""):
            queue.paused = bool(fields.get("settings", {}).get("delivery_paused"))
        if rest == "":
            return {"queue_id": queue.key, "queue_name": queue.name, "consumers": queue.consumers}
        if rest == "consumers":
            queue.consumers.append(fields)
            return fields
        if rest == "messages":
            return self._send(queue, [fields], 0)
        if rest == "messages/batch":
            if not isinstance(fields.get("messages"), list):
                raise Failure(400, 10207, "JSON request body does not match the schema")
            return self._send(queue, fields["messages"], fields.get("delay_seconds", 0))
        if rest == "messages/pull":
            return self._pull(queue, fields)
        if rest == "messages/ack":
            return self._settle(queue, fields)
        raise Failure(404, 7003, "No route for the URI")

    def _create(self, fields: dict[str, Any]) -> Any:
        queue = Queue(fields["queue_name"])
        self.queues[queue.key] = queue
        return {"queue_id": queue.key, "queue_name": queue.name}

    def _send(self, queue: Queue, messages: list[dict[str, Any]], delay: Any) -> Any:
        if not isinstance(delay, int) or not 0 <= delay <= MAX_DELAY:
            raise Failure(400, 10202, "Batch delay invalid")
        if not 1 <= len(messages) <= MAX_BATCH:
            raise Failure(400, 10206, "Batch count out of bounds")
        made = [self._read(message, delay) for message in messages]
        if any(one.size > MAX_SIZE for one in made):
            raise Failure(400, 10204, "Message size out of bounds")
        if sum(one.size for one in made) > MAX_BATCH_SIZE:
            raise Failure(400, 10205, "Batch size out of bounds")
        if sum(one.size for one in [*queue.held, *made]) > queue.most_bytes:
            raise Failure(429, 10251, "Queue storage limit exceeded")
        queue.held += made
        return {"metadata": {"metrics": self._metrics(queue)}}

    def _read(self, message: dict[str, Any], delay: int) -> Held:
        content, own = message.get("content_type", "json"), message.get("delay_seconds", delay)
        if content not in ("json", "text") or not isinstance(own, int) or not 0 <= own <= MAX_DELAY:
            raise Failure(400, 10203, "Message metadata invalid")
        if content == "text" and not isinstance(message.get("body"), str):
            raise Failure(400, 10207, "JSON request body does not match the schema")
        return Held(message.get("body"), content, time.time() + own)

    def put(self, key: str, body: Any, content: str, name: str | None = None) -> str:
        """As a Worker's binding sends it, which may be of content type bytes or v8 as well."""
        with self.lock:
            made = Held(body, content, time.time())
            made.name = name or made.name
            self.queues[key].held.append(made)
            return made.name

    def _metrics(self, queue: Queue) -> dict[str, int]:
        oldest = min((one.sent_ms for one in queue.held), default=0)
        size = sum(one.size for one in queue.held)
        return {"backlog_count": len(queue.held), "backlog_bytes": size, "oldest_message_timestamp_ms": oldest}

    def _pull(self, queue: Queue, fields: dict[str, Any]) -> Any:
        most, lease_ms = fields.get("batch_size", 5), fields.get("visibility_timeout_ms", 30_000)
        right = isinstance(most, int) and 1 <= most <= 100 and isinstance(lease_ms, int)
        if not right or not 0 < lease_ms <= MAX_VISIBILITY_MS or set(fields) - {"batch_size", "visibility_timeout_ms"}:
            raise Failure(400, 10207, "JSON request body does not match the schema")
        if not any(one.get("type") == "http_pull" for one in queue.consumers):
            raise Failure(405, 10405, "messages cannot be pulled unless http_pull mode is enabled")
        if queue.paused:
            raise Failure(429, 10252, "Queue disabled")
        self.move_dead(queue)
        now, found = time.time(), []
        for one in queue.held:
            if one.visible_at <= now and len(found) < most:
                one.attempts += 1
                one.visible_at = now + lease_ms / 1000
                one.leases.append(uuid.uuid4().hex)
                found.append(_shown(one))
        return {
            "message_backlog_count": len(queue.held),
            "messages": found,
            "metadata": {"metrics": self._metrics(queue)},
        }

    def _settle(self, queue: Queue, fields: dict[str, Any]) -> Any:
        acks, retries = fields.get("acks", []), fields.get("retries", [])
        if any(not 0 <= one.get("delay_seconds", 0) <= MAX_DELAY for one in retries):
            raise Failure(400, 10203, "Message metadata invalid")
        holders = {lease: one for one in queue.held for lease in one.leases}
        done = [holders[a["lease_id"]] for a in acks if a["lease_id"] in holders]
        back = [(holders[r["lease_id"]], r.get("delay_seconds", 0)) for r in retries if r["lease_id"] in holders]
        gone = {id(one) for one in done}
        queue.held = [one for one in queue.held if id(one) not in gone]
        for one, delay in back:
            one.visible_at = time.time() + delay
        self.move_dead(queue)
        lost = [one["lease_id"] for one in [*acks, *retries] if one["lease_id"] not in holders]
        return {
            "ackCount": len(done),
            "retryCount": len(back),
            "warnings": dict.fromkeys(lost, "no message has this lease"),
        }

    def move_dead(self, queue: Queue) -> None:
        """What has been delivered ``max_retries`` times more than once, and is to come again, is dead."""
        consumer = queue.consumers[0] if queue.consumers else {}
        most = 1 + consumer.get("settings", {}).get("max_retries", 3)
        now = time.time()
        over = [one for one in queue.held if one.attempts >= most and one.visible_at <= now]
        queue.held = [one for one in queue.held if one not in over]
        place = next((q for q in self.queues.values() if q.name == consumer.get("dead_letter_queue")), None)
        if place is not None:
            place.held += [Held(one.body, one.content, now) for one in over]


def _shown(one: Held) -> dict[str, Any]:
    data = raw(one.body, one.content)
    return {
        "id": one.name,
        "body": data.decode() if one.content == "text" else base64.b64encode(data).decode(),
        "attempts": one.attempts,
        "timestamp_ms": one.sent_ms,
        "lease_id": one.leases[-1],
        "metadata": {"CF-sourceMessageSource": "tests", "CF-Content-Type": one.content},
    }
