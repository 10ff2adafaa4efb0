"""Orders come through a Cloudflare queue, and go out as webhooks and over NATS; the daemon is killed in the middle.

    python examples/orders/run.py [--pull]

The queue and the Worker that consumes it run under miniflare, Cloudflare's emulator. Where that cannot be had, or with
--pull, a stand-in of Cloudflare's HTTP API has the queue, and schedd pulls from it. Exit status: 0 if each order had
its effects once; 1 if not.
"""

from __future__ import annotations

import http.server
import importlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol

from scheduler import Scheduler, TaskInfo, TaskState
from scheduler.model.webhooks import key_of, verify

ORDERS, TWICE = 40, 5  # so many orders, the first of them sent twice
PATIENCE = 90.0
HERE = Path(__file__).resolve().parent
BIN = Path(sys.executable).parent
TOKEN, SECRET = secrets.token_hex(16), secrets.token_hex(16)

CONFIG = """\
[store]
url = "sqlite:///{work}/schedd.db"

[tasks]
modules = ["order_tasks"]
path = ["{here}"]
state = "order_tasks:sinks"

[worker]
lease = 10

[log]
format = "json"

[sources.orders]
kind = "TakeOrder"
retry = 1
{source}

[sinks.shop]
type = "cloudevents"
url = "{shop}"
secret = "{secret}"
min_wait = 1
"""


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


class Queue(Protocol):
    """Where the orders come from."""

    source: str  # its lines of [sources.orders], and of other sections

    def send(self, bodies: list[dict[str, Any]]) -> None: ...
    def dead(self) -> int: ...
    def close(self) -> None: ...


class WorkersQueue:
    """A queue, and schedd's Worker that posts its batches to the door, on a real Workers runtime."""

    def __init__(self, work: Path) -> None:
        support: Any = tests_support("miniflare")
        port = free_port()
        self.source = (
            f'type = "cloudflare-push"\ntoken = "{TOKEN}"\ndead_letter_queue = "orders-dead"\n'
            f'[door]\nlisten = "127.0.0.1:{port}"'
        )
        bindings = {"SCHEDD_URL": f"http://127.0.0.1:{port}", "SCHEDD_TOKEN": TOKEN, "SCHEDD_RETRY": "1"}
        queues = {"orders": {"bindings": bindings, "buries": True, "maxRetries": 100}}
        with (work / "worker.log").open("w", encoding="utf-8") as log:
            self._miniflare: Any = support.Miniflare(queues, log)

    def send(self, bodies: list[dict[str, Any]]) -> None:
        self._miniflare.send("orders", *({"body": body, "contentType": "json"} for body in bodies))

    def dead(self) -> int:
        return len(self._miniflare.dead("orders"))

    def close(self) -> None:
        self._miniflare.close()


class PulledQueue:
    """A queue of a stand-in of Cloudflare's HTTP API, which schedd pulls from."""

    def __init__(self) -> None:
        support: Any = tests_support("cloudflare_api")
        self._api: Any = support.CloudflareApi()
        self._api.start()
        queue, self._dead = support.Queue("orders"), support.Queue("orders-dead")
        queue.consumers = [
            {"type": "http_pull", "settings": {"max_retries": 100}, "dead_letter_queue": self._dead.name}
        ]
        self._queue: Any = queue
        self._api.queues = {queue.key: queue, self._dead.key: self._dead}
        self.source = (
            f'type = "cloudflare"\naccount = "{support.ACCOUNT}"\nqueue = "{queue.key}"\n'
            f'dead_letter_queue = "{self._dead.key}"\ntoken = "{support.TOKEN}"\napi = "{self._api.url}"\n'
            "batch = 10\nvisibility = 2\npoll = 0.5"
        )

    def send(self, bodies: list[dict[str, Any]]) -> None:
        for body in bodies:
            self._api.put(self._queue.key, body, "json")

    def dead(self) -> int:
        return len(self._dead.held)

    def close(self) -> None:
        self._api.stop()


class Shop(http.server.ThreadingHTTPServer):
    """The receiver of webhooks: ``came`` counts the ids of the events whose signature is right."""

    daemon_threads = True

    def __init__(self) -> None:
        outer, key = self, key_of(SECRET)
        self.came: Counter[str] = Counter()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                wrong = verify([key], {n.lower(): v for n, v in self.headers.items()}, body, time.time())
                if wrong is None:
                    outer.came[json.loads(body)["id"]] += 1
                self.send_response(204 if wrong is None else 401)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class Warehouse:
    """A NATS server, and a stream that keeps what comes."""

    sink = '\n[sinks.warehouse]\ntype = "nats"\nurl = "{url}"\nsubject = "orders.shipped"\nmin_wait = 1\n'

    def __init__(self, work: Path) -> None:
        support: Any = tests_support("nats_rig")
        self._server: Any = support.NatsServer(work / "nats")
        self._server.start()

        async def make(_: Any, jetstream: Any) -> None:
            await jetstream.add_stream(name="orders", subjects=["orders.>"])

        self._server.ask(make)
        self.sink = self.sink.format(url=self._server.url)

    def came(self) -> list[int]:
        """The orders of all messages of the stream."""

        async def read(_: Any, jetstream: Any) -> list[Any]:
            last: int = (await jetstream.stream_info("orders")).state.last_seq
            return [await jetstream.get_msg("orders", number) for number in range(1, last + 1)]

        return [json.loads(one.data)["payload_inline"]["order"] for one in self._server.ask(read)]

    def close(self) -> None:
        self._server.kill()


class Demo:
    def __init__(self, work: Path, pull: bool) -> None:
        self.work = work
        self.daemon: subprocess.Popen[bytes] | None = None
        self.deadline = time.monotonic() + PATIENCE
        self.shop = Shop()
        self.warehouse = self.make_warehouse()
        self.queue = self.make_queue(pull)
        self.config = work / "config.toml"
        self.log = work / "schedd.log"

    def make_queue(self, pull: bool) -> Queue:
        why = "as you asked for"
        if not pull:
            try:
                made = WorkersQueue(self.work)
            except Exception as error:  # whatever keeps Node or npm from working
                why = f"for miniflare is not there: {error}"
            else:
                say("The queue and its Worker run under miniflare; the Worker posts to schedd's door.")
                return made
        say(f"The queue is one of a stand-in of Cloudflare's HTTP API, {why}; schedd pulls from it.")
        return PulledQueue()

    def make_warehouse(self) -> Warehouse | None:
        try:
            return Warehouse(self.work)
        except Exception as error:
            say(f"Nothing goes out over NATS: {error}")
            return None

    def run(self) -> bool:
        """The whole demo; whether each order had its effects once."""
        more = "" if self.warehouse is None else self.warehouse.sink
        text = CONFIG.format(work=self.work, here=HERE, shop=self.shop.url, secret=SECRET, source=self.queue.source)
        self.config.write_text(text + more, encoding="utf-8")
        bodies = [body(number) for number in [*range(ORDERS), *range(TWICE)]]
        bodies.insert(ORDERS // 2, {"payload_inline": {"order": "a message without a key"}})
        for start in range(0, len(bodies), 10):
            self.queue.send(bodies[start : start + 10])
        say(f"Sent {ORDERS} orders, {TWICE} of them twice, and a message that cannot be read.")
        self.start()
        jobs = Scheduler.from_config(str(self.config))
        try:
            self.wait_until(lambda: len(self.shop.came) >= ORDERS // 4, pause=0.005)
            self.kill(jobs)
            self.start()
            self.wait_until(lambda: self.is_over(jobs))
            self.schedctl("sources", "list")
            self.schedctl("inbox", "list", "--state", "dead")
            return self.prove(jobs)
        finally:
            jobs.close()

    def start(self) -> None:
        with self.log.open("a", encoding="utf-8") as log:
            self.daemon = daemon(self.config, log, {"ORDERS_SINKS": "shop,warehouse" if self.warehouse else "shop"})
        say(f"Started schedd, process {self.daemon.pid}.")

    def kill(self, jobs: Scheduler) -> None:
        """kill -9, and what it interrupted."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()
        tasks = all_tasks(jobs)
        running = Counter(t.kind for t in tasks if t.state in (TaskState.RUNNING, TaskState.CLAIMED))
        open_ = sum(not task.state.terminal for task in tasks)
        names = ", ".join(f"{n} {kind}" for kind, n in sorted(running.items())) or "none"
        say(f"\nkill -9 {self.daemon.pid}: {len(self.shop.came)} of {ORDERS} orders had gone out as webhooks;")
        say(f"{open_} tasks had not ended, of these were running: {names}.\n")
        if not open_:
            raise DemoError("the daemon was not killed in the middle of anything: this run shows nothing")

    def is_over(self, jobs: Scheduler) -> bool:
        tasks = all_tasks(jobs)
        taken = sum(task.kind == "TakeOrder" for task in tasks)
        return taken == ORDERS and self.queue.dead() > 0 and all(task.state.terminal for task in tasks)

    def wait_until(self, over: Callable[[], bool], pause: float = 0.1) -> None:
        while not over():
            assert self.daemon is not None
            if self.daemon.poll() is not None or time.monotonic() > self.deadline:
                words = "\n".join(self.log.read_text(encoding="utf-8").splitlines()[-10:])
                raise DemoError(f"it did not come to an end; schedd says:\n{words}")
            time.sleep(pause)

    def schedctl(self, *arguments: str) -> None:
        say(f"$ schedctl {' '.join(arguments)}")
        subprocess.run([BIN / "schedctl", "--config", self.config, *arguments], check=True)
        say()

    def prove(self, jobs: Scheduler) -> bool:
        """Print what arrived, and what follows from it; whether all of it is as promised."""
        tasks = all_tasks(jobs)
        kinds = Counter((task.kind, task.state.value) for task in tasks)
        for (kind, state), count in sorted(kinds.items()):
            say(f"{count:4} {kind} {state}")
        posts = sum(self.shop.came.values())
        say(f"{posts:4} webhooks, {posts - len(self.shop.came)} of them again under the same key")
        wanted = {f"shipped-{number}" for number in range(ORDERS)}
        promises = [
            ("each order became one task, also those that were sent twice", kinds["TakeOrder", "success"] == ORDERS),
            (
                "each has one parcel and one invoice",
                {kinds[k, "success"] for k in ("PackParcel", "WriteInvoice")} == {ORDERS},
            ),
            ("each went out as a webhook, and nothing else did", set(self.shop.came) == wanted),
            ("the message that cannot be read is in the dead-letter queue", self.queue.dead() > 0),
        ]
        if self.warehouse is not None:
            came = Counter(self.warehouse.came())
            say(f"{came.total():4} messages in the stream of NATS")
            promises.append(("each is in the stream of NATS, once", came == Counter(range(ORDERS))))
        say()
        for text, holds in promises:
            say(f"{'ok    ' if holds else 'FAILED'}  {text}")
        return all(holds for _, holds in promises)

    def close(self) -> None:
        if self.daemon is not None:
            self.daemon.kill()
            self.daemon.wait()
        self.queue.close()
        self.shop.close()
        if self.warehouse is not None:
            self.warehouse.close()


def say(text: str = "") -> None:
    print(text, flush=True)


def body(number: int) -> dict[str, Any]:
    """An order as an envelope."""
    return {
        "message_type": "order.placed",
        "idempotency_key": f"order-{number}",
        "subject": f"order/{number}",
        "payload_inline": {"order": number, "item": "a fine hat", "quantity": 1 + number % 3},
    }


def all_tasks(jobs: Scheduler) -> list[TaskInfo]:
    return list(jobs.list_tasks(limit=1000))


def tests_support(name: str) -> Any:
    """What the tests run other systems with."""
    place = str(HERE.parents[1] / "tests")
    if place not in sys.path:
        sys.path.append(place)
    return importlib.import_module(f"support.{name}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def daemon(config: Path, log: IO[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SCHEDD_")}
    argv = [str(BIN / "schedd"), "--config", str(config)]
    return subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=log, env={**environ, **more})


def main() -> int:
    if sys.argv[1:] not in ([], ["--pull"]):
        say("usage: python examples/orders/run.py [--pull]")
        return 2
    began, work, demo = time.monotonic(), Path(tempfile.mkdtemp(prefix="schedd-orders-")), None
    try:
        demo = Demo(work, pull=bool(sys.argv[1:]))
        good = demo.run()
        say(f"\n{'The proof holds' if good else 'THE PROOF FAILS'}, after {time.monotonic() - began:.0f} s.")
        return 0 if good else 1
    except DemoError as error:
        say(f"demo: {error}")
        return 1
    except KeyboardInterrupt:
        say("\ninterrupted")
        return 130
    finally:
        if demo is not None:
            demo.close()
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
