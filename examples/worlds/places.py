"""The worlds: what runs the tasks in each, what it needs, and what is killed."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask_pool
from world import EXAMPLES, World

EXECUTOR = """\
[executors.cluster]
interval = 0.2
max_running = {most}
{settings}"""
JOBS = 6  # at a time
JOB_MODULE = "scheduler.daemon.job"  # EXECUTOR TASK CLAIM
SBIN = "/usr/sbin:/usr/local/sbin"
TEND_EVERY_S = 3.0
SLURM = ("sbatch", "slurmctld", "slurmd", "munged")


def support(name: str) -> Any:
    """What the tests run other systems with."""
    place = str(EXAMPLES.parent / "tests")
    if place not in sys.path:
        sys.path.append(place)
    return importlib.import_module(f"support.{name}")


class Program(World):
    """One program that stores the tasks and runs them."""

    name = "sqlite"
    daemons = 0

    def kill(self) -> None:
        self.kill_program()


class Fleet(World):
    """Daemons on PostgreSQL."""

    name = "fleet"
    on_postgres = True
    daemons = 3
    slots = 2

    def kill(self) -> None:
        self.kill_daemon()
        self.wait_for_the_middle(0.5)
        self.kill_daemon()


class Jobs(World):
    """Jobs of an engine."""

    executor = "cluster"

    def start_engine(self) -> str:
        return EXECUTOR.format(most=JOBS, settings=self.engine_settings())

    def engine_settings(self) -> str:
        """Start the engine; returns lines of ``[executors.cluster]``."""
        raise NotImplementedError

    @property
    def directory(self) -> str:
        """Setting of executors that have files."""
        return f'directory = "{self.place}/jobs"\n'

    def kill(self) -> None:
        self.wait_until(self.has_killed_a_job)
        self.kill_daemon()

    def has_killed_a_job(self) -> bool:
        """kill -9 of a job that packs a parcel, wherever the engine runs it, if there is one just now."""
        parcels = [task.id for task in self.parcel_tasks()]
        for pid in self.processes():
            with suppress(OSError, ValueError):
                command = Path("/proc", str(pid), "cmdline").read_bytes().decode().split("\0")
                if JOB_MODULE in command and int(command[command.index(JOB_MODULE) + 2]) in parcels:
                    os.kill(pid, signal.SIGKILL)
                    self.note("a job", pid)
                    return True
        return False


class Process(Jobs):
    """Jobs that are processes of this machine, on SQLite."""

    name = "process"

    def engine_settings(self) -> str:
        return f'type = "process"\ncpus = {JOBS}\nwarm = true\n{self.directory}'

    def has_killed_a_job(self) -> bool:
        """See :class:`Jobs`; by what the executor has noted, as a forked process has its parent's command."""
        for task in self.parcel_tasks():
            pid = None if task.state.terminal else self.pid_of_job(task.id)
            if pid is not None and self.owns(Path("/proc", str(pid))):
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                    self.note("a job", pid)
                    return True
        return False

    def pid_of_job(self, task_id: int) -> int | None:
        """The leader of the process group of a task's job."""
        for file in (self.place / "jobs").glob(f"schedd-*-{task_id}-*/pid"):
            with suppress(OSError, ValueError):
                return int(file.read_text(encoding="ascii"))
        return None


class Dask(Jobs):
    """Jobs in a cluster of Dask: a scheduler and two workers."""

    name = "dask"
    on_postgres = True

    @classmethod
    def missing(cls) -> str:
        return "" if find_spec("distributed") else "pip install distributed"

    def engine_settings(self) -> str:
        self.cluster = support("dask_rig").DaskCluster(self.place / "dask", workers=2)
        self.environ[dask_pool.ADDRESS] = self.cluster.address
        return f'type = "futures"\nfactory = "dask_pool:client"\n{self.directory}'

    def kill(self) -> None:
        super().kill()
        self.note("a worker of Dask", self.cluster.kill_worker())


class Slurm(Jobs):
    """Batch jobs of a Slurm cluster of one node."""

    name = "slurm"
    on_postgres = True
    _tended = 0.0

    @classmethod
    def missing(cls) -> str:
        if not all(shutil.which(program) or shutil.which(program, path=SBIN) for program in SLURM):
            return "apt-get install slurm-wlm munge"
        return "" if os.geteuid() == 0 else "root, for a cluster of its own"

    def engine_settings(self) -> str:
        place = self.place / "slurm"
        place.mkdir()
        self.cluster = support("slurm_rig").SlurmCluster(place)
        self.cluster.start()
        return f'type = "slurm"\nslurm_conf = "{self.cluster.conf}"\n{self.directory}'

    def kill(self) -> None:
        super().kill()
        self.note("slurmctld", self.cluster.kill_controller())
        self.cluster.start_controller()
        self.cluster.run("scontrol", "reconfigure")  # or else the node says only minutes later what runs there

    def has_ended(self) -> bool:
        """Where its controller lost what it knew, Slurm waits for an operator."""
        if time.monotonic() > self._tended + TEND_EVERY_S:
            self._tended = time.monotonic()
            self.cluster.tend()
        return super().has_ended()


class Ray(Jobs):
    """Jobs of a Ray cluster of one node, in a network namespace of its own."""

    name = "ray"
    on_postgres = True

    @classmethod
    def missing(cls) -> str:
        if not (support("ray_rig").VENV / "bin" / "ray").exists():
            return "make ray"
        if find_spec("httpx2") is None:
            return "pip install httpx2"
        return "" if os.geteuid() == 0 else "root, for a network namespace of its own"

    def engine_settings(self) -> str:
        self.cluster = support("ray_rig").RayCluster(self.place / "r")
        self.cluster.start()
        return str(self.cluster.settings())

    def kill(self) -> None:
        super().kill()
        self.note("all of Ray", self.cluster.kill_controller())
        self.cluster.kill_head()
        self.cluster.start_head()
