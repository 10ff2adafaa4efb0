"""Factories of pools for the executor ``futures``, each of a library that the documents name, on this machine."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import sys
from pathlib import Path
from typing import Any

PLACE = "SCHEDD_TEST_POOLS"  # in the environment: a directory for the pools' own files
ROOM = 2  # jobs at a time


def processes() -> concurrent.futures.Executor:
    """The standard library's."""
    return concurrent.futures.ProcessPoolExecutor(ROOM, multiprocessing.get_context("spawn"))


def parsl() -> concurrent.futures.Executor:
    """Parsl with workers of its own on this machine."""
    from parsl.concurrent import ParslPoolExecutor
    from parsl.config import Config
    from parsl.executors import HighThroughputExecutor
    from parsl.providers import LocalProvider

    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # its own programs
    workers = HighThroughputExecutor(
        label="pool",
        address="127.0.0.1",
        loopback_address="127.0.0.1",
        max_workers_per_node=ROOM,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )
    return ParslPoolExecutor(Config(executors=[workers], run_dir=os.environ[PLACE], usage_tracking=0))


def executorlib() -> concurrent.futures.Executor:
    """executorlib with processes on this machine."""
    from executorlib import SingleNodeExecutor

    return SingleNodeExecutor(max_workers=ROOM, hostname_localhost=True)


def submitit() -> Any:
    """submitit with processes on this machine: on a cluster it would be Slurm's."""
    import submitit

    return submitit.AutoExecutor(folder=os.environ[PLACE], cluster="local")
