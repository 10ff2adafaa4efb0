"""A Dask cluster of the tests' own: a scheduler and a worker, processes on loopback; and pools for tests."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from support.session import shared_directory

ADDRESS = "SCHEDD_TEST_DASK"  # in the environment: the scheduler's
THREADS = 64  # jobs at a time
PATIENCE = 180.0  # seconds: the machine may be busy


def client() -> Any:
    """The factory that ``[executors.NAME]`` names."""
    from distributed import Client

    return Client(os.environ[ADDRESS], timeout=PATIENCE, name="schedd")


def threads() -> concurrent.futures.Executor:
    """Another one: a pool of this process, with room for two."""
    return concurrent.futures.ThreadPoolExecutor(2)


def no_pool() -> object:
    return object()


def broken() -> object:
    raise OSError("no route to the cluster")


class DaskCluster:
    _shared: DaskCluster | None = None

    def __init__(self, place: Path, workers: int = 1) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        place.mkdir(exist_ok=True)
        self._place = place
        self._workers = workers
        self.address = ""
        self._start_all("0")

    def _start_all(self, port: str) -> None:
        file = self._place / "scheduler.json"
        common = ["--host", "127.0.0.1", "--no-dashboard"]
        self._start("scheduler", "--port", port, "--scheduler-file", str(file), *common)
        self.address = self._address(file)
        where = ["--local-directory", str(self._place)]
        for _ in range(self._workers):
            self._start("worker", self.address, "--nthreads", str(THREADS), "--no-nanny", *common, *where)

    def restart(self) -> None:
        """Kill it, and start it under the same address: it has forgotten all."""
        self.close()
        (self._place / "scheduler.json").unlink()
        self._start_all(self.address.rpartition(":")[2])

    def _start(self, *arguments: str) -> None:
        environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        argv = [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]]
        out = subprocess.DEVNULL
        self._processes.append(subprocess.Popen(argv, env=environ, stdin=out, stdout=out, stderr=out))

    def _address(self, file: Path) -> str:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return str(json.loads(file.read_text())["address"])
            except (FileNotFoundError, ValueError):
                assert time.monotonic() < deadline, "the Dask scheduler does not start"
                time.sleep(0.02)

    @classmethod
    def shared(cls) -> DaskCluster:
        """The cluster of this pytest process, whose address the environment has."""
        if cls._shared is None:
            cls._shared = cls(Path(tempfile.mkdtemp(prefix="dask-", dir=shared_directory())))
            os.environ[ADDRESS] = cls._shared.address
        return cls._shared

    @classmethod
    def close_shared(cls) -> None:
        if cls._shared is not None:
            cls._shared.close()
            cls._shared = None

    def kill_worker(self) -> int:
        """SIGKILL for the youngest worker; its process number."""
        worker = self._processes.pop()
        worker.kill()
        worker.wait()
        return worker.pid

    def close(self) -> None:
        for process in self._processes:  # a worker whose scheduler has ended does not end when asked
            process.kill()
            process.wait()
        self._processes.clear()
