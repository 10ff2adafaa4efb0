"""DirectoryExecutor: the part of an executor whose jobs are processes with files in one directory."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from scheduler.errors import ConfigError
from scheduler.executors.job_files import explained, tail_of
from scheduler.executors.job_process import SHELL, is_alive, look, was_started
from scheduler.executors.ports import Finding, Seen
from scheduler.system import WINDOWS, locks


class DirectoryExecutor:
    """Finds, observes and forgets jobs by their files, whichever daemon or pool has started them."""

    def __init__(self, name: str, directory: str) -> None:
        if WINDOWS:
            raise ConfigError(f"executors.{name} needs Linux or macOS: nothing of Windows ends all that a job started")
        self._name = name
        self._place = Path(directory).expanduser()
        if not self._place.is_absolute():
            raise ConfigError(f"executors.{name}.directory must be an absolute path, not {directory!r}")

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        """See :class:`scheduler.executors.ports.Executor`."""
        with explained(self._place):
            return {name: name for name in names if was_started(self._place / name)}

    def observe(self) -> Sequence[Seen]:
        """See :class:`scheduler.executors.ports.Executor`."""
        with explained(self._place):
            try:
                places = [Path(entry.path) for entry in os.scandir(self._place) if entry.name.startswith("schedd-")]
            except FileNotFoundError:
                return []
            return [found for found in map(self._look, places) if found is not None]

    def _look(self, place: Path) -> Seen | None:
        return look(place)

    def logs(self, handle: str, tail: int) -> str | None:
        """See :class:`scheduler.executors.ports.Executor`."""
        for place in self._places([handle]):
            with explained(self._place):
                return tail_of(place / "log", tail)
        return None

    def forget(self, handles: Sequence[str]) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        for place in self._places(handles):
            if not is_alive(place):
                shutil.rmtree(place, ignore_errors=True)

    def check(self) -> Sequence[Finding]:
        """See :class:`scheduler.executors.ports.Executor`."""
        found = []
        try:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._place) as file:
                locks.lock(file.fileno())
            found.append(Finding(True, f"jobs keep their files in {self._place}"))
        except OSError as error:
            found.append(Finding(False, f"no files can be made and locked in {self._place}: {error.strerror}"))
        if not os.access(SHELL, os.X_OK):
            found.append(Finding(False, f"there is no {SHELL}, which starts the jobs"))
        return found

    def close(self) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""

    def _places(self, handles: Sequence[str]) -> Iterator[Path]:
        for handle in handles:
            if handle.startswith("schedd-") and os.sep not in handle:
                yield self._place / handle
