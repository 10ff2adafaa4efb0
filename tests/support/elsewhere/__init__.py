"""Shows the code of schedd a system that is not Linux: ``ELSEWHERE=darwin`` or ``win32``.

Python itself, its packages and the tests keep the real one. What a module of schedd imports is put in place of the real
module: it lacks what that system lacks, and ``sys.platform`` says that it is that system. Files below /proc and /sys
are not there for that code. So this shows that the code asks for nothing that there is not; it cannot show
what the other system's calls do. Programs that the tests start see the same, by ``sitecustomize.py`` beside this file.
"""

from __future__ import annotations

import asyncio.selector_events
import builtins
import ctypes
import fcntl
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

VARIABLE = "ELSEWHERE"
ROOT = Path(__file__).parents[3]
HIDDEN_PLACES = ("/proc", "/sys")
# Process isolation and forked jobs are refused elsewhere, commands and jobs of this machine on Windows: before any of
# these is reached. What it takes to refuse them may be imported; the rest is not.
_ISOLATION = ("scheduler/engine/child/", "scheduler/engine/processes/", "scheduler/daemon/job_template.py")
REFUSED: dict[str, tuple[str, ...]] = {
    "darwin": (*_ISOLATION, "tasks/command/reaper.py"),  # which asks for each, and goes on without
    "win32": (
        *_ISOLATION,
        "tasks/command/",
        "scheduler/executors/job_process.py",
        "scheduler/executors/job_fork_server.py",
    ),
}
LINUX_ONLY = (
    *("scheduler.engine.child.fork_server", "scheduler.engine.child.main", "scheduler.engine.child.rlimits"),
    *("scheduler.engine.child.runtime", "scheduler.engine.child.surroundings", "scheduler.daemon.job_template"),
)

NOT_MACOS: dict[str, tuple[str, ...]] = {
    "os": (
        *(
            "sched_getaffinity",
            "sched_setaffinity",
            "posix_fallocate",
            "posix_fadvise",
            "pipe2",
            "waitid",
            "pidfd_open",
        ),
        *("eventfd", "eventfd_read", "eventfd_write", "EFD_CLOEXEC", "EFD_NONBLOCK", "EFD_SEMAPHORE", "memfd_create"),
        *("getxattr", "setxattr", "listxattr", "unshare", "setns", "splice", "O_PATH", "O_TMPFILE", "fdatasync"),
        *("getresuid", "getresgid", "setresuid", "setresgid", "copy_file_range", "getrandom", "timerfd_create"),
    ),
    "socket": (
        *("SO_PEERCRED", "SO_PASSCRED", "SCM_CREDENTIALS", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SOCK_SEQPACKET"),
        *("AF_NETLINK", "AF_VSOCK", "AF_PACKET", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT", "MSG_NOSIGNAL"),
        *("send_fds", "recv_fds", "SCM_RIGHTS"),  # macOS has them; only child processes may need them
    ),
    "select": ("epoll", "EPOLLIN", "EPOLLOUT"),
    "signal": ("sigtimedwait", "sigwaitinfo", "SIGRTMIN", "SIGRTMAX", "SIGPWR", "SIGSTKFLT"),
    "time": ("CLOCK_BOOTTIME", "CLOCK_TAI"),
    "fcntl": ("F_OFD_SETLK", "F_OFD_SETLKW", "F_OFD_GETLK", "F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_NOTIFY"),
    "resource": ("prlimit", "RLIMIT_RTTIME", "RLIMIT_SIGPENDING", "RLIMIT_NICE"),
}
NOT_WINDOWS: dict[str, tuple[str, ...]] = {
    "os": (
        *NOT_MACOS["os"],
        *("fork", "forkpty", "posix_spawn", "posix_spawnp", "wait", "wait3", "wait4", "WNOHANG", "register_at_fork"),
        *("killpg", "getpgid", "getpgrp", "setpgid", "setsid", "getsid", "getuid", "geteuid", "getgid", "getegid"),
        *("getgroups", "setuid", "setgid", "getpriority", "setpriority", "nice", "chown", "lchown", "fchown", "fchmod"),
        *("fchdir", "chroot", "mkfifo", "mknod", "openpty", "pread", "pwrite", "readv", "writev", "sysconf", "uname"),
        *("statvfs", "fstatvfs", "lockf", "sync", "getloadavg", "O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK"),
        *("O_NOCTTY", "O_SYNC", "O_DSYNC", "environb", "getenvb", "ttyname", "tcgetpgrp", "confstr", "PRIO_PROCESS"),
        *("set_blocking", "get_blocking", "P_ALL", "P_PID", "WEXITED", "WNOWAIT", "WIFEXITED", "WIFSIGNALED"),
    ),
    "socket": (
        *NOT_MACOS["socket"],
        *("AF_UNIX", "MSG_DONTWAIT", "CMSG_LEN", "CMSG_SPACE", "sethostname", "SO_REUSEPORT"),
        "SO_REUSEADDR",  # there it shares a port with whoever asks
    ),
    "select": (*NOT_MACOS["select"], "poll", "POLLIN", "POLLOUT", "POLLERR", "POLLHUP"),
    "signal": (
        *NOT_MACOS["signal"],
        *("SIGHUP", "SIGQUIT", "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGPIPE", "SIGALRM", "SIGCHLD", "SIGCONT", "SIGSTOP"),
        *("SIGTSTP", "SIGBUS", "SIGXCPU", "SIGXFSZ", "SIGWINCH", "SIGIO", "alarm", "setitimer", "pthread_kill"),
        *("pthread_sigmask", "sigwait", "siginterrupt", "SIG_BLOCK", "SIG_UNBLOCK", "SIG_SETMASK", "ITIMER_REAL"),
    ),
    "time": (
        *NOT_MACOS["time"],
        "clock_gettime",
        "tzset",
        "CLOCK_MONOTONIC",
        "CLOCK_REALTIME",
        "pthread_getcpuclockid",
    ),
    "faulthandler": ("register", "unregister"),
}
# Calls of the C library, by way of ctypes.
NOT_IN_LIBC = (
    *("prctl", "unshare", "setns", "memfd_create", "eventfd", "signalfd", "timerfd_create", "inotify_init"),
    *("epoll_create", "pidfd_open", "adjtimex", "sched_setaffinity", "posix_fallocate", "syscall"),
)
NOT_IN_NAMES = frozenset('<>:"|?*')  # of files, on Windows
NO_MODULES = {
    "darwin": ("spwd", "ossaudiodev", "nis"),
    "win32": (
        *("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog", "readline", "crypt", "posix"),
        *("_posixsubprocess", "_posixshmem", "nis", "spwd", "ossaudiodev"),
    ),
}
_REFUSED_OF_LOOPS = ("add_reader", "remove_reader", "add_writer", "remove_writer")


class Shown(ModuleType):
    """A module as another system has it: without ``lacks``, and with ``given`` in place of what is here."""

    def __init__(self, real: ModuleType, lacks: Sequence[str], given: dict[str, Any]) -> None:
        super().__init__(real.__name__)
        vars(self).update(_real=real, _lacks=frozenset(lacks), **given)

    def __getattr__(self, name: str) -> Any:
        if name in self._lacks:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        return getattr(self._real, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._real, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self._real, name)

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._real) if name not in self._lacks]


def shown_modules(system: str) -> dict[str, ModuleType]:
    """What modules of schedd import in place of Python's own, by name."""
    lacks = NOT_MACOS if system == "darwin" else NOT_WINDOWS
    given: dict[str, dict[str, Any]] = {name: {} for name in lacks} | {"sys": {"platform": system}, "subprocess": {}}
    given["socket"]["socketpair"] = _socketpair if system == "win32" else _socketpair_of_macos
    given["ctypes"] = {"CDLL": _no_library if system == "win32" else _Library}
    if system == "darwin":
        given["fcntl"] |= {"F_FULLFSYNC": 51, "F_GETPATH": 50, "fcntl": _fcntl}
        given["os"]["fchmod"] = _fchmod
    else:
        given["os"] |= {"name": "nt", "supports_dir_fd": set(), "open": _open, "O_BINARY": 0, "kill": _kill}
        given["os"]["rename"] = _rename
        given["socket"]["SO_EXCLUSIVEADDRUSE"] = socket.SO_REUSEADDR
        given["subprocess"]["Popen"] = _Popen
    made: dict[str, ModuleType] = {
        name: Shown(importlib.import_module(name), lacks.get(name, ()), one) for name, one in given.items()
    }
    made["_signal"] = Shown(importlib.import_module("_signal"), lacks["signal"], {})
    if system == "win32":
        made["msvcrt"] = ModuleType("msvcrt")
        vars(made["msvcrt"]).update(locking=_locking, LK_NBLCK=2, LK_UNLCK=0)
    return made


def _socketpair(*kind: Any) -> Any:
    if kind and kind[0] is not socket.AF_INET:
        raise ValueError("Only AF_INET and AF_INET6 socket address families are supported")
    return socket.socketpair()


def _socketpair_of_macos(family: int = socket.AF_UNIX, kind: int = socket.SOCK_STREAM, proto: int = 0) -> Any:
    if kind == socket.SOCK_SEQPACKET:
        raise OSError(43, "Protocol not supported")
    return socket.socketpair(family, kind, proto)


def _fcntl(fd: int, command: int, argument: Any = 0) -> Any:
    if command == 51:  # F_FULLFSYNC
        return os.fsync(fd)
    if command == 50:  # F_GETPATH
        return os.fsencode(os.readlink(f"/proc/self/fd/{fd}")).ljust(len(argument), b"\0")
    return fcntl.fcntl(fd, command, argument)


def _fchmod(fd: int, mode: int) -> None:
    import stat

    if stat.S_ISSOCK(os.fstat(fd).st_mode):
        raise OSError(22, "Invalid argument")
    os.fchmod(fd, mode)


def _open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return os.open(path, flags, mode)


def _kill(pid: int, _number: int) -> None:
    os.kill(pid, signal.SIGKILL)  # of the numbers, 0 and 1 are events of a console, and any other is an exit status


def _rename(old: Any, new: Any, **directories: Any) -> None:
    if os.path.lexists(new):
        raise FileExistsError(17, "Cannot create a file when that file already exists", str(old))
    os.rename(old, new, **directories)


def _no_library(name: str | None, *_: Any, **__: Any) -> Any:
    raise TypeError(f"LoadLibrary() argument 1 must be str, not {type(name).__name__}")


class _Library(ctypes.CDLL):
    def __getattr__(self, name: str) -> Any:
        if name in NOT_IN_LIBC:
            raise AttributeError(f"dlsym(RTLD_DEFAULT, {name}): symbol not found")
        return super().__getattr__(name)


def _locking(fd: int, mode: int, _count: int) -> None:
    if mode == 0:
        fcntl.flock(fd, fcntl.LOCK_UN)
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(13, "Permission denied") from None


class _Popen(subprocess.Popen[Any]):
    def __init__(self, *args: Any, **options: Any) -> None:
        for name in ("pass_fds", "preexec_fn"):
            if options.get(name):
                raise ValueError(f"{name} is not supported on Windows platforms")
        super().__init__(*args, **options)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds modules of schedd as ever, and has them see the other system."""

    def __init__(self, system: str) -> None:
        self._shown = shown_modules(system)
        self._none = frozenset(NO_MODULES[system])
        self._builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.partition(".")[0] not in ("scheduler", "schedd"):
            return None
        if name in LINUX_ONLY:
            raise ImportError(f"{name} needs Linux")
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                if isinstance(spec.loader, importlib.machinery.SourceFileLoader):
                    spec.loader = _Loader(spec.loader, self._builtins)
                return spec
        return None

    def _import(self, name: str, *args: Any) -> Any:
        level = args[3] if len(args) > 3 else 0
        if level == 0:
            if name in self._none:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)
            if name in self._shown:
                return self._shown[name]
            if name == "os.path" and not (len(args) > 2 and args[2]):
                return self._shown["os"]
        return builtins.__import__(name, *args)


class _Loader(importlib.abc.Loader):
    def __init__(self, real: importlib.machinery.SourceFileLoader, names: dict[str, Any]) -> None:
        self._real, self._names = real, names

    def create_module(self, spec: Any) -> Any:
        return self._real.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        code = self._real.get_code(module.__name__)
        assert code is not None
        vars(module)["__builtins__"] = self._names
        exec(code, vars(module))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


_OURS = tuple(f"{ROOT / name}{os.sep}" for name in ("scheduler", "schedd", "tasks"))
_LIBRARY = tuple({sysconfig.get_path("stdlib"), "<frozen", "<string"})


def _asked_by_us() -> bool:
    """Whether code of schedd does what is under way, also through the standard library."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file != __file__ and (not file.startswith(_LIBRARY) or "site-packages" in file):
            return file.startswith(_OURS)
        frame = frame.f_back
    return False


_looking = threading.local()


def _is_open(path: str) -> bool:
    """Whether this process has a file open, or mapped."""
    try:
        found = os.stat(path)
        _looking.now = True
        for fd in os.listdir("/proc/self/fd"):
            with suppress(OSError):
                if os.path.samestat(os.fstat(int(fd)), found):
                    return True
        with open("/proc/self/maps", encoding="utf-8") as file:
            return any(line.split(maxsplit=5)[4] == str(found.st_ino) and path in line for line in file)
    except OSError:
        return False
    finally:
        _looking.now = False


def _hear_windows(event: str, args: tuple[Any, ...]) -> None:
    if event in ("os.remove", "os.rename"):
        for path in args[: 1 + (event == "os.rename")]:
            if _asked_by_us() and _is_open(os.fsdecode(path)):
                raise PermissionError(13, "another process uses the file", os.fsdecode(path))
    elif event in ("open", "os.mkdir") and isinstance(args[0], str | os.PathLike):
        name = os.path.basename(os.fsdecode(args[0]))
        if NOT_IN_NAMES.intersection(name) and _asked_by_us():
            raise OSError(22, "Invalid argument", name)


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if getattr(_looking, "now", False):
        return
    if event in ("open", "os.listdir", "os.scandir"):
        path = args[0]
        named = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if named.startswith(HIDDEN_PLACES) and _asked_by_us():
            raise FileNotFoundError(2, "No such file or directory", named)
    elif event in ("socket.bind", "socket.connect", "socket.sendto"):
        address = args[1]
        if isinstance(address, str | bytes) and address[:1] in ("\0", b"\0") and _asked_by_us():
            raise OSError(22, "there are no abstract sockets")


def install(system: str) -> None:
    """Let what is imported from now on see this system, and be told of what it does not have."""
    assert system in NO_MODULES, system
    assert not any(name.partition(".")[0] in ("scheduler", "schedd") for name in sys.modules)
    sys.meta_path.insert(0, _Finder(system))
    sys.addaudithook(_hear)
    if system == "win32":
        sys.addaudithook(_hear_windows)
        # The event loop that Windows makes, unless one asks for another, watches no sockets.
        type(asyncio.get_event_loop_policy())._loop_factory = _ProactorLike  # type: ignore[attr-defined]
        for name in _REFUSED_OF_LOOPS:
            setattr(_ProactorLike, name, _refuse)


class _ProactorLike(asyncio.SelectorEventLoop):
    """Lacks what the event loop lacks that Windows makes by default."""


def _refuse(*_: Any) -> None:
    raise NotImplementedError
