"""A command that looks once is never searched for garbage, nor is what it leaves at its end; one that lasts is."""

from __future__ import annotations

import gc
import subprocess
import sys

from scheduler import cli
from support.databases import Database

_TOLD = """
import atexit, gc, sys
from scheduler.cli import main

def collections():
    return sum(one["collections"] for one in gc.get_stats())

before = collections()
atexit.register(lambda: print(collections() - before, gc.isenabled(), gc.get_freeze_count() > 10_000, file=sys.stderr))
main()
"""


def test_a_command_that_looks_once_collects_no_garbage(database: Database) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", _TOLD, "status"],
        env={"SCHEDD_STORE__URL": database.url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stderr.splitlines()[-1] == "0 True True"


def test_after_the_first_collection_it_is_as_usual() -> None:
    usual = gc.get_threshold()
    cli._collect_later()
    assert gc.get_threshold()[0] == cli.FIRST_COLLECTION
    gc.collect()
    assert gc.get_threshold() == usual
    assert not gc.callbacks or all("_collect_later" not in repr(one) for one in gc.callbacks)
