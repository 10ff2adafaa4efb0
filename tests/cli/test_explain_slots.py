"""What ``show``, ``status``, ``doctor`` and ``submit`` say when it is slots that a task waits for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from scheduler import AsyncContext, Context, Task
from support.bench import Bench, engine_of, notify_and_step
from support.fleet import until

from .conftest import Ctl

NEXT = "; a worker claims it at its next cycle"


class Thread(Task):
    def run(self, ctx: Context) -> None: ...


class Other(Task):
    def run(self, ctx: Context) -> None: ...


class Coroutine(Task):
    async def run(self, ctx: AsyncContext) -> None: ...


class Apart(Task, isolation="process"):
    def run(self, ctx: Context) -> None: ...


def worker(live: Bench, high: Any = (0, 0), medium: Any = (0, 0), low: Any = (0, 0), **options: Any) -> None:
    """Another worker with these pools, which has joined."""
    made = live.worker(pools={"high": high, "medium": medium, "low": low}, **options)
    for kind in (Thread, Other, Coroutine, Apart):
        made.register(kind)
    engine_state = engine_of(made).engine_state
    engine_state.options = engine_state.options._replace(give_back=600.0)  # nothing that it claims ever starts
    notify_and_step(made)


def held(live: Bench, *tasks: Task, priority: str = "medium", on: int = 0) -> None:
    """These are claimed by the worker ``on``, and none of them ends."""
    made = [int(live.jobs.task(one).priority(priority).schedule()) for one in tasks]
    # A cycle shares its room out among the kinds; and each program measures the server's clock for itself.
    until(lambda: [notify_and_step(live.workers[on])] and set(live.states(*made)) == {"claimed"})


def why_of(ctl: Ctl, live: Bench, task: Task, priority: str = "medium") -> str:
    """Why a new task of this type does not run: what follows the time."""
    made = int(live.jobs.task(task).priority(priority).schedule())
    why = str(ctl.json("show", made)["why"])
    live.jobs.cancel_task(made)
    assert why.startswith("due since 20")
    return why[len("due since 2026-01-31T02:30:00Z") :]


def test_child_processes_are_shared_by_all_priorities(ctl: Ctl, live: Bench) -> None:
    worker(live, (1, 0), (4, 4), (4, 4), processes=2)
    held(live, Apart(), Apart(), priority="low")
    for priority in ("medium", "low"):
        assert why_of(ctl, live, Apart(), priority) == "; waits for a free child process (2 busy of 2)"
    assert why_of(ctl, live, Thread()) == NEXT
    assert why_of(ctl, live, Apart(), "high") == NEXT, "there is one child more for it"
    held(live, Apart(), priority="high")
    assert why_of(ctl, live, Apart(), "high") == "; waits for a free child process (3 busy of 3)"


def test_all_that_a_worker_may_hold(ctl: Ctl, live: Bench) -> None:
    worker(live, medium=(4, 4), max_concurrent_tasks=2)
    held(live, Thread(), Coroutine())
    assert why_of(ctl, live, Thread()) == "; waits for room under max_concurrent_tasks (2 held of 2)"
    worker(live, medium=(1, 0))
    assert why_of(ctl, live, Thread()) == NEXT, "the other one has room"
    held(live, Thread(), on=1)
    assert why_of(ctl, live, Thread()) == (
        "; waits for a free thread slot of pool medium (1 busy of 1) or room under max_concurrent_tasks (2 held of 2)"
    )


def test_threads_and_coroutines_have_slots_of_their_own(ctl: Ctl, live: Bench) -> None:
    worker(live, medium=(1, 2), processes=1)
    held(live, Coroutine(), Coroutine(), Apart())
    assert why_of(ctl, live, Coroutine()) == "; waits for a free async slot of pool medium (2 busy of 2)"
    assert why_of(ctl, live, Thread()) == NEXT
    held(live, Thread())
    assert why_of(ctl, live, Thread()) == "; waits for a free thread slot of pool medium (1 busy of 1)"


def test_pools_help_the_priorities_above(ctl: Ctl, live: Bench) -> None:
    worker(live, (1, 0), (1, 0), (2, 0))
    held(live, Thread(), Thread())
    assert why_of(ctl, live, Thread()) == NEXT, "the low pool has a slot for it"
    assert why_of(ctl, live, Thread(), "low") == (
        "; a worker claims it at its next cycle, or when a task of a higher priority ends that may have its slot"
    ), "which slot a task has is known by its worker only"
    held(live, Thread())
    assert why_of(ctl, live, Thread()) == "; waits for a free thread slot of pools medium, low (3 busy of 3)"
    assert why_of(ctl, live, Thread(), "low") == "; waits for a free thread slot of pool low (2 busy of 2)"
    assert why_of(ctl, live, Thread(), "high") == NEXT


def test_one_worker_with_a_line_of_its_own_hides_no_other_ones_slots(ctl: Ctl, live: Bench) -> None:
    worker(live, medium=(1, 0))
    worker(live, medium=(1, 0))
    held(live, Thread())
    live.execute("UPDATE schedd_tasks SET lane = 'Thread2' WHERE state = 4")  # so that it is not claimed for its lane
    live.jobs.task(Thread()).schedule()
    live.execute("UPDATE schedd_tasks SET state = 4, worker = 1 WHERE state = 1")  # as what is claimed ahead
    assert why_of(ctl, live, Thread()) == NEXT
    live.execute("UPDATE schedd_workers SET state = 2 WHERE id = 2")
    assert why_of(ctl, live, Thread()).endswith("(1 busy of 1, 1 more claimed)")


@pytest.mark.case(24)
@pytest.mark.parametrize(
    ("task", "priority", "pools", "what"),
    [
        (Coroutine(), "low", {"medium": (1, 1), "low": (1, 0)}, "an async slot"),
        (Thread(), "medium", {"high": (1, 0), "medium": (0, 1), "low": (0, 1)}, "a thread slot"),
        (Apart(), "high", {"medium": (1, 1)}, "a child process"),
    ],
)
def test_no_live_worker_has_such_a_slot(
    ctl: Ctl, live: Bench, task: Task, priority: str, pools: dict[str, Any], what: str
) -> None:
    """No worker would ever run it, however long it waits: reported like a kind that no worker serves."""
    worker(live, **pools, processes=1)
    kind = type(task).__name__
    reason = f"no live worker that serves kind {kind!r} in queue 'default' has {what} for {priority} tasks"
    assert why_of(ctl, live, task, priority) == f", but {reason}"
    made = int(live.jobs.task(task).priority(priority).schedule())
    later = int(live.jobs.task(task).priority(priority).after(3600).schedule())
    assert str(ctl.json("show", later)["why"]).endswith(f"; at present {reason}")
    notify_and_step(live.jobs)
    assert live.state(made) == "scheduled"
    (stuck,) = ctl.json("status")["stuck"]
    assert (stuck["problem"], stuck["text"]) == ("unserved", f"1 task is ready, but {reason}")
    assert stuck["tasks"] == [made]
    (found,) = [f for f in ctl.json("doctor") if f["check"] == "ready tasks"]
    assert (found["level"], found["text"], found["tasks"]) == ("note", f"1 task is ready, but {reason}", [made])
    submitted = ctl("submit", kind, "--priority", priority)
    assert reason in submitted.stderr
    worker(live, (4, 4), (4, 4), (4, 4), processes=4)
    assert why_of(ctl, live, task, priority) == NEXT
    assert ctl.json("status")["stuck"] == []
    (found,) = [f for f in ctl.json("doctor") if f["check"] == "ready tasks"]
    assert found["level"] == "ok"


def test_what_a_program_did_not_publish_is_not_guessed(ctl: Ctl, live: Bench) -> None:
    """Rows of a worker of an older version, which said neither of its processes nor of what sort its kinds are."""
    worker(live, medium=(1, 1), processes=1)
    held(live, Apart(), Coroutine())
    live.execute("UPDATE schedd_workers SET pools = :pools", pools='{"medium":[1,1]}')
    assert why_of(ctl, live, Apart()) == NEXT
    assert why_of(ctl, live, Coroutine()).endswith("waits for a free async slot of pool medium (1 busy of 1)")
    with live.jobs.database.read() as tx:
        rows = tx.connection.exec_driver_sql("SELECT name, options FROM schedd_kinds").fetchall()
    for row in rows:
        options = json.loads(row.options)
        del options["slot_type"]
        live.execute("UPDATE schedd_kinds SET options = :o WHERE name = :n", o=json.dumps(options), n=row.name)
    assert why_of(ctl, live, Coroutine()) == NEXT
    (worker_,) = ctl.json("workers")
    assert (worker_["processes"], worker_["max_concurrent_tasks"]) == (None, 0)


def test_workers_tells_what_each_can_run(ctl: Ctl, live: Bench) -> None:
    worker(live, medium=(3, 2), processes=2, max_concurrent_tasks=4)
    (found,) = ctl.json("workers")
    assert found["pools"]["medium"] == {"slots": 3, "async_slots": 2}
    assert (found["processes"], found["max_concurrent_tasks"]) == (2, 4)
    assert "medium:3+2 processes:2 at most:4" in ctl("workers").stdout


def suspected(live: Bench, task_id: int) -> None:
    """The task is in quarantine, as one that ran when its worker died."""
    live.execute("UPDATE schedd_tasks SET lane = '!' || lane, suspect = 2 WHERE id = :i", i=task_id)


def waiting_suspect(live: Bench, task: Task, priority: str = "medium") -> int:
    """A suspect that each worker has passed over."""
    made = int(live.jobs.task(task).priority(priority).schedule())
    suspected(live, made)
    for one in live.workers:
        notify_and_step(one)
    assert live.state(made) == "scheduled"
    return made


def test_one_worker_is_at_its_cap_and_the_other_has_no_slot(ctl: Ctl, live: Bench) -> None:
    worker(live, medium=(2, 0))
    assert ctl("set", "kind", "Thread", "--max-per-worker", "1").exit_code == 0
    notify_and_step(live.jobs)
    held(live, Thread())
    assert why_of(ctl, live, Thread()) == "; its kind is at its cap of 1 on each worker that would claim it"
    worker(live, low=(1, 0))
    assert why_of(ctl, live, Thread()) == NEXT
    held(live, Other(), on=1)
    assert why_of(ctl, live, Thread()) == (
        "; waits for a free thread slot of pool low (1 busy of 1) or room under its kind's cap of 1 on each worker"
    )


def test_a_suspect_is_told_of_the_slots_that_no_worker_has(ctl: Ctl, live: Bench) -> None:
    """It would never run, so that it runs alone is not the reason."""
    worker(live, medium=(1, 1))
    made = waiting_suspect(live, Coroutine(), "low")
    reason = "no live worker that serves kind 'Coroutine' in queue 'default' has an async slot for low tasks"
    assert str(ctl.json("show", made)["why"]).endswith(f", but {reason}")
    assert [stuck["text"] for stuck in ctl.json("status")["stuck"]] == [f"1 task is ready, but {reason}"]
    worker(live, low=(1, 0))
    assert str(ctl.json("show", made)["why"]).endswith(
        f", so a child process runs it if one can run its kind: {reason}"
    )


def test_a_suspect_is_told_of_the_limit_that_it_waits_for(ctl: Ctl, live: Bench) -> None:
    worker(live, medium=(2, 0))
    assert ctl("set", "kind", "Thread", "--max-concurrency", "1").exit_code == 0
    notify_and_step(live.jobs)
    held(live, Thread())
    worker(live, medium=(2, 0))
    made = waiting_suspect(live, Thread())
    assert "; its kind is at its cap of 1: task " in str(ctl.json("show", made)["why"])


def test_a_suspect_of_a_child_process_waits_for_one_only(ctl: Ctl, live: Bench) -> None:
    worker(live, medium=(2, 0), processes=1)
    held(live, Apart())
    made = waiting_suspect(live, Apart())
    assert str(ctl.json("show", made)["why"]).endswith("; waits for a free child process (1 busy of 1)")


def test_a_suspect_of_a_child_process_waits_for_no_young_attempt(ctl: Ctl, live: Bench) -> None:
    worker(live, medium=(3, 0), processes=2)
    held(live, Thread())
    made = int(live.jobs.task(Apart()).schedule())
    suspected(live, made)
    assert str(ctl.json("show", made)["why"]).endswith(NEXT)
    assert why_of(ctl, live, Thread()) == NEXT


def test_others_wait_for_a_suspect_that_runs_alone(ctl: Ctl, live: Bench) -> None:
    worker(live, medium=(2, 0))
    made = int(live.jobs.task(Thread()).schedule())
    suspected(live, made)
    notify_and_step(live.jobs)
    assert live.state(made) == "claimed"
    why = f"; waits for task {made}, which runs alone at first, since its worker died when it ran before"
    assert why_of(ctl, live, Thread()) == why
    other = int(live.jobs.task(Thread()).schedule())
    notify_and_step(live.jobs)
    assert live.state(other) == "scheduled"
    worker(live, medium=(0, 1))
    assert why_of(ctl, live, Coroutine()) == NEXT


def test_others_wait_for_a_suspect_that_waits_for_young_attempts(ctl: Ctl, live: Bench) -> None:
    worker(live, medium=(3, 0))
    held(live, Thread(), Thread())
    made = waiting_suspect(live, Thread())
    over = "once each other task of its worker has ended or run for 10 s"
    assert why_of(ctl, live, Thread()) == f"; waits for task {made}, which goes first, alone, {over}"
    other = int(live.jobs.task(Other()).schedule())
    notify_and_step(live.jobs)
    assert live.state(other) == "scheduled"
    live.execute("UPDATE schedd_tasks SET state = 5, started_at = claimed_at - 60000000 WHERE state = 4")
    assert why_of(ctl, live, Thread()) == NEXT, "it is the suspect that goes at once now"
    live.execute("UPDATE schedd_tasks SET state = 4 WHERE state = 5")
    live.execute("UPDATE schedd_tasks SET started_at = NULL WHERE state = 4")
    assert ctl("pause", "--kind", "Thread").exit_code == 0
    assert why_of(ctl, live, Other()) == NEXT, "a suspect that is paused keeps nothing back"
