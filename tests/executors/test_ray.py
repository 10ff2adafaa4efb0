"""The executor ``ray`` by itself: what it reads and refuses, and jobs of a real cluster."""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler import ConfigError, Resources
from scheduler.config.load import load
from scheduler.executors import ray_parse
from scheduler.executors.ports import Executor, ExecutorError, Job, PlacementPhase, Refused, Submitted
from scheduler.executors.ray import KEPT_S, RayExecutor
from scheduler.executors.service import make_executor
from scheduler.model.placement import PlacementState
from support.databases import Database
from support.fleet import until
from support.job_ends import PATIENCE, over, seen
from support.placed import Work
from support.placing import Place
from support.ray_answers import Answers, answering
from support.ray_rig import CPUS, RayCluster
from support.session import shared_directory

Made = RayExecutor.Settings
NAME = "schedd-0a1b2c3d-7-1"
ON_NODE = {"driver_node_id": "4f1e", "driver_agent_http_address": "http://10.0.0.3:52365"}


def record(status: str, **more: Any) -> dict[str, Any]:
    return {"type": "SUBMISSION", "submission_id": NAME, "status": status, **more}


def read(given: dict[str, Any]) -> ray_parse.Record:
    return msgspec.json.decode(msgspec.json.encode(given), type=ray_parse.Record)


@pytest.mark.parametrize(
    ("given", "phase", "reason"),
    [
        (record("PENDING", message="Job has not started yet."), PlacementPhase.QUEUED, "Job has not started yet."),
        (record("RUNNING", **ON_NODE), PlacementPhase.RUNNING, "on 10.0.0.3"),
        (record("STOPPED", message="Job was intentionally stopped.", **ON_NODE), PlacementPhase.CANCELLED, None),
        (record("SUCCEEDED", driver_exit_code=0, message="Job finished.", **ON_NODE), PlacementPhase.SUCCEEDED, None),
        (record("FAILED", driver_exit_code=3, error_type="JOB_X", **ON_NODE), PlacementPhase.FAILED, "exit status 3"),
        (record("FAILED", driver_exit_code=-9, **ON_NODE), PlacementPhase.FAILED, "ended by SIGKILL"),
        (record("FAILED", error_type="RUNTIME_ENV_SETUP_FAILURE", message="no\npip"), PlacementPhase.FAILED, "no"),
        (record("FAILED", error_type="JOB_SUPERVISOR_ACTOR_START_TIMEOUT"), PlacementPhase.PREEMPTED, None),
        (record("FAILED", error_type="JOB_SUPERVISOR_ACTOR_DIED", **ON_NODE), PlacementPhase.GONE, None),
        (record("FAILED", error_type="JOB_SUPERVISOR_ACTOR_START_FAILURE", **ON_NODE), PlacementPhase.GONE, None),
        (record("FAILED", error_type="JOB_SUPERVISOR_ACTOR_DIED"), PlacementPhase.FAILED, None),
        (record("FAILED", error_type="JOB_ENTRYPOINT_COMMAND_START_ERROR", **ON_NODE), PlacementPhase.FAILED, None),
        (record("UNHEARD_OF"), PlacementPhase.GONE, None),
    ],
)
def test_states_become_phases(given: dict[str, Any], phase: PlacementPhase, reason: str | None) -> None:
    """A job that had begun and whose supervisor is away may still run: that decides nothing."""
    told = read(given).seen()
    assert (told.name, told.handle, told.phase) == (NAME, NAME, phase)
    assert reason is None or str(told.reason).endswith(reason)
    assert told.node == ("10.0.0.3" if "driver_node_id" in given else None)


def test_an_exit_status_and_times_are_told_as_such() -> None:
    told = read(record("FAILED", driver_exit_code=75, start_time=1, end_time=2)).seen()
    assert (told.exit_code, told.signal, told.at) == (75, None, 2000)
    told = read(record("FAILED", driver_exit_code=-15, end_time=2)).seen()
    assert (told.exit_code, told.signal) == (None, 15)
    told = read(record("RUNNING", start_time=1)).seen()
    assert (told.exit_code, told.signal, told.at) == (None, None, 1000)


def test_jobs_that_are_not_ours_are_left_out() -> None:
    assert read(record("RUNNING")).name == NAME
    assert read(record("RUNNING", submission_id="schedd-0a1b2c3d-w7-1")).name == "schedd-0a1b2c3d-w7-1"  # a worker
    assert read(record("RUNNING", type="DRIVER")).name == ""
    assert read(record("RUNNING", submission_id="raysubmit_x")).name == ""
    assert read(record("RUNNING", submission_id=None)).name == ""


@pytest.mark.parametrize(
    ("status", "text", "later"),
    [
        (400, "Traceback\n  File\nTypeError: metadata must be a dict", False),
        (500, "RuntimeError: Request failed with status code 400: Traceback\nValueError: Invalid label key", False),
        (500, "RuntimeError: Request failed with status code 500: Traceback\nRpcError: lost", True),
        (429, "slow down", True),
        (503, "no upstream", True),
        (500, "500 Internal Server Error\n\nServer got itself in trouble", None),
        (500, "No available agent to submit job, please try again later.", None),
        (401, "Unauthorized", None),
        (404, "404: Not Found", None),
    ],
)
def test_refusals_are_for_now_or_for_good(status: int, text: str, later: bool | None) -> None:
    """Or they are no refusals: Ray itself is unwell, whatever job is submitted."""
    refused = ray_parse.refusal(NAME, status, text, None)
    if later is None:
        assert refused is None
    else:
        assert refused is not None
        assert (refused.later, refused.after is not None) == (later, later)
        assert text.splitlines()[-1] in refused.reason
        assert "Traceback" not in refused.reason


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"num_cpus": 3}, "there is no 'num_cpus'"),
        ({"resources": 3}, "resources must be a table"),
        ({"resources": {"TPU": "1"}}, "resources.TPU must be a number above 0"),
        ({"resources": {"TPU": True}}, "resources.TPU must be a number above 0"),
        ({"resources": {"CPU": 1}}, "CPU is asked for by the task's resources"),
        ({"label_selector": {"zone": 1}}, "label_selector.zone must be a text"),
        ({"runtime_env": {"pips": []}}, "runtime_env has no 'pips'"),
        ({"runtime_env": {"env_vars": {"A": 1}}}, "runtime_env.env_vars must be a table of texts"),
        ({"runtime_env": {"env_vars": {ray_parse.STOP_VARIABLE: "1"}}}, "is set by grace of the executor"),
        ({"runtime_env": {"working_dir": "/srv/code"}}, "runtime_env.working_dir must be the address of an archive"),
        ({"runtime_env": {"py_modules": ["./a"]}}, "runtime_env.py_modules must be the address of an archive"),
    ],
)
def test_options_that_it_does_not_know_are_refused(options: dict[str, Any], why: str) -> None:
    assert why in str(ray_parse.wrong_option(options))
    with pytest.raises(ConfigError, match=re.escape(why)):
        RayExecutor("it", Made(url="http://head:8265", defaults=options))
    executor = RayExecutor("it", Made(url="http://127.0.0.1:1"))
    (refused,) = executor.submit([Job(name=NAME, argv=["true"], options=options)])
    assert isinstance(refused, Refused)
    assert (refused.later, refused.reason) == (False, f"executor_options: {ray_parse.wrong_option(options)}")


@pytest.mark.parametrize(
    "settings",
    [{"url": "head:8265"}, {"url": "http://me:secret@head"}, {"url": "https://head", "ca_file": "/no/where"}],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"executors\.it\.") as raised:
        RayExecutor("it", Made(**settings))
    assert "secret" not in str(raised.value)


def test_a_submission_has_what_was_asked_for() -> None:
    job = Job(
        name=NAME,
        argv=["/opt/python", "-c", "print('it is')"],
        env={"SCHEDD_CONFIG": "/etc/schedd.toml", "PYTHONPATH": "/a"},
        resources=Resources(cpu=0.5, memory="1K", gpu=2),
        labels={"store": "5005a013", "task": "7"},
    )
    options = {
        "resources": {"TPU": 1},
        "label_selector": {"zone": "a"},
        "runtime_env": {"env_vars": {"PYTHONPATH": "/b"}},
    }
    assert ray_parse.request(job, options, 9.5) == {
        "entrypoint": "exec /opt/python -c 'print('\"'\"'it is'\"'\"')'",
        "submission_id": NAME,
        "metadata": {"schedd.store": "5005a013", "schedd.task": "7"},
        "runtime_env": {
            "env_vars": {"SCHEDD_CONFIG": "/etc/schedd.toml", "PYTHONPATH": "/b", "RAY_JOB_STOP_WAIT_TIME_S": "12"}
        },
        "entrypoint_num_cpus": 0.5,
        "entrypoint_num_gpus": 2,
        "entrypoint_memory": 1024,
        "entrypoint_resources": {"TPU": 1},
        "entrypoint_label_selector": {"zone": "a"},
    }
    assert options["runtime_env"] == {"env_vars": {"PYTHONPATH": "/b"}}
    assert ray_parse.request(Job(name=NAME, argv=["true"]), {}, 1.0)["entrypoint_num_cpus"] == 1
    assert "disk" in str(ray_parse.unfit(Resources(disk="1G")))


def test_what_ray_wrote_into_a_log_is_left_out() -> None:
    ray = "2026-11-24 16:02:40,915\tINFO job_manager.py:581 -- Runtime env is setting up.\n"
    own = f"one\nRunning entrypoint for job {NAME}: exec true\ntwo\nRunning away\n"
    assert ray_parse.own_words(ray + own, 1000) == "one\ntwo\nRunning away\n"
    assert ray_parse.own_words(ray + own, 5) == "away\n"
    assert ray_parse.own_words(ray, 1000) is None


# With a server that answers what a test says


@pytest.fixture
def answers() -> Iterator[Answers]:
    with answering() as told:
        yield told


@pytest.fixture
def asking(answers: Answers) -> Iterator[RayExecutor]:
    made = RayExecutor("it", Made(url=f"{answers.url}/", timeout=30.0, python="/node/python"))
    yield made
    made.close()


def test_each_request_has_the_token(answers: Answers, tmp_path: Path) -> None:
    """Which stands in a file."""
    (tmp_path / "token").write_text("of the cluster\n")
    file = tmp_path / "config.toml"
    file.write_text(
        f'[executors.it]\ntype = "ray"\nurl = "{answers.url}"\ntoken_file = "{tmp_path / "token"}"\ngrace = "7s"\n'
    )
    made = make_executor(load(str(file), {}), "it")
    assert made.observe() == []
    assert made.submit([Job(name=NAME, argv=["true"])]) == [Submitted(NAME, NAME)]
    made.close()
    assert [asked[2]["authorization"] for asked in answers.asked] == ["Bearer of the cluster"] * 2
    assert json.loads(answers.asked[1][3])["runtime_env"]["env_vars"] == {"RAY_JOB_STOP_WAIT_TIME_S": "9"}


def test_the_nodes_may_have_an_interpreter_of_their_own(asking: RayExecutor, answers: Answers) -> None:
    asking.submit([Job(name=NAME, argv=[sys.executable, "-m", "x"]), Job(name=NAME, argv=["/bin/sh"])])
    found = [json.loads(asked[3])["entrypoint"] for asked in answers.asked]
    assert found == ["exec /node/python -m x", "exec /bin/sh"]


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (401, "Unauthorized", "does not take the token"),
        (404, "404: Not Found", "there is no Ray dashboard at this url"),
        (500, "500 Internal Server Error\n\nServer got itself in trouble", "Ray answered 500: Server got itself in"),
        (200, "<html>a login page</html>", "not that of Ray's dashboard"),
        (200, '[{"submission_id": 5}]', "not that of Ray's dashboard"),
    ],
)
def test_a_server_that_is_unwell_is_asked_again(
    asking: RayExecutor, answers: Answers, status: int, text: str, said: str
) -> None:
    answers.status, answers.text, answers.headers = status, text, {"retry-after": "7"}
    for ask in (asking.observe, lambda: asking.find([NAME]), asking.check):
        with pytest.raises(ExecutorError, match=said) as raised:
            ask()
        assert raised.value.after == (7.0 if status == 500 else None)
    if status != 200:
        with pytest.raises(ExecutorError, match=said):
            asking.submit([Job(name=NAME, argv=["true"])])


def test_what_ray_lost_sight_of_is_removed_after_a_day(asking: RayExecutor, answers: Answers) -> None:
    """The placer takes it for neither alive nor over."""

    def lost(name: str, age: float, **more: Any) -> dict[str, Any]:
        ended = round((time.time() - age) * 1000)
        died = "JOB_SUPERVISOR_ACTOR_DIED"
        return {**record("FAILED", error_type=died, end_time=ended, **more), "submission_id": name}

    old, young, ended = "schedd-0-1-1", "schedd-0-2-1", "schedd-0-3-1"
    answers.text = json.dumps(
        [
            lost(old, KEPT_S + 60, **ON_NODE),
            lost(young, KEPT_S - 600, **ON_NODE),
            lost(ended, KEPT_S + 60),
            lost("theirs", KEPT_S + 60, **ON_NODE),
        ]
    )
    assert {one.name for one in asking.observe()} == {old, young, ended}
    asking.observe()
    assert [asked[:2] for asked in answers.asked if asked[0] == "DELETE"] == [("DELETE", f"/api/jobs/{old}")]


def test_a_job_of_that_name_is_looked_at(
    asking: RayExecutor, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another store's, or be gone by now."""
    answers.status, answers.text = 500, f"ValueError: Job with submission_id {NAME} already exists."
    there: list[dict[str, Any]] = []
    monkeypatch.setattr(asking, "_list", lambda: [read(one) for one in there])
    job = Job(name=NAME, argv=["true"], labels={"store": "a"})
    (answer,) = asking.submit([job])
    assert isinstance(answer, Refused)
    assert answer.later
    there.append(record("RUNNING", metadata={"schedd.store": "b"}))
    (answer,) = asking.submit([job])
    assert answer == Refused(NAME, False, "Ray has a job of this name, of the store b")
    there[0]["metadata"]["schedd.store"] = "a"
    assert asking.submit([job]) == [Submitted(NAME, NAME)]
    there[0].pop("metadata")  # as Ray has it after its head was restarted
    assert asking.submit([job]) == [Submitted(NAME, NAME)]


def test_without_a_server_the_engine_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    away = RayExecutor("it", Made(url=f"http://127.0.0.1:{port}", token="secret"))
    for ask in (away.observe, lambda: away.submit([Job(name=NAME, argv=["true"])]), lambda: away.cancel([NAME], 1.0)):
        with pytest.raises(ExecutorError, match="cannot be asked") as raised:
            ask()
        assert "secret" not in str(raised.value)
    with pytest.raises(ExecutorError, match="is no job of schedd's"):
        away.cancel(["../version"], 1.0)
    away.close()


# With a cluster


@pytest.fixture
def cluster() -> RayCluster:
    return RayCluster.shared()


@pytest.fixture
def executor(cluster: RayCluster) -> Iterator[RayExecutor]:
    made = make(cluster)
    yield made
    mine = [name for name in (one.name for one in made.observe()) if name in _used]
    made.cancel(mine, 0.0)
    stay = (PlacementPhase.QUEUED, PlacementPhase.GONE)  # those that wait for room end no sooner than they begin
    until(lambda: all(one.phase.over or one.phase in stay for one in made.observe() if one.name in mine), PATIENCE)
    made.forget(mine)
    _used.clear()
    made.close()


_used: set[str] = set()


def make(cluster: RayCluster, **more: Any) -> RayExecutor:
    return RayExecutor("it", Made(**{"url": cluster.url, "token": cluster.token.read_text(), "grace": 1.0, **more}))


def job(number: int, script: str, **more: Any) -> Job:
    """``number``: of this module's tests, one job each, since they share a cluster."""
    name = f"schedd-0-{number}-1"
    _used.add(name)
    resources = more.pop("resources", Resources(cpu=0.01))
    return Job(name=name, argv=["/bin/sh", "-c", script], resources=resources, labels={"store": "0"}, **more)


@pytest.mark.executors
def test_it_is_an_executor(executor: RayExecutor, cluster: RayCluster) -> None:
    assert isinstance(executor, Executor)
    found = executor.check()
    assert all(finding.ok for finding in found)
    told = " ".join(finding.text for finding in found)
    assert re.search(r"Ray 2\.\d+\.\d+, session_", told)
    assert "the token goes over plain HTTP" in told
    stranger = make(cluster, token="wrong")
    for ask in (stranger.observe, stranger.check, lambda: stranger.submit([job(1, "true")])):
        with pytest.raises(ExecutorError, match="does not take the token"):
            ask()
    stranger.close()


@pytest.mark.executors
def test_a_job_has_its_environment_and_what_it_wrote_can_be_had(
    executor: RayExecutor, cluster: RayCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the daemon's environment is passed on: Ray shows to all its users what is."""
    monkeypatch.setenv("SCHEDD_STORE__URL", "of the daemon")
    one = job(2, 'echo "$PLACE $EXTRA [$SCHEDD_STORE__URL]"; echo to stderr >&2', env={"PLACE": "it's here"},
              options={"runtime_env": {"env_vars": {"EXTRA": "more"}}})  # fmt: skip
    assert executor.submit([one]) == [Submitted(one.name, one.name)]
    done = over(executor, one.name)
    assert (done.phase, done.exit_code, done.signal) == (PlacementPhase.SUCCEEDED, 0, None)
    assert done.node == "127.0.0.1"
    assert executor.logs(one.name, 1000) == "it's here more []\nto stderr\n"
    assert executor.logs(one.name, 7) == "stderr\n"
    monkeypatch.setattr("scheduler.executors.ray.MAX_LOG", 10)
    assert executor.logs(one.name, 1000) is None  # Ray keeps the last lines of those that failed
    executor.forget([one.name])
    assert (seen(executor, one.name), executor.find([one.name]), executor.logs(one.name, 7)) == (None, {}, None)
    executor.forget([one.name])
    executor.cancel([one.name], 1.0)


@pytest.mark.executors
def test_another_daemon_finds_what_runs_and_a_name_is_started_once(
    executor: RayExecutor, cluster: RayCluster, tmp_path: Path
) -> None:
    go, begun = tmp_path / "go", tmp_path / "begun"
    one = job(3, f"echo >> {begun}; while [ ! -e {go} ]; do sleep 0.05; done; exit 4")
    other = make(cluster)
    assert executor.submit([one]) == other.submit([one]) == [Submitted(one.name, one.name)]
    assert other.find([one.name, "schedd-0-99-1"]) == {one.name: one.name}
    executor.forget([one.name])  # it is not over
    assert seen(other, one.name) is not None
    go.touch()
    done = over(other, one.name)
    assert (done.phase, done.exit_code, done.reason) == (PlacementPhase.FAILED, 4, "exit status 4")
    assert other.submit([one]) == [Submitted(one.name, one.name)]  # it has run
    assert begun.read_text() == "\n"
    theirs = Job(name=one.name, argv=one.argv, labels={"store": "1"})
    (refused,) = other.submit([theirs])
    assert isinstance(refused, Refused)
    assert "of the store 0" in refused.reason
    other.close()


@pytest.mark.executors
def test_a_cancel_asks_and_then_kills(executor: RayExecutor, tmp_path: Path) -> None:
    asked, deaf = tmp_path / "asked", tmp_path / "deaf"
    polite = job(4, f"trap 'echo > {asked}.heard; exit 0' TERM; echo > {asked}; while :; do sleep 0.05; done")
    stubborn = job(5, f"trap '' TERM; echo > {deaf}; while :; do sleep 0.05; done")
    executor.submit([polite, stubborn])
    until(lambda: asked.exists() and deaf.exists(), PATIENCE)
    handles = [polite.name, stubborn.name]
    executor.cancel(handles, 10.0)
    executor.cancel([*handles, "schedd-0-99-1"], 10.0)
    assert [over(executor, name).phase for name in handles] == [PlacementPhase.CANCELLED] * 2
    assert asked.with_suffix(".heard").exists()
    executor.cancel(handles, 10.0)


@pytest.mark.executors
def test_ray_refuses_for_good_and_says_why_a_job_cannot_begin(executor: RayExecutor) -> None:
    asked = [
        job(6, "true", options={"label_selector": {"a b": "!!"}}),
        job(7, "true", resources=Resources(disk="1G")),
        job(8, "true", options={"runtime_env": {"working_dir": "https://127.0.0.1:1/code.tar"}}),
        Job(name=job(9, "").name, argv=["/nowhere/python"], resources=Resources(cpu=0.01)),
        job(10, "true", resources=Resources(cpu=CPUS + 1)),
    ]
    answers = executor.submit(asked)
    refused = [one for one in answers if isinstance(one, Refused)]
    assert [(one.name, one.later) for one in refused] == [(asked[0].name, False), (asked[1].name, False)]
    assert "Invalid label key" in refused[0].reason
    assert "disk" in refused[1].reason
    cannot = over(executor, asked[2].name)
    assert (cannot.phase, cannot.exit_code) == (PlacementPhase.FAILED, None)
    assert "working_dir" in str(cannot.reason) or "code.tar" in str(cannot.reason)
    assert over(executor, asked[3].name).exit_code == 127
    assert "/nowhere/python" in str(executor.logs(asked[3].name, 1000))
    waits = seen(executor, asked[4].name)
    assert waits is not None
    assert waits.phase is PlacementPhase.QUEUED
    assert "waiting for resources" in str(waits.reason)


@pytest.mark.executors
@pytest.mark.timeout(600)  # it starts Ray twice
def test_a_head_that_is_killed_loses_no_task_and_runs_none_twice(database: Database, tmp_path: Path) -> None:
    """What runs goes on and is recorded without it. What waited is forgotten, and placed again."""
    cluster = RayCluster(shared_directory() / f"ray-{database.dialect[0]}")
    try:
        cluster.start()
        place = Place(database.url, tmp_path, cluster.settings())
        place.patience = 240.0
        try:
            runs = int(place.jobs.task(Work(str(place.notes), "wait")).resources(cpu=CPUS).schedule())
            place.until(lambda: place.lines("begin"))
            waits = int(place.jobs.task(Work(str(place.notes), "plain")).resources(cpu=CPUS).schedule())
            place.until(lambda: any(one.phase is PlacementPhase.QUEUED for one in place.seen()))
            cluster.kill_controller()
            place.placer.step()
            assert "Ray" in str(place.placer._link.trouble)
            place.go()
            place.until(lambda: place.ended(runs), step=False)
            assert place.placements(waits)[0].state is PlacementState.SUBMITTED
            cluster.kill_head()
            cluster.start_head()
            assert place.seen() == []
            place.placer._link._ask_again = 0.0
            place.until(lambda: place.ended(waits))
            assert (place.outcomes(runs), place.outcomes(waits)) == (["succeeded"], ["succeeded"])
            first, second = place.placements(waits)
            assert (first.reason, first.lost, second.lost) == ("the backend does not know the job", True, False)
            assert (len(place.lines("begin")), place.side_by_side()) == (2, 0)
        finally:
            place.close()
    finally:
        cluster.close()
