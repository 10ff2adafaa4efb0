"""A Kubernetes cluster as far as Jobs need one: what its API server keeps, its job controller, and one node.

The node runs the command of a pod's first container as a process of this machine and reports as a kubelet does. Images,
volumes, users and the scheduler are not there. What follows the real thing: names and labels that are refused,
resourceVersions, foreground and background deletion, a second pod for one that was deleted though ``backoffLimit`` is
0, the deadline of a pod, its grace, and ``ttlSecondsAfterFinished``.
"""

from __future__ import annotations

import copy
import re
import secrets
import signal
import threading
import time
from pathlib import Path
from typing import Any

from support import kube_pods
from support.kube_pods import Object, now

LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
CONTAINER_FIELDS = {
    "name",
    "image",
    "command",
    "args",
    "env",
    "envFrom",
    "resources",
    "volumeMounts",
    "securityContext",
}
POD_FIELDS = {
    *("automountServiceAccountToken", "enableServiceLinks", "restartPolicy", "terminationGracePeriodSeconds"),
    *("activeDeadlineSeconds", "containers", "nodeSelector", "tolerations", "priorityClassName", "serviceAccountName"),
    *("imagePullSecrets", "volumes", "securityContext", "affinity"),
}


class StatusError(Exception):
    """An answer that is not what was asked for."""

    def __init__(self, status: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status, self.reason, self.message, self.details = status, reason, message, details


class Cluster:
    """Its objects, by kind, namespace and name. Every method may be called from any thread."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.lock = threading.RLock()
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.second_pods = True  # for a pod that was deleted
        self.says_complete = False  # of each Job that is over
        self.starts = True  # pods are bound to the node and begin
        self._version = 0
        self._processes: dict[str, Any] = {}  # pods, by uid, that run

    # What the API server does

    def get(self, kind: str, namespace: str, name: str) -> Object:
        with self.lock:
            found = self.objects.get((kind, namespace, name))
            if found is None:
                raise StatusError(404, "NotFound", f'{kind} "{name}" not found')
            return copy.deepcopy(found)

    def list(self, kind: str, namespace: str, selector: str) -> list[Object]:
        with self.lock:
            self._expire()
            found = [one for (k, ns, _), one in sorted(self.objects.items()) if (k, ns) == (kind, namespace)]
            return [copy.deepcopy(one) for one in found if matches(one["metadata"].get("labels") or {}, selector)]

    def create_job(self, namespace: str, job: Object, *, strict: bool, dry_run: bool) -> Object:
        with self.lock:
            _validate(job, strict=strict)
            name = job["metadata"]["name"]
            if ("jobs", namespace, name) in self.objects:
                raise StatusError(409, "AlreadyExists", f'jobs.batch "{name}" already exists')
            made = copy.deepcopy(job)
            self._stamp(made)
            made["status"] = {}
            if not dry_run:
                self.objects["jobs", namespace, name] = made
                if not made["spec"].get("suspend"):
                    self._create_pod(namespace, made)
            return copy.deepcopy(made)

    def delete_job(self, namespace: str, name: str, policy: str) -> None:
        with self.lock:
            self.get("jobs", namespace, name)
            job = self.objects["jobs", namespace, name]
            pods = self._pods_of(namespace, job)
            job["metadata"].setdefault("deletionTimestamp", now())
            if policy != "Foreground":
                del self.objects["jobs", namespace, name]
            if policy == "Orphan":
                for pod in pods:
                    pod["metadata"].pop("ownerReferences")
                return
            for pod in pods:
                self._delete_pod(namespace, pod, None, replace=False)
            self._settle(namespace, job)

    def delete_pod(self, namespace: str, name: str, grace: float | None = None) -> None:
        """By hand, or by what drains a node."""
        with self.lock:
            self.get("pods", namespace, name)
            self._delete_pod(namespace, self.objects["pods", namespace, name], grace, replace=self.second_pods)

    def cut_off(self, namespace: str, name: str) -> None:
        """The node cannot be reached, and the pod was deleted by force: its processes go on."""
        with self.lock:
            pod = self.objects.pop(("pods", namespace, name))
            job = self.objects["jobs", namespace, pod["metadata"]["ownerReferences"][0]["name"]]
            pod["metadata"].pop("ownerReferences")  # what becomes of it is not reported any more
            self._create_pod(namespace, job)

    def patch_pod(self, namespace: str, name: str, **status: Any) -> None:
        """As the scheduler or a kubelet would report it."""
        with self.lock:
            self.objects["pods", namespace, name]["status"].update(status)

    def log(self, namespace: str, name: str, lines: int | None) -> str:
        with self.lock:
            pod = self.get("pods", namespace, name)
            path = kube_pods.log_of(pod, self.place)
            if not path.exists():
                reason = f'container "schedd-job" in pod "{name}" is waiting to start: ContainerCreating'
                raise StatusError(400, "BadRequest", reason)
        return kube_pods.last_lines(path, lines)

    def kill(self, namespace: str, name: str) -> None:
        """SIGKILL for all processes of a Job's pods."""
        with self.lock:
            job = self.objects["jobs", namespace, name]
            for pod in self._pods_of(namespace, job):
                self._signal(pod, signal.SIGKILL)

    def close(self) -> None:
        """End what still runs."""
        with self.lock:
            for process in self._processes.values():
                kube_pods.kill(process, signal.SIGKILL)

    # The job controller

    def _create_pod(self, namespace: str, job: Object) -> None:
        meta, template = job["metadata"], copy.deepcopy(job["spec"]["template"])
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": template["metadata"], "spec": template["spec"]}
        pod["metadata"] |= {"name": f"{meta['name']}-{secrets.token_hex(3)[:5]}", "namespace": namespace}
        pod["metadata"]["labels"] |= {"job-name": meta["name"], "controller-uid": meta["uid"]}
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"], "controller": True}
        pod["metadata"]["ownerReferences"] = [owner]
        self._stamp(pod)
        pod["status"] = {"phase": "Pending"}
        self.objects["pods", namespace, pod["metadata"]["name"]] = pod
        job["status"].setdefault("startTime", now())
        if self.starts:
            self.start_pod(namespace, pod["metadata"]["name"])

    def _pods_of(self, namespace: str, job: Object) -> list[Object]:
        uid = job["metadata"]["uid"]
        pods = [one for (kind, ns, _), one in self.objects.items() if (kind, ns) == ("pods", namespace)]
        return [pod for pod in pods if (pod["metadata"].get("ownerReferences") or [{}])[0].get("uid") == uid]

    def _pod_is_over(self, namespace: str, pod: Object) -> None:
        """Count it, and remove it if that was asked for."""
        meta = pod["metadata"]
        owner = (meta.get("ownerReferences") or [{}])[0]
        job = self.objects.get(("jobs", namespace, owner.get("name", "")))
        if meta.get("deletionTimestamp"):
            self.objects.pop(("pods", namespace, meta["name"]), None)
        if job is None or job["metadata"]["uid"] != owner["uid"]:
            return
        status = job["status"]
        if not status.get("conditions"):
            good = pod["status"]["phase"] == "Succeeded" or self.says_complete
            if good:
                told = {"type": "Complete", "status": "True"}
            else:
                message = "Job has reached the specified backoff limit"
                told = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": message}
            status["succeeded" if good else "failed"] = 1
            status["conditions"], status["completionTime"] = [told], time.time()
            for other in self._pods_of(namespace, job):
                if other is not pod and other["status"]["phase"] in ("Pending", "Running"):
                    self._delete_pod(namespace, other, None, replace=False)
        self._settle(namespace, job)

    def _settle(self, namespace: str, job: Object) -> None:
        """Remove a Job that waited for its pods to go."""
        if job["metadata"].get("deletionTimestamp") and not self._pods_of(namespace, job):
            self.objects.pop(("jobs", namespace, job["metadata"]["name"]), None)

    def _expire(self) -> None:
        for (kind, namespace, name), job in list(self.objects.items()):
            ended = job["status"].get("completionTime") if kind == "jobs" else None
            if ended is not None and time.time() - ended > job["spec"].get("ttlSecondsAfterFinished", 1e9):
                self.delete_job(namespace, name, "Background")

    # The node

    def start_pod(self, namespace: str, name: str) -> None:
        """Bind it to the node, and start its container if there is its image."""
        with self.lock:
            pod = self.objects["pods", namespace, name]
            spec = pod["spec"]
            spec["nodeName"] = "node-1"
            pod["status"] = {"phase": "Pending", "startTime": now()}
            if not kube_pods.is_there(pod):
                pod["status"] |= kube_pods.pulling(pod)
                return
            try:
                process = kube_pods.start(pod, self.place)
            except OSError as error:
                pod["status"] |= kube_pods.not_started(pod, error)
                self._pod_is_over(namespace, pod)
                return
            self._processes[pod["metadata"]["uid"]] = process
            pod["status"] |= kube_pods.running(pod)
        threading.Thread(target=self._wait, args=(namespace, pod, process), daemon=True).start()
        if "activeDeadlineSeconds" in spec:
            timer = threading.Timer(spec["activeDeadlineSeconds"], self._deadline, [namespace, pod])
            timer.daemon = True
            timer.start()

    def _wait(self, namespace: str, pod: Object, process: Any) -> None:
        code = process.wait()
        with self.lock:
            del self._processes[pod["metadata"]["uid"]]
            pod["status"] |= kube_pods.ended(pod, code)
            self._pod_is_over(namespace, pod)

    def _deadline(self, namespace: str, pod: Object) -> None:
        with self.lock:
            if pod["metadata"]["uid"] in self._processes:
                pod["status"] |= kube_pods.late()
                self._end(pod, None)

    def _delete_pod(self, namespace: str, pod: Object, grace: float | None, *, replace: bool) -> None:
        first = "deletionTimestamp" not in pod["metadata"]
        pod["metadata"].setdefault("deletionTimestamp", now())
        owner = (pod["metadata"].get("ownerReferences") or [{}])[0]
        job = self.objects.get(("jobs", namespace, owner.get("name", "")))
        living = pod["status"]["phase"] in ("Pending", "Running")
        if pod["metadata"]["uid"] in self._processes:
            self._end(pod, grace)
        if grace == 0 or pod["metadata"]["uid"] not in self._processes:
            self.objects.pop(("pods", namespace, pod["metadata"]["name"]), None)
        if job is not None and replace and first and living and not job["metadata"].get("deletionTimestamp"):
            self._create_pod(namespace, job)  # the controller does not count it as failed

    def _end(self, pod: Object, grace: float | None) -> None:
        allowed = pod["spec"].get("terminationGracePeriodSeconds", 30) if grace is None else grace
        if allowed <= 0:
            self._signal(pod, signal.SIGKILL)
            return
        self._signal(pod, signal.SIGTERM)
        timer = threading.Timer(allowed, self._signal, [pod, signal.SIGKILL])
        timer.daemon = True
        timer.start()

    def _signal(self, pod: Object, number: int) -> None:
        with self.lock:
            process = self._processes.get(pod["metadata"]["uid"])
            if process is not None:
                kube_pods.kill(process, number)

    def _stamp(self, made: Object) -> None:
        self._version += 1
        made["metadata"] |= {
            "uid": secrets.token_hex(16),
            "creationTimestamp": f"{now()[:-1]}.{self._version:09d}Z",
            "resourceVersion": str(self._version),
        }


def matches(labels: dict[str, str], selector: str) -> bool:
    """``a=b,c``: equal, and there."""
    for part in filter(None, selector.split(",")):
        key, equals, value = part.partition("=")
        if key not in labels or (equals and labels[key] != value):
            return False
    return True


def _validate(job: Object, *, strict: bool) -> None:
    meta, spec = job["metadata"], job["spec"]
    template = spec["template"]
    wrong: list[str] = []
    if not NAME.fullmatch(meta["name"]):
        wrong.append(f'metadata.name: Invalid value: "{meta["name"]}"')
    for labels in (meta.get("labels") or {}, template["metadata"].get("labels") or {}):
        wrong += [
            f'metadata.labels: Invalid value: "{value}"' for value in labels.values() if not LABEL.fullmatch(value)
        ]
    pod = template["spec"]
    if pod.get("restartPolicy") not in ("Never", "OnFailure"):
        wrong.append(f'spec.template.spec.restartPolicy: Unsupported value: "{pod.get("restartPolicy")}"')
    for container in pod["containers"]:
        requests, limits = (container.get("resources", {}).get(one, {}) for one in ("requests", "limits"))
        for name, amount in limits.items():
            if "/" in name and requests.get(name, amount) != amount:
                wrong.append(f"resources.requests: Invalid value: must be equal to {name} limit")
    if wrong:
        raise StatusError(422, "Invalid", f'Job.batch "{meta["name"]}" is invalid: {"; ".join(wrong)}')
    unknown = [f'unknown field "spec.template.spec.{name}"' for name in pod if name not in POD_FIELDS]
    for name in pod["containers"][0]:
        if name not in CONTAINER_FIELDS:
            unknown.append(f'unknown field "spec.template.spec.containers[0].{name}"')
    if strict and unknown:
        raise StatusError(400, "BadRequest", f"strict decoding error: {', '.join(unknown)}")
