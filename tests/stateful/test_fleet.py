"""Random histories against the model. ``make programs`` runs a few, always the same; ``make soak`` thousands.

A failure prints the history that shows it (the soak: the shortest), and the seed. ``SCHEDD_SOAK_SEED`` repeats a
soak, ``SCHEDD_SOAK_RUNS`` makes it longer.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from scheduler.engine.dispatch import completion as ledger
from scheduler.store.graph import release
from stateful.machine import FleetMachine
from stateful.model import TABLE
from support.databases import PostgresDatabases

EVERY_TIME = {"sqlite": (8, 30), "postgresql": (3, 30)}  # runs, steps
SOAK = {"sqlite": (2000, 50), "postgresql": (250, 50)}
CHUNK = 250  # runs with one seed
ENOUGH = 100  # of each transition in the soak: it goes on until they are there
LONGEST = 6  # but not for more than so many times its runs

Databases = Callable[[], AbstractContextManager[str]]


@pytest.fixture
def databases(
    dialect: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Databases:
    """A new database for each run. Few ends suffice to be recorded beside the claim, few children for two releases."""
    monkeypatch.setattr(ledger, "BACKGROUND_MIN_OUTCOMES", 1)
    monkeypatch.setattr(release, "MAX_CHILDREN", 2)
    number = itertools.count()

    @contextmanager
    def sqlite() -> Iterator[str]:
        # Each with a name of its own: a worker of the last run that closes its connection late removes files by name.
        path = tmp_path / f"jobs{next(number)}.db"
        shutil.copyfile(request.getfixturevalue("_sqlite_template"), path)
        yield f"sqlite:///{path}"
        for left in tmp_path.glob(f"{path.name}*"):
            shutil.rmtree(left) if left.is_dir() else left.unlink()

    @contextmanager
    def postgresql() -> Iterator[str]:
        server: PostgresDatabases = request.getfixturevalue("postgres_databases")
        yield server.migrated()

    return sqlite if dialect == "sqlite" else postgresql


class Soak:
    """Runs the machine, and counts."""

    def __init__(self, databases: Databases) -> None:
        self.databases = databases
        self.hits: Counter[tuple[str, str]] = Counter()
        self.totals: Counter[str] = Counter()

    def run(self, runs: int, steps: int, seed: int | None) -> None:
        """``seed`` None: always the same histories, and what fails is shown as it is, for shrinking takes minutes."""

        def machine() -> FleetMachine:
            return FleetMachine(self.databases, self.hits, self.totals)

        machine._hypothesis_internal_use_seed = seed  # type: ignore[attr-defined]
        chosen = settings(
            max_examples=runs,
            stateful_step_count=steps,
            derandomize=seed is None,
            database=None,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate,) if seed is None else (Phase.generate, Phase.shrink),
        )
        try:
            run_state_machine_as_test(machine, settings=chosen)
        except BaseException as error:
            error.add_note(f"seed: {'derandomized' if seed is None else seed}; {runs} runs of {steps} steps")
            raise

    def table(self) -> str:
        head = f"{self.totals['runs']} runs, {self.totals['steps']} steps\n"
        return head + "\n".join(f"{old:>10} -> {new:10} {self.hits[old, new]:8}" for old, new in TABLE)


@pytest.mark.case(4, 6, 31, 32, 33, 35)
def test_random_histories(databases: Databases, dialect: str) -> None:
    Soak(databases).run(*EVERY_TIME[dialect], seed=None)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_soak(databases: Databases, dialect: str, capsys: pytest.CaptureFixture[str]) -> None:
    runs, steps = SOAK[dialect]
    runs = int(os.environ.get("SCHEDD_SOAK_RUNS", runs))
    first = int(os.environ.get("SCHEDD_SOAK_SEED", random.SystemRandom().randrange(10**9)))
    soak = Soak(databases)
    done, seed = 0, first - 1
    rare = list(TABLE)
    while done < runs or (rare and dialect == "sqlite" and done < LONGEST * runs):
        seed += 1
        soak.run(min(CHUNK, max(runs - done, CHUNK // 5)), steps, seed)
        done = soak.totals["runs"]
        rare = [step for step in TABLE if soak.hits[step] < ENOUGH]
    with capsys.disabled():
        print(f"\n{dialect}, seeds {first} to {seed}: {soak.table()}")
    assert not rare or dialect == "postgresql", rare
