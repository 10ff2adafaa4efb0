"""``schedd --reload``: a daemon gives way to a new one when the code of its tasks, or its configuration, changes.

The new daemon imports its modules first, and calls their ``setup()``. Only then does the old one stop: its attempts
come to their ends, and the new one begins. A new one that fails says why, and the old one goes on.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec

from scheduler.config import user_modules
from scheduler.config.load import load
from scheduler.config.model import Config
from scheduler.config.paths import settled
from scheduler.config.task_modules import TaskModules
from scheduler.daemon import log
from scheduler.daemon.console_process import NEEDS
from scheduler.daemon.signals import Signals
from scheduler.daemon.supervisor import RESTART
from scheduler.errors import ConfigError, SchedulerError, StoreUnavailableError
from scheduler.model.texts import listed
from scheduler.nonblocking import say
from scheduler.system import WINDOWS
from scheduler.system.signals import HANDLED, HUP, stop_self
from scheduler.system.sockets import bind_after_others

LOOK_EVERY = 0.3  # seconds between two looks at the files
SETTLED_AFTER = 0.05  # seconds without another change: an editor may write a file in several pieces
CONSOLE = "127.0.0.1", 8321
NAMED = 3  # changed files that are named
HELD = "--held"  # the option by which the daemon below gets its end of the socket

Stamp = tuple[int, int, int]


class HeldStart:
    """The side of the daemon below: it gets its code ready, and begins when the process above says so."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._socket.set_inheritable(False)

    def hold(self, loader: TaskModules) -> None:
        """Call ``setup()`` of the modules, report, and wait for the word to begin. Raises ConfigError, SystemExit."""
        with suppress(StoreUnavailableError):  # the start waits for the store
            loader.set_up()
        try:
            self._socket.sendall(json.dumps(user_modules.loaded_files()).encode() + b"\n")
            begins = self._socket.recv(1)
        except OSError:
            begins = b""
        if not begins:
            raise SystemExit(0)
        threading.Thread(target=self._end_with_parent, name="schedd-reloader", daemon=True).start()

    def _end_with_parent(self) -> None:
        with suppress(OSError):
            self._socket.recv(1)
        stop_self()


class Below:
    """One daemon below this process."""

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair()
        with theirs:
            # -P: no module of the current directory hides another one. -B: a module that is edited twice within a
            # second would be read from what was compiled of the first edit.
            command = [sys.executable, "-P", "-B", "-m", "scheduler.daemon", *arguments, HELD, str(theirs.fileno())]
            self._process = subprocess.Popen(command, env=dict(environ), pass_fds=[theirs.fileno()])
        self._socket.setblocking(False)
        self._report = b""
        self.stopping = False

    @property
    def status(self) -> int | None:
        """Its exit status, as a shell has it; None while it lives."""
        status = self._process.poll()
        return status if status is None or status >= 0 else 128 - status

    def files(self) -> list[str] | None:
        """The files of the users' modules, once all is ready."""
        with suppress(BlockingIOError, ConnectionError):
            while part := self._socket.recv(65536):
                self._report += part
        return list(json.loads(self._report)) if self._report.endswith(b"\n") else None

    def begin(self) -> None:
        """Let it claim tasks."""
        with suppress(OSError):
            self._socket.send(b"\n")

    def tell(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Let it end; running attempts come to their ends first."""
        self.stopping = True
        self.tell(number)

    def drop(self) -> None:
        """End it before it has begun."""
        self._process.kill()
        self._process.wait()
        self.close()

    def close(self) -> None:
        """Give back its descriptors."""
        self._socket.close()


class Watch:
    """The files whose changes count: single ones, and all modules directly in some directories."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._places: set[str] = set()
        self._seen: dict[str, Stamp] = {}

    def add(self, files: Iterable[str], places: Iterable[str] = ()) -> None:
        """Watch these too, from now on."""
        new = set(files) - self._files
        self._files |= new
        places = {*places, *(os.path.dirname(file) for file in new if file.endswith(".py"))} - self._places
        self._places |= places
        self._seen = {**self._stamps(), **self._seen}

    def changed(self) -> list[str]:
        """The files that have changed, come or gone since the last call."""
        now = self._stamps()
        found = [path for path in {**self._seen, **now} if self._seen.get(path) != now.get(path)]
        self._seen = now
        return sorted(found)

    def _stamps(self) -> dict[str, Stamp]:
        paths = set(self._files)
        for place in self._places:
            with suppress(OSError), os.scandir(place) as entries:
                paths.update(entry.path for entry in entries if entry.name.endswith(".py"))
        found = {}
        for path in paths:
            with suppress(OSError):
                about = os.stat(path)
                found[path] = (about.st_mtime_ns, about.st_size, about.st_ino)
        return found


class Reloader:
    """The process above: runs one daemon at a time, and puts a new one in its place."""

    def __init__(self, config: Config, arguments: Sequence[str], environ: Mapping[str, str]) -> None:
        self._arguments, self._environ = arguments, environ
        self._watch = Watch()
        config = settled(config)
        self._watch.add([config.file] if config.file else [], _places(config))
        self._config = config
        self._current: Below | None = None
        self._next: Below | None = None
        self._ending = False

    def run(self) -> int:
        """Run daemons until a signal to stop, or until one has ended in order. Returns the exit status."""
        with Signals(*HANDLED) as signals:
            self._next = self._start()
            while True:
                for number in signals.wait(LOOK_EVERY):
                    self._pass_on(number)
                status = self._turn(signals)
                if status is not None:
                    return status

    def _start(self) -> Below:
        return Below(self._arguments, self._environ)

    def _pass_on(self, number: int) -> None:
        if number == HUP:
            if self._current is not None:
                self._current.tell(number)
            return
        self._ending = True
        if self._current is not None:
            self._current.stop(number)

    def _turn(self, signals: Signals) -> int | None:
        """Look at files and processes once. Returns the exit status at the end."""
        if self._ending:
            if self._next is not None:
                self._next.drop()
                self._next = None
            return 0 if self._current is None else self._current.status
        if self._current is None or not self._current.stopping:  # else the next one, which is ready, comes first
            self._look_at_files(signals)
        self._look_at_next()
        return self._look_at_current()

    def _look_at_files(self, signals: Signals) -> None:
        changed = more = self._watch.changed()
        while more:
            for number in signals.wait(SETTLED_AFTER):
                self._pass_on(number)
            more = self._watch.changed()
            changed = sorted({*changed, *more})
        if changed and not self._ending:
            self._renew(changed)

    def _renew(self, changed: list[str]) -> None:
        names = [os.path.relpath(path, self._config.directory or None) for path in changed]
        say(f"schedd: changed: {listed(names, NAMED)}")
        with suppress(SchedulerError):  # the daemon below says it
            self._config = settled(load(self._config.file, directory=self._config.directory))
            self._watch.add([], _places(self._config))
        if self._next is not None:
            self._next.drop()
        self._next = self._start()

    def _look_at_next(self) -> None:
        if self._next is None:
            return
        files = self._next.files()
        if files is not None:
            self._watch.add(files)
            if self._current is None:
                self._next.begin()
                self._current, self._next = self._next, None
            elif not self._current.stopping:
                self._current.stop()
        elif self._next.status is not None:
            self._next.close()
            self._next = None
            say(f"schedd: {'nothing runs' if self._current is None else 'the old code stays running'}; edit again")

    def _look_at_current(self) -> int | None:
        if self._current is None or self._current.status is None:
            return None
        status, replaced = self._current.status, self._current.stopping or self._next is not None
        self._current.close()
        self._current = None
        if replaced:
            self._next = self._next or self._start()
        elif status == RESTART:
            self._next = self._start()
        elif status == 0:
            return status  # it was bounded by the command line
        else:
            say(f"schedd: the daemon has ended with status {status}; it starts again at the next edit")
        return None


def _places(config: Config) -> list[str]:
    """Directories of the modules that the configuration names, whether these can be imported or not."""
    packages = {os.path.join(*name.split(".")[:-1]) for name in config.tasks.modules if "." in name.strip(".")}
    return [*config.tasks.path, *(os.path.join(path, package) for path in config.tasks.path for package in packages)]


def for_development(config: Config) -> dict[str, str]:
    """The settings of ``--dev`` as variables, but for those that the configuration makes itself."""
    wanted = {"log.format": "console", "log.attempts": "all"}
    if "console.listen" not in config.origins and (address := _console()) is not None:
        wanted["console.listen"] = address
    chosen = {name: text for name, text in wanted.items() if name not in config.origins}
    return {log.DEV: "1"} | {f"SCHEDD_{name.upper().replace('.', '__')}": text for name, text in chosen.items()}


def _console() -> str | None:
    """An address for the console; None if it is not installed."""
    if any(find_spec(name) is None for name in NEEDS):
        say("schedd: no console, as its packages are missing: pip install 'schedd[console]'")
        return None
    host, port = CONSOLE
    with socket.socket() as trial:
        bind_after_others(trial)
        try:
            trial.bind((host, port))
        except OSError:
            trial.bind((host, 0))
        return f"{host}:{trial.getsockname()[1]}"


def run(config: Config, arguments: Sequence[str], *, dev: bool, environ: Mapping[str, str] = os.environ) -> int:
    """``schedd --reload``, with ``dev`` as ``schedd --dev``, with the other arguments of the command line."""
    if WINDOWS:
        raise ConfigError("--reload and --dev need Linux or macOS: a daemon of Windows cannot hand over to another one")
    added = for_development(config) if dev else {}
    return Reloader(config, arguments, {**environ, **added}).run()
