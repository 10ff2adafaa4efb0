"""Questions to a real API server of Kubernetes: of tests, and of the node that stands in for a kubelet."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from scheduler.tasks.http.client_log import unlogged
from support.kube_cluster import StatusError
from support.kube_pods import Object

TIMEOUT_S = 30.0  # the machine may be busy
MERGE = "application/merge-patch+json"


class KubeClient:
    """From any thread. ``away``: what is raised if the server cannot be reached."""

    away = (httpx2.HTTPError, json.JSONDecodeError)

    def __init__(self, url: str, token: str, ca_file: Path) -> None:
        self.url = url
        context = ssl.create_default_context(cafile=str(ca_file))
        headers = {"Authorization": f"Bearer {token}"}
        self._client = httpx2.Client(verify=context, headers=headers, timeout=TIMEOUT_S, trust_env=False)

    def ask(self, method: str, path: str, body: Object | None = None, **params: str) -> Any:
        """The object that it answers, or the text. Raises StatusError."""
        kind = MERGE if method == "PATCH" else "application/json"
        with unlogged():
            got = self._client.request(
                method,
                self.url + path,
                params=params,
                content=None if body is None else json.dumps(body),
                headers={"Content-Type": kind},
            )
        answer = got.json() if got.headers.get("content-type", "").startswith("application/json") else got.text
        if got.is_success:
            return answer
        told = answer if isinstance(answer, dict) else {"message": answer}
        raise StatusError(got.status_code, told.get("reason", ""), told.get("message", ""))

    def is_well(self, url: str) -> bool:
        """Whether a server's own check of itself finds nothing."""
        with unlogged():
            return self._client.get(url).is_success

    def items(self, path: str, **params: str) -> list[Object]:
        """Those of a list."""
        found: list[Object] = self.ask("GET", path, **params)["items"]
        return found

    def watch(self, path: str, version: str, seconds: int) -> Iterator[Object]:
        """What happens after this version of a list, for so long. Raises StatusError: the version is too old."""
        params = {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(seconds)}
        with unlogged(), self._client.stream("GET", self.url + path, params=params, timeout=seconds + TIMEOUT_S) as got:
            if not got.is_success:
                raise StatusError(got.status_code, "", got.read().decode())
            for line in got.iter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise StatusError(event["object"]["code"], event["object"]["reason"], event["object"]["message"])
                yield event

    def close(self) -> None:
        self._client.close()
