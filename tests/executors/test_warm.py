"""Jobs that are forked by a process that has imported schedd: as those that are started anew, and not bound to it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler import ConfigError
from scheduler.executors import job_fork_server
from scheduler.executors.ports import Job, PlacementPhase
from scheduler.executors.process import ProcessExecutor
from support.databases import Database
from support.executor_rigs import ProcessRig, WarmRig
from support.fleet import until
from support.job_ends import end_all, over
from support.placing import Place


@pytest.fixture
def place(database: Database, tmp_path: Path, forked_templates: None) -> Iterator[Place]:
    made = Place(database.url, tmp_path, WarmRig().settings(tmp_path))
    yield made
    made.close()


def template_of(place: Place) -> Any:
    return place.engine.inner._template  # type: ignore[attr-defined]


def facts(place: Place) -> dict[str, Any]:
    task_id = place.schedule("facts")
    place.until(lambda: place.ended(task_id))
    found: dict[str, Any] = place.jobs.result(task_id)["facts"]
    return found


def test_a_forked_job_is_as_one_that_was_started_anew(database: Database, tmp_path: Path) -> None:
    """Its environment, signals, descriptors, threads, modules and sessions."""
    (tmp_path / "anew").mkdir()
    forked = Place(database.url, tmp_path, WarmRig().settings(tmp_path))
    anew = Place(database.url, tmp_path / "anew", ProcessRig().settings(tmp_path / "anew"))
    try:
        one = facts(forked)
        forked.placer.give_up()
        other = facts(anew)
    finally:
        forked.close()
        anew.close()
    assert one.pop("forked")
    assert not other.pop("forked")
    assert one == other
    assert one["leads a session"] is False
    assert one["parent leads the session"] is True


def test_jobs_go_on_without_what_has_forked_them(place: Place) -> None:
    first = place.schedule("wait")
    place.until(lambda: place.lines("begin"))
    before = template_of(place)._process
    assert before is not None
    os.kill(before.pid, signal.SIGKILL)
    before.wait(60)
    second = place.schedule()
    place.until(lambda: place.ended(second))
    assert template_of(place)._process.pid != before.pid
    place.go()
    place.until(lambda: place.ended(first))
    assert [place.outcomes(one) for one in (first, second)] == [["succeeded"], ["succeeded"]]
    assert place.side_by_side() == 0
    assert len(place.lines("begin")) == 2


def test_jobs_outlive_the_daemon_and_the_next_one_finds_them(place: Place, database: Database, tmp_path: Path) -> None:
    task_id = place.schedule("wait")
    place.until(lambda: place.lines("begin"))
    process = template_of(place)._process
    place.placer.give_up()
    place.engine.close()
    assert process.poll() == 0
    second = Place(database.url, tmp_path, WarmRig().settings(tmp_path), holder="second")
    try:
        (seen,) = second.engine.observe()
        assert seen.phase is PlacementPhase.RUNNING
        place.go()
        second.until(lambda: second.ended(task_id) and not second.handles())
        assert second.outcomes(task_id) == ["succeeded"]
    finally:
        second.close()


def test_a_job_starts_anew_where_what_forks_them_hangs(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    first = place.schedule()
    place.until(lambda: place.ended(first))
    process = template_of(place)._process
    os.kill(process.pid, signal.SIGSTOP)
    template_of(place)._control.settimeout(0.2)
    second = place.schedule()
    place.until(lambda: place.ended(second))
    assert process.poll() == -signal.SIGKILL
    assert place.outcomes(second) == ["succeeded"]
    assert len(place.lines("begin")) == 2


def test_one_environment_for_each(place: Place) -> None:
    first = place.schedule()
    place.until(lambda: place.ended(first))
    before = template_of(place)._process
    place.commands.more = {"MORE": "of it"}
    assert "MORE" in facts(place)["environ"]
    assert template_of(place)._process.pid != before.pid
    assert before.poll() == 0


def test_what_a_job_says_and_how_it_ended_are_kept(tmp_path: Path) -> None:
    """A job of schedd that cannot run, one that is ended by a signal, and one that is niced; another command."""
    made = ProcessExecutor("it", ProcessExecutor.Settings(directory=str(tmp_path / "jobs"), cpus=4, warm=True))
    start = [*job_fork_server.START, "it"]
    environ = {"SCHEDD_CONFIG": str(tmp_path / "none.toml")}
    wrong = Job(name="schedd-0-1-1", argv=[*start, "1", "1"], env=environ)
    usage = Job(name="schedd-0-2-1", argv=[*start, "one", "1"], env=environ, options={"nice": 3})
    other = Job(name="schedd-0-3-1", argv=["/bin/sh", "-c", "nice"], options={"nice": 3})
    try:
        made.submit([wrong, usage, other])
        assert over(made, wrong.name).exit_code == 76
        assert "none.toml" in str(made.logs(wrong.name, 1000))
        assert over(made, usage.name).exit_code == 2
        assert "invalid int value: 'one'" in str(made.logs(usage.name, 1000))
        over(made, other.name)
        assert made.logs(other.name, 10) == f"{min(19, os.nice(0) + 3)}\n"
        modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "jobs" / wrong.name).iterdir()}
        assert modes == {0o600}
    finally:
        end_all(made)
        made.close()


def test_a_template_that_ends_at_once_is_no_obstacle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot be imported, say."""
    monkeypatch.setattr(job_fork_server, "TEMPLATE_MODULE", "scheduler.nothing")
    made = ProcessExecutor("it", ProcessExecutor.Settings(directory=str(tmp_path / "jobs"), warm=True))
    one = Job(
        name="schedd-0-1-1",
        argv=[*job_fork_server.START, "it", "1", "1"],
        env={"SCHEDD_CONFIG": str(tmp_path / "none")},
    )
    try:
        made.submit([one])
        assert over(made, one.name).exit_code == 76
    finally:
        end_all(made)
        made.close()


def test_a_process_that_a_handler_forks_keeps_no_template(place: Place) -> None:
    """The template ends once the daemon has, whatever the daemon's own forks still do."""
    first = place.schedule()
    place.until(lambda: place.ended(first))
    process = template_of(place)._process
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    try:
        template_of(place)._control.close()
        until(lambda: process.poll() == 0, 60)
    finally:
        os.close(reading)
        os.close(writing)
        os.waitpid(pid, 0)


def test_a_prefix_starts_no_forked_job(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"executors\.it: prefix starts no job that is forked"):
        ProcessExecutor("it", ProcessExecutor.Settings(directory=str(tmp_path), warm=True, prefix=("env",)))
