"""The HTTP API of a Kubernetes cluster as far as Jobs need it, over TLS, with tokens, a Role, quotas and mishaps."""

from __future__ import annotations

import base64
import json
import re
import ssl
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from support.kube_cluster import Cluster, StatusError
from support.kube_pods import Object
from support.kube_tls import make_certificates
from support.session import shared_directory

PATHS = re.compile(
    r"/(?:api/v1|apis/batch/v1)/namespaces/(?P<namespace>[^/]+)/(?P<resource>[a-z]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<part>log))?"
)
VERBS = {"POST": "create", "DELETE": "delete"}


@dataclass
class Mishap:
    """What requests are answered instead. ``times``: of them; ``after``: so many went well before."""

    method: str
    path: str
    status: int
    reason: str = ""
    message: str = "no"
    headers: dict[str, str] = field(default_factory=dict)
    times: int = 1
    after: int = 0
    done: bool = False  # the work is done all the same


class KubeApi:
    """A cluster and its server. ``rules``: of the Role that its callers have; None: they may do all."""

    _shared: KubeApi | None = None

    @classmethod
    def shared(cls) -> KubeApi:
        """The one of this pytest process."""
        if cls._shared is None:
            cls._shared = cls(Path(tempfile.mkdtemp(prefix="kube-", dir=shared_directory())))
        return cls._shared

    @classmethod
    def close_shared(cls) -> None:
        if cls._shared is not None:
            cls._shared.close()
            cls._shared = None

    def __init__(self, place: Path) -> None:
        self.place = place
        self.cluster = Cluster(place)
        self.tokens = {"first"}
        self.rules: list[dict[str, list[str]]] | None = None
        self.mishaps: list[Mishap] = []
        self.requests: list[tuple[str, str]] = []  # method, and path with its query
        self.quotas: list[Object] = []
        self.warnings: list[str] = []
        self.page: int | None = None  # objects in a page, whatever is asked for
        self.broken_pages = 0  # of these so many lists go out of date before their second page
        self.ca_file, certificate = make_certificates(place)
        self.token_file = place / "token"
        self.token_file.write_text("first\n")
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.api = self
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"https://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.cluster.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @contextmanager
    def counted(self) -> Iterator[list[tuple[str, str]]]:
        """The requests meanwhile."""
        before, found = len(self.requests), list[tuple[str, str]]()
        yield found
        found += self.requests[before:]

    # Requests

    def answer(self, method: str, path: str, token: str, body: Object) -> tuple[int, Any, dict[str, str]]:
        self.requests.append((method, path))
        for mishap in self.mishaps:
            if mishap.method == method and mishap.path in path and mishap.times > 0:
                if mishap.after > 0:
                    mishap.after -= 1
                    continue
                mishap.times -= 1
                if mishap.done:
                    with suppress(StatusError):
                        self._do(method, path, token, body)
                status = StatusError(mishap.status, mishap.reason, mishap.message)
                return mishap.status, _status(status), mishap.headers
        try:
            return self._do(method, path, token, body)
        except StatusError as error:
            return error.status, _status(error), {}

    def _do(self, method: str, path: str, token: str, body: Object) -> tuple[int, Any, dict[str, str]]:
        if token not in self.tokens:
            raise StatusError(401, "Unauthorized", "Unauthorized")
        parts = urlsplit(path)
        query = dict(parse_qsl(parts.query))
        if parts.path == "/version":
            return 200, {"major": "1", "minor": "31", "gitVersion": "v1.31.0"}, {}
        if parts.path == "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            resource = "/".join(filter(None, (asked["resource"], asked["subresource"])))
            body["status"] = {"allowed": self._may(asked["group"], resource, asked["verb"])}
            return 201, body, {}
        found = PATHS.fullmatch(parts.path)
        if found is None:
            raise StatusError(404, "NotFound", "the server could not find the requested resource")
        namespace, resource, name, part = found.group("namespace", "resource", "name", "part")
        group = "batch" if parts.path.startswith("/apis") else ""
        full = f"{resource}/{part}" if part else resource
        verb = VERBS.get(method, "get" if name else "list")
        if not self._may(group, full, verb):
            message = f'{resource} is forbidden: User "schedd" cannot {verb} resource "{full}" in API group "{group}"'
            raise StatusError(403, "Forbidden", message)
        if namespace == "nowhere" and verb == "create":
            raise StatusError(404, "NotFound", 'namespaces "nowhere" not found')
        if part == "log":
            lines = int(query["tailLines"]) if "tailLines" in query else None
            return 200, self.cluster.log(namespace, name, lines), {}
        if verb == "list":
            return 200, self._list(resource, namespace, query), {}
        if verb == "get":
            return 200, self.cluster.get(resource, namespace, name), {}
        if verb == "create":
            dry = query.get("dryRun") == "All"
            strict = query.get("fieldValidation") == "Strict"
            headers = {"Warning": ", ".join(f'299 - "{one}"' for one in self.warnings)} if self.warnings else {}
            return 201, self.cluster.create_job(namespace, body, strict=strict, dry_run=dry), headers
        if resource == "jobs":
            self.cluster.delete_job(namespace, name, body.get("propagationPolicy", "Orphan"))
        else:
            self.cluster.delete_pod(namespace, name, body.get("gracePeriodSeconds"))
        return 200, {"kind": "Status", "status": "Success"}, {}

    def _list(self, resource: str, namespace: str, query: dict[str, str]) -> Object:
        if resource == "resourcequotas":
            return {"items": self.quotas, "metadata": {}}
        first = 0
        if "continue" in query:
            if self.broken_pages > 0:
                self.broken_pages -= 1
                raise StatusError(410, "Expired", "The provided continue parameter is too old")
            first = json.loads(base64.b64decode(query["continue"]))["from"]
        items = self.cluster.list(resource, namespace, query.get("labelSelector", ""))
        size = min(int(query.get("limit", 0)) or len(items), self.page or len(items))
        more = {"continue": _token(first + size)} if first + size < len(items) else {}
        return {"items": items[first : first + size], "metadata": {"resourceVersion": "1", **more}}

    def _may(self, group: str, resource: str, verb: str) -> bool:
        return self.rules is None or any(
            group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
            for rule in self.rules
        )


def _token(first: int) -> str:
    return base64.b64encode(json.dumps({"from": first}).encode()).decode()


def _status(error: StatusError) -> Object:
    return {
        "kind": "Status",
        "status": "Failure",
        "message": error.message,
        "reason": error.reason,
        "details": error.details,
        "code": error.status,
    }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    api: KubeApi

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that closed its connection, or does not trust the certificate."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server
    timeout = 60

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        given = json.loads(body) if body else {}
        status, answer, headers = self.server.api.answer(self.command, self.path, token, given)
        text = isinstance(answer, str)
        content = answer.encode() if text else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain" if text else "application/json")
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_DELETE = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests read ``requests``."""
