"""ConsoleProcess: the console beside the daemon, a process of its own that is started again when it ends."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from importlib.util import find_spec

from scheduler.backoff import Backoff
from scheduler.config.model import Config
from scheduler.errors import ConfigError
from scheduler.system.processes import memory_of

FIRST_PAUSE, MAX_PAUSE = 1.0, 60.0  # seconds before it is started again
STEADY = 60.0  # seconds after which an end counts as the first one again
STOP_SECONDS = 3.0  # that it may take to answer what is under way, before it is killed
LOOK_EVERY = 5.0  # seconds between two looks at its memory
MAX_MEMORY = 512 * 1024 * 1024  # bytes; a graph of 10,000 tasks takes it to a fraction of it
USAGE = 2  # its exit status for a mistake in the settings: starting it again would not help
NEEDS = ("starlette", "uvicorn", "jinja2")
_COMMAND = "from scheduler.cli import main; main()"

logger = logging.getLogger("scheduler.daemon")


def command(config: Config) -> list[str]:
    """The command that serves the console of this configuration until its stdin ends."""
    assert config.console.listen is not None
    file = [] if config.file is None else ["--config", config.file]
    return [
        *(sys.executable, "-P", "-c", _COMMAND, "console"),  # -P: no module of the current directory hides another one
        *(*file, "--listen", config.console.listen, "--until-stdin-ends"),
    ]


class ConsoleProcess:
    """Runs the console between :meth:`start` and :meth:`stop`. Raises ConfigError if what it needs is not installed."""

    def __init__(self, config: Config, arguments: Sequence[str] | None = None) -> None:
        missing = [name for name in NEEDS if find_spec(name) is None]
        if missing:
            raise ConfigError(f"[console] listen needs {', '.join(missing)}: pip install 'schedd[console]'")
        self._arguments = list(arguments if arguments is not None else command(config))
        self._directory = config.directory or None  # a task's module may change the daemon's
        self._environ = {**os.environ, "PYTHONUNBUFFERED": "1"}
        self._environ.pop("NOTIFY_SOCKET", None)  # only the daemon itself tells systemd how it is
        self._stopping = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start it, and the thread that watches it."""
        self._thread = threading.Thread(target=self._run, name="schedd-console", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; killed if it does not end soon."""
        self._stopping.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)

    def _run(self) -> None:
        backoff = Backoff(FIRST_PAUSE, MAX_PAUSE)
        while not self._stopping.is_set():
            began = time.monotonic()
            status, said = self._run_once()
            if self._stopping.is_set():
                return
            if status == USAGE:
                logger.error("the console does not start until its settings are mended: %s", said)
                return
            if time.monotonic() - began > STEADY:
                backoff.reset()
            pause = backoff.next()
            logger.error("the console has ended with status %s; it starts again in %g s", status, pause)
            self._stopping.wait(pause)

    def _run_once(self) -> tuple[int | None, str]:
        """Run it to its end, and log what it writes. Returns its exit status and its last line; None: it could not be
        started."""
        said = ""
        with self._lock:
            if self._stopping.is_set():
                return None, said
            try:
                self._process = subprocess.Popen(
                    self._arguments,
                    stdin=subprocess.PIPE,  # its end tells the console that the daemon is gone, however that ended
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env=self._environ,
                    cwd=self._directory,
                    text=True,
                    errors="replace",
                )
            except OSError as error:
                logger.error("the console cannot be started: %s", error)
                return None, said
            process = self._process
        assert process.stdout is not None
        assert process.stdin is not None
        watching = threading.Thread(target=self._watch_memory, args=(process,), name="console-memory", daemon=True)
        watching.start()
        try:
            for line in process.stdout:
                said = line.rstrip().removeprefix("schedctl: ")
                logger.info("console: %s", said)
            return process.wait(), said
        finally:
            process.stdin.close()
            process.stdout.close()

    def _watch_memory(self, process: subprocess.Popen[str]) -> None:
        """End it once it takes too much memory; it is started again as after any other end."""
        while not self._stopping.wait(LOOK_EVERY) and process.poll() is None:
            used = memory_of(process.pid)
            if used > MAX_MEMORY:
                logger.error(
                    "the console takes %d MiB of memory, more than %d: it is ended, and starts again",
                    used // 2**20,
                    MAX_MEMORY // 2**20,
                )
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                return
