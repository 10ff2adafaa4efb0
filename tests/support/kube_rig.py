"""The executor ``kubernetes`` on a real control plane, for the conformance suite and for the hostile run."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

from scheduler.executors.kubernetes import KubernetesExecutor
from scheduler.executors.ports import ExecutorError, Job
from support.kube_client import KubeClient
from support.kube_cluster import StatusError
from support.kube_real import MANAGER, SERVER, Namespace, RealKube, kill_job, name_of_namespace, pids_of_job


class RealKubeRig:
    """Each test has a namespace of its own, and a service account with the rights of the example's Role."""

    mark: str | None = "kube"
    durable = True
    many = 50
    slow = False

    def cluster(self) -> RealKube:
        return RealKube.shared()

    def settings(self, directory: Path) -> str:
        return Namespace(self.cluster(), directory).settings()

    def kill(self, directory: Path, name: str) -> None:
        kill_job(self.cluster().place, name_of_namespace(directory), name)


class HostileKubeRig(RealKubeRig):
    """With a control plane of its own: other processes of a pytest run have jobs on the shared one."""

    restarts = True

    def cluster(self) -> RealKube:
        return RealKube.apart()

    def pids(self, directory: Path, name: str) -> list[int]:
        return pids_of_job(self.cluster().place, name_of_namespace(directory), name)

    def restart(self) -> None:
        """What etcd has is all that they know, so they know it again."""
        cluster = self.cluster()
        cluster.kill(SERVER, MANAGER)
        cluster.start_server()
        cluster.start_manager()

    def mend(self) -> None:
        pass

    def close(self) -> None:
        pass


def start_second_pod(executor: KubernetesExecutor, job: Job, chance: random.Random) -> str:
    """Submit a job again if its Job is not there any more. Else delete its pods, as from a node that is drained, or by
    force: the Job gets a second one, which begins before the first has ended if it was by force. Returns the fault."""
    with suppress(ExecutorError):
        executor.submit([job])
    access = executor._api._access
    assert access.ca_file is not None
    client = KubeClient(access.server, (access.ca_file.parent / "token").read_text(), access.ca_file)
    pods = f"/api/v1/namespaces/{access.namespace}/pods"
    grace = {"gracePeriodSeconds": 0} if chance.random() < 0.5 else {}
    fault = "requeued"
    with suppress(StatusError, *client.away):
        for pod in client.items(pods, labelSelector=f"job-name={job.name}"):
            client.ask("DELETE", f"{pods}/{pod['metadata']['name']}", grace)
            if pod["status"]["phase"] in ("Pending", "Running"):
                fault = "pods deleted"
    client.close()
    return fault
