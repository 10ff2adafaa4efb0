"""A real control plane of Kubernetes on loopback: etcd, kube-apiserver, kube-controller-manager; and a stand-in node.

One serves a whole pytest run, its xdist workers included; session.py stops it. ``make kube`` builds the two programs
of Kubernetes. The API server checks tokens and the rights of Roles. There is no scheduler and no kubelet: kube_node.py.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2

from support.kube_client import KubeClient
from support.kube_jobs import documents
from support.kube_pods import IMAGE, Object
from support.kube_tls import make_certificates
from support.session import locked, shared_directory

PATIENCE = 240.0  # seconds: the machine may be busy
BUILT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "schedd" / "kube"
SERVER, MANAGER, ETCD, NODE = "kube-apiserver", "kube-controller-manager", "etcd", "support.kube_node"
CONTROLLERS = (
    *("namespace", "serviceaccount", "serviceaccount-token", "root-ca-cert-publisher"),
    *("garbagecollector", "podgc", "job", "ttl-after-finished", "resourcequota"),
)
GATES = "--feature-gates=TTLAfterFinished=true"  # alpha in 1.20, and on by itself since 1.21
LONG_S = 86_400  # that a token is good for
WITH_RIGHTS = ("ServiceAccount", "Role", "RoleBinding")


class RealKube:
    """``place``: what tests know of it."""

    _shared: RealKube | None = None
    _apart: RealKube | None = None

    def __init__(self, place: Path) -> None:
        self.place = place
        self.ca_file = place / "ca.crt"
        self._children: list[subprocess.Popen[bytes]] = []
        self._client: KubeClient | None = None

    @classmethod
    def shared(cls) -> RealKube:
        """The one of this pytest run, started."""
        if cls._shared is None:
            made = cls(shared_directory() / "kube")
            with locked("kube.lock"):
                if not made.place.exists():
                    made.start()
            cls._shared = made
        return cls._shared

    @classmethod
    def apart(cls) -> RealKube:
        """The one of this pytest process, started, for tests that kill its servers."""
        if cls._apart is None:
            made = cls(Path(tempfile.mkdtemp(prefix="kube-apart-", dir=shared_directory())))
            made.start()
            cls._apart = made
        return cls._apart

    @classmethod
    def close_apart(cls) -> None:
        if cls._apart is not None:
            cls._apart.close()
            cls._apart = None

    # Its servers

    def start(self) -> None:
        """Start all of it; nothing is left if that fails."""
        try:
            self._start()
        except BaseException:
            self.close()  # the next test tries again
            raise

    def _start(self) -> None:
        programs()  # or else it says what to do
        place = self.place
        place.mkdir(mode=0o700, exist_ok=True)
        make_certificates(place)
        ports = {name: _lasting_port() for name in ("etcd", "peer", "server")}
        (place / "ports").write_text(json.dumps(ports))
        (place / "token").write_text("the-administrators-token")
        (place / "tokens.csv").write_text('the-administrators-token,administrator,1,"system:masters"\n')
        (place / "url").write_text(f"https://127.0.0.1:{ports['server']}")
        (place / "kubeconfig").write_text(json.dumps(self._kubeconfig()))
        self.start_etcd()
        self.start_server()
        self.start_manager()
        self.start_node("node-1")

    def start_etcd(self) -> None:
        place, ports = self.place, json.loads((self.place / "ports").read_text())
        at = [f"http://127.0.0.1:{ports[name]}" for name in ("etcd", "peer")]
        etcd = [f"--data-dir={place / 'etcd'}", "--unsafe-no-fsync"]
        etcd += [f"--listen-client-urls={at[0]}", f"--advertise-client-urls={at[0]}"]
        etcd += [f"--listen-peer-urls={at[1]}", f"--initial-advertise-peer-urls={at[1]}"]
        child = self._run(ETCD, [*etcd, f"--initial-cluster=default={at[1]}"])
        _wait(lambda: self._is_ready(child, ETCD, f"{at[0]}/health"))

    def start_server(self) -> None:
        place, ports = self.place, json.loads((self.place / "ports").read_text())
        pem = place / "server.pem"
        server = self._run(
            SERVER,
            [
                f"--etcd-servers=http://127.0.0.1:{ports['etcd']}",
                *("--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--endpoint-reconciler-type=none"),
                *(f"--secure-port={ports['server']}", f"--tls-cert-file={pem}", f"--tls-private-key-file={pem}"),
                *("--authorization-mode=RBAC", "--anonymous-auth=false", f"--token-auth-file={place / 'tokens.csv'}"),
                *("--service-account-issuer=https://kubernetes", f"--service-account-key-file={pem}"),
                f"--service-account-signing-key-file={pem}",
                *("--kubelet-preferred-address-types=InternalIP", f"--kubelet-certificate-authority={self.ca_file}"),
                *("--service-cluster-ip-range=10.0.0.0/24", f"--cert-dir={place}", GATES),
            ],
        )
        _wait(lambda: self._is_ready(server, SERVER, f"{self.url}/readyz"))

    def start_manager(self) -> None:
        """Start what runs the controllers."""
        pem = self.place / "server.pem"
        self._run(
            MANAGER,
            [
                *(f"--kubeconfig={self.place / 'kubeconfig'}", f"--controllers={','.join(CONTROLLERS)}"),
                *("--leader-elect=false", "--port=0", "--secure-port=0", GATES),
                *(f"--service-account-private-key-file={pem}", f"--root-ca-file={self.ca_file}"),
            ],
        )

    def start_node(self, name: str) -> None:
        self._start_child([sys.executable, "-m", NODE, str(self.place), name], name, Path(__file__).parents[1])
        _wait(lambda: (self.place / name / "pids").is_dir())

    def kill(self, *names: str, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal servers, or nodes, of this process's cluster; those that were killed are gone afterwards."""
        for name in names:
            pids = _pids_of(self.place, name)
            children = [child for child in self._children if child.pid in pids]
            assert children, f"there is no {name}"
            for child in children:
                child.send_signal(number)
                if number == signal.SIGKILL:
                    child.wait()  # its port is free
                    self._children.remove(child)

    def compact(self) -> None:
        """Have etcd forget what was, as it does every five minutes."""
        revision = self._etcd("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        self._etcd("/v3/kv/compaction", {"revision": revision, "physical": True})

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None
        stop(self.place)
        for child in self._children:
            child.wait()

    # What is in it

    @property
    def url(self) -> str:
        return (self.place / "url").read_text()

    @property
    def client(self) -> KubeClient:
        """An administrator's."""
        if self._client is None:
            self._client = KubeClient(self.url, (self.place / "token").read_text(), self.ca_file)
        return self._client

    # Its own

    def _is_ready(self, server: subprocess.Popen[bytes], name: str, url: str) -> bool:
        assert server.poll() is None, f"{name}:\n{(self.place / f'{name}.log').read_text()[-3000:]}"
        with suppress(*KubeClient.away):
            return self.client.is_well(url)
        return False

    def _etcd(self, path: str, body: Object) -> Any:
        port = json.loads((self.place / "ports").read_text())["etcd"]
        answer = httpx2.post(f"http://127.0.0.1:{port}{path}", json=body, trust_env=False)
        answer.raise_for_status()
        return answer.json()

    def _kubeconfig(self) -> Object:  # JSON is YAML, too
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": (self.place / "token").read_text()}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        }

    def _run(self, name: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        return self._start_child([programs()[name], *arguments], name, self.place)

    def _start_child(self, argv: Sequence[str], name: str, place: Path) -> subprocess.Popen[bytes]:
        environ = {one: value for one, value in os.environ.items() if not one.startswith(("KUBE", "SCHEDD_", "ETCD"))}
        with open(self.place / f"{name}.log", "ab") as log, open(os.devnull, "rb") as null:
            child = subprocess.Popen(
                argv, env=environ, cwd=place, stdin=null, stdout=log, stderr=log, start_new_session=True
            )
        self._children.append(child)
        return child


class Namespace:
    """One of a cluster, with what examples/kubernetes/schedd.yaml has for the rights of schedd, and a token of the
    service account there in ``token_file``. ``rules``: other rights than the example's."""

    def __init__(self, cluster: RealKube, directory: Path, rules: list[Object] | None = None) -> None:
        self.cluster = cluster
        self.name = name_of_namespace(directory)
        self.url, self.ca_file = cluster.url, cluster.ca_file
        self.token_file = directory / "kube-token"
        self.path = f"/api/v1/namespaces/{self.name}"
        ask = cluster.client.ask
        ask("POST", "/api/v1/namespaces", {"metadata": {"name": self.name}})
        for kind in WITH_RIGHTS:
            made = documents()[kind]
            if kind == "Role" and rules is not None:
                made["rules"] = rules
            self.create(made)
        _wait(lambda: cluster.client.items(f"{self.path}/serviceaccounts", fieldSelector="metadata.name=default"))
        wanted = {"spec": {"expirationSeconds": LONG_S}}
        got = ask("POST", f"{self.path}/serviceaccounts/schedd/token", wanted)
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(got["status"]["token"])

    def create(self, made: Object) -> Object:
        """What a document of a manifest says."""
        version, plural = made["apiVersion"], f"{made['kind'].lower()}s"
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        answer: Object = self.cluster.client.ask("POST", f"{root}/namespaces/{self.name}/{plural}", made)
        return answer

    def settings(self) -> str:
        """Lines of ``[executors.NAME]``."""
        return (
            f'type = "kubernetes"\nserver = "{self.url}"\ntoken_file = "{self.token_file}"\n'
            f'ca_file = "{self.ca_file}"\nnamespace = "{self.name}"\nimage = "{IMAGE}"\n'
        )

    def pods(self, job: str | None = None) -> list[Object]:
        """Of a Job, or all."""
        selector = {} if job is None else {"labelSelector": f"job-name={job}"}
        return self.cluster.client.items(f"{self.path}/pods", **selector)

    def job(self, name: str) -> Object:
        """Raises StatusError."""
        found: Object = self.cluster.client.ask("GET", self.path_of_job(name))
        return found

    def path_of_job(self, name: str) -> str:
        return f"/apis/batch/v1/namespaces/{self.name}/jobs/{name}"


def pids_of_job(place: Path, namespace: str, job: str) -> list[int]:
    """The process groups of a Job's pods, below 0."""
    found = []
    for path in place.glob(f"*/pids/{namespace}_{job}-*"):
        with suppress(FileNotFoundError, ValueError):
            found.append(-int(path.read_text()))
    return found


def kill_job(place: Path, namespace: str, job: str) -> None:
    """SIGKILL for all processes of a Job's pods, which run or are about to."""
    _wait(lambda: pids_of_job(place, namespace, job))
    for pid in pids_of_job(place, namespace, job):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def name_of_namespace(directory: Path) -> str:
    """Each test has one of its own."""
    return f"test-{hashlib.sha256(str(directory).encode()).hexdigest()[:12]}"


def programs() -> dict[str, str]:
    """The paths of the servers. AssertionError: how to get them."""
    places = sorted(BUILT.glob(f"*/{SERVER}"), key=lambda path: path.stat().st_mtime)
    assert places, f"there is no {SERVER} in {BUILT}: make kube builds it"
    etcd = shutil.which("etcd")
    assert etcd is not None, "etcd is missing. On Debian and Ubuntu: apt-get install etcd-server"
    return {SERVER: str(places[-1]), MANAGER: str(places[-1].with_name(MANAGER)), ETCD: etcd}


def stop(place: Path) -> None:
    """End a node, which ends its pods, and kill the servers."""
    for pid in _pids_of(place, NODE):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGCONT)
    with suppress(AssertionError):
        _wait(lambda: not _pids_of(place, NODE), 10.0)
    for path in place.glob("*/pids/*"):  # of a node that was killed
        with suppress(OSError, ValueError):
            os.killpg(int(path.read_text()), signal.SIGKILL)

    def left() -> list[int]:
        found = _pids_of(place)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    _wait(lambda: not left())
    shutil.rmtree(place, ignore_errors=True)


def _pids_of(place: Path, name: str = "") -> list[int]:
    """Living processes whose command names the cluster's directory; with a name only those of that program or node."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                ours = any(word == str(place) or f"{place}/" in word for word in words)
                if ours and (not name or any(word == name or word.endswith(f"/{name}") for word in words)):
                    found.append(int(entry.name))
    return found


def _lasting_port() -> int:
    """One that is free, and that no client is given: else it might have it while its server is dead."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as made, suppress(OSError):
            made.bind(("127.0.0.1", port))
            return port


def _wait(over: Callable[[], object], seconds: float = PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not over():
        assert time.monotonic() < deadline
        time.sleep(0.05)
