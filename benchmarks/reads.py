"""How long commands and pages take beside a million tasks, on both databases: ``python benchmarks/reads.py [--put]``.

Each command runs in this process, from its arguments to its last line, so without the start of Python; each page is
asked of the console's application, from the request to the last byte. Median and most of some calls, after one that is
not counted. ``--put`` writes the table into docs/explanation/scale.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import million
import pages
import servers
from click.testing import CliRunner

from scheduler import Scheduler
from scheduler.cli.root import root
from scheduler.console import app, principal

SCALE = pages.HERE.parent / "docs" / "explanation" / "scale.md"
BAR_MS = 300  # of the median
TASK, DEAD = 50_095, 50_091  # both among the first 100,000
COMMANDS = (
    "status",
    "doctor",
    "report health",
    "dlq list",
    "dlq list --each",
    "gc --dry-run",
    "metrics",
    "list",
    "list --status dead",
    "list --correlation order-5009",
    "list --kind Kind3 --queue queue1",
    f"show {TASK}",
    f"why {TASK}",
    f"graph {TASK}",
    f"compare {DEAD}",
    "queues",
    "workers",
    "stats --since 2d",
    "cron list",
    "audit",
    "settings",
)
PAGES = (
    "/",
    "/alerts",
    "/audit",
    "/bulks",
    f"/c/order-{TASK // 10}",
    f"/compare/{DEAD}",
    "/dead",
    "/events",
    "/forecast",
    "/graphs",
    f"/graphs/{TASK}",
    "/keys",
    "/kinds",
    "/kinds/Kind3",
    "/messages",
    "/metrics",
    "/queues",
    "/queues/queue1",
    "/schedules",
    "/schedules/every-3",
    "/settings",
    "/tasks",
    "/tasks?q=state:dead",
    f"/tasks?q=correlation:order-{TASK // 10}",
    "/tasks?q=kind:Kind3%20queue:queue1%20ended:%3C1h",
    f"/tasks/{TASK}",
    "/workers",
)


def timed(work: Callable[[], Any], times: int) -> tuple[float, float]:
    """The median and the longest of some calls, in milliseconds."""
    work()
    found = []
    for _ in range(times):
        begin = time.perf_counter()
        work()
        found.append((time.perf_counter() - begin) * 1000)
    return statistics.median(found), max(found)


def command(arguments: str, config: Path) -> None:
    """Run a command. Raises RuntimeError: it failed."""
    done = CliRunner().invoke(root, arguments.split(), env={"SCHEDD_CONFIG": str(config)})
    if done.exit_code not in (0, 1) or (done.exception and not isinstance(done.exception, SystemExit)):
        raise RuntimeError(f"{arguments}: status {done.exit_code}: {done.output[-500:]}")


def page(gate: Any, path: str) -> None:
    """Get a page, and where it leads. Raises RuntimeError: it answered with something else than 200."""
    where, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": where,
        "raw_path": where.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    left = [{"type": "http.request", "body": b"", "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return left.pop() if left else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(gate(scope, receive, send))
    if sent[0]["status"] == 303:
        page(gate, dict(sent[0]["headers"])[b"location"].decode())
    elif sent[0]["status"] != 200:
        raise RuntimeError(f"{path}: {sent[0]['status']}")


def measure(url: str, times: int) -> dict[str, tuple[float, float]]:
    """Fill the database at this URL and time everything."""
    jobs = Scheduler(url, auto_migrate=True)
    for number in range(10):
        jobs.register(million.work, kind=f"Kind{number}")
    million.fill(jobs)
    if not url.startswith("sqlite"):
        with jobs.database.alone() as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
    found = {}
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory, "config.toml")
        config.write_text(f'[store]\nurl = "{url}"\n')
        for one in COMMANDS:
            found[f"`schedctl {one}`"] = timed(partial(command, one, config), times)
        gate = app(jobs, lambda scope: principal("ada", "admin"))
        for one in PAGES:
            found[f"page `{one}`"] = timed(partial(page, gate, one), times)
    jobs.close()
    return found


def table(found: dict[str, dict[str, tuple[float, float]]], times: int) -> str:
    """The table of both databases."""
    load = os.getloadavg()[0]
    lines = [
        f"Median and most of {times} calls, in milliseconds; load {load:.1f}.",
        "",
        "| | SQLite | most | PostgreSQL | most |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in found["sqlite"]:
        cells = (f"{value:.0f}" for kind in ("sqlite", "postgresql") for value in found[kind][name])
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print, and say what is over the bar."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=9, help="calls of each that count")
    parser.add_argument("--tasks", type=int, default=million.TASKS, help="how many are stored (multiples of 100,000)")
    parser.add_argument("--put", action="store_true", help="also put the table into docs/explanation/scale.md")
    args = parser.parse_args()
    million.TASKS = args.tasks
    found = {}
    with servers.sqlite() as place:
        found["sqlite"] = measure(f"{place}/jobs.db", args.times)
    with servers.postgresql() as place, servers.fresh(place) as url:
        found["postgresql"] = measure(url.replace("postgresql://", "postgresql+psycopg://"), args.times)
    text = table(found, args.times)
    print(text)
    for kind, reads in found.items():
        for name, (median, _) in reads.items():
            if median > BAR_MS:
                print(f"over {BAR_MS} ms on {kind}: {name}, {median:.0f} ms")
    if args.put:
        pages.put("reads", text, (SCALE,))


if __name__ == "__main__":
    main()
