"""``schedctl`` called in this process, on the test's database, and a bench whose tasks really run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scheduler.ports import SystemClock
from support.bench import Bench
from support.databases import Database
from support.runner import Ran, Runner

PROGRAM = [sys.executable, "-c", "from scheduler.cli import main; main()"]


@dataclass
class Ctl:
    """Calls ``schedctl``. The environment names the database and a configuration that sets nothing else."""

    environment: dict[str, str]

    def __call__(self, *arguments: object, **environment: str) -> Ran:
        from scheduler.cli.root import root

        runner = Runner(env={**self.environment, **environment})
        return runner.invoke(root, [str(a) for a in arguments])

    def json(self, *arguments: object, status: int = 0) -> Any:
        """What the command prints as JSON; it must end with this status."""
        result = self("-o", "json", *arguments)
        assert result.exit_code == status, result.output
        return json.loads(result.stdout)

    def fails(self, status: int, *arguments: object, **environment: str) -> str:
        """The message of a command that must end like this: one or two lines, nothing on stdout."""
        result = self(*arguments, **environment)
        assert result.exit_code == status, result.output
        assert "Traceback" not in result.output
        assert 1 <= len(result.stderr.splitlines()) <= 2, result.stderr
        assert result.stdout == ""
        return result.stderr

    def process(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        """The same in a process of its own."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SCHEDD_")}
        return subprocess.run(
            [*PROGRAM, *map(str, arguments)],
            env={**inherited, **self.environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


def environment_for(url: str, directory: Path) -> dict[str, str]:
    config = directory / "schedd.toml"
    config.touch()
    return {"SCHEDD_CONFIG": str(config), "SCHEDD_STORE__URL": url, "NO_COLOR": "1", "SCHEDD_DEBUG": ""}


@pytest.fixture
def ctl(database: Database, tmp_path: Path) -> Ctl:
    return Ctl(environment_for(database.url, tmp_path))


@pytest.fixture
def empty_ctl(empty_database: Database, tmp_path: Path) -> Ctl:
    return Ctl(environment_for(empty_database.url, tmp_path))


@pytest.fixture
def live(database: Database) -> Iterator[Bench]:
    """A bench on the system's clock, as schedctl has it. Its worker is live once it has drained."""
    made = Bench(database, clock=SystemClock())  # type: ignore[arg-type]
    yield made
    made.close()


@pytest.fixture
def terminal(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Calls a command whose streams are a terminal; what that was given."""
    for name, value in ctl.environment.items():
        monkeypatch.setenv(name, value)

    def call(line: str) -> str:
        ours, theirs = os.openpty()
        output = bytearray()

        def listen() -> None:
            with suppress(OSError):  # EIO: the other end is closed
                while piece := os.read(ours, 65536):
                    output.extend(piece)

        listener = threading.Thread(target=listen)
        listener.start()
        with open(theirs, "w", encoding="utf-8") as stream, pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stdout", stream)
            patch.setattr(sys, "stderr", stream)
            from scheduler.cli.root import root

            with suppress(SystemExit):
                root.main(line.split())
        listener.join()
        os.close(ours)
        return output.decode().replace("\r\n", "\n")

    return call
