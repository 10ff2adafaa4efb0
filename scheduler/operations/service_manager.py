"""The common part of service managers: the machine, the wish, the plan, the state."""

from __future__ import annotations

import subprocess
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from scheduler.system import MACOS
from scheduler.system.processes import user_id

MARK = "Made by schedctl service install, and removed by schedctl service uninstall."
USER = "schedd"

_LONGEST_S = 120  # that a command of the service manager may take: a stop waits for the daemon to drain


class Whose(StrEnum):
    """Whose service: the whole system's, or one user's."""

    SYSTEM = "system"
    USER = "user"


def _run(command: Sequence[str]) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LONGEST_S)
    except OSError as error:
        return 127, f"{command[0]}: {error.strerror}"
    except subprocess.TimeoutExpired:
        return 124, f"{command[0]} did not end within {_LONGEST_S} s"
    return done.returncode, (done.stdout or done.stderr).strip()


@dataclass(frozen=True)
class Machine:
    """The machine that gets the service. ``root``: where its files begin."""

    root: Path = Path("/")
    home: Path = field(default_factory=Path.home)
    uid: int = field(default_factory=lambda: user_id() or 0)
    darwin: bool = MACOS
    run: Callable[[Sequence[str]], tuple[int, str]] = _run
    program: Path = Path(sysconfig.get_path("scripts")) / "schedd"

    def place(self, path: str | Path) -> Path:
        """Where a file of the machine lies."""
        return self.root / str(path).lstrip("/")

    def has_user(self, name: str) -> bool:
        """Whether it knows a user."""
        return self.run(["id", "-u", name])[0] == 0


class Wish(NamedTuple):
    """What to install. ``credentials``: setting and file of each; ``drop_ins``: names of drop-ins of ``systemd/``."""

    whose: Whose
    config: str | None = None
    run_as: str = USER
    credentials: tuple[tuple[str, str], ...] = ()
    drop_ins: tuple[str, ...] = ()


class ServicePlan(NamedTuple):
    """Files with their contents, and the commands before and after they are written."""

    files: Mapping[Path, str]
    before: list[list[str]]
    after: list[list[str]]
    start: list[str]


class ServiceStatus(NamedTuple):
    """How an installed service is. ``state``: as its manager says, such as ``active (running)``."""

    whose: str
    unit: str
    state: str
    pid: int | None
    enabled: str
    since: str | None
    restarts: int | None
    active: bool
