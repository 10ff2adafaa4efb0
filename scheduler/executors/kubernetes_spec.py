"""What Kubernetes is given: a Job for a placement, with labels that fit, and the operator's own parts of its pod."""

from __future__ import annotations

import hashlib
import math
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from scheduler.errors import ConfigError
from scheduler.executors.ports import Job, Resources

PREFIX = "schedd.dev/"
CONTAINER = "schedd-job"
SPEC_ANNOTATION = f"{PREFIX}spec"
IDENTITY = tuple(f"{PREFIX}{name}" for name in ("executor", "store", "task", "claim"))
LEAVE_S = 5  # beyond the grace, for a job to record how its task ended
OPTIONS = ("image", "nodeSelector", "priorityClassName", "tolerations")
MAX_LABEL = 63
_DIGEST = 8  # characters of a digest that stands for what a label cannot hold
_LABEL = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_KEY = re.compile(rf"([a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL.pattern}")
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_OURS_OF_POD = ("activeDeadlineSeconds", "containers", "restartPolicy", "terminationGracePeriodSeconds")
_OURS_OF_CONTAINER = ("args", "command", "image", "name")


class Template(msgspec.Struct, frozen=True, kw_only=True):
    """What all jobs of an executor have in common: see the settings of
    :class:`scheduler.executors.kubernetes.KubernetesExecutor`."""

    executor: str
    image: str
    images: tuple[str, ...]
    python: str | None
    pod: dict[str, Any]
    container: dict[str, Any]
    labels: dict[str, str]
    annotations: dict[str, str]
    env: dict[str, str]
    env_from_secret: tuple[str, ...]
    gpu: str
    ttl: float
    grace: float

    def __post_init__(self) -> None:
        mistake = next(_mistakes(self), None)
        if mistake is not None:
            setting, why = mistake
            raise ConfigError(f"executors.{self.executor}.{setting}: {why}")


def _mistakes(template: Template) -> Iterator[tuple[str, str]]:
    for image in (template.image, *template.images):
        if not image or image != image.strip() or not image.isprintable() or " " in image:
            yield "image", f"{image!r:.80} is not the name of an image"
    for setting, given, ours in (
        ("pod", template.pod, _OURS_OF_POD),
        ("container", template.container, _OURS_OF_CONTAINER),
    ):
        for name in ours:
            if name in given:
                yield setting, f"{name} is schedd's own to set"
    for setting, name, kind in (
        ("container", "env", list),
        ("container", "envFrom", list),
        ("container", "resources", dict),
        ("pod", "nodeSelector", dict),
        ("pod", "tolerations", list),
    ):
        found = getattr(template, setting).get(name)
        if found is not None and not (isinstance(found, kind) and all(isinstance(one, dict | str) for one in found)):
            yield setting, f"{name} must be a {'list of tables' if kind is list else 'table'}, not {found!r:.60}"
    for setting in ("annotations", "env", "labels"):
        for key, value in getattr(template, setting).items():
            if not isinstance(value, str):
                yield setting, f"the value of {key} must be a text, not {value!r:.60}"
    for setting in ("annotations", "labels"):
        for key, value in getattr(template, setting).items():
            if not _KEY.fullmatch(key) or key.startswith(PREFIX):
                yield setting, f"{key!r:.80} cannot be set: it is schedd's own, or no key of Kubernetes'"
            if setting == "labels" and value and not _LABEL.fullmatch(value):
                yield setting, f"{value!r:.80} cannot be the value of a label"
    for name in template.env:
        if not _VARIABLE.fullmatch(name):
            yield "env", f"{name!r:.80} is not the name of a variable"
    if template.ttl < 0:
        yield "ttl", "must be 0 or more seconds"
    if not _KEY.fullmatch(template.gpu) or "/" not in template.gpu:
        yield "gpu", f"{template.gpu!r:.80} is not a resource such as nvidia.com/gpu"


def label_value(text: str) -> str:
    """A text as the value of a label: itself, or where it does not fit, most of it and a digest."""
    if not text or _LABEL.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]
    start = re.sub(r"[^-A-Za-z0-9_.]", "_", text)[: MAX_LABEL - _DIGEST - 1].lstrip("-_.")
    return f"{start}-{digest}" if start else digest


def wrong_option(options: Mapping[str, Any], images: tuple[str, ...]) -> str | None:
    """What is wrong with a task's options; None: nothing. ``images``: those that tasks may name."""
    for name, value in options.items():
        if name not in OPTIONS:
            return f"there is no {name!r:.60}; the type kubernetes has {', '.join(OPTIONS)}"
        if name == "tolerations":
            if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
                return f"tolerations must be a list of objects, not {value!r:.60}"
        elif name == "nodeSelector":
            if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
                return f"nodeSelector must have texts as values, not {value!r:.60}"
        elif not isinstance(value, str) or not value:
            return f"{name} must be a text, not {value!r:.60}"
        elif name == "image" and value not in images:
            return f"image {value!r:.200} is not among the images that the executor's settings allow"
    return None


def manifest(template: Template, job: Job) -> dict[str, Any]:
    """The Job, with a digest of itself among its annotations: the same job has the same one."""
    own = {f"{PREFIX}{name}": label_value(value) for name, value in job.labels.items()}
    labels = {**template.labels, **own, f"{PREFIX}executor": label_value(template.executor)}
    made: dict[str, Any] = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job.name, "labels": labels, "annotations": dict(template.annotations)},
        "spec": {
            "backoffLimit": 0,  # the retries are schedd's
            "ttlSecondsAfterFinished": math.ceil(template.ttl),
            "template": {
                "metadata": {"labels": labels, "annotations": dict(template.annotations)},
                "spec": _pod(template, job),
            },
        },
    }
    digest = hashlib.sha256(msgspec.json.encode(made, order="deterministic")).hexdigest()
    made["metadata"]["annotations"][SPEC_ANNOTATION] = digest
    return made


def is_same(made: Mapping[str, Any], there: Mapping[str, Any]) -> bool:
    """Whether a Job of the cluster is this one, by what names its placement and by the digest."""
    ours, theirs = made["metadata"], there.get("metadata") or {}
    labels, annotations = theirs.get("labels") or {}, theirs.get("annotations") or {}
    return all(labels.get(key) == ours["labels"].get(key) for key in IDENTITY) and (
        annotations.get(SPEC_ANNOTATION) == ours["annotations"][SPEC_ANNOTATION]
    )


def _pod(template: Template, job: Job) -> dict[str, Any]:
    options = job.options
    # A task needs no rights in the cluster, and no addresses of all its services.
    pod: dict[str, Any] = {"automountServiceAccountToken": False, "enableServiceLinks": False, **template.pod}
    pod["restartPolicy"] = "Never"
    pod["terminationGracePeriodSeconds"] = math.ceil(template.grace) + LEAVE_S
    if job.limit is not None:  # of the pod, which counts from its node; the Job's counts while it waits for one
        pod["activeDeadlineSeconds"] = max(1, math.ceil(job.limit))
    if "nodeSelector" in options:
        pod["nodeSelector"] = {**(pod.get("nodeSelector") or {}), **options["nodeSelector"]}
    if "tolerations" in options:
        pod["tolerations"] = [*(pod.get("tolerations") or []), *options["tolerations"]]
    if "priorityClassName" in options:
        pod["priorityClassName"] = options["priorityClassName"]
    pod["containers"] = [_container(template, job)]
    return pod


def _container(template: Template, job: Job) -> dict[str, Any]:
    argv = list(job.argv)
    if template.python is not None and argv[:1] == [sys.executable]:
        argv[0] = template.python
    theirs = list(template.container.get("env") or [])
    named = {one.get("name") for one in theirs if isinstance(one, dict)}
    env = {name: value for name, value in {**job.env, **template.env}.items() if name not in named}
    secrets = [{"secretRef": {"name": name}} for name in template.env_from_secret]
    return {
        **template.container,
        "name": CONTAINER,
        "image": job.options.get("image", template.image),
        "command": [_unexpanded(one) for one in argv],
        "env": [*({"name": name, "value": _unexpanded(env[name])} for name in sorted(env)), *theirs],
        "envFrom": [*(template.container.get("envFrom") or []), *secrets],
        "resources": _resources(template, job.resources),
    }


def _unexpanded(text: str) -> str:
    """Kubernetes puts variables in for ``$(NAME)``."""
    return text.replace("$(", "$$(")


def _resources(template: Template, wanted: Resources) -> dict[str, Any]:
    requests, limits = dict[str, str](), dict[str, str]()
    if wanted.cpu is not None:
        requests["cpu"] = f"{math.ceil(wanted.cpu * 1000)}m"
    for name, amount in (("memory", wanted.memory_bytes), ("ephemeral-storage", wanted.disk_bytes)):
        if amount is not None:
            requests[name] = limits[name] = str(amount)
    if wanted.gpu:
        requests[template.gpu] = limits[template.gpu] = str(wanted.gpu)
    given = template.container.get("resources") or {}
    made = {
        **given,
        "requests": {**(given.get("requests") or {}), **requests},
        "limits": {**(given.get("limits") or {}), **limits},
    }
    return {name: value for name, value in made.items() if value}
