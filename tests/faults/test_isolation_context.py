"""Every call of the context from a thread, an async handler and a child process, each with the same result."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from faults import isolated as kinds
from faults.harness import history, rows
from scheduler import AsyncContext, Context, PermanentError, Scheduler, Task
from support.databases import Database

pytestmark = [pytest.mark.faults, pytest.mark.case(63)]


class Parent(Task, kind="Parent"):
    fail: bool = False

    def run(self, ctx: Context) -> Any:
        if self.fail:
            raise PermanentError("no")
        return {"a": [1, None, "ü", 2**70]}


class InThread(Task):
    def run(self, ctx: Context) -> dict[str, Any]:
        return kinds.everything(ctx)


class InLoop(Task):
    async def run(self, ctx: AsyncContext) -> dict[str, Any]:
        return await kinds.aeverything(ctx)


@pytest.fixture
def jobs(database: Database, shared_fork_server: None) -> Iterator[Scheduler]:
    made = Scheduler(database.url, processes=1, settings={"mine": {"path": "/x", "count": 3}})
    for kind in (
        Parent,
        InThread,
        InLoop,
        kinds.Twice,
        kinds.Everything,
        kinds.AEverything,
        kinds.Awaiting,
        kinds.AAwaiting,
    ):
        made.register(kind)
    made.start()
    yield made
    made.stop_now()
    made.close()


@pytest.mark.parametrize(
    "kind",
    [
        InThread,
        pytest.param(InLoop, marks=pytest.mark.one_is_enough),
        kinds.Everything,
        pytest.param(kinds.AEverything, marks=pytest.mark.one_is_enough),
    ],
)
def test_every_call(jobs: Scheduler, kind: type[Task]) -> None:
    good = jobs.task(Parent()).schedule()
    bad = jobs.task(Parent(fail=True)).schedule()
    builder = jobs.task(kind()).depend_on([good]).depend_on([bad], when="failure")
    builder = builder.key("k-1").headers({"x": "y", "n": [1]}).correlation("c-1").causation("because").subject("s")
    task_id = builder.sequence(7).payload_ref("file:///data").queue("other").schedule()
    returned = jobs.result(task_id, timeout=30)
    assert (returned.pop("pid") != os.getpid()) is (kind.__task_options__.isolation == "process")
    created = returned.pop("created_at")
    assert created == jobs.get_task(task_id).created_at.isoformat()
    assert returned == {
        "results": {str(good): {"a": [1, None, "ü", 2**70]}, str(bad): None},
        "failures": {str(bad): "dead: PermanentError: no"},
        "id": task_id,
        "kind": kind.__name__,
        "attempt": 1,
        "key": "k-1",
        "idempotency_key": "k-1",
        "headers": {"x": "y", "n": [1]},
        "correlation_id": "c-1",
        "causation_id": "because",
        "subject": "s",
        "message_type": kind.__name__,
        "schema_version": 1,
        "sequence": 7,
        "payload_ref": "file:///data",
        "queue": "other",
        "slot": None,
        "missed": 0,
        "settings": {"mine": {"path": "/x", "count": 3}},
        "steps": [1, "one", 42],
        "event": [True, False, {"to": 1}],
        "missed event": "TimeoutError",
        "children": [42, 2, 4],
        "cpu": 7,
    }
    *slept, last = history(jobs, task_id)
    assert last == (1, "succeeded")
    assert set(slept) == {(1, "suspended")}
    progress = jobs.progress(task_id)
    assert progress is not None
    (row,) = rows(jobs, "SELECT last_heartbeat_at FROM schedd_tasks WHERE id = :id", id=task_id)
    assert row.last_heartbeat_at is not None


@pytest.mark.parametrize("kind", [kinds.Awaiting, kinds.AAwaiting])
@pytest.mark.parametrize("acts", [False, True])
def test_a_retry_by_hand_awaits_anew_what_no_handler_acted_upon(jobs: Scheduler, kind: Any, acts: bool) -> None:
    other = jobs.task(Parent(fail=True)).schedule()
    task_id = jobs.task(kind(int(other), acts=acts)).schedule()
    jobs.wait([other, task_id], 30)
    jobs.dead_letters.replay(other, payload={"fail": False})
    jobs.dead_letters.replay(task_id)
    jobs.wait([other, task_id], 30)
    assert [str(jobs.get_task_status(i)) for i in (other, task_id)] == ["success", "dead" if acts else "success"]
