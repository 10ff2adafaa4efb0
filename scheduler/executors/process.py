"""The executor ``process``: jobs are processes on the daemon's machine, which outlive the daemon.

Each job has a directory of its name with files, so that any later daemon finds it: ``lock`` is held, by flock, as long
as a process of the job lives; ``pid`` has the process group; ``exit`` the exit status, written by a small shell that
waits for the job; ``log`` what it wrote; ``cancel`` until when it may end by itself; ``job.json`` its resources.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from scheduler.errors import ConfigError
from scheduler.executors.job_files import explained, tail_of, write_private
from scheduler.executors.ports import (
    NOT_MINE,
    Capabilities,
    Finding,
    Job,
    Phase,
    Refused,
    Resources,
    Seen,
    Submitted,
)
from scheduler.model.limits import parse_size, size_text

SHELL = "/bin/sh"
# Signals go to the whole group: the job ends by them, and the shell stays to write how it ended.
# It is started before the trap is set and signals can come: a shell's child that still has the trap would lose them.
_SHELL_SCRIPT = """
dir=$1; shift
"$@" &
job=$!
trap : TERM INT HUP
echo $$ > "$dir/pid.new" && mv "$dir/pid.new" "$dir/pid" || { kill $job; exit 70; }
while :; do
  wait $job; code=$?
  kill -0 $job 2> /dev/null || break
done
echo $code > "$dir/exit.new" && mv "$dir/exit.new" "$dir/exit"
"""
_OPTIONS = ("nice",)
_RETRY_S = 5.0  # until a job is tried again for which no process could be started
_FULL_S = 1.0  # until a job is tried again for which there is no room
_LOCK_TRIES, _LOCK_PAUSE_S = 20, 0.005
_GRACE_OVER_LIMIT_S = 10.0  # from SIGTERM to SIGKILL for a job that has run for too long
_SIGNALLED = 128  # a shell's exit status of a job that a signal ended: this, and the signal's number


class _Kept(msgspec.Struct):
    """``job.json``. ``limit``: seconds that it may run."""

    resources: Resources
    limit: float | None
    began: float


class ProcessExecutor:
    """Jobs as processes of this machine. See the module."""

    capabilities = Capabilities(names_unique=True, has_logs=True, tells_reason=True, survives_restart=True)

    class Settings(msgspec.Struct, frozen=True, kw_only=True):
        """``directory``: of the jobs' files, for this executor alone. ``cpus``, ``memory``, ``gpus``: what all jobs
        together may ask for; 0 and None: what the machine has, which for gpus is none. A job that does not say how many
        cores it needs counts as one. ``prefix``: a command that
        starts each job, such as ``["systemd-run", "--user", "--scope", "-q"]``."""

        directory: str
        cpus: float = 0.0
        memory: str | None = None
        gpus: int = 0
        prefix: tuple[str, ...] = ()

    def __init__(self, name: str, settings: Settings) -> None:
        self._name = name
        self._prefix = settings.prefix
        self._place = Path(settings.directory).expanduser()
        if not self._place.is_absolute():
            raise ConfigError(f"executors.{name}.directory must be an absolute path, not {settings.directory!r}")
        if settings.cpus < 0 or settings.gpus < 0:
            raise ConfigError(f"executors.{name}: cpus and gpus are numbers from 0")
        self._total = {
            "cpu": settings.cpus or float(len(os.sched_getaffinity(0))),
            "memory": float(
                _memory() if settings.memory is None else parse_size(settings.memory, f"executors.{name}.memory", 1)
            ),
            "gpu": float(settings.gpus),
        }
        self._started: list[subprocess.Popen[bytes]] = []  # to be waited for, lest they stay as zombies

    # The port

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        """See :class:`scheduler.executors.ports.Executor`."""
        with explained(self._place):
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            taken = self._taken()
            return [self._submit(job, taken) for job in jobs]

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        """See :class:`scheduler.executors.ports.Executor`."""
        with explained(self._place):
            return {name: name for name in names if _was_started(self._place / name)}

    def observe(self) -> Sequence[Seen]:
        """See :class:`scheduler.executors.ports.Executor`. Kills what had its time to end."""
        self._started = [process for process in self._started if process.poll() is None]
        with explained(self._place):
            try:
                places = [Path(entry.path) for entry in os.scandir(self._place) if entry.name.startswith("schedd-")]
            except FileNotFoundError:
                return []
            return [found for found in map(self._look, places) if found is not None]

    def cancel(self, handles: Sequence[str], grace: float) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        with explained(self._place):
            for place in self._places(handles):
                if _is_alive(place):
                    if not (place / "cancel").exists():
                        write_private(place / "cancel", str(time.time() + grace))
                    _signal(place, signal.SIGTERM)

    def logs(self, handle: str, tail: int) -> str | None:
        """See :class:`scheduler.executors.ports.Executor`."""
        for place in self._places([handle]):
            with explained(self._place):
                return tail_of(place / "log", tail)
        return None

    def forget(self, handles: Sequence[str]) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        for place in self._places(handles):
            if not _is_alive(place):
                shutil.rmtree(place, ignore_errors=True)

    def check(self) -> Sequence[Finding]:
        """See :class:`scheduler.executors.ports.Executor`."""
        found = []
        try:
            self._place.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self._place) as file:
                fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            found.append(Finding(True, f"jobs keep their files in {self._place}"))
        except OSError as error:
            found.append(Finding(False, f"no files can be made and locked in {self._place}: {error.strerror}"))
        if not os.access(SHELL, os.X_OK):
            found.append(Finding(False, f"there is no {SHELL}, which starts the jobs"))
        if self._prefix and shutil.which(self._prefix[0]) is None:
            found.append(Finding(False, f"there is no {self._prefix[0]}, which prefix names"))
        total = self._total
        room = f"{total['cpu']:g} cores, {size_text(int(total['memory']))} of memory, {total['gpu']:g} GPUs"
        found.append(Finding(True, f"jobs may ask for {room} in all"))
        return found

    def close(self) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""

    # Its files

    def _places(self, handles: Sequence[str]) -> Iterator[Path]:
        for handle in handles:
            if handle.startswith("schedd-") and os.sep not in handle:
                yield self._place / handle

    def _submit(self, job: Job, taken: dict[str, float]) -> Submitted | Refused:
        unknown = sorted(set(job.options) - set(_OPTIONS))
        if unknown:
            known = ", ".join(_OPTIONS)
            return Refused(job.name, False, f"executor_options has {unknown[0]!r}; the type process has {known}")
        nice = job.options.get("nice", 0)
        if not isinstance(nice, int) or isinstance(nice, bool) or not 0 <= nice <= 19:
            return Refused(job.name, False, f"nice must be a whole number from 0 to 19, not {nice!r:.40}")
        refused = self._no_room(job, taken)
        if refused is not None:
            return refused
        place = self._place / job.name
        place.mkdir(mode=0o700, exist_ok=True)
        lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            if not _locked(place, lock):  # it has run, it runs, or another daemon is about to start it
                return Submitted(job.name, job.name)
            return self._start(job, place, lock, nice, taken)
        finally:
            os.close(lock)  # the job has it, too

    def _start(self, job: Job, place: Path, lock: int, nice: int, taken: dict[str, float]) -> Submitted | Refused:
        write_private(place / "job.json", msgspec.json.encode(_Kept(job.resources, job.limit, time.time())).decode())
        command = [*self._prefix, *(["nice", "-n", str(nice)] if nice else []), *job.argv]
        log = os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            process = subprocess.Popen(
                [SHELL, "-c", _SHELL_SCRIPT, "schedd-job", str(place), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **job.env},
                pass_fds=(lock,),
                start_new_session=True,
            )
        except OSError as error:
            return Refused(job.name, True, f"no process could be started: {error.strerror}", _RETRY_S)
        finally:
            os.close(log)
        self._started.append(process)
        for name, wanted in _wanted(job.resources).items():
            taken[name] += wanted
        return Submitted(job.name, job.name)

    def _taken(self) -> dict[str, float]:
        """What the jobs that live have asked for."""
        taken = {"cpu": 0.0, "memory": 0.0, "gpu": 0.0}
        for entry in os.scandir(self._place):
            kept = _kept(Path(entry.path))
            wanted = {} if kept is None else _wanted(kept.resources)
            if any(wanted.values()) and _is_alive(Path(entry.path)):
                for name, amount in wanted.items():
                    taken[name] += amount
        return taken

    def _no_room(self, job: Job, taken: Mapping[str, float]) -> Refused | None:
        for name, wanted in _wanted(job.resources).items():
            asked, all_of = _amount(name, wanted), _amount(name, self._total[name])
            if wanted > self._total[name]:
                return Refused(job.name, False, f"it asks for {asked}, of {all_of} in all")
            if wanted and taken[name] + wanted > self._total[name]:
                text = f"it waits for {asked}: {_amount(name, taken[name])} of {all_of} are taken"
                return Refused(job.name, True, text, _FULL_S)
        disk = job.resources.disk_bytes
        if disk is not None:
            usage = shutil.disk_usage(self._place)
            if disk > usage.total:
                return Refused(job.name, False, f"it asks for {size_text(disk)} of disk, of {size_text(usage.total)}")
            if disk > usage.free:
                return Refused(job.name, True, f"it waits for {size_text(disk)} of disk: {size_text(usage.free)} free")
        return None

    def _look(self, place: Path) -> Seen | None:
        name = place.name
        alive = _is_alive(place)
        pid, code = _number(place / "pid"), _number(place / "exit")
        if alive:
            self._end_if_due(place)
            phase = Phase.STARTING if pid is None else Phase.RUNNING
            return Seen(name=name, handle=name, phase=phase, reason=None if pid is None else f"process {pid}")
        if pid is None:
            return None  # the daemon was ended before it had started it
        cancelled = (place / "cancel").exists()
        ended = Phase.TIMED_OUT if (place / "limit").exists() else Phase.CANCELLED if cancelled else Phase.FAILED
        if code is None:
            why = "killed" if cancelled else "killed, with the shell that waited for it, or the machine restarted"
            return Seen(name=name, handle=name, phase=ended, reason=why, signal=signal.SIGKILL)
        if code == 0:
            return Seen(name=name, handle=name, phase=Phase.SUCCEEDED, exit_code=0)
        if code > _SIGNALLED:
            number = code - _SIGNALLED
            return Seen(name=name, handle=name, phase=ended, reason=f"ended by {_signal_name(number)}", signal=number)
        phase = Phase.FAILED if code == NOT_MINE else ended
        return Seen(name=name, handle=name, phase=phase, reason=f"exit status {code}", exit_code=code)

    def _end_if_due(self, place: Path) -> None:
        """Kill a job whose time to end by itself is over; ask one to end that has run for too long."""
        until = _text(place / "cancel")
        if until is not None:
            with suppress(ValueError):
                if time.time() >= float(until):
                    _signal(place, signal.SIGKILL)
            return
        kept = _kept(place)
        if kept is not None and kept.limit is not None and time.time() >= kept.began + kept.limit:
            write_private(place / "limit", "")
            write_private(place / "cancel", str(time.time() + _GRACE_OVER_LIMIT_S))
            _signal(place, signal.SIGTERM)


def _locked(place: Path, lock: int) -> bool:
    """Lock a job that has never run, to start it. A look of another daemon's holds the lock for a moment, too."""
    for _ in range(_LOCK_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return not (place / "pid").exists()
        if (place / "pid").exists():
            return False
        time.sleep(_LOCK_PAUSE_S)
    return False


def _is_alive(place: Path) -> bool:
    """Whether a process of the job has its lock."""
    try:
        lock = os.open(place / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def _was_started(place: Path) -> bool:
    return (place / "pid").exists() or _is_alive(place)


def _signal(place: Path, number: int) -> None:
    """Send a signal to the job's processes. Its group keeps its number while one of them lives."""
    group = _number(place / "pid")
    if group is not None and group > 1:
        with suppress(ProcessLookupError):
            os.killpg(group, number)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text is not None and text.isdecimal() else None


def _kept(place: Path) -> _Kept | None:
    text = _text(place / "job.json")
    with suppress(msgspec.MsgspecError):
        return None if text is None else msgspec.json.decode(text, type=_Kept)
    return None


def _wanted(resources: Resources) -> dict[str, float]:
    return {
        "cpu": 1.0 if resources.cpu is None else float(resources.cpu),
        "memory": float(resources.memory_bytes or 0),
        "gpu": float(resources.gpu or 0),
    }


def _amount(name: str, number: float) -> str:
    if name == "memory":
        return f"{size_text(int(number))} of memory"
    return f"{number:g} {'cores' if name == 'cpu' else 'GPUs'}"


def _memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
