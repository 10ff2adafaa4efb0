"""The executor ``kubernetes`` on a real control plane, for the conformance suite and for the hostile run."""

from __future__ import annotations

import random
from contextlib import closing, suppress
from pathlib import Path

from scheduler.executors.kubernetes import KubernetesExecutor
from scheduler.executors.ports import ExecutorError, Job
from support.kube_client import KubeClient
from support.kube_cluster import StatusError
from support.kube_real import ETCD, MANAGER, SERVER, Namespace, RealKube, kill_job, name_of_namespace, pids_of_job
from support.placing import PAUSE


class RealKubeRig:
    """Each test has a namespace of its own, and a service account with the rights of the example's Role."""

    mark: str | None = "kube"
    durable = True
    many = 50
    slow = False
    pause = PAUSE

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
        """What etcd has in its files is all that they know, so they know it again."""
        cluster = self.cluster()
        cluster.kill(SERVER, MANAGER, ETCD)
        cluster.start_etcd()
        cluster.start_server()
        cluster.start_manager()

    def mend(self) -> None:
        pass

    def close(self) -> None:
        pass


def start_second_pod(executor: KubernetesExecutor, job: Job, chance: random.Random) -> str:
    """Half of the time delete the pod that has run for longest, as a node is drained or by force: its Job gets a second
    one, which begins while the first goes on if it was by force. Else submit the job again, whose Job may not be there
    any more. Returns the fault."""
    access = executor._api._access
    assert access.ca_file is not None
    path = f"/api/v1/namespaces/{access.namespace}/pods"
    if chance.random() < 0.5:
        client = KubeClient(access.server, (access.ca_file.parent / "token").read_text(), access.ca_file)
        with suppress(StatusError, *client.away), closing(client):
            found = [pod["metadata"] for pod in client.items(path) if pod["status"].get("phase") == "Running"]
            living = [meta for meta in found if "deletionTimestamp" not in meta]
            if living:
                oldest = min(living, key=lambda meta: str(meta["creationTimestamp"]))["name"]
                force = chance.random() < 0.5
                client.ask("DELETE", f"{path}/{oldest}", {"gracePeriodSeconds": 0} if force else {})
                return "pods removed by force" if force else "pods deleted"
    with suppress(ExecutorError):
        executor.submit([job])
    return "requeued"
