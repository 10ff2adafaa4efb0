"""One child process as the engine sees it: its sockets, its jobs, and how it ended."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

from scheduler.engine.attempt.attempt import Attempt
from scheduler.engine.attempt.runtime import CpuFuture
from scheduler.engine.child.protocol import frame, number_of, numbered_message, socket_pair
from scheduler.engine.processes.messages import ChildMessage, Over, frames_of_child
from scheduler.model.limits import size_text

CHUNK_BYTES = 256 * 1024
MIN_PROGRESS_BYTES = 64 * 1024  # a message must grow by this within its timeout
MAX_PACKET_BYTES = 32 * 1024  # longer jobs go through the stream: a packet socket holds few of that length
_SIGNALS = {
    "SIGSEGV": "segmentation fault",
    "SIGBUS": "bus error",
    "SIGILL": "illegal instruction",
    "SIGFPE": "arithmetic error",
    "SIGABRT": "abort",
}


class ChildJob:
    """Work for a child: an attempt, a function of ``ctx.cpu``, or a hook of an attempt whose child died."""

    __slots__ = (
        "attempt",
        "cancelled",
        "future",
        "is_attempt",
        "message",
        "number",
        "priority",
        "quarantined",
        "started",
    )

    def __init__(self, priority: int, message: tuple[Any, ...], attempt: Attempt) -> None:
        self.number = 0
        self.priority = priority
        self.message = message
        self.attempt = attempt  # for a function: the one that asked for it
        self.is_attempt = False
        self.future: CpuFuture[Any] | None = None  # of a function
        self.cancelled = False  # a function whose caller waits only for its end
        self.quarantined = False  # a poison task: its crashes are counted
        self.started = False


class ChildHandle:
    """See the module. Used by the pool's thread only."""

    def __init__(self, tag: int, only: int | None) -> None:
        self.tag = tag
        self.only = only  # the one priority it serves; None: all
        self.pid = 0
        self.place: str | None = None  # its control group
        self.work, self.peer = socket_pair(socket.SOCK_SEQPACKET)
        self.talk, talk = socket_pair(socket.SOCK_STREAM)
        self.output, output = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.output, False)
        self.fds = (self.peer.fileno(), talk.fileno(), output)  # to be passed on, then closed here
        self._talk_peer = talk
        self.ready = False
        self.began = 0.0  # monotonic
        self.jobs: dict[int, ChildJob] = {}  # given and not over, in order
        self.current: ChildJob | None = None  # of these, the one that has started
        self.current_since = 0.0
        self.decided_at: float | None = None  # the current handler has failed, and its hook may run
        self.exclusive = False  # its last job may be long: no other one is to wait behind it
        self.stopping: str | None = None  # why it takes nothing more
        self.kill_at: float | None = None
        self.killed = False
        self.lease_expired = False  # it was killed because the engine's lease had run out
        self.asked = False  # where its job stands, and it has not answered
        self.spent = ""  # what the kernel had counted for its main thread then
        self.lease_sent = 0.0  # the end of the lease that it knows (monotonic)
        self.deferred_reports: list[tuple[ChildJob, Over]] = []  # sent once all that their handlers started has ended
        self.completed = 0  # jobs
        self.idle_since = 0.0  # or since it was given a job that it has not begun
        self.init_error: str | None = None  # why it could not get ready
        self.frames = frames_of_child()
        self.unfinished_since: float | None = None  # part of a message has come, and grows too slowly (monotonic)
        self._unfinished = 0  # bytes of it
        self.talk_over = False
        self.output_over = False
        self._out: deque[bytes] = deque()

    def close_fds(self) -> None:
        """The fork server has its copies of ``fds``. ``peer`` stays open here, to take work back."""
        self._talk_peer.close()
        os.close(self.fds[2])

    # giving and taking back

    def give(self, job: ChildJob) -> bool:
        """Hand over a job. False: the socket has no room for it now, or the child has died."""
        data = numbered_message(job.number, *job.message)
        if len(data) > MAX_PACKET_BYTES:
            if self.jobs:
                return False
            self.say("body", job.number, list(job.message))
            data = numbered_message(job.number, "big")
        try:
            self.work.send(data, socket.MSG_DONTWAIT)
        except OSError:
            return False
        self.jobs[job.number] = job
        return True

    def take_back(self) -> list[ChildJob]:
        """The jobs that were given and not begun, in order: those that are still in the socket."""
        taken = []
        while True:
            try:
                data = self.peer.recv(CHUNK_BYTES, socket.MSG_DONTWAIT)
            except OSError:
                break
            if not data:
                break
            job = self.jobs.pop(number_of(data), None)
            if job is not None:
                taken.append(job)
        return taken

    @property
    def ending(self) -> bool:
        """Whether it is given nothing more, or not for now."""
        return self.stopping is not None or self.kill_at is not None or self.killed

    @property
    def waiting(self) -> int:
        """How many jobs were given and have not started."""
        return len(self.jobs) - (self.current is not None)

    # sending and receiving

    def say(self, *message: Any) -> None:
        self._out.append(frame(*message))
        self.flush()

    def flush(self) -> None:
        """Send what the socket takes; the rest waits."""
        while self._out:
            data = self._out[0]
            try:
                sent = self.talk.send(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                self._out.clear()  # it has died: its exit follows
                return
            if sent == len(data):
                self._out.popleft()
            else:
                self._out[0] = data[sent:]

    @property
    def has_output(self) -> bool:
        return bool(self._out)

    def received(self, max_chunks: int = 4) -> Iterator[ChildMessage]:
        """The messages that have come. Few chunks at a time: others must not wait for a child that never stops."""
        for _ in range(max_chunks):
            try:
                data = self.talk.recv(CHUNK_BYTES, socket.MSG_DONTWAIT)
            except OSError:
                return
            if not data:
                self.talk_over = True
                return
            yield from self.frames.feed(data)
            self._note_unfinished(len(data))
            if self.frames.broken:  # a handler has written into it
                self.talk_over = True
                return

    def break_off(self) -> None:
        """Read nothing more: it has sent what is no message."""
        self.frames.broken = self.talk_over = True

    def _note_unfinished(self, came: int) -> None:
        """A long message comes in large pieces; what a handler wrote grows slowly, by the messages after it."""
        if not self.frames.unfinished:
            self.unfinished_since = None
        elif self.unfinished_since is None or self._unfinished + came > MIN_PROGRESS_BYTES:
            self.unfinished_since, self._unfinished = time.monotonic(), 0
        else:
            self._unfinished += came

    def written(self) -> bytes:
        """What the child, or a program that it started, has written past Python; some of it at a time."""
        try:
            data = os.read(self.output, CHUNK_BYTES)
        except OSError:
            return b""
        self.output_over = not data
        return data

    def close_work(self) -> None:
        """The child ends in good order: there is no more work."""
        self.work.close()
        self.peer.close()

    def close(self) -> None:
        self.close_work()
        self.talk.close()
        os.close(self.output)
        self.output = -1

    def close_in_fork(self) -> None:
        """In a forked process."""
        for one in (self.work, self.peer, self.talk):
            one.close()
        if self.output >= 0:
            os.close(self.output)


def describe_exit(status: int | None, limits: Any, *, out_of_memory: bool, over_memory: bool = False) -> str:
    """How a process ended, in words. ``status``: minus the signal if below 0; None: unknown.

    ``out_of_memory``: the system was; ``over_memory``: with all that it had started it was over the kind's limit.
    """
    if status is None:
        return "its process died together with the one that forks them"
    if status >= 0:
        return f"its process ended by itself with exit status {status}"
    number = -status
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    meaning = _SIGNALS.get(name)
    text = f"its process was killed by {name}" + (f" ({meaning})" if meaning else "")
    if number == signal.SIGXCPU and limits is not None and limits.cpu is not None:
        return f"{text}: over its limit of {limits.cpu} s of CPU time"
    if number == signal.SIGKILL and over_memory:
        most = "" if limits is None or limits.memory is None else f" of {size_text(limits.memory)}"
        return f"{text}: with all that it had started it was over its limit{most} of memory"
    if number == signal.SIGKILL:
        text += ": the system ran out of memory" if out_of_memory else ", from outside"
    return f"{text}; its limits: {limits}" if limits is not None else text


def out_of_memory_kills() -> int:
    """How many processes this system has killed to get memory back, ever; 0 where it does not say."""
    try:
        with open("/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except (OSError, ValueError):
        pass
    return 0
