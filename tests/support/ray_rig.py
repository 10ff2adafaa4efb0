"""A Ray cluster of one node, in a network namespace of its own: Ray listens on all interfaces in any case.

One serves a whole pytest run, its xdist workers included; session.py stops it. Ray has a virtual environment of its
own (``make ray``). Its dashboard is reached through a relay on loopback.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import IO

from support.session import locked, shared_directory

CPUS = 8  # that the node claims to have
PATIENCE = 240.0  # seconds: the machine may be busy, and Ray's start is 20 processes
STARTS = 3  # tries
VENV = Path(os.environ.get("RAY_VENV") or Path(__file__).parents[2] / ".venv-ray")
DASHBOARD = 8265
CLONE_NEWNET = 0x40000000
LOOPBACK_UP = """
import fcntl, socket, struct
UP, RUNNING, SET_FLAGS = 1, 64, 0x8914
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
    fcntl.ioctl(any_socket, SET_FLAGS, struct.pack("16sh14x", b"lo", UP | RUNNING))
"""
START = (
    *("start", "--head", "--node-ip-address=127.0.0.1", "--port=6379", "--dashboard-host=127.0.0.1"),
    *(f"--dashboard-port={DASHBOARD}", f"--num-cpus={CPUS}", "--object-store-memory=80000000", "--disable-usage-stats"),
    # Given, or else the node waits for its agents to tell them, but for 15 s only: on a busy machine it ends then, and
    # `ray start` does not notice.
    # Below those that connections get.
    *("--dashboard-agent-listen-port=8266", "--dashboard-agent-grpc-port=8267"),
    *("--metrics-export-port=8268", "--runtime-env-agent-port=8269"),
)


class RayCluster:
    """``place``: what tests know of it."""

    _shared: RayCluster | None = None

    def __init__(self, place: Path) -> None:
        self.place = place
        self.token = place / "token"
        self._relay: Relay | None = None

    @classmethod
    def shared(cls) -> RayCluster:
        """The cluster of this pytest run, started."""
        if cls._shared is None:
            made = cls(_place_in(shared_directory()))
            with locked("ray.lock"):
                if not made.place.exists():
                    try:
                        made.start()
                    except BaseException:
                        made.close()  # the next test tries again
                        raise
            cls._shared = made
        return cls._shared

    @property
    def url(self) -> str:
        """Of the dashboard, for this process."""
        if self._relay is None:
            self._relay = Relay(self._holder(), DASHBOARD)
        return f"http://127.0.0.1:{self._relay.port}"

    def let_out(self, port: int) -> Relay:
        """Let its jobs reach this port of loopback outside."""
        return Relay(self._holder(), port, outward=True)

    def settings(self, more: str = "") -> str:
        """Lines of ``[executors.NAME]``."""
        return f'type = "ray"\nurl = "{self.url}"\ntoken_file = "{self.token}"\n{more}'

    def start(self) -> None:
        """Start all of it. The namespace is there as long as its holder."""
        assert (VENV / "bin" / "ray").exists(), f"there is no Ray in {VENV}: make ray"
        self.place.mkdir(mode=0o755)
        self.token.touch(mode=0o600)
        self.token.write_text(secrets.token_hex(32))
        holder = subprocess.Popen(["unshare", "--net", "sleep", "infinity"], start_new_session=True)
        _wait(lambda: _command(holder.pid) == "sleep")
        (self.place / "holder").write_text(f"{holder.pid} {_namespace(holder.pid)}")
        assert _holder_of(self.place) == holder.pid, "it has no network namespace of its own"
        brings_up = self._popen([sys.executable, "-c", LOOPBACK_UP], subprocess.PIPE)
        said, _ = brings_up.communicate(timeout=PATIENCE)
        assert brings_up.returncode == 0, said.decode()
        self.start_head()

    def start_head(self) -> None:
        """Start Ray's own processes: one node, which knows of no jobs. Its node may end meanwhile: it tries again."""
        for left in reversed(range(STARTS)):
            said = self._try_to_start()
            if said is None:
                break
            assert left, said
            self.kill_head(spare_jobs=True)
        _wait(self._answers)

    def _try_to_start(self) -> str | None:
        """None: it has started. What it says if it has not; ``ray start`` itself waits for a node that has ended."""
        files = tempfile.mkdtemp(prefix="ray")  # a short path: sockets have long names below it
        with open(self.place / "files", "a") as list_of_them:
            list_of_them.write(f"{files}\n")
        out = self.place / "start.out"
        deadline, had_node = time.monotonic() + PATIENCE, False
        with open(out, "wb") as into:
            starting = self._popen([str(VENV / "bin" / "ray"), *START, f"--temp-dir={files}"], into)
        while starting.poll() is None:
            has_node = any(_command(pid) == "raylet" for pid in _pids_in(self.place))
            if time.monotonic() > deadline or (had_node and not has_node):
                starting.kill()
                starting.wait()
            had_node = has_node
            time.sleep(0.2)
        if starting.returncode == 0:
            return None
        logs = "".join(log.read_text(errors="replace") for log in Path(files).glob("session_2*/logs/*.out"))
        wrong = re.findall(r"^\[[^]]* [EC] .*", logs, re.MULTILINE)
        return "\n".join([out.read_text(errors="replace")[-3000:], *wrong[-10:]])

    def _answers(self) -> bool:
        """Whether it takes jobs: only its node's agent finds that this one cannot be."""
        asked = urllib.request.Request(
            f"{self.url}/api/jobs/",
            b'{"entrypoint": "true", "entrypoint_label_selector": {"a b": "!!"}}',
            {"Authorization": f"Bearer {self.token.read_text()}", "Content-Type": "application/json"},
        )
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=PATIENCE)
        except urllib.error.HTTPError as refused:
            return b"Invalid label key" in refused.read()
        except OSError:  # not yet
            return False
        raise AssertionError("it takes any job")

    def kill_controller(self) -> int:
        """SIGKILL for gcs_server, which alone knows the jobs; its process number. Others stay for a minute."""
        (pid,) = (pid for pid in _pids_in(self.place) if _command(pid).startswith("gcs_server"))
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_head(self, *, spare_jobs: bool = False) -> None:
        """SIGKILL for all that is left of Ray and of its jobs; or not of the jobs, which nothing ends then."""
        spared = {self._holder()} | (set(self.pids_of("")) if spare_jobs else set())
        kill_all(lambda: [pid for pid in _pids_in(self.place) if pid not in spared])

    def kill_job(self, name: str) -> None:
        """SIGKILL for all processes of a job that runs, or is about to."""
        _wait(lambda: self.pids_of(name))  # Ray says that it runs before it does
        for pid in self.pids_of(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def environ_of(self, name: str) -> dict[str, str]:
        """Of a job that runs."""
        _wait(lambda: self.pids_of(name))
        entries = Path(f"/proc/{self.pids_of(name)[0]}/environ").read_bytes().decode().split("\0")
        return dict(entry.split("=", 1) for entry in entries if "=" in entry)

    def close(self) -> None:
        stop(self.place)
        if self._relay is not None:
            self._relay.close()

    def _popen(self, argv: Sequence[str], out: int | IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a program in the namespace."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SCHEDD_"))}
        environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token)}
        environ["RAY_raylet_start_wait_time_s"] = f"{PATIENCE:g}"  # its own patience is 30 s
        return subprocess.Popen(
            ["nsenter", f"--net=/proc/{self._holder()}/ns/net", *argv],
            env=environ, cwd=self.place, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def _holder(self) -> int:
        holder = _holder_of(self.place)
        assert holder is not None, "the cluster is gone"
        return holder

    def pids_of(self, name: str) -> list[int]:
        """All processes of a job, or of all jobs if there is no name."""
        wanted, found = b'"job_submission_id": "' + (f'{name}"'.encode() if name else b""), []
        for pid in _pids_in(self.place):
            with suppress(OSError):
                if wanted in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
        return found


def stop_shared(directory: Path) -> None:
    """Stop the clusters of a run that has this directory, also those of single tests."""
    for place in directory.glob(f"{_place_in(directory).name}*"):
        if place.is_dir():
            stop(place)


def stop(place: Path) -> None:
    """Kill whatever is in the cluster's network namespace, which goes with the last of them."""
    holder = _holder_of(place)
    if holder is not None:
        kill_all(lambda: [pid for pid in _pids_in(place) if pid != holder])
        with suppress(ProcessLookupError):
            os.kill(holder, signal.SIGKILL)
    with suppress(FileNotFoundError):
        for files in (place / "files").read_text().split():
            shutil.rmtree(files, ignore_errors=True)
    shutil.rmtree(place, ignore_errors=True)


def kill_all(pids: Callable[[], list[int]]) -> None:
    def left() -> list[int]:
        found = pids()
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    _wait(lambda: not left())


def _place_in(directory: Path) -> Path:
    return directory / "ray"


def _pids_in(place: Path) -> list[int]:
    """All living processes in the cluster's namespace, its holder included."""
    holder, found = _holder_of(place), []
    if holder is None:
        return []
    namespace = _namespace(holder)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                if _namespace(int(entry.name)) == namespace and " Z " not in (entry / "stat").read_text():
                    found.append(int(entry.name))
    return found


def _holder_of(place: Path) -> int | None:
    """The process that keeps the namespace; None if it is not there, since another one may have its number by now."""
    try:
        pid, namespace = (place / "holder").read_text().split()
        there = _namespace(int(pid)) == namespace and _command(int(pid)) == "sleep"
    except (OSError, ValueError):
        return None
    return int(pid) if there and namespace != _namespace(os.getpid()) else None


def _namespace(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/net")


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode().rpartition("/")[2]
    return ""


class Relay:
    """Passes connections to a port on loopback on to that port in another network namespace, or the way back.

    ``outward``: it listens in that namespace, and connects in this one. ``port``: where it listens.
    """

    def __init__(self, holder: int, port: int, *, outward: bool = False) -> None:
        self._holder, self._port, self._outward = holder, port, outward
        if outward:
            self._listener = _within(holder, lambda: socket.create_server(("127.0.0.1", port)))
        else:
            self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        with near, suppress(OSError), self._connect() as far:
            back = threading.Thread(target=_copy, args=(far, near), daemon=True)
            back.start()
            _copy(near, far)
            back.join()

    def _connect(self) -> socket.socket:
        def connect() -> socket.socket:
            return socket.create_connection(("127.0.0.1", self._port))

        return connect() if self._outward else _within(self._holder, connect)


def _within(holder: int, make: Callable[[], socket.socket]) -> socket.socket:
    """A socket in the holder's network namespace, made by a thread of its own, which alone enters it."""

    def enter_and_make() -> socket.socket:
        with open(f"/proc/{holder}/ns/net", "rb") as namespace:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
        return make()

    with ThreadPoolExecutor(1) as beside:
        return beside.submit(enter_and_make).result()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for one in (source, sink):  # the other direction is of no use then
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


def _wait(over: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not over():
        assert time.monotonic() < deadline
        time.sleep(0.05)
