"""Calls from another process: how long until a task begins there where it runs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

PAUSE = 0.02  # seconds between two calls: the worker is idle at each
_CALLER = """
import sys, time
sys.path.insert(0, {path!r})
from contenders.{module} import caller
call = caller({url!r})
call(-1)
for n in range({size}):
    time.sleep({pause})
    begun = time.time()
    call(n)
    print(n, begun, flush=True)
"""


class Calls:
    """A process that calls ``caller(url)`` of a contender's module ``size`` times, with n; once before, with -1."""

    def __init__(self, module: str, url: str, size: int) -> None:
        code = _CALLER.format(path=str(Path(__file__).parents[1]), module=module, url=url, size=size, pause=PAUSE)
        self._process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        self._told = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._told = self._process.stdout.read()
        self._process.wait()

    @property
    def over(self) -> bool:
        """Whether the last call was made."""
        return not self._reader.is_alive()

    def latencies(self, started: Mapping[int, float], wait: Callable[[float], None] = time.sleep) -> list[float]:
        """Milliseconds from each call to its start, once all have begun; ``started``: time.time() by n."""
        self._reader.join(120)
        called = {int(n): float(at) for n, at in (line.split() for line in self._told.splitlines())}
        deadline = time.monotonic() + 10
        while len(started.keys() & called.keys()) < len(called) and time.monotonic() < deadline:
            wait(0.01)
        assert called, "no caller called"
        return [(started[n] - at) * 1000 for n, at in called.items()]
