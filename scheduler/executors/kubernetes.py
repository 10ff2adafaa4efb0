"""The executor ``kubernetes``: each job is a Job (batch/v1) of a cluster, with one pod, by the cluster's HTTP API.

A job's handle is its name, which is the Job's. What Kubernetes may start a second time changes nothing: the second
pod's claim is the first one's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from scheduler.config.sources import Duration
from scheduler.errors import ConfigError
from scheduler.executors import kubernetes_parse
from scheduler.executors.kubernetes_api import KubernetesApi, access_of
from scheduler.executors.kubernetes_spec import PREFIX, Template, is_same, label_value, manifest, wrong_option
from scheduler.executors.ports import Capabilities, Finding, Job, Refused, Seen, Submitted
from scheduler.transports.ports import require

MAY = (  # group, resource, subresource, verb: what the executor does
    ("batch", "jobs", "", "create"),
    ("batch", "jobs", "", "get"),
    ("batch", "jobs", "", "list"),
    ("batch", "jobs", "", "delete"),
    ("", "pods", "", "list"),
    ("", "pods", "log", "get"),
)
LOG_LINES = 500  # that are read of a pod's log
_CREATE = {"fieldValidation": "Strict"}  # a mistyped field is an error, not nothing


class KubernetesExecutor:
    """Jobs of a Kubernetes cluster. See the module."""

    capabilities = Capabilities(names_unique=True, has_logs=True)

    class Settings(msgspec.Struct, frozen=True, kw_only=True):
        """``image``: of the jobs; ``images``: others that tasks may name. ``python``: the interpreter's path in them.
        ``server``, ``token_file``, ``ca_file``, ``namespace``: of the cluster; None: as its own pods have them.
        ``pod``, ``container``: fields of Kubernetes' PodSpec and Container for all jobs. ``labels``, ``annotations``:
        of Jobs and pods. ``env``: variables of jobs, not secret; ``env_from_secret``: names of Secrets whose entries
        are. ``gpu``: the resource that stands for one. ``ttl``: seconds that Kubernetes keeps a Job that is over.
        ``timeout``: seconds that the server may take for an answer. ``grace``: the common setting."""

        image: str
        images: tuple[str, ...] = ()
        python: str | None = None
        server: str | None = None
        token_file: str | None = None
        ca_file: str | None = None
        namespace: str | None = None
        pod: dict[str, Any] = msgspec.field(default_factory=dict)
        container: dict[str, Any] = msgspec.field(default_factory=dict)
        labels: dict[str, str] = msgspec.field(default_factory=dict)
        annotations: dict[str, str] = msgspec.field(default_factory=dict)
        env: dict[str, str] = msgspec.field(default_factory=dict)
        env_from_secret: tuple[str, ...] = ()
        gpu: str = "nvidia.com/gpu"
        ttl: Duration = 3600.0
        timeout: Duration = 10.0
        grace: Duration = 10.0

    def __init__(self, name: str, settings: Settings) -> None:
        require("httpx2", "kubernetes", f"executor {name}, of type kubernetes,")
        if settings.timeout <= 0:
            raise ConfigError(f"executors.{name}.timeout: must be above 0 seconds")
        access = access_of(name, settings.server, settings.token_file, settings.ca_file, settings.namespace)
        self._api = KubernetesApi(access, settings.timeout)
        self._template = Template(
            executor=name,
            **{field: getattr(settings, field) for field in Template.__struct_fields__ if field != "executor"},
        )
        self._ours = f"{PREFIX}executor={label_value(name)},{PREFIX}store,{PREFIX}task,{PREFIX}claim"

    # The port

    def submit(self, jobs: Sequence[Job]) -> Sequence[Submitted | Refused]:
        """See :class:`scheduler.executors.ports.Executor`."""
        return [self._submit(job) for job in jobs]

    def find(self, names: Sequence[str]) -> Mapping[str, str]:
        """See :class:`scheduler.executors.ports.Executor`."""
        wanted = set(names)
        found = (
            job["metadata"]["name"]
            for job in self._api.list(self._api.jobs(), self._ours)
            if kubernetes_parse.is_ours(job)
        )
        return {name: name for name in found if name in wanted}

    def observe(self) -> Sequence[Seen]:
        """See :class:`scheduler.executors.ports.Executor`. One list of Jobs and one of pods, in this order: a pod is
        never older than its Job says."""
        jobs = {job["metadata"]["name"]: job for job in self._api.list(self._api.jobs(), self._ours)}
        pods = defaultdict[str, list[Mapping[str, Any]]](list)
        for pod in self._api.list(self._api.core("pods"), self._ours):
            for owner in pod["metadata"].get("ownerReferences") or ():
                if owner.get("kind") == "Job":
                    pods[owner["name"]].append(pod)
        left = [name for name in pods if name not in jobs and kubernetes_parse.NAME.fullmatch(name)]
        mine = [name for name, job in jobs.items() if kubernetes_parse.is_ours(job)]
        return [kubernetes_parse.seen_of(name, jobs.get(name), pods.get(name, ())) for name in (*mine, *left)]

    def cancel(self, handles: Sequence[str], grace: float) -> None:
        """See :class:`scheduler.executors.ports.Executor`. The grace is that which the pods were made with.

        The Jobs stay until their pods are gone.
        """
        for handle in handles:
            self._delete(handle, "Foreground")

    def logs(self, handle: str, tail: int) -> str | None:
        """See :class:`scheduler.executors.ports.Executor`."""
        pods = self._api.list(self._api.core("pods"), f"{self._ours},job-name={handle}")
        for pod in sorted(pods, key=lambda pod: str(pod["metadata"].get("creationTimestamp") or ""), reverse=True):
            path = self._api.core(f"pods/{pod['metadata']['name']}/log")
            answer = self._api.ask("GET", path, params={"container": "schedd-job", "tailLines": str(LOG_LINES)})
            if answer.ok and answer.text:
                return answer.text[-tail:]
        return None  # no container of it has been started

    def forget(self, handles: Sequence[str]) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        for handle in handles:
            self._delete(handle, "Background")

    def check(self) -> Sequence[Finding]:
        """See :class:`scheduler.executors.ports.Executor`."""
        version = self._api.get("/version").get("gitVersion", "of a version that it does not tell")
        found = [Finding(True, f"Kubernetes {version} at {self._api.server}, namespace {self._api.namespace}")]
        found += [self._may(*one) for one in MAY]
        if all(finding.ok for finding in found):
            found += self._would_take()
        return [*found, *self._quotas()]

    def close(self) -> None:
        """See :class:`scheduler.executors.ports.Executor`."""
        self._api.close()

    # Submissions

    def _submit(self, job: Job) -> Submitted | Refused:
        wrong = wrong_option(job.options, (self._template.image, *self._template.images))
        if wrong is not None:
            return Refused(job.name, False, f"executor_options: {wrong}")
        made = manifest(self._template, job)
        answer = self._api.ask("POST", self._api.jobs(), params=_CREATE, body=made)
        if answer.ok:
            return Submitted(job.name, job.name)
        if answer.status == 409 and answer.reason == "AlreadyExists":
            return self._adopt(job.name, made)
        refused = kubernetes_parse.refusal(job.name, answer)
        if refused is None:
            raise self._api.trouble(answer)
        return refused

    def _adopt(self, name: str, made: Mapping[str, Any]) -> Submitted | Refused:
        """Take a Job of this name for this one only if it is."""
        answer = self._api.ask("GET", self._api.jobs(name))
        meta = answer.fields.get("metadata") or {}
        if answer.status == 404 or meta.get("deletionTimestamp"):
            return Refused(name, True, f"a Job {name} is being deleted", kubernetes_parse.RETRY_S)
        if not answer.ok:
            raise self._api.trouble(answer)
        if is_same(made, answer.fields):
            return Submitted(name, name)
        return Refused(name, False, f"there is another Job {name}, with other labels or another specification")

    def _delete(self, name: str, propagation: str) -> None:
        """Raises ExecutorError."""
        if not kubernetes_parse.NAME.fullmatch(name):
            return
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        answer = self._api.ask("DELETE", self._api.jobs(name), body=body)
        if not answer.ok and answer.status not in (404, 409):  # 409: it is on its way already
            raise self._api.trouble(answer)

    # Checks

    def _may(self, group: str, resource: str, subresource: str, verb: str) -> Finding:
        wanted = {
            "group": group,
            "resource": resource,
            "subresource": subresource,
            "verb": verb,
            "namespace": self._api.namespace,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": wanted},
        }
        answer = self._api.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=review)
        if not answer.ok:
            raise self._api.trouble(answer)
        allowed = bool((answer.fields.get("status") or {}).get("allowed"))
        what = f"{verb} {resource}{f'/{subresource}' if subresource else ''}"
        return Finding(allowed, f"schedd may {what}" if allowed else f"schedd may not {what}: a Role has to allow it")

    def _would_take(self) -> list[Finding]:
        """What the server says of a Job that it only looks at."""
        labels = {"store": "check", "task": "0", "claim": "0", "kind": "", "queue": ""}
        probe = manifest(self._template, Job(name="schedd-0-0-0", argv=["true"], labels=labels))
        answer = self._api.ask("POST", self._api.jobs(), params={**_CREATE, "dryRun": "All"}, body=probe)
        found = [Finding(True, f"the cluster warns: {warning}") for warning in answer.warnings]
        if answer.ok:
            return [
                *found,
                Finding(True, f"a Job with image {self._template.image} would be taken; nothing was started"),
            ]
        return [*found, Finding(False, f"a Job would be refused: {answer.message}")]

    def _quotas(self) -> list[Finding]:
        answer = self._api.ask("GET", self._api.core("resourcequotas"))
        if not answer.ok:
            return [Finding(True, "quotas of the namespace are not shown to schedd; it does not need them")]
        return [_quota(one) for one in answer.fields.get("items") or ()] or [
            Finding(True, "the namespace has no quota")
        ]


def _quota(quota: Mapping[str, Any]) -> Finding:
    status = quota.get("status") or {}
    hard, used = status.get("hard") or {}, status.get("used") or {}
    shown = ", ".join(f"{name} {used.get(name, '0')} of {most}" for name, most in sorted(hard.items()))
    return Finding(True, f"quota {(quota.get('metadata') or {}).get('name')}: {shown or 'nothing is bound'}")
