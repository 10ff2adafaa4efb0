"""miniflare, Cloudflare's emulator of Workers: installed from npm into build/ when it is not there, and started.

``python -m support.miniflare`` in tests/ installs it. Node and npm come from a wheel.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from support.npm import ROOT, install_package, node

VERSION = "4.20260730.0"
PLACE = ROOT / "build" / f"miniflare-{VERSION}"
WORKER = ROOT / "share" / "schedd" / "cloudflare" / "worker.js"


def install() -> Path:
    """Where it is; 174 MB, once for a checkout."""
    if not PLACE.exists():
        PLACE.parent.mkdir(exist_ok=True)
        with open(PLACE.with_suffix(".lock"), "w") as lock:  # of the workers of one run
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not PLACE.exists():
                _install()
    return PLACE


def _install() -> None:
    made = Path(tempfile.mkdtemp(dir=PLACE.parent, prefix="npm-"))
    try:
        install_package(f"miniflare@{VERSION}", made)
    except BaseException:
        shutil.rmtree(made)
        raise
    made.rename(PLACE)


class Miniflare:
    """An instance with these queues: see miniflare.mjs. It ends with the process that started it.

    ``log``: where goes what Workers say; None: to standard error.
    """

    def __init__(self, queues: Mapping[str, Mapping[str, Any]], log: IO[str] | None = None) -> None:
        import httpx2

        wanted = {"place": str(install()), "worker": str(WORKER), "queues": queues}
        script = Path(__file__).with_suffix(".mjs")
        self._process = subprocess.Popen(
            [node(), str(script), json.dumps(wanted)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        assert self._process.stdout is not None
        first = self._process.stdout.readline()
        if not first.startswith("at http"):
            self._process.kill()
            raise RuntimeError(f"miniflare did not start: its status is {self._process.wait()}")
        self._client = httpx2.Client(base_url=first.split()[1], timeout=60)

    def send(self, queue: str, *messages: Mapping[str, Any]) -> None:
        answer = self._client.post(f"/{queue}", json=messages)
        assert answer.text == "sent", answer.text

    def dead(self, queue: str) -> list[Any]:
        return list(self._client.get(f"/{queue}").json())

    def close(self) -> None:
        self._client.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
        assert self._process.stdout is not None
        self._process.stdout.close()


if __name__ == "__main__":
    if not PLACE.exists():
        print("Fetching miniflare, Cloudflare's emulator, from npm's registry: 174 MB in build/", flush=True)
    try:
        install()
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        raise SystemExit(str(error)) from None
