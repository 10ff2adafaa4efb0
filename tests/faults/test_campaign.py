"""Three workers, one PostgreSQL, a random graph, and one sort of fault after the other.

``make faults`` runs it at full length on real daemons, ``make programs`` in short. Each run tells how many faults there
were and what they cost.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from faults import injected
from faults.campaign import Campaign, Report
from faults.harness import Fleet, Mother, Process, connect, until
from faults.injected import Fault
from scheduler import Scheduler
from support.own_server import OwnServer
from support.proxy import Proxy
from support.session import files_directory

pytestmark = pytest.mark.faults
Tell = Callable[[str], None]
SLOTS = {"high": 2, "medium": 4, "low": 2}


class Form(NamedTuple):
    """How large a campaign is. ``daemons``: real ones, else the same engine in a process that starts at once."""

    tasks: int
    faults: int
    lease: float
    daemons: bool
    timeout: float


SHORT = Form(300, 1, 1.0, False, 60.0)
LONG = Form(20_000, 12, 3.0, True, 600.0)


class Ground:
    """A server, workers on it and the test's own scheduler."""

    def __init__(self, form: Form, mother: Mother, directory: Path, tell: Tell) -> None:
        self.form = form
        self.tell = tell
        self.stack = ExitStack()
        self.server = self.stack.enter_context(OwnServer())
        self.url = self.server.migrated()
        self.fleet = Fleet(self.url, directory, mother)
        self.stack.callback(self.fleet.close)
        self.jobs: Scheduler = connect(self.url)
        self.stack.callback(self.jobs.close)
        seed = int(os.environ.get("SCHEDD_SEED", random.randrange(10**6)))
        tell(f"seed {seed} (SCHEDD_SEED={seed} runs it again)")
        self.rng = random.Random(seed)

    def outlasting(self) -> None:
        """Leases that a busy machine does not lose, for faults that wait for none of them to run out."""
        self.form = self.form._replace(lease=3.0)

    def start(self, url: str = "", clock: float = 0.0) -> Callable[[], Process]:
        """How to start one worker. It records even a single end beside the claim, if there is a backlog."""
        url, lease = url or self.url, self.form.lease
        if self.form.daemons:
            pools = {f"pools__{name}__slots": str(size) for name, size in SLOTS.items()}
            return lambda: self.fleet.daemon(
                ready=False, url=url, clock=clock, many=1, worker__lease=str(lease), **pools
            )
        options = {"lease": lease, "pools": {name: (size, 0) for name, size in SLOTS.items()}}
        return lambda: self.fleet.worker(ready=False, url=url, clock=clock, many=1, options=options)

    def campaign(
        self, faults: list[Fault], seconds: float, start: list[Callable[[], Process]] | None = None
    ) -> tuple[Campaign, Report]:
        """Let it happen, check everything, tell the figures.

        ``seconds`` that a fault and what comes before it take: so long is there work for all slots.
        """
        made = Campaign(self.fleet, self.jobs, self.rng, start or [self.start() for _ in range(3)])
        made.build(self.form.tasks, 2000 * seconds * (len(faults) + 1) * 3 * sum(SLOTS.values()) / self.form.tasks)
        made.run(faults, self.form.timeout)
        report = made.check()
        self.tell(report.text())
        assert list(self.fleet.directory.glob("beside-*")), "no ends were recorded beside a claim"
        made.no_slot_is_leaked(SLOTS)
        return made, report


@pytest.fixture(params=[pytest.param(SHORT, id="short"), pytest.param(LONG, id="long", marks=pytest.mark.soak)])
def ground(request: pytest.FixtureRequest, mother: Mother, tell: Tell) -> Iterator[Ground]:
    directory = Path(tempfile.mkdtemp(prefix="c", dir=files_directory()))
    made = Ground(request.param, mother, directory, tell)
    with made.stack:
        yield made
        for process in made.fleet.processes:
            print(process.tail())  # shown when the test failed
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.case(5, 6)
def test_killed_at_random(ground: Ground) -> None:
    _, report = ground.campaign([injected.kill] * ground.form.faults, 1.0)
    assert report.reclaimed, "nothing was interrupted"
    assert report.rerun, "no handler was interrupted"


@pytest.mark.case(2, 4)
def test_stopped_for_longer_than_the_lease(ground: Ground) -> None:
    lease = ground.form.lease
    made, report = ground.campaign([injected.freeze(1.7 * lease)] * ground.form.faults, 1.7 * lease + 1)
    assert made.lines("lease was lost"), "no worker lost its lease"
    assert report.reclaimed, "nothing was interrupted"


@pytest.mark.case(9)
def test_the_server_restarts(ground: Ground) -> None:
    ground.outlasting()
    modes = ["fast", "immediate"] * 5
    faults = [injected.restart(ground.server, mode) for mode in modes[: max(2, min(10, ground.form.faults))]]
    made, _ = ground.campaign(faults, 1.5)
    assert len(made.lines("the database is back")) >= len(faults)
    assert not made.lines("lease was lost")


@pytest.mark.case(9)
def test_the_way_to_the_server_breaks(ground: Ground) -> None:
    """Reset, closed on one side, swallowed for longer than the lease, slow, closed to everybody."""
    lease = ground.form.lease
    proxies = [ground.stack.enter_context(Proxy(ground.server.socket)) for _ in range(3)]
    start = [ground.start(proxy.url("jobs")) for proxy in proxies]
    what = [("cut", 0.1), ("half-close", 0.1), ("hole", 1.7 * lease), ("delay", 1.0), ("refuse", 0.5 * lease)]
    faults = [injected.way(proxies, name, seconds, tight=lease < 2) for name, seconds in what]
    made, _ = ground.campaign(faults * max(1, ground.form.faults // len(faults)), lease, start)
    assert made.lines("the database is away"), "no worker was cut off"


@pytest.mark.case(47)
def test_wall_clocks_ten_minutes_off(ground: Ground) -> None:
    """Some are off from the start, some are set while they work; leases, due times and the graph do not notice."""
    ground.outlasting()
    start = [ground.start(), ground.start(clock=600.0), ground.start(clock=-600.0)]
    offsets = [1200.0, -1200.0, 0.0] * ground.form.faults  # no worker has the first one yet
    made, report = ground.campaign(
        [injected.clock(offset) for offset in offsets[: max(3, ground.form.faults)]], 0.5, start
    )
    until(lambda: made.lines("the clock jumped"), "a clock was set")
    assert report.rerun == 0
    assert not made.lines("lease was lost")
