"""A connection to a Kubernetes API server: its address and token, questions, lists in pages, and what went wrong."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from scheduler.errors import ConfigError
from scheduler.executors.ports import ExecutorError

if TYPE_CHECKING:
    import httpx2

SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
PAGE = 500  # objects in one answer of a list
MAX_SHOWN = 300  # characters of what the server says
_LIST_TRIES = 3  # of a list whose pages went out of date
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


class Access(NamedTuple):
    """Where the API server is, and what it takes its caller for. ``namespace``: None: what the service account's
    directory says."""

    server: str
    token_file: Path | None
    ca_file: Path | None
    namespace: str | None


class KubernetesAnswer(NamedTuple):
    """What the server answered. ``after``: seconds that it wants to be left alone. ``warnings``: of its ``Warning``
    headers."""

    status: int
    fields: Mapping[str, Any]
    text: str
    after: float | None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether it did what it was asked to."""
        return 200 <= self.status < 300

    @property
    def reason(self) -> str:
        """The server's word for what is wrong, such as ``AlreadyExists``."""
        return str(self.fields.get("reason") or "")

    @property
    def message(self) -> str:
        """What is wrong, for people."""
        text = self.fields.get("message") or self.text
        return " ".join(str(text).split())[:MAX_SHOWN] or f"status {self.status}"


def access_of(
    name: str, server: str | None, token_file: str | None, ca_file: str | None, namespace: str | None
) -> Access:
    """The settings, or what each pod of a cluster has. Raises ConfigError."""

    def refuse(setting: str, why: str) -> ConfigError:
        return ConfigError(f"executors.{name}.{setting}: {why}")

    files = {"token_file": token_file, "ca_file": ca_file}
    for setting, path in files.items():
        if path is not None and not os.path.isabs(os.path.expanduser(path)):
            raise refuse(setting, f"must be an absolute path, not {path!r:.80}")
    if namespace is not None and not DNS_LABEL.fullmatch(namespace):
        raise refuse("namespace", f"{namespace!r:.80} cannot be the name of a namespace")
    token, ca = (None if path is None else Path(path).expanduser() for path in files.values())
    if server is None:
        host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise refuse(
                "server", "is needed outside of a cluster's pods, such as https://HOST:6443; with token_file, namespace"
            )
        place = Path(SERVICE_ACCOUNT)
        host = f"[{host}]" if ":" in host else host
        return Access(f"https://{host}:{port}", token or place / "token", ca or place / "ca.crt", namespace)
    try:
        parts = urlsplit(server)
        host = parts.hostname or ""
        fits = bool(host) and parts.port != 0 and not (parts.username or parts.query or parts.fragment)
    except ValueError:
        fits, host, parts = False, "", urlsplit("")
    if not fits or parts.scheme not in ("https", "http"):
        shown = "one with a user" if "@" in server else f"{server!r:.80}"
        raise refuse("server", f"must be an address such as https://HOST:6443, not {shown}")
    if parts.scheme == "http" and host not in _LOOPBACK:
        raise refuse("server", "must begin with https://: http is for loopback addresses, such as kubectl proxy's")
    if namespace is None:
        raise refuse("namespace", "is needed with server")
    return Access(server.rstrip("/"), token, ca, namespace)


class KubernetesApi:
    """Questions to one API server. For one thread. ``timeout``: seconds for each part of a question.

    The token is read for each question, and the CA for each connection: a cluster replaces both in their files.
    """

    def __init__(self, access: Access, timeout: float) -> None:
        self._access = access
        self._timeout = timeout
        self._client: httpx2.Client | None = None

    @property
    def server(self) -> str:
        """The server's address."""
        return self._access.server

    @property
    def namespace(self) -> str:
        """The namespace of the jobs. Raises ExecutorError."""
        if self._access.namespace is not None:
            return self._access.namespace
        return _read(Path(SERVICE_ACCOUNT) / "namespace")

    def jobs(self, name: str | None = None) -> str:
        """The path of all Jobs, or of one."""
        path = f"/apis/batch/v1/namespaces/{self.namespace}/jobs"
        return path if name is None else f"{path}/{name}"

    def core(self, what: str) -> str:
        """The path of something else in the namespace, such as ``pods``."""
        return f"/api/v1/namespaces/{self.namespace}/{what}"

    def ask(
        self, method: str, path: str, *, params: Mapping[str, str] | None = None, body: Mapping[str, Any] | None = None
    ) -> KubernetesAnswer:
        """Any answer below 500 but 401. Raises ExecutorError: there was none, or the server cannot do it now."""
        import httpx2

        from scheduler.tasks.http.client_log import unlogged

        headers = {"Accept": "application/json, */*"}
        if self._access.token_file is not None:
            headers["Authorization"] = f"Bearer {_read(self._access.token_file)}"
        content = None
        if body is not None:
            content, headers["Content-Type"] = msgspec.json.encode(body), "application/json"
        try:
            with unlogged():
                got = self._open().request(method, self.server + path, params=params, content=content, headers=headers)
        except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
            self.close()
            text = str(error).partition("\n")[0] or type(error).__name__
            hint = "; is ca_file that of this server?" if "CERTIFICATE_VERIFY_FAILED" in text else ""
            raise ExecutorError(f"{self.server}: {text[:MAX_SHOWN]}{hint}") from None
        answer = _answer(got)
        if answer.status == 401:
            which = "without a token" if self._access.token_file is None else f"the token in {self._access.token_file}"
            raise ExecutorError(f"{self.server} does not take {which}: {answer.message}")
        if answer.status >= 500:
            raise self.trouble(answer)
        return answer

    def get(self, path: str, params: Mapping[str, str] | None = None) -> Mapping[str, Any]:
        """What the server has there. Raises ExecutorError: whatever else it answers."""
        answer = self.ask("GET", path, params=params)
        if not answer.ok:
            raise self.trouble(answer)
        return answer.fields

    def list(self, path: str, selector: str) -> list[Mapping[str, Any]]:
        """All objects there with these labels, page by page. Raises ExecutorError."""
        for _ in range(_LIST_TRIES):
            found: list[Mapping[str, Any]] = []
            for answer in self._pages(path, selector):
                if answer.status == 410:  # too old to go on with: what is there has changed too often meanwhile
                    break
                if not answer.ok:
                    raise self.trouble(answer)
                found += [one for one in answer.fields.get("items") or () if isinstance(one, dict)]
            else:
                return found
        raise ExecutorError(f"{self.server}: lists went out of date {_LIST_TRIES} times before their last page")

    def trouble(self, answer: KubernetesAnswer) -> ExecutorError:
        """An answer as the reason why the backend cannot be asked."""
        return ExecutorError(f"{self.server} answered {answer.status}: {answer.message}", answer.after)

    def close(self) -> None:
        """Give the connections up. Harmless when repeated."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _pages(self, path: str, selector: str) -> Iterator[KubernetesAnswer]:
        params = {"labelSelector": selector, "limit": str(PAGE)}
        while True:
            answer = self.ask("GET", path, params=params)
            yield answer
            more = (answer.fields.get("metadata") or {}).get("continue")
            if not more:
                return
            params = {**params, "continue": str(more)}

    def _open(self) -> httpx2.Client:
        import httpx2

        if self._client is None:
            verify: ssl.SSLContext | bool = True
            if self.server.startswith("https:"):
                ca = self._access.ca_file
                try:
                    verify = ssl.create_default_context(cafile=None if ca is None else str(ca))
                except (OSError, ssl.SSLError) as error:
                    why = getattr(error, "strerror", None) or error
                    raise ExecutorError(f"the CA in {ca} cannot be used: {why}") from None
            self._client = httpx2.Client(timeout=self._timeout, verify=verify, follow_redirects=False)
        return self._client


def _answer(got: httpx2.Response) -> KubernetesAnswer:
    found = None
    if got.headers.get("content-type", "").startswith("application/json"):  # a log may look like JSON, too
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            found = msgspec.json.decode(got.content)
    fields: Mapping[str, Any] = found if isinstance(found, dict) else {}
    header, details = got.headers.get("retry-after", ""), fields.get("details")
    after = float(header) if header.isdecimal() else None
    if after is None and isinstance(details, dict) and isinstance(details.get("retryAfterSeconds"), int):
        after = float(details["retryAfterSeconds"])
    warnings = re.findall(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"', got.headers.get("warning", ""))
    return KubernetesAnswer(got.status_code, fields, got.text if found is None else "", after, tuple(warnings))


def _read(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ExecutorError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not text or not text.isprintable():
        raise ExecutorError(f"{path} is empty, or has several lines")
    return text
