"""A node of a real cluster, without a kubelet: it runs pods' commands as processes of this machine (kube_pods.py).

``python -m support.kube_node PLACE NAME`` is one, until SIGTERM ends it and its pods. It binds whatever pod has no
node yet, since there is no scheduler, and tells the API server what a kubelet would: phases and ends, also of pods
whose time is up or that were deleted, which have their grace. It serves their logs to the API server, over TLS.
"""

from __future__ import annotations

import os
import signal
import ssl
import sys
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from support import kube_pods
from support.kube_client import KubeClient
from support.kube_cluster import StatusError
from support.kube_pods import Object

WATCH_S = 60
CUT_OFF_S = 5.0  # until it ends a pod that was removed by force
AGAIN_S = 0.2  # until it asks again, if the server was away


class Node:
    """See the module. ``place``: of the cluster; it has ``ca.crt``, ``server.pem``, ``url`` and ``token``."""

    def __init__(self, place: Path, name: str) -> None:
        self.name = name
        self._place = place
        self._files = place / name
        (self._files / "pids").mkdir(parents=True, exist_ok=True)
        self._client = KubeClient((place / "url").read_text(), (place / "token").read_text(), place / "ca.crt")
        self._lock = threading.RLock()
        self._pods: dict[str, _Pod] = {}  # by uid
        self._logs = _serve_logs(self, place / "server.pem")

    def run(self) -> None:
        """Until a signal raises SystemExit."""
        while True:
            try:
                self._register()
                self._watch()
            except (*self._client.away, StatusError):
                time.sleep(AGAIN_S)

    def close(self) -> None:
        with self._lock:
            for pod in self._pods.values():
                pod.end(0.0)

    def log(self, namespace: str, name: str) -> Path | None:
        """The file of what a pod wrote."""
        with self._lock:
            for pod in self._pods.values():
                if (pod.meta["namespace"], pod.meta["name"]) == (namespace, name):
                    path = kube_pods.log_of(pod.told, self._files)
                    return path if path.exists() else None
        return None

    def _register(self) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name}}
        with suppress(StatusError):  # it is there
            self._client.ask("POST", "/api/v1/nodes", node)
        status = {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._logs.server_port}},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        }
        self._client.ask("PATCH", f"/api/v1/nodes/{self.name}/status", {"status": status})

    def _watch(self) -> None:
        found = self._client.ask("GET", "/api/v1/pods")
        there = {pod["metadata"]["uid"] for pod in found["items"]}
        for uid in [uid for uid in self._pods if uid not in there]:
            self._forget(uid)
        for pod in found["items"]:
            self._hear(pod)
        for event in self._client.watch("/api/v1/pods", found["metadata"]["resourceVersion"], WATCH_S):
            if event["type"] == "DELETED":
                self._forget(event["object"]["metadata"]["uid"])
            else:
                self._hear(event["object"])

    def _forget(self, uid: str) -> None:
        """It was removed, perhaps by force while it ran: as on a node that was cut off, which hears of it later."""
        with self._lock:
            pod = self._pods.pop(uid, None)
        if pod is not None:
            _later(CUT_OFF_S, lambda: pod.end(float(pod.told["spec"]["terminationGracePeriodSeconds"])))

    def _hear(self, told: Object) -> None:
        meta, node = told["metadata"], told["spec"].get("nodeName")
        leaves = "deletionTimestamp" in meta
        if node is None and not leaves:
            self._bind(meta)
        if node != self.name:
            return
        with self._lock:
            pod = self._pods.get(meta["uid"])
            if pod is None:
                if told["status"].get("phase") != "Pending":
                    return  # it was another life's
                pod = self._pods[meta["uid"]] = _Pod(self._client, told, self._files)
                if not leaves:
                    threading.Thread(target=pod.run, daemon=True).start()
        if leaves:
            pod.leave(float(meta.get("deletionGracePeriodSeconds") or 0))

    def _bind(self, meta: Object) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": self.name}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": meta["name"]}, "target": target}
        with suppress(StatusError):  # another node was faster, or it is gone
            self._client.ask("POST", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}/binding", binding)


class _Pod:
    """One that is bound to the node."""

    def __init__(self, client: KubeClient, told: Object, place: Path) -> None:
        self.told, self.meta = told, told["metadata"]
        self._client = client
        self._place = place
        self._pid = place / "pids" / f"{self.meta['namespace']}_{self.meta['name']}"
        self._path = f"/api/v1/namespaces/{self.meta['namespace']}/pods/{self.meta['name']}"
        self._lock = threading.RLock()
        self._process: Any = None  # while it runs
        self._grace: float | None = None  # seconds that it had when it was deleted

    def run(self) -> None:
        """Start the container, wait for its end, and tell both."""
        if not kube_pods.is_there(self.told):
            self._tell({"startTime": kube_pods.now(), **kube_pods.pulling(self.told)})
            return
        with self._lock:
            if self._grace is not None:
                return
            try:
                process = self._process = kube_pods.start(self.told, self._place)
            except OSError as error:
                self._tell(kube_pods.not_started(self.told, error))
                return
            self._pid.write_text(str(process.pid))
        self._tell({"startTime": kube_pods.now(), **kube_pods.running(self.told)})
        if "activeDeadlineSeconds" in self.told["spec"]:
            _later(self.told["spec"]["activeDeadlineSeconds"], self._be_late)
        code = process.wait()
        with self._lock:
            self._process = None
            self._pid.unlink()
        self._tell(kube_pods.ended(self.told, code))
        with self._lock:
            if self._grace is not None:
                self._remove()

    def leave(self, grace: float) -> None:
        """It was deleted, perhaps once more with less grace."""
        with self._lock:
            if self._grace is not None and self._grace <= grace:
                return
            self._grace = grace
            if self._process is None:
                self._remove()
            else:
                self.end(grace)

    def end(self, grace: float) -> None:
        self._signal(signal.SIGTERM if grace > 0 else signal.SIGKILL)
        if grace > 0:
            _later(grace, lambda: self._signal(signal.SIGKILL))

    def _be_late(self) -> None:
        with self._lock:
            if self._process is not None:
                self.told["status"] |= kube_pods.late()
                self.end(float(self.told["spec"]["terminationGracePeriodSeconds"]))

    def _signal(self, number: int) -> None:
        with self._lock:
            if self._process is not None:
                kube_pods.kill(self._process, number)

    def _tell(self, status: Object) -> None:
        """Have the server know it, however long that takes."""
        words = {name: self.told["status"][name] for name in ("reason", "message") if name in self.told["status"]}
        body = {"metadata": {"uid": self.meta["uid"]}, "status": {**words, **status}}
        self._ask("PATCH", f"{self._path}/status", body)

    def _remove(self) -> None:
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.meta["uid"]}}
        self._ask("DELETE", self._path, body)

    def _ask(self, method: str, path: str, body: Object) -> None:
        while True:
            try:
                self._client.ask(method, path, body)
                return
            except StatusError as error:
                if error.status in (404, 409, 422):  # it is gone, or is another one's
                    return
            except self._client.away:
                pass
            time.sleep(AGAIN_S)


def _later(seconds: float, work: Any) -> None:
    timer = threading.Timer(seconds, work)
    timer.daemon = True
    timer.start()


class _Logs(ThreadingHTTPServer):
    daemon_threads = True
    node: Node

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that was given up."""


class _Handler(BaseHTTPRequestHandler):
    server: _Logs
    timeout = 60

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        lines = parse_qs(parts.query).get("tailLines")
        what, *names = parts.path.strip("/").split("/")
        log = self.server.node.log(*names[:2]) if what == "containerLogs" else None
        if log is None:
            status, text = 400, f'container "{names[2]}" in pod "{names[1]}" is waiting to start: ContainerCreating'
        else:
            status, text = 200, kube_pods.last_lines(log, int(lines[0]) if lines else None)
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


def _serve_logs(node: Node, certificate: Path) -> _Logs:
    made = _Logs(("127.0.0.1", 0), _Handler)
    made.node = node
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    made.socket = context.wrap_socket(made.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    return made


def main() -> None:
    place, name = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    node = Node(Path(place), name)
    try:
        node.run()
    finally:
        node.close()
        os._exit(0)  # not held up by threads that tell the API server


if __name__ == "__main__":
    main()
