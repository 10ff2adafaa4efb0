"""Says what the time from schedule() to an idle worker's handler is made of, and what its slowest starts wait for.

The caller is a process of its own, as in the ``start`` line of ``make bench``. Both processes stamp the same monotonic
clock around the real functions, which are wrapped from outside: nothing in the product knows of it.

    python benchmarks/start_causes.py             both databases, 3 runs of 300 starts; --put: into performance.md
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pages
import servers
from report import percentile

PAUSE_S = 0.02
SLOWEST = 0.05  # share of the starts that count as the tail
STAGES = {
    "build": "the caller builds and encodes the task",
    "store": "the caller's INSERT with its commit; on PostgreSQL until the worker wakes, for NOTIFY comes with it",
    "busy": "the engine's loop is still in a cycle or in upkeep, so it does not listen yet",
    "wake": "from the notification to the engine's loop: socket, listener thread, scheduler of the kernel",
    "claim": "the claim with its commit",
    "begin": "hand-off to a slot, its thread wakes, the payload is decoded, the handler's first line",
}
CAUSES = {
    "core": "threads were ready to run and waited for a core (schedstat of the caller and of the loop)",
    "collector": "Python's garbage collector ran, in either process",
}
CALLER = "import sys; sys.path.insert(0, {path!r}); from start_causes import call; call({url!r}, {size})"


def now() -> float:
    """Milliseconds of the clock that all processes of this machine share."""
    return time.monotonic() * 1000


def wrap(owner: Any, name: str, note: Callable[[float, float, Any], None]) -> None:
    """Call ``note(begin, end, returned)`` after each call of ``owner.name``."""
    function = getattr(owner, name)

    def noted(*args: Any, **options: Any) -> Any:
        begin = now()
        returned = function(*args, **options)
        note(begin, now(), returned)
        return returned

    setattr(owner, name, noted)


def waited_for_core() -> float:
    """Milliseconds that this thread was ready and had no core, so far."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e6


class Collections:
    """When the garbage collector ran: (begin, end) in milliseconds."""

    def __init__(self) -> None:
        self.spans: list[tuple[float, float]] = []
        self._begin = 0.0
        gc.callbacks.append(self._note)

    def _note(self, phase: str, _info: dict[str, int]) -> None:
        if phase == "start":
            self._begin = now()
        else:
            self.spans.append((self._begin, now()))


def call(url: str, size: int) -> None:
    """The caller's process: schedule ``size`` tasks with pauses, then print what was stamped as JSON."""
    from contenders import schedd

    from scheduler.client import submitter

    collections = Collections()
    stored: list[tuple[float, float]] = []
    for name in ("insert_alone", "enqueue_alone"):
        wrap(submitter, name, lambda begin, end, _: stored.append((begin, end)))
    jobs = schedd.scheduler(url)
    jobs.task(schedd.stamp, -1).schedule()
    calls = []
    for n in range(size):
        time.sleep(PAUSE_S)
        waited, begun = waited_for_core(), now()
        jobs.task(schedd.stamp, n).schedule()
        calls.append((begun, *stored[-1], waited_for_core() - waited))
    print(json.dumps({"calls": calls, "collections": collections.spans}))


def starts(url: str, size: int) -> list[dict[str, float]]:
    """Milliseconds by stage and by cause, of each start; "all" is the whole."""
    from contenders import schedd

    from scheduler.engine.dispatch.handoff import SlotFeeder
    from scheduler.engine.state import EngineState

    collections = Collections()
    began: dict[int, float] = {}
    sleeps: list[tuple[float, float]] = []  # of the loop
    wakes: list[tuple[float, float]] = []  # when, and what the loop's thread had waited for a core
    given: list[tuple[float, float]] = []

    wrap(EngineState, "sleep", lambda begin, end, _: sleeps.append((begin, end)))
    wrap(EngineState, "was_woken", lambda _, end, rung: wakes.append((end, waited_for_core())) if rung else None)
    wrap(SlotFeeder, "submit", lambda begin, _end, _: given.append((begin, waited_for_core())))
    jobs = schedd.scheduler(url)
    schedd.started = _Stamps(began)
    schedd.as_the_daemon_does()
    with jobs:
        assert jobs.engine.wait_ready(60)
        code = CALLER.format(path=str(Path(__file__).parent), url=url, size=size)
        told = json.loads(subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout)
        deadline = time.monotonic() + 30
        while len(began) < size and time.monotonic() < deadline:
            time.sleep(0.01)
    spans = [*collections.spans, *told["collections"]]
    immediate = url.startswith("postgresql")  # the notification comes with the statement
    found = []
    for n, (begun, store, stored, core) in enumerate(told["calls"]):
        body = began[n]
        wake, core_then = next(((at, core) for at, core in reversed(wakes) if store <= at <= body), (body, 0.0))
        hand, core_later = next(((at, core) for at, core in reversed(given) if wake <= at <= body), (body, core_then))
        rang = wake if immediate else min(stored, wake)
        slept = next((begin for begin, end in reversed(sleeps) if begin <= wake <= end + 1), rang)
        busy = max(0.0, min(slept, wake) - (store if immediate else rang))
        found.append(
            {
                "build": store - begun,
                "store": rang - store - (busy if immediate else 0.0),
                "busy": busy,
                "wake": 0.0 if immediate else wake - rang - busy,
                "claim": hand - wake,
                "begin": body - hand,
                "core": core + max(0.0, core_later - core_then),
                "collector": sum(max(0.0, min(end, body) - max(begin, begun)) for begin, end in spans),
                "all": body - begun,
            }
        )
    return found


class _Stamps(dict[int, float]):
    """Takes the place of the contender's own table, with the monotonic clock."""

    def __init__(self, began: dict[int, float]) -> None:
        super().__init__()
        self._began = began

    def setdefault(self, key: int, _default: float = 0.0) -> float:  # type: ignore[override]
        return self._began.setdefault(key, now())


def table(by_database: dict[str, list[dict[str, float]]]) -> str:
    """Markdown: median and p99 of each part, and what the slowest starts have of it beyond the median."""
    names = list(by_database)
    lines = [
        "| part | " + " | ".join(f"{name}: p50, p99, more in the slowest {SLOWEST:.0%}" for name in names) + " | is |",
        "| --- |" + " --- |" * len(names) + " --- |",
    ]
    for part, meaning in {**STAGES, **CAUSES, "all": "from the call to the handler's first line"}.items():
        cells = []
        for found in by_database.values():
            values = [one[part] for one in found]
            middle = statistics.median(values)
            slow = sorted(found, key=lambda one: one["all"])[-max(1, round(SLOWEST * len(found))) :]
            more = statistics.mean(one[part] for one in slow) - middle
            cells.append(f"{middle:.2f}, {percentile(values, 99):.2f}, {more:+.2f}")
        lines.append(f"| {part} | {' | '.join(cells)} | {meaning} |")
    return "\n".join(lines)


def runs(database: str, count: int, size: int) -> Iterator[dict[str, float]]:
    with {"sqlite": servers.sqlite, "postgresql": servers.postgresql}[database]() as server:
        for _ in range(count):
            with servers.fresh(server) as url:
                command = [sys.executable, __file__, "--one", url, "--starts", str(size)]
                yield from json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--starts", type=int, default=300)
    parser.add_argument("--databases", default="sqlite,postgresql")
    parser.add_argument("--put", action="store_true", help="also put the table into docs/explanation/performance.md")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        with contextlib.redirect_stdout(sys.stderr):
            found = starts(args.one, args.starts)
        print(json.dumps(found))
        return
    every = {database: list(runs(database, args.runs, args.starts)) for database in args.databases.split(",")}
    text = f"Milliseconds, {args.runs} runs of {args.starts} starts:\n\n" + table(every)
    print(text)
    if args.put:
        pages.put("start-causes", text)


if __name__ == "__main__":
    main()
