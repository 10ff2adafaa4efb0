"""A job as a process with a directory of files, whichever daemon or pool has started it.

``lock`` is held, by flock, as long as a process of the job lives; ``pid`` has the process group; ``exit`` the exit
status, written by what waits for the job: a small shell, or the process that forked it; ``log`` what the job wrote;
``cancel`` until when it may end by itself; ``limit`` is there once it has run for too long.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scheduler.executors.job_files import write_private
from scheduler.executors.ports import NOT_MINE, PlacementPhase, Seen
from scheduler.system import locks

SHELL = "/bin/sh"
JOB_MODULE = "scheduler.daemon.job"  # what jobs of schedd run
# Signals go to the whole group: the job ends by them, and the shell stays to write how it ended.
# Then it kills the group, itself too: what the job has left behind would go on beside its next attempt.
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
kill -KILL 0
"""
POLL_S = 0.2  # between two looks of a pool whether its job is to end
_LOCK_TRIES, _LOCK_PAUSE_S = 20, 0.005
_GRACE_OVER_LIMIT_S = 10.0  # from SIGTERM to SIGKILL for a job that has run for too long
_SIGNALLED = 128  # a shell's exit status of a job that a signal ended: this, and the signal's number


def start(
    place: Path,
    lock: int,
    command: Sequence[str],
    env: Mapping[str, str],
    without: Sequence[str] = (),
    directory: str | None = None,
) -> subprocess.Popen[bytes]:
    """Start a job in a session of its own. ``lock``: the descriptor of :func:`lock_to_start`; ``without``: variables
    that it does not inherit; ``directory``: where it starts. Raises OSError."""
    inherited = {name: value for name, value in os.environ.items() if name not in without}
    log = open_log(place)
    try:
        return subprocess.Popen(
            [SHELL, "-c", _SHELL_SCRIPT, "schedd-job", str(place), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**inherited, **env},
            cwd=directory,
            pass_fds=(lock,),
            start_new_session=True,
        )
    finally:
        os.close(log)


def open_log(place: Path) -> int:
    """The descriptor of a job's output. Raises OSError."""
    return os.open(place / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def keep(place: Path, job: int) -> None:
    """Do for a job that was forked what the shell does for others: wait for it, write how it ended, and kill its group.

    The signals that end jobs have to be blocked. Raises OSError.
    """
    try:
        write_private(place / "pid", str(os.getpid()))
    except OSError:
        os.kill(job, signal.SIGTERM)
        raise
    code = os.waitstatus_to_exitcode(os.waitpid(job, 0)[1])
    write_private(place / "exit", str(code if code >= 0 else _SIGNALLED - code))
    os.killpg(0, signal.SIGKILL)  # what the job has left behind, and this process


def ask_to_end(place: Path, grace: float) -> None:
    """Say that a job is to end within ``grace`` seconds: its starter sends the signals. Raises OSError."""
    if not (place / "cancel").exists():
        write_private(place / "cancel", str(time.time() + grace))


def end_if_due(place: Path, began: float, limit: float | None) -> None:
    """Kill a job whose time to end by itself is over; ask one to end that has run for longer than ``limit`` seconds."""
    until = read_text(place / "cancel")
    if _number(place / "pid") is None:  # no signal reaches it yet
        return
    if until is not None:
        with suppress(ValueError):
            if time.time() >= float(until):
                send_signal(place, signal.SIGKILL)
    elif limit is not None and time.time() >= began + limit:
        write_private(place / "limit", "")
        ask_to_end(place, _GRACE_OVER_LIMIT_S)
        send_signal(place, signal.SIGTERM)


def lock_to_start(place: Path) -> int | None:
    """Lock a job that has never run, to start it; None if it has, or is about to. Raises OSError.

    A look of another process holds the lock for a moment, too. The caller closes the descriptor: the job has it then.
    """
    lock = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    for _ in range(_LOCK_TRIES):
        with suppress(BlockingIOError):
            locks.lock(lock)
            if not (place / "pid").exists():
                return lock
            break
        if (place / "pid").exists():
            break
        time.sleep(_LOCK_PAUSE_S)
    os.close(lock)
    return None


def is_alive(place: Path) -> bool:
    """Whether a process of the job has its lock."""
    try:
        lock = os.open(place / "lock", os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        locks.lock(lock, shared=True)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def was_started(place: Path) -> bool:
    return (place / "pid").exists() or is_alive(place)


def send_signal(place: Path, number: int) -> None:
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


def read_text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _number(path: Path) -> int | None:
    text = read_text(path)
    return int(text) if text is not None and text.isdecimal() else None


def look(place: Path) -> Seen | None:
    """What the files say of a job; None if it has not been started."""
    name = place.name
    alive = is_alive(place)
    pid, code = _number(place / "pid"), _number(place / "exit")
    if alive:
        phase = PlacementPhase.STARTING if pid is None else PlacementPhase.RUNNING
        return Seen(name=name, handle=name, phase=phase, reason=None if pid is None else f"process {pid}")
    if pid is None:
        return None  # the daemon was ended before it had started it
    cancelled = (place / "cancel").exists()
    ended = (
        PlacementPhase.TIMED_OUT
        if (place / "limit").exists()
        else PlacementPhase.CANCELLED
        if cancelled
        else PlacementPhase.FAILED
    )
    if code is None:
        why = "killed" if cancelled else "killed, with the shell that waited for it, or the machine restarted"
        return Seen(name=name, handle=name, phase=ended, reason=why, signal=signal.SIGKILL)
    if code == 0:
        return Seen(name=name, handle=name, phase=PlacementPhase.SUCCEEDED, exit_code=0)
    if code > _SIGNALLED:
        number = code - _SIGNALLED
        return Seen(name=name, handle=name, phase=ended, reason=f"ended by {_signal_name(number)}", signal=number)
    phase = PlacementPhase.FAILED if code == NOT_MINE else ended
    return Seen(name=name, handle=name, phase=phase, reason=f"exit status {code}", exit_code=code)


def run_in_pool(
    directory: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    limit: float | None,
    python: str,
    without: Sequence[str] = (),
) -> int | None:
    """Run a job whose files are in this directory; its exit status. None: it runs elsewhere, has run, or is to end.

    The executor ``futures`` sends it to a pool, which may be on another machine, by its name.
    ``python``: the daemon's interpreter, in whose place this one's stands in ``argv``.
    """
    place = Path(directory)
    lock = lock_to_start(place)
    if lock is None:
        return None
    try:
        if (place / "cancel").exists():  # asked with the lock: a daemon that saw it free says that the job is over
            return None
        process = start(place, lock, [sys.executable if part == python else part for part in argv], env, without)
    finally:
        os.close(lock)  # the job has it, too
    began, asked = time.time(), False
    while process.poll() is None:
        if not asked and (place / "cancel").exists():
            send_signal(place, signal.SIGTERM)
            asked = (place / "pid").exists()
        end_if_due(place, began, limit)
        time.sleep(POLL_S)
    return process.returncode
