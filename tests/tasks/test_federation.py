"""A whole federation: what alice posts is at bob's in the end, byte for byte, though bob's server was away."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import RetryPolicy, TaskState
from scheduler.tasks import (
    ActionCreatorTask,
    ActionDeliveryTask,
    ActionVerifierTask,
    FileIdGeneratorTask,
    ImageResizerTask,
)
from scheduler.tasks.blobs import file_id_of

from .federated import PATIENCE, TENANT, Instance, on_failure
from .pictures import encoded, photo

SOON = RetryPolicy(min_wait=0.2, max_wait=0.2, max_attempts=10, jitter=0)


@pytest.fixture
def alice(tmp_path: Path) -> Instance:
    return Instance(tmp_path / "alice", "alice.example")


@pytest.fixture
def bob(tmp_path: Path) -> Instance:
    return Instance(tmp_path / "bob", "bob.example", refusals=[503])


@pytest.fixture
def federation(alice: Instance, bob: Instance) -> Iterator[None]:
    failures: list[str] = []

    def failed(kind: str) -> None:
        if kind == ActionDeliveryTask.__name__:
            failures.append(kind)
            if len(failures) == 2:
                bob.server.start()

    alice.begin(bob, follows=[])
    bob.begin(alice, follows=["alice.example"])
    alice.server.start()
    on_failure.append(failed)
    yield
    on_failure.clear()
    alice.end()
    bob.end()


def test_a_photo_gets_to_bob(federation: None, alice: Instance, bob: Instance) -> None:
    original = encoded(photo(400, 300), "JPEG")
    upload = alice.place / "incoming" / "upload"
    upload.write_bytes(original)
    with alice.jobs.batch() as batch:
        file = batch.task(FileIdGeneratorTask(TENANT, str(upload), "cat.jpg"))
        variants = [
            batch.task(ImageResizerTask(TENANT, "", name, side, side, format, 80)).depend_on([file])
            for name, side, format in (("tn", 100, "webp"), ("sd", 200, "jpeg"))
        ]
        action = batch.task(ActionCreatorTask(TENANT, "POST", {"text": "Grüße von der Katze"}))
        action.depend_on([file, *variants])
        batch.task(ActionDeliveryTask("bob.example")).depend_on([action]).with_retry(SOON)
    file_id, tn_id, sd_id, action_id, delivery_id = batch.ids

    assert alice.jobs.result(delivery_id, timeout=PATIENCE) == {"recipient": "bob.example", "status": 202}
    attempts = alice.jobs.get_attempts(delivery_id)
    assert [attempt.error_class for attempt in attempts] == ["Unreachable", "Unreachable", "Refused", None]
    assert "answered 503" in str(attempts[2].error)

    (taken,) = bob.jobs.list_tasks(kind=ActionVerifierTask.__name__)
    made = alice.jobs.result(action_id, timeout=PATIENCE)
    told = bob.jobs.result(taken.id, timeout=PATIENCE)
    files = [alice.jobs.result(one, timeout=PATIENCE)["file_id"] for one in (file_id, tn_id, sd_id)]
    assert files[0] == file_id_of(hashlib.sha256(original).digest())
    assert made["attachments"] == files
    assert told == {"action_id": made["action_id"], "iss": "alice.example", "t": "POST", "fetched": files}
    assert bob.jobs.get_task(taken.id).state is TaskState.SUCCESS

    own, received = (side.actions.get(TENANT, made["action_id"]) for side in (alice, bob))
    assert own is not None
    assert received == own | {"origin": "received"}
    assert received["token"] == made["token"]
    assert (received["c"], received["a"]) == ({"text": "Grüße von der Katze"}, files)
    assert bob.blobs.path(files[0]).read_bytes() == original
    for one in files:
        assert bob.blobs.path(one).read_bytes() == alice.blobs.path(one).read_bytes()
    assert bob.asked == ["POST /bob.example/api/inbox"] * 2
    assert alice.asked[0] == "GET /alice.example/api/me/keys"
    assert sorted(alice.asked[1:]) == sorted(f"GET /alice.example/api/files/{one}" for one in files)
