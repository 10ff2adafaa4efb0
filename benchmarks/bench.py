"""Everything side by side in one run: schedd, the raw limit and its peers, on SQLite, PostgreSQL and Redis.

``make bench`` prints one table in Markdown (see docs/explanation/performance.md). Each measurement is a process of its
own on a database of its own; in each round every contender does every work once, in an order that turns, so that what
the machine does besides hits all of them. The first round, at a small size, warms up. SQLite with synchronous=FULL,
PostgreSQL with fsync and synchronous_commit on, Redis with an append-only file flushed at each command (servers.py;
DATABASE_URL names a PostgreSQL of your own). Peers come with ``pip install -e '.[bench]'``; what is missing is named.

No round is begun that would not end within --minutes; the table says how many rounds each line had.

    make bench                                            everything, about 30 minutes
    make bench BENCH_ARGS="--quick"                       everything once and small, about 3 minutes
    make bench BENCH_ARGS="--works drain,enqueue --databases sqlite --who schedd,raw --runs 9 --json FILE"
    make bench BENCH_ARGS="--python oban=.venv-python3.12/bin/python"
    make bench BENCH_ARGS="--table FILE"                  the table of an earlier run's JSON
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import importlib.metadata
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pages
import report
from contenders.collector import forget, seldom
from works import POSTGRESQL, QUICK_STORED, REDIS, SQLITE, WORKS, Work

CONTENDERS = {  # who -> modules, each with WORKS: (work, database) -> a function, or functions by variant
    "schedd": (
        "contenders.schedd",
        "contenders.schedd_stored",
        "contenders.schedd_daemons",
        "contenders.schedd_callers",
    ),
    "raw": ("contenders.raw", "contenders.raw_callers"),
    "raw narrow": ("contenders.raw_narrow",),
    "huey": ("contenders.huey_",),
    "pgqueuer": ("contenders.pgqueuer_",),
    "procrastinate": ("contenders.procrastinate_",),
    "oban": ("contenders.oban_",),
    "absurd": ("contenders.absurd_",),
    "dbos": ("contenders.dbos_",),
    "celery": ("contenders.celery_",),
    "rq": ("contenders.rq_",),
}
DATABASES = (SQLITE, POSTGRESQL, REDIS)
# What stands beside no bar is measured less often.
ALWAYS = ("schedd", "raw", "pgqueuer", "huey")
SELDOM = 2  # rounds
TURN = 250  # tasks in a cycle of the raw loops until schedd's own are known
PACKAGES = ("sqlalchemy", "psycopg", "asyncpg", "uvloop", "huey", "pgqueuer", "procrastinate", "oban", "absurd-sdk")
MORE_PACKAGES = ("dbos", "celery", "rq", "redis")
TIMEOUT = 300  # seconds of one measurement

Able = dict[tuple[str, str], dict[str, Callable[[str, int], Any]]]  # (work, database) -> "who" or "who, variant"


def works_of(who: str) -> Able:
    """What a contender can do. If it is not installed: nothing, and a line says so."""
    found: Able = {}
    for module in CONTENDERS[who]:
        try:
            given = importlib.import_module(module).WORKS
        except ModuleNotFoundError as error:
            newer = " (it needs Python 3.12)" if who == "oban" and sys.version_info < (3, 12) else ""
            print(f"{who}: not installed, no module {error.name}{newer}", file=sys.stderr)
            return {}
        for key, functions in given.items():
            by_variant = functions if isinstance(functions, dict) else {"": functions}
            found[key] = {f"{who}, {variant}" if variant else who: f for variant, f in by_variant.items()}
    return found


def names_of(who: str, python: str) -> dict[tuple[str, str], list[str]]:
    """The same by names only, and perhaps of another interpreter: by (work, database), what is measured."""
    if python == sys.executable:
        return {key: list(functions) for key, functions in works_of(who).items()}
    done = subprocess.run([python, __file__, "--list", who], stdout=subprocess.PIPE, text=True, check=True)
    return {(work, database): names for work, database, names in json.loads(done.stdout)}


class Run:
    """One run of the harness: what is measured, and what was found so far."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.quick: bool = args.quick
        self.runs: int = args.runs
        self.json: Path | None = args.json
        self.put: bool = args.put
        self.deadline = time.monotonic() + 60 * args.minutes
        self.works = [WORKS[name] for name in args.works]
        self.databases: list[str] = args.databases
        self.pythons: dict[str, str] = dict(args.python)
        self.able = {who: names_of(who, self.python(who)) for who in args.who}
        self.results: report.Results = {}
        self.servers: dict[str, str] = {}
        self.templates: dict[tuple[str, str, str], str] = {}
        self.turns: dict[str, list[float]] = {}
        self.took: dict[tuple[Work, str, str], float] = {}  # seconds, the last time
        self.about: dict[str, Any] = {}

    def python(self, who: str) -> str:
        """The interpreter of a contender."""
        return self.pythons.get(who.partition(",")[0], sys.executable)

    def start(self, stack: contextlib.ExitStack) -> None:
        """Start the servers; say what there is."""
        context = {SQLITE: servers_().sqlite, POSTGRESQL: servers_().postgresql, REDIS: servers_().redis}
        said = [machine(), versions()]
        said += [f"{who}: {other_versions(who, python)}" for who, python in self.pythons.items()]
        for database in self.databases:
            if not any(database == of for able in self.able.values() for _, of in able):
                continue
            server = stack.enter_context(context[database]())
            if server is None:
                said.append(
                    "Redis: no redis-server here (Debian: apt-get install redis-server), so no celery and no rq"
                )
                continue
            self.servers[database] = server
            said.append(servers_().settings(server))
        said.append(f"started {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, load {os.getloadavg()[0]:.1f}")
        self.about = {"settings": said, "arguments": sys.argv[1:]}
        print("\n".join(said), flush=True)

    def prepare(self, stack: contextlib.ExitStack) -> None:
        """Databases with a million rows, filled once and copied for each measurement."""
        stored = [(work, d) for work in self.works if work.stored for d in self.servers if "schedd" in self.able]
        for work, database in stored:
            for who in self.able["schedd"].get((work.name, database), []):
                variant = who.partition(", ")[2]
                begun = time.monotonic()
                url = stack.enter_context(servers_().kept(self.servers[database]))
                if spawn("--prepare", f"{work.name}:{variant}", url, QUICK_STORED if self.quick else work.stored):
                    self.templates[work.name, database, who] = url
                took = time.monotonic() - begun
                print(f"{database}: stored for {work.name} {variant} in {took:.0f} s", file=sys.stderr)

    def wanted(self, round_: int) -> Iterator[tuple[Work, str, str]]:
        """What one round measures; round 0 warms up."""
        for work in self.works:
            if round_ > work.rounds or (round_ == 0 and not work.warms_up):
                continue
            for database in self.servers:
                everybody = [who for able in self.able.values() for who in able.get((work.name, database), [])]
                if not everybody:
                    continue
                turned = round_ % len(everybody)
                for who in everybody[turned:] + everybody[:turned]:
                    if who.partition(",")[0] in ALWAYS or 0 < round_ <= SELDOM:
                        yield work, database, who

    def measure(self, round_: int) -> None:
        self.about.setdefault("load", []).append(os.getloadavg()[0])
        for work, database, who in self.wanted(round_):
            small = self.quick or round_ == 0
            turn = round(statistics.median(self.turns.get(database, [TURN])))
            template = self.templates.get((work.name, database, who))
            if work.stored and template is None:
                continue
            begun = time.monotonic()
            with servers_().fresh(self.servers[database], template) as url:
                # Warming up tells how large schedd's turns are, so that drain is of its full size.
                size = work.size_for(who, quick=self.quick or (small and (work.name, who) != ("drain", "schedd")))
                value = spawn("--one", f"{work.name}:{who}", url, size, self.python(who), BENCH_TURN=str(turn))
            if round_:
                self.took[work, database, who] = time.monotonic() - begun
            if value is None:
                continue
            if work.name == "drain" and who == "schedd":
                self.turns.setdefault(database, []).append(value["turn"])
            if round_:
                lines = self.results.setdefault((work.name, database), {})
                lines.setdefault(who, {})[round_] = value
                self.save()

    def save(self) -> None:
        if self.json is None:
            return
        flat = [
            {"work": work, "database": database, "who": who, "rounds": line}
            for (work, database), by_who in self.ordered().items()
            for who, line in (by_who or {"schedd": {}}).items()
        ]
        turns = {database: round(statistics.median(found)) for database, found in self.turns.items()}
        whole = {**self.about, "turn": turns, "results": flat}
        self.json.write_text(json.dumps(whole, indent=1) + "\n")

    def ordered(self) -> report.Results:
        """As the works and the contenders are listed, whatever the order of the rounds was."""
        everybody = [who for able in self.able.values() for found in able.values() for who in found]
        kept: report.Results = {}
        for work in self.works:
            for database in self.servers:
                found = self.results.get((work.name, database), {})
                if found or ("schedd" in self.able and work.bars.get(database)):  # failures are listed, too
                    kept[work.name, database] = {w: found[w] for w in dict.fromkeys(everybody) if w in found}
        return kept

    def go(self) -> None:
        with contextlib.ExitStack() as stack:
            self.start(stack)
            with contextlib.suppress(KeyboardInterrupt):  # what there is so far is shown
                self.prepare(stack)
                if not self.quick:
                    self.timed(0, "warmed up")
                for round_ in range(1, self.runs + 1):
                    expected = sum(self.took.get(key, 0.0) for key in self.wanted(round_))
                    if time.monotonic() + expected > self.deadline:
                        print(f"no time left for round {round_}, which takes {expected:.0f} s", file=sys.stderr)
                        break
                    self.timed(round_, f"round {round_} of {self.runs}")
        turns = ", ".join(f"{round(statistics.median(t))} on {database}" for database, t in self.turns.items())
        if turns:
            said = f"tasks in a cycle of schedd's, and of the raw loops: {turns}"
            self.about["settings"].append(said)
            print(said)
            self.save()
        print(f"\n{report.table(self.ordered())}")
        if self.put:
            pages.put("results", page_of(self.about["settings"], self.ordered()))

    def timed(self, round_: int, told: str) -> float:
        begun = time.monotonic()
        self.measure(round_)
        took = time.monotonic() - begun
        print(f"{told} ({took:.0f} s)", file=sys.stderr, flush=True)
        return took


def servers_() -> Any:
    """The module: imported late, so that a measurement's process has nothing that it does not need."""
    return importlib.import_module("servers")


def spawn(how: str, what: str, url: str, size: int, python: str = sys.executable, **environment: str) -> Any:
    """One measurement (or preparation) in a process of its own. None if it failed; a line says so."""
    command = [python, __file__, how, what, url, str(size)]
    environ = {**os.environ, **environment}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, env=environ)
    except subprocess.TimeoutExpired:
        print(f"{what}: not ready after {TIMEOUT} s", file=sys.stderr)
        return None
    if done.returncode:
        print(f"{what}: {done.stderr.strip()[-600:]}", file=sys.stderr)
        return None
    return json.loads(done.stdout.splitlines()[-1])


def one(what: str, url: str, size: int) -> Any:
    """In that process: measure."""
    work, _, who = what.partition(":")
    database = {"sqlite": SQLITE, "postgresql": POSTGRESQL}.get(url.partition(":")[0], REDIS)
    measured = works_of(who.partition(",")[0])[work, database][who]
    seldom()
    forget()
    return measured(url, size)


def prepare(what: str, url: str, size: int) -> bool:
    """In that process: fill a database."""
    from contenders.schedd_stored import PREPARED

    work, _, variant = what.partition(":")
    PREPARED[work, variant](url, size)
    return True


def machine() -> str:
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = names[0].partition(":")[2].strip() if names else platform.machine()
    return f"{len(os.sched_getaffinity(0))} cores ({model}), {platform.system()} {platform.release()}"


def versions() -> str:
    found = [f"Python {platform.python_version()}", f"schedd {importlib.metadata.version('schedd')}"]
    for package in (*PACKAGES, *MORE_PACKAGES):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    return ", ".join(found)


def other_versions(who: str, python: str) -> str:
    """Of a contender's own interpreter."""
    done = subprocess.run([python, __file__, "--list", "versions"], stdout=subprocess.PIPE, text=True, check=True)
    wanted = ("Python", who, "psycopg", "uvloop")
    return ", ".join(one for one in done.stdout.strip().split(", ") if one.startswith(wanted))


def earlier(path: Path) -> str:
    """The table of a run that was written as JSON."""
    results: report.Results = {}
    told = json.loads(path.read_text())
    for line in told["results"]:
        lines = results.setdefault((line["work"], line["database"]), {})
        lines[line["who"]] = {int(round_): value for round_, value in line["rounds"].items()}
    return page_of(told["settings"], results)


def page_of(settings: list[str], results: report.Results) -> str:
    """What a run was, and its table."""
    return "\n".join([*(f"- {line}" for line in settings), "", report.table(results)])


def chosen(known: Any) -> Callable[[str], list[str]]:
    def split(text: str) -> list[str]:
        # Names of works may have commas in them (dag 5,000).
        parts, names = text.split(","), []
        while parts:
            at = next((n for n in range(len(parts), 0, -1) if ",".join(parts[:n]).strip() in known), 0)
            if not at:
                raise argparse.ArgumentTypeError(f"{parts[0]!r} is none of: {', '.join(known)}")
            names.append(",".join(parts[:at]).strip())
            del parts[:at]
        return names

    return split


def main() -> None:
    if len(sys.argv) == 5 and sys.argv[1] in ("--one", "--prepare"):
        how, what, url, size = sys.argv[1:]
        print(json.dumps((one if how == "--one" else prepare)(what, url, int(size))))
        return
    if len(sys.argv) == 3 and sys.argv[1] == "--list":
        who = sys.argv[2]
        named = [] if who == "versions" else [[*key, list(functions)] for key, functions in works_of(who).items()]
        print(versions() if who == "versions" else json.dumps(named))
        return
    if sys.argv[1:2] == ["graphs"]:
        importlib.import_module("graphs").main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=None, help="measured rounds (default 5; 1 if --quick)")
    parser.add_argument("--minutes", type=float, default=30, help="no round is begun that would not end by then")
    parser.add_argument("--quick", action="store_true", help="one round of small sizes: does it all work?")
    parser.add_argument("--works", type=chosen(WORKS), default=list(WORKS), help=", ".join(WORKS))
    parser.add_argument(
        "--databases", "--dialects", type=chosen(DATABASES), default=list(DATABASES), help=", ".join(DATABASES)
    )
    parser.add_argument("--who", type=chosen(CONTENDERS), default=list(CONTENDERS), help=", ".join(CONTENDERS))
    parser.add_argument(
        "--python",
        type=lambda text: tuple(text.split("=", 1)),
        action="append",
        default=[],
        metavar="WHO=PATH",
        help="an interpreter for a contender that this one cannot have, such as oban on Python 3.11",
    )
    parser.add_argument("--json", type=Path, help="where the results are written after each round")
    parser.add_argument("--table", type=Path, help="print the table of such a file")
    parser.add_argument("--put", action="store_true", help="also put the table into docs/explanation/performance.md")
    args = parser.parse_args()
    if args.table:
        print(earlier(args.table))
        if args.put:
            pages.put("results", earlier(args.table))
        return
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was found until then is shown
    args.runs = args.runs or (1 if args.quick else 5)
    Run(args).go()


if __name__ == "__main__":
    main()
