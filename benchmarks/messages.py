"""How many messages a second come in and go out, by transport, beside the transport's own client without a store.

  in       a receiver takes messages that lie in a queue: each is stored as a task (100 in a commit, or as many as the
           transport delivers at once), then acknowledged; the tasks are not run. CloudEvents are posted to the door.
  out      messages that are stored already go out, until each one's end is recorded; one engine
  bare     the same source or sink, called in a loop without a store

Each measurement is a process of its own; servers and fakes run outside of it, on the same machine. CPU is that of the
measured process.

    python benchmarks/messages.py [--transports nats,redis] [--databases sqlite,postgresql] [--runs 3] [--put]
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pages
import servers  # puts the tests' own modules on the path

from scheduler import Context, Scheduler, Task
from scheduler.config.load import load
from scheduler.messages.intake import Intake
from scheduler.messages.outbox import make_kind, make_outlet, pack
from scheduler.messages.receiver import Receiver
from scheduler.messages.service import MessageService
from scheduler.model.outgoing import OUTBOX
from scheduler.model.state import TaskState
from scheduler.transports import types
from scheduler.transports.envelope import Message, encode
from scheduler.transports.ports import Ack, Outgoing, Published, Sink, Source
from support import sink_rigs
from support.rabbitmq_rig import SERVER, RabbitRig

RIGS: dict[str, tuple[Any, int]] = {  # and how many messages
    "nats": (sink_rigs.NatsSinkRig, 2000),
    "redis": (sink_rigs.RedisSinkRig, 2000),
    "rabbitmq": (sink_rigs.RabbitSinkRig, 2000),
    "cloudevents": (sink_rigs.CloudEventsSinkRig, 500),
    "sqs": (sink_rigs.SqsSinkRig, 150),
    "cloudflare": (sink_rigs.CloudflareSinkRig, 500),
}
OF_OURS = {"cloudevents": "an endpoint of ours", "sqs": "moto", "cloudflare": "a fake of ours"}
DEBIAN = {"redis": "/usr/bin/redis-server", "rabbitmq": SERVER}
WORKS = ("in", "bare in", "out", "bare out")
LIVE = [state for state in TaskState if not state.terminal]


class Order(Task):
    number: int

    def run(self, ctx: Context) -> None: ...


class Timer:
    """Seconds and seconds of CPU since it was made."""

    def __init__(self) -> None:
        self._at, self._cpu = time.monotonic(), time.process_time()

    def figures(self, number: int) -> dict[str, float]:
        return {
            "rate": number / (time.monotonic() - self._at),
            "cpu": (time.process_time() - self._cpu) / number * 1e6,
        }


def outgoing(number: int) -> list[Outgoing]:
    found = []
    for n in range(number):
        message = Message(idempotency_key=f"order-{n}", message_type="Order", payload_inline={"number": n})
        found.append(Outgoing(key=f"order-{n}", body=encode(message), message=message))
    return found


def publish(sink: Sink, number: int) -> None:
    for batch in pack(outgoing(number), sink.limits, 100):
        answers = sink.publish(batch)
        assert all(isinstance(one, Published) for one in answers), answers
    sink.close()


def jobs_of(config: Any) -> Scheduler:
    jobs = Scheduler(config.store.url, queues=[OUTBOX], auto_migrate=True)
    jobs.register(Order)
    return jobs


def come_in(config: Any, number: int) -> dict[str, float]:
    source, jobs = types.make_source(config, "orders"), jobs_of(config)
    publish(types.make_sink(config, "orders"), number)
    assert isinstance(source, Source)
    intake = Intake("orders", config.sources["orders"], source.limits, jobs.submitter, "bench")
    receiver = Receiver(source, intake, jobs.database, "bench")
    jobs.database.open()
    source.check()
    timer, came = Timer(), 0
    while came < number:
        came += receiver.turn()
    figures = timer.figures(came)
    source.close()
    return figures


def come_in_bare(config: Any, number: int) -> dict[str, float]:
    source = types.make_source(config, "orders")
    publish(types.make_sink(config, "orders"), number)
    assert isinstance(source, Source)
    source.check()
    timer, came = Timer(), 0
    while came < number:
        found = source.receive(min(100, source.limits.max_batch), 1.0)
        source.settle([Ack(one.receipt) for one in found])
        came += len(found)
    figures = timer.figures(came)
    source.close()
    return figures


def come_in_by_the_door(config: Any, number: int) -> dict[str, float]:
    """The sink of another process would be the sender; here it is a thread's, so its CPU counts."""
    jobs = jobs_of(config)
    service = MessageService(config, jobs)
    service.start()
    jobs.database.open()
    timer = Timer()
    publish(types.make_sink(config, "door"), number)
    figures = timer.figures(number)
    service.stop()
    return figures


def go_out(config: Any, number: int) -> dict[str, float]:
    jobs = jobs_of(config)
    for name in config.sinks:
        jobs.register(make_kind(make_outlet(config, name, jobs.database, jobs.traffic), jobs.database))
    with jobs.database.open().connect() as connection:
        for n in range(number):
            jobs.publish("orders", {"number": n}, key=f"order-{n}", connection=connection)
        connection.commit()
    with jobs:
        timer = Timer()
        while jobs.list_tasks(LIVE, limit=1):
            time.sleep(0.02)
        figures = timer.figures(number)
    assert len(jobs.list_tasks(TaskState.SUCCESS, limit=number)) == number
    return figures


def go_out_bare(config: Any, number: int) -> dict[str, float]:
    sink, timer = types.make_sink(config, "orders"), Timer()
    publish(sink, number)
    return timer.figures(number)


def one(work: str, transport: str, config_file: str, number: int) -> dict[str, float]:
    """What was measured of one work in this process."""
    config = load(config_file, {})
    if work == "in" and transport == "cloudevents":
        return come_in_by_the_door(config, number)
    works = {"in": come_in, "bare in": come_in_bare, "out": go_out, "bare out": go_out_bare}
    return works[work](config, number)


@contextmanager
def configured(transport: str, url: str, place: Path) -> Iterator[Path]:
    """A configuration file, beside a server with queues of its own."""
    from support.redis_rig import free_port

    rig = RIGS[transport][0](place)
    section = f'[store]\nurl = "{url}"\n[sinks.orders]\ntype = "{transport}"\n{rig.sink_table}'
    if transport == "cloudevents":
        port = free_port()
        token = 'token = "bench"\n'
        section += f'[door]\nlisten = "127.0.0.1:{port}"\n'
        section += f'[sources.orders]\ntype = "cloudevents"\nkind = "Order"\n{token}'
        at = f"http://127.0.0.1:{port}/v1/sources/orders"
        section += f'[sinks.door]\ntype = "cloudevents"\nmode = "batch"\nurl = "{at}"\n{token}'
    else:
        table = "".join(line for line in rig.table.splitlines(True) if not line.startswith(("batch", "visibility")))
        section += f'[sources.orders]\ntype = "{transport}"\nkind = "Order"\nmax_backlog = 1000000\n{table}'
    path = place / "config.toml"
    path.write_text(section)
    try:
        yield path
    finally:
        rig.close()


def measured(transport: str, work: str, server: str, number: int) -> dict[str, float]:
    with servers.fresh(server) as url, tempfile.TemporaryDirectory(prefix="sb", dir=servers.PLACE) as place:
        own = url.replace("postgresql://", "postgresql+psycopg://")
        with configured(transport, own, Path(place)) as config:
            command = [sys.executable, __file__, "--one", work, "--transports", transport, "--config", str(config)]
            told = subprocess.run([*command, "--number", str(number)], check=True, stdout=subprocess.PIPE, text=True)
    return dict(json.loads(told.stdout.splitlines()[-1]))


def table(results: list[dict[str, Any]]) -> str:
    """Results as Markdown: a line for each transport, direction and database."""
    found: dict[tuple[str, str, str], dict[int, dict[str, Any]]] = {}
    for result in results:
        found.setdefault((result["transport"], result["work"], result["database"]), {})[result["round"]] = result
    lines = [
        "| transport | way | database | messages a second | µs of CPU each | by the bare client |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for (transport, work, database), rounds in found.items():
        if work.startswith("bare"):
            continue
        bare = found.get((transport, f"bare {work}", database), {})
        ratios = [rounds[n]["rate"] / bare[n]["rate"] for n in rounds if n in bare]
        shown = [
            f"{transport} ({OF_OURS[transport]})" if transport in OF_OURS else transport, work, database,
            spread([one["rate"] for one in rounds.values()], ",.0f"),
            spread([one["cpu"] for one in rounds.values()], ",.0f"), spread(ratios, ".2f") if ratios else "",
        ]  # fmt: skip
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join(lines)


def spread(values: list[float], form: str) -> str:
    return f"{statistics.median(values):{form}} ({min(values):{form}}–{max(values):{form}})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transports", default=",".join(RIGS))
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of messages")
    parser.add_argument("--json", type=Path, help="write each result there as it comes")
    parser.add_argument("--table", type=Path, nargs="+", help="no run: the table of these files")
    parser.add_argument("--put", action="store_true", help="write the table into docs/explanation/performance.md")
    parser.add_argument("--one", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--config", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one, args.transports, args.config, args.number)))
        return
    if args.table:
        results = [one for path in args.table for one in json.loads(path.read_text())]
    else:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)  # moto's server
        results = run(args)
    loads = [one["load"] for one in results]
    text = f"- {os.cpu_count()} cores, Python {platform.python_version()}, load {min(loads):.0f} to {max(loads):.0f}"
    text += f"\n\n{table(results)}"
    print(f"\n{text}")
    if args.put:
        pages.put("messages", text)


def run(args: argparse.Namespace) -> list[dict[str, Any]]:
    wanted = []
    for transport in args.transports.split(","):
        if transport in DEBIAN and not Path(DEBIAN[transport]).exists():
            print(f"{transport} is left out: {DEBIAN[transport]} is missing")
            continue
        wanted.append(transport)
    results: list[dict[str, Any]] = []
    try:
        for database in args.databases.split(","):
            with getattr(servers, database)() as server:
                for number in range(args.runs):
                    for transport in wanted:
                        for work in WORKS:
                            if (transport, work) == ("cloudevents", "bare in"):
                                continue  # nothing can be fetched
                            size = max(1, round(RIGS[transport][1] * args.scale))
                            figures = measured(transport, work, server, size)
                            named = {"transport": transport, "work": work, "database": database, "round": number}
                            results.append({**named, **figures, "load": os.getloadavg()[0]})
                            if args.json:
                                args.json.write_text(json.dumps(results, indent=2) + "\n")
                            print(database, number, transport, work, f"{figures['rate']:,.0f}/s", flush=True)
    finally:
        RabbitRig.close_server()
    return results


if __name__ == "__main__":
    main()
