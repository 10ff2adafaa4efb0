"""A whole federation of real daemons: what alice posts is at bob's in the end, byte for byte, though his was away."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from scheduler import RetryPolicy, Scheduler, TaskState
from scheduler.tasks import (
    BUILTIN,
    ActionCreatorTask,
    ActionDeliveryTask,
    ActionVerifierTask,
    FileIdGeneratorTask,
    ImageResizerTask,
)
from scheduler.tasks.actions.store import ActionStore
from scheduler.tasks.files.blob_store import BlobStore, file_id_of
from support.processes import Child, Nursery

from .federated import PATIENCE, TENANT
from .pictures import encoded, photo

SOON = RetryPolicy(min_wait=0.1, max_wait=0.1, max_attempts=10, jitter=0)
TYPES = ("ActionCreator", "ActionDelivery", "ActionVerifier", "FileIdGenerator", "ImageResizer")


class Instance:
    """One server: its own directory, key, store, configuration, daemon and inbox. ``peer``: where the others are."""

    def __init__(self, place: Path, name: str, store: str | None, nursery: Nursery) -> None:
        self.place, self.name, self.nursery = place, name, nursery
        self.url = store or f"sqlite:///{place}/jobs.db"
        (place / "incoming").mkdir(parents=True)
        key = ec.generate_private_key(ec.SECP384R1())
        pem, pkcs8, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        (place / "key.pem").write_bytes(key.private_bytes(pem, pkcs8, plain))
        self.blobs, self.actions = BlobStore(place / "blobs"), ActionStore(place / "actions")
        self.daemon: Child | None = None

    def start(self, peer: str, follows: list[str], **environ: str) -> None:
        """Start the daemon; returns once it serves. All its requests go to ``peer``, whatever name they are for."""
        sections: dict[str, dict[str, Any]] = {
            "store": {"url": self.url},
            "tasks": {
                "modules": ["federated"],
                "path": [str(Path(__file__).parent)],
                "builtin": [f"{name}Task" for name in TYPES],
            },
            "worker": {"processes": 1},
            "files": {"blobs": str(self.blobs.root), "roots": [str(self.place / "incoming")]},
            "http": {"allow": ["127.0.0.1"]},
            "actions": {
                "name": self.name,
                "key_file": str(self.place / "key.pem"),
                "directory": str(self.actions.root),
                "inbox": f"{peer}/{{recipient}}/api/inbox",
                "keys": f"{peer}/{{issuer}}/api/me/keys",
                "files": f"{peer}/{{issuer}}/api/files/{{file_id}}",
                "following": follows,
            },
        }
        config = self.place / "config.toml"
        config.write_text(
            "\n".join(
                f"[{section}]\n" + "\n".join(f"{name} = {json.dumps(value)}" for name, value in values.items())
                for section, values in sections.items()
            )
        )
        environ["FEDERATED"] = str(self.place)
        self.daemon = self.nursery.start("-m", "scheduler.daemon", "--config", str(config), **environ)
        self.daemon.expect('"ready"')

    @property
    def port(self) -> int:
        return int((self.place / "port").read_text())

    def asked(self) -> list[str]:
        """What its server was asked for."""
        return (self.place / "asked").read_text().splitlines()

    def client(self) -> Scheduler:
        """The side that schedules and looks, in the test."""
        jobs = Scheduler(self.url)
        for kind in BUILTIN.values():
            jobs.register(kind)
        return jobs


class Address:
    """Where alice finds bob. The first two who come are turned away, and only then ``begin`` has a server there."""

    def __init__(self, begin: Callable[[], int]) -> None:
        self._begin = begin
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        for _ in range(2):
            away, _ = self._socket.accept()
            away.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # closing resets
            away.close()
        port = self._begin()
        while True:
            try:
                near, _ = self._socket.accept()
                far = socket.create_connection(("127.0.0.1", port))
            except OSError:
                return  # the test is over
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._pass_on, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@pytest.fixture
def nursery(tmp_path: Path) -> Iterator[Nursery]:
    with Nursery(tmp_path) as made:
        yield made


@pytest.fixture(params=["sqlite", "postgresql"])
def bobs_store(request: pytest.FixtureRequest) -> str | None:
    if request.param == "sqlite":
        return None
    databases = request.getfixturevalue("postgres_databases")
    url: str = databases.migrated()
    return url


def test_a_photo_gets_to_bob(tmp_path: Path, nursery: Nursery, bobs_store: str | None) -> None:
    alice = Instance(tmp_path / "alice", "alice.example", None, nursery)
    bob = Instance(tmp_path / "bob", "bob.example", bobs_store, nursery)

    def bob_comes() -> int:
        bob.start(f"http://127.0.0.1:{alice.port}", follows=["alice.example"], FEDERATED_REFUSES="503")
        return bob.port

    address = Address(bob_comes)
    alice.start(address.url, follows=[])
    jobs = alice.client()
    original = encoded(photo(400, 300), "JPEG")
    upload = alice.place / "incoming" / "upload"
    upload.write_bytes(original)
    with jobs.batch() as batch:
        file = batch.task(FileIdGeneratorTask(TENANT, str(upload), "cat.jpg"))
        variants = [
            batch.task(ImageResizerTask(TENANT, "", name, side, side, format, 80)).depend_on([file])
            for name, side, format in (("tn", 100, "webp"), ("sd", 200, "jpeg"))
        ]
        action = batch.task(
            ActionCreatorTask(TENANT, "POST", {"text": "Grüße von der Katze"}, audience=["bob.example"])
        )
        action.depend_on([file, *variants])
        batch.task(ActionDeliveryTask("bob.example")).depend_on([action]).with_retry(SOON)
    file_id, tn_id, sd_id, action_id, delivery_id = batch.ids

    assert jobs.result(delivery_id, timeout=PATIENCE) == {"recipient": "bob.example", "status": 202}
    attempts = jobs.get_attempts(delivery_id)
    assert [attempt.error_class for attempt in attempts] == ["Unreachable", "Unreachable", "Refused", None]
    assert "answered 503" in str(attempts[2].error)

    at_bobs = bob.client()
    (taken,) = at_bobs.list_tasks(kind=ActionVerifierTask.__name__)
    made = jobs.result(action_id, timeout=PATIENCE)
    result = at_bobs.result(taken.id, timeout=PATIENCE)
    files = [jobs.result(one, timeout=PATIENCE)["file_id"] for one in (file_id, tn_id, sd_id)]
    assert files[0] == file_id_of(hashlib.sha256(original).digest())
    assert made["attachments"] == files
    assert result == {"action_id": made["action_id"], "iss": "alice.example", "t": "POST", "fetched": files}
    assert at_bobs.get_task(taken.id).state is TaskState.SUCCESS

    own, received = (side.actions.get(TENANT, made["action_id"]) for side in (alice, bob))
    assert own is not None
    assert received == own | {"origin": "received"}
    assert received["token"] == made["token"]
    assert (received["c"], received["a"]) == ({"text": "Grüße von der Katze"}, files)
    assert bob.blobs.path(files[0]).read_bytes() == original
    for one in files:
        assert bob.blobs.path(one).read_bytes() == alice.blobs.path(one).read_bytes()
    assert bob.asked() == ["POST /bob.example/api/inbox"] * 2
    assert alice.asked()[0] == "GET /alice.example/api/me/keys"
    assert sorted(alice.asked()[1:]) == sorted(f"GET /alice.example/api/files/{one}" for one in files)

    for side, client in ((alice, jobs), (bob, at_bobs)):
        client.close()
        assert side.daemon is not None
        side.daemon.kill(signal.SIGTERM)
        assert side.daemon.end() == 0
    address.close()
