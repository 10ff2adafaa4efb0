"""A Slurm cluster of one node (Debian's slurm-wlm and munge), in a directory of its own, on loopback."""

from __future__ import annotations

import getpass
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from support.redis_rig import free_port
from support.session import shared_directory

CPUS = 8  # that the node claims to have
SBIN = "/usr/sbin:/usr/local/sbin"
PATIENCE = 180.0  # seconds: the machine may be busy
MISSED_AFTER_S = 25.0  # BatchStartTimeout and the time of a message, and some more
CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.sock
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=2,preempt_send_user_signal
MpiDefault=none
SwitchType=switch/none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
KillWait=2
GetEnvTimeout=0
InactiveLimit=0
ReturnToService=2
MailProg=/bin/true
DefMemPerCPU=64
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=8000 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9
PartitionName=closed Nodes=ALL MaxTime=INFINITE State=INACTIVE
"""


class SlurmCluster:
    """Its daemons stay in the foreground, as children of the tests."""

    _shared: SlurmCluster | None = None

    def __init__(self, place: Path) -> None:
        self._programs = {name: _program(name) for name in ("munged", "slurmctld", "slurmd")}
        _program("sbatch")
        self._place = place
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._missed_at: float | None = None  # when jobs are missed that the node does not have (monotonic)
        self.conf = place / "slurm.conf"
        for name in ("state", "spool"):
            (place / name).mkdir()
        cache = place / "state" / "env_cache"  # or else each job starts a login shell to ask it for its environment
        cache.mkdir()
        (cache / getpass.getuser()).write_text(f"PATH={os.defpath}\n")
        key = place / "munge.key"
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(128))
        ports = {"controller": free_port(), "node": free_port()}
        self.conf.write_text(CONFIG.format(place=place, user=getpass.getuser(), cpus=CPUS, **ports))

    @classmethod
    def shared(cls) -> SlurmCluster:
        """The cluster of this pytest process, started."""
        if cls._shared is None:
            place = Path(tempfile.mkdtemp(prefix="slurm-", dir=shared_directory()))
            place.chmod(0o755)
            cls._shared = cls(place)
            cls._shared.start()
        return cls._shared

    @classmethod
    def close_shared(cls) -> None:
        if cls._shared is not None:
            cls._shared.close()
            cls._shared = None

    def start(self) -> None:
        place = self._place
        options = {"key-file": "munge.key", "socket": "munge.sock", "pid-file": "munged.pid", "seed-file": "munge.seed"}
        arguments = [f"--{name}={place / file}" for name, file in options.items()]
        self._start("munged", ["--foreground", *arguments, "--num-threads=2"])
        _wait(lambda: (place / "munge.sock").exists())
        self.start_controller()
        self._start("slurmd", ["-D", "-N", "localhost"])
        _wait(lambda: "idle" in self.run("sinfo", "-h", "-p", "main", "-o", "%T"))

    def start_controller(self) -> None:
        self._start("slurmctld", ["-D"])
        _wait(lambda: "UP" in self.run("scontrol", "ping"))

    def copy_state(self) -> Path:
        """What the controller has saved so far."""
        made = Path(tempfile.mkdtemp(dir=self._place)) / "state"
        return Path(shutil.copytree(self._place / "state", made))

    def save_state(self) -> Path:
        """What the controller knows now, once it has saved that: it does so within some seconds of a change."""
        number = self.run("sbatch", "--hold", "--parsable", "--job-name=last-that-is-saved", "--wrap=true").strip()
        _wait(lambda: b"last-that-is-saved" in (self._place / "state" / "job_state").read_bytes())
        self.run("scancel", number)
        return self.copy_state()

    def kill_controller(self, saved: Path | None = None) -> int:
        """SIGKILL; its process number. It saves its state every few seconds, so it may be left with what it had
        ``saved`` by then."""
        process = self._processes.pop("slurmctld")
        self._missed_at = time.monotonic() + MISSED_AFTER_S
        process.kill()
        process.wait()
        if saved is not None:
            shutil.rmtree(self._place / "state")
            shutil.copytree(saved, self._place / "state")
        return process.pid

    def tend(self) -> None:
        """Do what an operator does after a controller was started with less than it knew: have the node say what it
        runs, once the controller misses the others, and resume it if a number came twice."""
        if self._missed_at is not None and time.monotonic() > self._missed_at:
            self._missed_at = None
            self.run("scontrol", "reconfigure")
        if "drain" in self.run("sinfo", "-h", "-p", "main", "-o", "%T"):
            self.run("scontrol", "update", "NodeName=localhost", "State=RESUME")

    def run(self, *argv: str, input: str = "") -> str:
        """What one of Slurm's commands writes, whatever its exit status."""
        return subprocess.run(
            argv, env=self.environ, input=input, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
        ).stdout

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.conf)}

    def kill_job(self, name: str) -> None:
        """SIGKILL for all processes of a job that runs, or is about to."""
        _wait(lambda: self.pids_of(name))  # Slurm says that it runs before it does
        for pid in self.pids_of(name):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def pids_of(self, name: str) -> list[int]:
        wanted, found = {f"SLURM_JOB_NAME={name}".encode(), f"SLURM_CONF={self.conf}".encode()}, []
        for place in Path("/proc").iterdir():
            if place.name.isdecimal():
                with suppress(OSError):
                    if wanted <= set((place / "environ").read_bytes().split(b"\0")):
                        found.append(int(place.name))
        return found

    def close(self) -> None:
        if "slurmctld" in self._processes:
            self.run("scancel", "--user", str(os.geteuid()))
            with suppress(AssertionError):
                _wait(lambda: not self.run("squeue", "-h", "-t", "R,CG"), 10.0)
        for name in ("slurmctld", "slurmd", "munged"):
            process = self._processes.pop(name, None)
            if process is not None:
                process.terminate()
                try:
                    process.wait(10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        with open(self._place / f"{name}.out", "ab") as out:
            self._processes[name] = subprocess.Popen(
                [self._programs[name], *arguments], env=self.environ, stdin=subprocess.DEVNULL, stdout=out, stderr=out
            )


def _program(name: str) -> str:
    program = shutil.which(name) or shutil.which(name, path=SBIN)
    assert program is not None, f"{name} is missing. On Debian and Ubuntu: apt-get install slurm-wlm munge"
    return program


def _wait(over: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not over():
        assert time.monotonic() < deadline
        time.sleep(0.05)
