"""Process, a running command: starts it under its reaper, reads it, ends it and its children.

Nothing here forks: the reaper is started by :mod:`subprocess` without ``preexec_fn``, which is safe from
threads.
"""

from __future__ import annotations

import codecs
import errno
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from scheduler import PermanentError, interpreter
from scheduler.system.processes import session_members

REAPER = Path(__file__).with_name("reaper.py")
REAPER_GRACE = 10.0  # seconds that the reaper may take beyond the grace period before it is ended itself
KILL_TIMEOUT = 7.0  # seconds until the reaper must have killed everything; a little more than its own KILL_TIMEOUT
CHUNK = 64 * 1024
MAX_SWEEPS = 100  # looks for what is left of a session, when its reaper was killed
PIPE_READS = 16  # of CHUNK: as much as a pipe can hold

# Errors of exec that no further attempt will change.
_EXEC_ERRORS = {
    errno.ENOENT: "command not found: {name!r}",
    errno.ENOTDIR: "command not found: {name!r}",
    errno.EACCES: "not executable: {name!r}",
    errno.EPERM: "not executable: {name!r}",
    errno.ENOEXEC: "not executable: {name!r} is no program for this machine and no script with a #! line",
    errno.E2BIG: "the arguments and the environment of {name!r} are together too long for this system",
    errno.ELOOP: "command not found: {name!r} is a symbolic link that leads in circles",
    errno.ENAMETOOLONG: "command not found: its name is too long",
}
_CWD_ERRORS = {
    errno.ENOENT: "working directory {cwd!r} does not exist",
    errno.ENOTDIR: "working directory {cwd!r} is not a directory",
    errno.EACCES: "working directory {cwd!r} may not be entered",
    errno.EXDEV: "working directory {cwd!r} was exchanged for a link",
}


class CommandFailed(Exception):
    """The command ended with a status that is not 0, or by a signal. Retried as the policy says."""


class Process:
    """One command. Use as a context manager: leaving it, for any reason, leaves no process and no descriptor.

    ``exit_code`` or ``signal`` is set once the command has ended; it is over (``pump`` returns False) when
    nothing that it started is left either. ``sink`` gets the output, stdout and stderr as one stream.
    ``confined``: ``cwd`` is a real path, and nothing is started in a directory that has another one by then.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        cwd: str | None,
        grace: float,
        sink: Callable[[bytes], object],
        *,
        confined: bool = False,
    ) -> None:
        self.exit_code: int | None = None
        self.signal: int | None = None
        self._argv = argv
        self._cwd = cwd
        self._grace = grace
        self._sink = sink
        self._heard = b""
        self._over = False
        self._output = output = -1
        self._control, control = socket.socketpair()
        try:
            self._output, output = os.pipe()
            os.set_blocking(self._output, False)
            self._reaper = subprocess.Popen(
                [sys.executable, "-I", "-S", str(REAPER), str(control.fileno()), str(interpreter.file_limit())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=(control.fileno(),),
                start_new_session=True,
            )
        except BaseException:
            self._close()
            raise
        finally:
            control.close()
            if output >= 0:
                os.close(output)
        self._poll = select.poll()
        self._poll.register(self._output, select.POLLIN)
        self._poll.register(self._control, select.POLLIN)
        self._order(_spec(argv, env, cwd, grace, confined))

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._over:
                self.stop()
        finally:
            self._kill()
            self._close()

    @property
    def ended(self) -> bool:
        return self.exit_code is not None or self.signal is not None

    def pump(self, seconds: float) -> bool:
        """Wait at most so long for output or the end; take what is there. False once all is over.

        Raises PermanentError or OSError when the command could not be started.
        """
        for fd, _ in self._poll.poll(max(0, round(seconds * 1000))):
            if fd == self._output:
                self._read()
            else:
                self._listen()
        if not self._over:
            return True
        # The reaper has gone. Who may still hold the pipe is none of ours: take what is there, no more.
        for _ in range(PIPE_READS):
            if not self._read():
                break
        return False

    def stop(self) -> None:
        """SIGTERM, the grace period, SIGKILL: for the command and everything that it started."""
        self._order(b"stop")
        until = time.monotonic() + self._grace + REAPER_GRACE
        # Reading goes on: a command that writes its last words into a full pipe would never end.
        while self.pump(0.1) and time.monotonic() < until:
            pass

    def _read(self) -> bool:
        if self._output < 0:
            return False
        try:
            data = os.read(self._output, CHUNK)
        except BlockingIOError:
            return False
        if data:
            self._sink(data)
        else:
            self._poll.unregister(
                self._output
            )  # no process can write any more; the end itself comes by the control socket
            self._output_closed()
        return bool(data)

    def _output_closed(self) -> None:
        os.close(self._output)
        self._output = -1

    def _order(self, words: bytes) -> None:
        try:
            self._control.sendall(words)
        except OSError:
            pass  # it has gone; reading says so

    def _listen(self) -> None:
        try:
            data = self._control.recv(4096)
        except ConnectionResetError:
            data = b""
        *lines, self._heard = (self._heard + data).split(b"\n")
        for line in lines:
            what, *values = line.decode().split()
            if what == "exit":
                self.exit_code = int(values[0])
            elif what == "signal":
                self.signal = int(values[0])
            elif what == "left":
                self._sink(f"[schedd could not end the processes {', '.join(values)}]\n".encode())
            else:
                self._raise_start_error(values[0], int(values[1]))
        if not data:
            self._over = True
            if self._reaper.wait() != 0:
                self._kill_session()  # the reaper was killed from outside and could not do it

    def _raise_start_error(self, what: str, number: int) -> None:
        texts = _CWD_ERRORS if what == "cwd" else _EXEC_ERRORS
        if number in texts:
            raise PermanentError(texts[number].format(name=self._argv[0], cwd=self._cwd))
        raise OSError(number, f"cannot start {self._argv[0]!r}: {os.strerror(number)}")

    def _kill_session(self) -> None:
        """Without the reaper: whatever is in its session, which has its process id as its name."""
        for _ in range(MAX_SWEEPS):
            pids = session_members(self._reaper.pid)
            if not pids:
                return
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass  # gone meanwhile

    def _kill(self) -> None:
        """When stopping was not enough, or was itself interrupted."""
        self._control.close()  # which tells the reaper to kill
        try:
            self._reaper.wait(KILL_TIMEOUT)
        except subprocess.TimeoutExpired:  # it is stopped or stuck itself
            self._reaper.kill()
            self._reaper.wait()
            self._kill_session()

    def _close(self) -> None:
        self._control.close()
        if self._output >= 0:
            self._output_closed()


def _spec(argv: Sequence[str], env: Mapping[str, str], cwd: str | None, grace: float, confined: bool) -> bytes:
    """As reaper.read_spec wants it. A text cannot contain NUL: the task's fields were checked."""
    texts = [
        str(grace),
        cwd or "",
        "1" if confined else "",
        str(len(argv)),
        *argv,
        *(f"{name}={value}" for name, value in env.items()),
    ]
    data = b"\0".join(text.encode("utf-8", "surrogateescape") for text in texts)
    return b"%d\n%s" % (len(data), data)


MAX_LINE = 8 * 1024  # characters after which an unfinished line is passed on in pieces
MAX_TAIL = 4 * 1024  # characters of the end that are kept


class CommandOutput:
    """Takes bytes as they come, passes whole lines to ``sink`` (the log, which bounds what it keeps).

    As many lines at a time as there are, so that a command that floods costs little. Bytes that are not UTF-8
    become U+FFFD, and so does NUL, which PostgreSQL cannot store.
    """

    def __init__(self, sink: Callable[[str], object]) -> None:
        self._sink = sink
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending = ""  # a line whose end has not come yet
        self.size = 0  # bytes
        self.tail = ""

    def feed(self, data: bytes, final: bool = False) -> None:
        self.size += len(data)
        text = self._decoder.decode(data, final).replace("\0", "\ufffd")
        self.tail = (self.tail + text)[-MAX_TAIL:]
        lines, newline, self._pending = (self._pending + text).rpartition("\n")
        if newline:
            self._sink(lines.replace("\r\n", "\n").removesuffix("\r") + "\n")
        if self._pending and (final or len(self._pending) > MAX_LINE):
            self._sink(self._pending + "\n")
            self._pending = ""

    def close(self) -> None:
        """Passes on an unfinished last line."""
        self.feed(b"", final=True)

    @property
    def last_line(self) -> str:
        """The last line that is not empty, shortened; for an error's text."""
        lines = self.tail.rstrip().splitlines()
        return lines[-1].strip()[:200] if lines else ""
