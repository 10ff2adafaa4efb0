"""Random graphs, and what must hold after every action. ``make programs`` plays a few seeds, ``make soak`` hundreds.

A failure names its seed. ``SCHEDD_SOAK_SEED`` says with which the soak begins, ``SCHEDD_SOAK_RUNS`` how many it plays:
that seed and 1 play it again.
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

from stateful.graphs import play_seed
from support.databases import PostgresDatabases

SEEDS = {"sqlite": range(6), "postgresql": range(3)}
SOAK = {"sqlite": 1000, "postgresql": 200}

Databases = Callable[[], AbstractContextManager[str]]


@pytest.fixture
def databases(dialect: str, request: pytest.FixtureRequest, tmp_path: Path) -> Databases:
    """A new database for each seed."""
    number = itertools.count()

    @contextmanager
    def sqlite() -> Iterator[str]:
        directory = tmp_path / str(next(number))
        directory.mkdir()
        shutil.copyfile(request.getfixturevalue("_sqlite_template"), directory / "jobs.db")
        yield f"sqlite:///{directory / 'jobs.db'}"
        shutil.rmtree(directory)

    @contextmanager
    def postgresql() -> Iterator[str]:
        server: PostgresDatabases = request.getfixturevalue("postgres_databases")
        yield server.migrated()

    return sqlite if dialect == "sqlite" else postgresql


def play(databases: Databases, seed: int) -> Counter[str]:
    with databases() as url:
        return play_seed(url, seed)


def test_random_graphs(databases: Databases, dialect: str) -> None:
    for seed in SEEDS[dialect]:
        play(databases, seed)


@pytest.mark.soak
@pytest.mark.timeout(4 * 3600)
def test_many_random_graphs(databases: Databases, dialect: str, capsys: pytest.CaptureFixture[str]) -> None:
    runs = int(os.environ.get("SCHEDD_SOAK_RUNS", SOAK[dialect]))
    first = int(os.environ.get("SCHEDD_SOAK_SEED", random.SystemRandom().randrange(10**9)))
    ends: Counter[str] = Counter()
    for seed in range(first, first + runs):
        ends += play(databases, seed)
    with capsys.disabled():
        print(f"\n{dialect}, seeds {first} to {first + runs - 1}: {dict(ends)}")
