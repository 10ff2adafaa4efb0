"""What the conformance suite needs of an executor beside its class: settings, and a way to kill a job."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from pathlib import Path
from typing import Protocol

from support.dask_rig import DaskCluster
from support.kube_api import KubeApi
from support.kube_pods import IMAGE
from support.kube_rig import HostileKubeRig, RealKubeRig
from support.placing import PAUSE
from support.ray_rig import RayCluster
from support.session import shared_directory
from support.slurm_rig import SlurmCluster

SECRET = "a secret of all daemons"


class Rig(Protocol):
    """``mark``: of pytest, if it is not tried everywhere. ``durable``: it has a job once it was submitted, whatever
    becomes of the daemon then. ``many``: jobs that are many for it. ``slow``: a job takes it seconds, so that it is
    tried with less. ``pause``: seconds between two questions, which cost such an engine more than they cost us."""

    mark: str | None
    durable: bool
    many: int
    slow: bool
    pause: float

    def settings(self, directory: Path) -> str:
        """Lines of ``[executors.it]``; the engine is there."""
        ...

    def kill(self, directory: Path, name: str) -> None:
        """SIGKILL for all processes of a job that runs."""
        ...


class HostileRig(Rig, Protocol):
    """What test_hostile.py needs, too. ``restarts``: the engine is a server that :meth:`restart` kills."""

    restarts: bool

    def pids(self, directory: Path, name: str) -> list[int]:
        """What to signal for all processes of a job: processes, or groups below 0."""
        ...

    def restart(self) -> None:
        """Kill the engine itself, and start it again with less than it had."""
        ...

    def mend(self) -> None:
        """Do what an operator of the engine does every now and then."""
        ...

    def close(self) -> None:
        """End an engine that is this rig's alone."""
        ...


class ProcessRig:
    mark: str | None = None
    durable = True
    many = 50
    slow = False
    pause = PAUSE
    restarts = False

    def settings(self, directory: Path) -> str:
        return f'type = "process"\ndirectory = "{directory / "jobs"}"\ncpus = 64\n'

    def kill(self, directory: Path, name: str) -> None:
        os.killpg(int((directory / "jobs" / name / "pid").read_text()), signal.SIGKILL)

    def pids(self, directory: Path, name: str) -> list[int]:
        try:
            return [-int((directory / "jobs" / name / "pid").read_text())]
        except (FileNotFoundError, ValueError):
            return []

    def restart(self) -> None:
        raise NotImplementedError("the placer is the engine")

    def mend(self) -> None:
        pass

    def close(self) -> None:
        pass


class WarmRig(ProcessRig):
    """test_warm.py shows what is different."""

    def settings(self, directory: Path) -> str:
        return f"{super().settings(directory)}warm = true\n"


class GatewayRig(ProcessRig):
    """Jobs without a database: nothing that they get says where it is."""

    mark = "executors"  # by the time that it takes; tests/executors/test_gateway.py is run everywhere

    def settings(self, directory: Path) -> str:
        return through_gateway(directory, f"{super().settings(directory)}warm = true\n")


def through_gateway(directory: Path, settings: str) -> str:
    """Lines of ``[executors.it]`` and ``[gateway]``: jobs get these settings' engine, and no database."""
    job = directory / "job.toml"
    job.write_text('[tasks]\nmodules = ["support.placed"]\n[log]\nlevel = "warning"\n')
    return (
        f'store = "gateway"\njob_config = "{job}"\n{settings}'
        f'[gateway]\nlisten = "127.0.0.1:PORT"\nurls = ["http://127.0.0.1:PORT"]\nsecret = "{SECRET}"\n'
    )


class SlurmRig:
    mark: str | None = "executors"
    durable = True
    many = 50
    slow = False
    pause = PAUSE
    restarts = True

    def settings(self, directory: Path) -> str:
        conf = SlurmCluster.shared().conf
        return f'type = "slurm"\ndirectory = "{directory / "jobs"}"\nslurm_conf = "{conf}"\n'

    def kill(self, directory: Path, name: str) -> None:
        SlurmCluster.shared().kill_job(name)

    def pids(self, directory: Path, name: str) -> list[int]:
        return SlurmCluster.shared().pids_of(name)

    def restart(self) -> None:
        cluster = SlurmCluster.shared()
        saved = cluster.copy_state()
        time.sleep(1.0)  # what it takes in meanwhile is forgotten
        cluster.kill_controller(saved)
        cluster.start_controller()
        cluster.run("scontrol", "reconfigure")  # or else it has the node say only minutes later what it runs

    def mend(self) -> None:
        SlurmCluster.shared().tend()

    def close(self) -> None:
        pass


class DaskRig(ProcessRig):
    durable = False  # a submission is sent after it has returned
    restarts = True

    def settings(self, directory: Path) -> str:
        DaskCluster.shared()
        return f'type = "futures"\ndirectory = "{directory / "jobs"}"\nfactory = "support.dask_rig:client"\n'

    def restart(self) -> None:
        DaskCluster.shared().restart()


class RayRig:
    mark: str | None = "executors"
    durable = True
    many = 6  # each starts a process of Ray's beside its own
    slow = True
    pause = 0.3

    def settings(self, directory: Path) -> str:
        return RayCluster.shared().settings()

    def kill(self, directory: Path, name: str) -> None:
        RayCluster.shared().kill_job(name)


class HostileRayRig(RayRig):
    """With a cluster of its own: other processes of a pytest run have jobs on the shared one."""

    restarts = True

    def __init__(self) -> None:
        self._cluster = RayCluster(shared_directory() / f"ray-{os.getpid()}")
        self._spares_jobs = False

    def settings(self, directory: Path) -> str:
        try:
            self._cluster.start()
        except BaseException:
            self._cluster.close()
            raise
        return self._cluster.settings()

    def pids(self, directory: Path, name: str) -> list[int]:
        return self._cluster.pids_of(name)

    def restart(self) -> None:
        """It has forgotten all. In turn its jobs die with it, and go on."""
        self._cluster.kill_controller()
        time.sleep(1.0)  # what runs is recorded without it
        self._cluster.kill_head(spare_jobs=self._spares_jobs)
        self._spares_jobs = not self._spares_jobs
        self._cluster.start_head()

    def mend(self) -> None:
        pass

    def close(self) -> None:
        self._cluster.close()


class KubernetesRig:
    """Each test has a namespace of its own."""

    mark: str | None = None
    durable = True
    many = 50
    slow = False
    pause = PAUSE

    def settings(self, directory: Path) -> str:
        api = KubeApi.shared()
        return (
            f'type = "kubernetes"\nserver = "{api.url}"\ntoken_file = "{api.token_file}"\nca_file = "{api.ca_file}"\n'
            f'namespace = "{self.namespace(directory)}"\nimage = "{IMAGE}"\n'
        )

    def kill(self, directory: Path, name: str) -> None:
        KubeApi.shared().cluster.kill(self.namespace(directory), name)

    @staticmethod
    def namespace(directory: Path) -> str:
        return f"test-{hashlib.sha256(str(directory).encode()).hexdigest()[:12]}"


RIGS: dict[str, type[Rig]] = {
    "process": ProcessRig,
    "warm": WarmRig,
    "gateway": GatewayRig,
    "futures": DaskRig,
    "kubernetes": KubernetesRig,
    "kubernetes-real": RealKubeRig,
    "slurm": SlurmRig,
    "ray": RayRig,
}
HOSTILE: dict[str, type[HostileRig]] = {
    "process": ProcessRig,
    "warm": WarmRig,
    "futures": DaskRig,
    "slurm": SlurmRig,
    "ray": HostileRayRig,
    "kubernetes-real": HostileKubeRig,
}
