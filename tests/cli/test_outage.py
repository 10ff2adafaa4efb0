"""Commands and callers that wait, while the database goes away and comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import sqlalchemy as sa

from scheduler import StoreUnavailableError
from scheduler.store.db.database import Database
from scheduler.store.db.errors import StoreError
from support.bench import Bench, engine_of, notify_and_step

from .conftest import Ctl

SAID = "schedctl: store here: nothing answers there; waiting for it\n"


class Outage:
    """Lets ``first`` looks through, refuses the next ones, and does something at the last of these."""

    def __init__(self, first: int, refused: int, at_last: Callable[[], object], heals: bool) -> None:
        self.looks = 0
        self.first, self.refused, self.at_last, self.heals = first, refused, at_last, heals

    def meet(self) -> None:
        self.looks += 1
        place = self.looks - self.first
        if place == self.refused:
            self.refused = 0
            self.at_last()
            raise StoreError("store here: nothing answers there", self.heals)
        if 0 < place < self.refused:
            raise StoreError("store here: nothing answers there", self.heals)


@pytest.fixture
def outage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Outage]]:
    read = Database.read
    made: list[Outage] = []

    def meeting(self: Database) -> AbstractContextManager[sa.Connection]:
        now, made[:] = made[:], []  # what is done at the last one looks, too
        try:
            for one in now:
                one.meet()
        finally:
            made[:] = made or now
        return read(self)

    def begin(first: int, refused: int = 2, at_last: Callable[[], object] = lambda: None, heals: bool = True) -> Outage:
        made[:] = [Outage(first, refused, at_last, heals)]
        return made[0]

    monkeypatch.setattr(Database, "read", meeting)
    yield begin
    made.clear()


@pytest.mark.parametrize("first", [1, 2])
def test_wait_goes_on_after_it(ctl: Ctl, live: Bench, outage: Callable[..., Outage], first: int) -> None:
    made = int(live.step("later").schedule())
    outage(first, at_last=live.drain)
    result = ctl("wait", made)
    assert result.exit_code == 0
    assert result.stdout.split()[-3:-1] == ["success", "Step"]
    assert result.stderr.count(SAID) == 1


def test_logs_go_on_after_it(ctl: Ctl, live: Bench, outage: Callable[..., Outage]) -> None:
    def fails(ctx: Any) -> None:
        raise ValueError("no")

    live.script.bodies["raises"] = fails
    made = int(live.step("raises").schedule())
    outage(1, at_last=live.drain)
    result = ctl("logs", "-f", made)
    assert (result.exit_code, result.stderr) == (0, SAID)
    assert "Traceback" in result.stdout


@pytest.mark.parametrize("lapsed", [False, True])
def test_a_drain_goes_on_after_it(ctl: Ctl, live: Bench, outage: Callable[..., Outage], lapsed: bool) -> None:
    """Leases that ran out meanwhile are about to be renewed."""
    live.step("first").schedule()
    notify_and_step(live.jobs)
    worker = engine_of(live.jobs).worker

    def lapse() -> None:
        if lapsed:
            live.execute("UPDATE schedd_workers SET lease_until = 1")
        outage(1, refused=1, at_last=ends)

    def ends() -> None:
        for _ in range(3):
            engine_of(live.jobs).periodic.timers.bring_forward("commands")
            notify_and_step(live.jobs)

    outage(1, at_last=lapse)
    result = ctl("worker", "drain", worker, "--wait")
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"worker {worker} has drained\n", SAID)


def test_what_is_away_at_once_or_for_too_long_is_reported(ctl: Ctl, live: Bench, outage: Callable[..., Outage]) -> None:
    made = int(live.step("later").schedule())
    outage(0)
    assert ctl.fails(5, "wait", made) == "schedctl: store here: nothing answers there\n"
    outage(2, refused=1000)
    result = ctl("wait", made, "--timeout", "0.5")
    assert result.exit_code == 5
    assert result.stderr.endswith("schedctl: store here: nothing answers there\n")
    outage(2, heals=False)
    assert ctl("wait", made).stderr.endswith("schedctl: store here: nothing answers there\n")


@pytest.mark.parametrize("call", ["wait", "result"])
def test_a_program_that_waits_goes_on_after_it(live: Bench, outage: Callable[..., Outage], call: str) -> None:
    made: Any = live.step("later").schedule()
    outage(1, at_last=live.drain)
    returned = getattr(live.jobs, call)(made, timeout=30)
    assert returned == {"wait": {made: live.jobs.get_task(made)}, "result": "later"}[call]


def test_a_program_gets_the_error_that_waiting_does_not_help(live: Bench, outage: Callable[..., Outage]) -> None:
    made = live.step("later").schedule()
    for timeout, given in ((30, {"first": 0}), (30, {"first": 1, "heals": False}), (1, {"first": 1, "refused": 1000})):
        outage(**given)
        with pytest.raises(StoreUnavailableError):
            live.jobs.wait(made, timeout=timeout)
