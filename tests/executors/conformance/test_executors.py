"""What every executor must do, each with its real engine and real processes: one body for each claim."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from scheduler import TaskState
from scheduler.executors.ports import NOT_MINE, PlacementPhase
from scheduler.model.placement import PlacementState
from scheduler.store import placements
from scheduler.store.db.tx import Tx
from scheduler.store.read.explain import why
from support.databases import Database
from support.executor_rigs import RIGS, Rig
from support.placing import TESTS, Place
from support.warm import warm

CANNOT = "PermanentError: it cannot be done"
SLOW_PATIENCE = 250.0  # seconds, for an engine that needs several of its own processes for a job


def _marks(rig: type[Rig]) -> list[pytest.MarkDecorator]:
    marks = [] if rig.mark is None else [getattr(pytest.mark, rig.mark)]
    return [*marks, pytest.mark.timeout(300)] if rig.slow else marks


ENGINES = [pytest.param(name, marks=_marks(rig)) for name, rig in RIGS.items()]


@pytest.fixture(params=ENGINES)
def rig(request: pytest.FixtureRequest) -> Rig:
    return RIGS[request.param]()


@pytest.fixture
def settings(rig: Rig, tmp_path: Path) -> str:
    return rig.settings(tmp_path)


@pytest.fixture
def place(database: Database, tmp_path: Path, settings: str, rig: Rig, forked_templates: None) -> Iterator[Place]:
    made = Place(database.url, tmp_path, settings)
    made.pause = rig.pause
    if rig.slow:
        made.patience = SLOW_PATIENCE
    yield made
    made.close()


def test_jobs_run_and_record(place: Place) -> None:
    """Results, steps, failures and output are as in a worker, and the engine is tidied up."""
    plain, fails = place.schedule(), place.schedule("fail")
    place.until(lambda: place.ended(plain, fails))
    assert place.jobs.result(plain) == {"first": 1, "attempt": 1}
    assert (place.state(fails), place.jobs.get_last_error(fails)) == (
        TaskState.DEAD,
        "PermanentError: it cannot be done",
    )
    assert place.outcomes(plain) == ["succeeded"]
    place.until(lambda: not place.handles())
    (placement,) = place.placements(plain)
    assert (placement.state, placement.tries, placement.lost) == (PlacementState.ENDED, 1, False)
    assert placement.attached_at is not None
    assert placement.name.startswith("schedd-")
    assert len(placement.name) <= 63


def test_one_question_and_few_submissions_serve_many_jobs(place: Place, rig: Rig) -> None:
    place.shut()
    ids = [place.schedule() for _ in range(rig.many)]
    place.placer._section = place.config.executors["it"].__class__(type="process", max_pending=100, max_running=100)
    place.placer.step()
    assert (place.engine.asked, place.engine.submissions, len(place.engine.submitted)) == (1, 1, rig.many)
    place.placer.step()
    assert (place.engine.asked, place.engine.submissions) == (2, 1)
    place.jobs.cancel_task(ids[0])
    for task_id in ids[1:]:
        place.jobs.cancel_task(task_id)
    place.until(lambda: place.ended(*ids) and not place.handles())
    assert place.lines() == []


def test_a_job_that_is_submitted_twice_runs_once(place: Place) -> None:
    """By an engine that knows the name, and by one that starts it anew: its claim is the first one's."""
    place.engine.twice = True
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin"))
    (job,) = place.engine.submitted
    again = subprocess.run(job.argv, env={**os.environ, **job.env}, capture_output=True, text=True, timeout=90)
    assert again.returncode == NOT_MINE
    assert "not this job's" in again.stderr
    place.go()
    place.until(lambda: place.ended(task_id))
    assert (len(place.lines("begin")), place.outcomes(task_id)) == (1, ["succeeded"])


@pytest.mark.parametrize("lost", ["request", "answer"])
def test_a_submission_without_an_answer_is_looked_for(place: Place, lost: str) -> None:
    setattr(place.engine, f"drop_{lost}s", 1)
    task_id = place.schedule()
    place.placer.step()
    assert place.placements(task_id)[0].state is PlacementState.RESERVED
    place.placer._link._ask_again = 0.0
    place.until(lambda: place.ended(task_id))
    (placement,) = place.placements(task_id)
    assert placement.tries == (2 if lost == "request" else 1)
    assert (len(place.lines("begin")), place.outcomes(task_id)) == (1, ["succeeded"])


@pytest.mark.parametrize("point", ["before placement commit", "after reserve", "after submit", "after handle"])
def test_a_daemon_that_is_killed_loses_and_doubles_nothing(
    place: Place, database: Database, rig: Rig, point: str
) -> None:
    """Another one takes the lease over and finds what the first has submitted."""
    task_id = place.schedule()
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    with open(os.devnull, "r+b") as null:
        given = [database.url, str(place.directory), point]
        killed = warm.start("support.placing", given, place.directory, environ, [null.fileno()] * 3)
    assert killed.wait(90) == -signal.SIGKILL
    found = [one.state for one in place.placements(task_id)]
    left = {
        "before placement commit": [],
        "after handle": [PlacementState.SUBMITTED],
    }.get(point, [PlacementState.RESERVED])
    begun = point in ("after submit", "after handle") and found in ([PlacementState.ATTACHED], [PlacementState.ENDED])
    assert found == left or begun  # by the job meanwhile
    assert place.placer.step() > 0
    assert not place.placer.leads  # the lease of the one that was killed lasts for a while
    place.jobs.database.change(lambda tx: tx.run("UPDATE schedd_executors SET until = 0"))
    place.until(lambda: place.ended(task_id))
    if rig.durable:
        (placement,) = place.placements(task_id)
        assert placement.tries == (2 if point == "after reserve" else 1)
    assert (len(place.lines("begin")), place.outcomes(task_id)) == (1, ["succeeded"])


def test_a_job_killed_before_it_begins_is_a_lost_start(place: Place, rig: Rig) -> None:
    """It uses no attempt; the next job runs the task."""
    gate = place.shut()
    task_id = place.schedule()
    place.until(lambda: _running(place))
    for seen in place.seen():
        rig.kill(place.directory, seen.name)
    place.until(lambda: len(place.placements(task_id)) == 2)
    gate.open()
    place.until(lambda: place.ended(task_id))
    assert place.outcomes(task_id) == ["succeeded"]
    first, second = place.placements(task_id)
    assert (first.lost, second.lost) == (True, False)
    assert "ended before it took the task up" in str(first.reason)
    assert place.jobs.result(task_id)["attempt"] == 1


@pytest.mark.parametrize("point", ["after attach", "in the body", "before finish commit"])
def test_a_job_that_is_killed_runs_again(place: Place, point: str) -> None:
    """The engine's word shortens the wait for its lease, and says why."""
    place.commands.more = {} if point == "in the body" else {"PLACED_KILL": point}
    task_id = place.schedule("die" if point == "in the body" else "plain")
    place.until(lambda: place.ended(task_id))
    assert place.outcomes(task_id) == ["lost", "succeeded"]
    assert "SIGKILL" in str(place.jobs.get_attempts(task_id)[0].error)
    assert len(place.lines("begin")) == (1 if point == "after attach" else 2)
    assert place.jobs.result(task_id)["first"] == 1 + (point == "after attach")
    assert place.side_by_side() == 0


def test_a_job_that_stood_still_for_too_long_changes_nothing(place: Place) -> None:
    """Its machine was frozen, and its lease ran out meanwhile: another job runs the task, and this one ends."""
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin") and place.state(task_id) is TaskState.RUNNING)  # and it writes no more
    first = int(place.lines("begin")[0].split()[3])
    worker = place.jobs.get_task(task_id).worker
    assert worker is not None

    def freeze(tx: Tx) -> None:
        """While this has SQLite's lock, so that the job has not. All its threads go on until one takes the signal."""
        placements.expire(tx, [worker])
        os.kill(first, signal.SIGSTOP)
        place.until(lambda: _stands_still(first), step=False)

    place.jobs.database.change(freeze)
    place.go()
    place.until(lambda: place.ended(task_id))
    with suppress(ProcessLookupError):  # the engine was asked to end it, since it holds nothing any more
        os.kill(first, signal.SIGCONT)
    place.until(lambda: not place.handles())
    assert place.outcomes(task_id) == ["lost", "succeeded"]


def test_a_job_that_the_engine_forgets_goes_on(place: Place) -> None:
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin") and place.state(task_id) is TaskState.RUNNING)
    place.engine.forgets = True
    for _ in range(20):
        place.placer.step()
    assert place.state(task_id) is TaskState.RUNNING
    place.go()
    place.until(lambda: place.ended(task_id))
    assert (place.outcomes(task_id), len(place.placements(task_id))) == (["succeeded"], 1)


def test_a_job_that_begins_after_its_claim_was_taken_back_changes_nothing(place: Place) -> None:
    place.shut()
    task_id = place.schedule()
    place.until(lambda: _running(place))
    place.commands.gate, place.engine.forgets = None, True  # so that it is taken back while it waits
    place.until(lambda: place.placements(task_id)[0].state is PlacementState.ENDED)
    assert place.placements(task_id)[0].reason == "the backend does not know the job"
    late = place.engine.submitted[0]
    place.engine.forgets = False
    place.until(lambda: place.ended(task_id))
    again = subprocess.run(late.argv[4:], env={**os.environ, **late.env}, capture_output=True, text=True, timeout=90)
    assert again.returncode == NOT_MINE
    assert (len(place.lines("begin")), place.outcomes(task_id)) == (1, ["succeeded"])


def test_what_waits_in_the_engine_is_cancelled_at_once(place: Place) -> None:
    place.shut()
    task_id = place.schedule()
    place.until(lambda: _running(place))
    place.jobs.cancel_task(task_id)
    place.placer.step()
    assert place.state(task_id) is TaskState.CANCELLED
    place.until(lambda: not place.handles())
    assert place.lines() == []


def test_what_runs_hears_of_its_cancel_itself(place: Place) -> None:
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin"))
    place.jobs.cancel_task(task_id)
    place.until(lambda: place.ended(task_id))
    assert (place.state(task_id), place.outcomes(task_id)) == (TaskState.CANCELLED, ["cancelled"])
    assert place.engine.cancelled == []


def test_a_body_that_hears_nothing_is_left_by_its_job(place: Place) -> None:
    task_id = place.schedule("deaf")
    place.until(lambda: place.lines("begin"))
    place.jobs.cancel_task(task_id)
    place.until(lambda: place.ended(task_id) and not place.handles())
    assert (place.state(task_id), place.outcomes(task_id)) == (TaskState.CANCELLED, ["cancelled"])


def test_a_job_that_hears_nothing_is_ended_by_the_engine(place: Place) -> None:
    task_id = place.schedule("freeze")
    place.until(lambda: place.lines("begin") and place.state(task_id) is TaskState.RUNNING)  # and it writes no more
    place.go()
    place.until(lambda: any(_stands_still(int(line.split()[3])) for line in place.lines("begin")))
    place.jobs.cancel_task(task_id)
    place.until(lambda: place.engine.cancelled)
    place.until(lambda: place.ended(task_id) and not place.handles())
    assert place.state(task_id) is TaskState.CANCELLED, place.told()
    assert place.outcomes(task_id) in (["lost"], ["cancelled"])  # Slurm lets it go on once more


def _stands_still(pid: int) -> bool:
    """Whether all its threads do."""
    with suppress(OSError):  # one has just ended
        threads = Path(f"/proc/{pid}/task").glob("*/stat")
        return {thread.read_text().rpartition(")")[2].split()[0] for thread in threads} == {"T"}
    return False


def test_a_preempted_task_uses_no_attempt(place: Place) -> None:
    """The engine ends the job by its own will: the task is handed back, and goes on elsewhere."""
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin"))
    place.engine.inner.cancel(place.handles(), 30.0)
    place.until(lambda: place.outcomes(task_id))
    place.go()
    place.until(lambda: place.ended(task_id))
    assert place.outcomes(task_id) == ["handed back", "succeeded"]
    assert place.jobs.result(task_id) == {"first": 1, "attempt": 1}  # the step is kept
    assert len(place.lines("told")) == 1  # by ctx.time_left()
    assert place.jobs.get_task(task_id).attempts_used == 1


def test_jobs_that_never_begin_fail_the_task_with_what_they_wrote(place: Place) -> None:
    place.commands.instead = ["/bin/sh", "-c", "echo 'no such interpreter' >&2; exit 3"]
    task_id = place.schedule()
    place.until(lambda: place.ended(task_id))
    assert place.state(task_id) is TaskState.DEAD
    assert [one.lost for one in place.placements(task_id)] == [True, True, True]
    error = str(place.jobs.get_last_error(task_id))
    assert error.startswith("3 jobs of executor it in a row did not begin; last: the job ended before it took")
    assert "exit status 3" in error
    assert error.endswith("it wrote: no such interpreter")
    place.commands.instead = None
    place.jobs.retry_task(task_id)
    place.until(lambda: place.ended(task_id))
    assert place.state(task_id) is TaskState.SUCCESS


def test_code_that_is_too_old_leaves_the_task_alone(place: Place) -> None:
    task_id = int(place.jobs.task("Newer", {}).schedule())
    place.jobs.database.change(lambda tx: tx.run("UPDATE schedd_tasks SET schema_version = 7"))
    place.until(lambda: len(place.placements(task_id)) == 2)
    text = str(place.placements(task_id)[0].reason)
    assert "exit status 76" in text
    place.jobs.cancel_task(task_id)
    place.until(lambda: place.ended(task_id))


def test_why_says_what_the_engine_says(place: Place) -> None:
    place.shut()
    task_id = place.schedule()
    with place.jobs.database.read() as tx:
        assert "no daemon has had [executors.it] in its configuration" in str(why(tx, task_id))
    place.until(lambda: place.placements(task_id) and place.placements(task_id)[0].phase is PlacementPhase.RUNNING)
    with place.jobs.database.read() as tx:
        said = str(why(tx, task_id))
    name = place.placements(task_id)[0].name
    assert said.startswith(f"placed on it as {name}: running, ")
    place.jobs.cancel_task(task_id)


def test_jobs_of_another_store_are_left_alone(place: Place, tmp_path: Path, settings: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    theirs = Place(f"sqlite:///{other / 'jobs.db'}", other, settings)
    try:
        gate = theirs.shut()
        task_id = theirs.schedule()
        theirs.until(lambda: _running(theirs))
        mine = place.schedule()
        place.until(lambda: place.ended(mine))
        place.until(lambda: not place.handles())
        assert len(theirs.handles()) == 1
        gate.open()
        theirs.until(lambda: theirs.ended(task_id))
        place.placer.step()
        assert theirs.outcomes(task_id) == ["succeeded"]
    finally:
        theirs.close()


def _running(place: Place) -> bool:
    return any(seen.phase is PlacementPhase.RUNNING for seen in place.seen())
