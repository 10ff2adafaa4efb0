"""The executor ``kubernetes`` over HTTP and TLS: what it asks, and what it makes of the answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.executors.kubernetes import KubernetesExecutor
from scheduler.executors.ports import ExecutorError, Refused, Submitted
from support.fleet import until
from support.job_ends import PATIENCE
from support.kube_api import KubeApi, Mishap
from support.kube_jobs import JOBS, job, make, pods
from support.kube_pods import IMAGE


def test_a_name_that_is_taken_is_ours_only_if_the_job_is(executor: KubernetesExecutor, api: KubeApi) -> None:
    one = job(1)
    assert executor.submit([one, one]) == [Submitted(one.name, one.name)] * 2
    for other in (job(1, store="0b"), job(1, "true")):
        (refused,) = executor.submit([other])
        assert isinstance(refused, Refused)
        assert (refused.later, "another Job schedd-0-1-1" in refused.reason) == (False, True)
    assert len(pods(api)) == 1
    assert executor.find([one.name, "schedd-0-2-1"]) == {one.name: one.name}


def test_a_job_that_is_being_deleted_is_waited_for(executor: KubernetesExecutor, api: KubeApi) -> None:
    one = job(1, "trap '' TERM; while :; do sleep 0.1; done", env={"PATH": "/bin:/usr/bin"})
    executor.submit([one])
    executor.cancel([one.name], 1.0)
    (refused,) = executor.submit([one])
    assert isinstance(refused, Refused)
    assert (refused.later, refused.after) == (True, 5.0)
    api.cluster.kill("jobs", one.name)
    until(lambda: executor.observe() == [], PATIENCE)
    assert executor.submit([one]) == [Submitted(one.name, one.name)]


def test_a_stranger_that_has_not_our_labels_is_not_seen(executor: KubernetesExecutor, api: KubeApi) -> None:
    theirs = {
        "metadata": {"name": "schedd-0-1-1", "labels": {}},
        "spec": {
            "template": {
                "metadata": {"labels": {}},
                "spec": {"restartPolicy": "Never", "containers": [{"name": "x", "image": "x", "command": ["x"]}]},
            }
        },
    }
    api.cluster.create_job("jobs", theirs, strict=True, dry_run=False)
    assert (executor.observe(), executor.find(["schedd-0-1-1"])) == ([], {})
    (refused,) = executor.submit([job(1)])
    assert isinstance(refused, Refused)
    assert not refused.later


@pytest.mark.parametrize(
    ("mishap", "later", "after"),
    [
        (Mishap("POST", JOBS, 403, "Forbidden", "exceeded quota: most, requested: count/jobs.batch=1"), True, 30.0),
        (Mishap("POST", JOBS, 429, "TooManyRequests", "wait", {"Retry-After": "7"}), True, 7.0),
        (Mishap("POST", JOBS, 403, "Forbidden", 'admission webhook "policy" denied the request'), False, None),
        (Mishap("POST", JOBS, 422, "Invalid", "is invalid: spec"), False, None),
    ],
)
def test_one_refusal_keeps_no_other_job_back(
    executor: KubernetesExecutor, api: KubeApi, mishap: Mishap, later: bool, after: float | None
) -> None:
    mishap.after = 1
    mishap.times = 1
    api.mishaps.append(mishap)
    answers = executor.submit([job(1), job(2), job(3)])
    assert [isinstance(answer, Submitted) for answer in answers] == [True, False, True]
    assert isinstance(answers[1], Refused)
    assert (answers[1].later, answers[1].after) == (later, after)


def test_what_the_server_itself_finds_wrong_is_a_refusal(api: KubeApi) -> None:
    with_typo = make(api, pod={"nodeSelektor": {"a": "b"}})
    (refused,) = with_typo.submit([job(1)])
    assert isinstance(refused, Refused)
    assert (refused.later, "nodeSelektor" in refused.reason) == (False, True)
    (refused,) = make(api).submit([job(1, options={"image": "other"})])
    assert isinstance(refused, Refused)
    assert "executor_options: image 'other' is not among" in refused.reason


@pytest.mark.parametrize(
    ("mishap", "after"),
    [
        (Mishap("POST", JOBS, 503, "ServiceUnavailable", "no etcd", {"Retry-After": "9"}), 9.0),
        (Mishap("POST", JOBS, 403, "Forbidden", 'User "x" cannot create resource "jobs"'), None),
        (Mishap("POST", JOBS, 504, "Timeout", "took too long", done=True), None),
    ],
)
def test_a_server_that_takes_nothing_refuses_no_task(
    executor: KubernetesExecutor, api: KubeApi, mishap: Mishap, after: float | None
) -> None:
    mishap.times = 1
    api.mishaps.append(mishap)
    one = job(1)
    with pytest.raises(ExecutorError, match=f"answered {mishap.status}: ") as error:
        executor.submit([one])
    assert error.value.after == after
    assert executor.find([one.name]) == ({one.name: one.name} if mishap.done else {})
    assert executor.submit([one]) == [Submitted(one.name, one.name)]
    assert len(pods(api)) == 1


def test_a_namespace_that_is_not_there_is_a_trouble(api: KubeApi) -> None:
    with pytest.raises(ExecutorError, match='namespaces "nowhere" not found'):
        make(api, namespace="nowhere").submit([job(1)])


# Questions


def test_all_jobs_are_two_questions_in_pages(executor: KubernetesExecutor, api: KubeApi) -> None:
    api.cluster.starts = False
    executor.submit([job(number) for number in range(50)])
    with api.counted() as asked:
        assert len(executor.observe()) == 50
    assert [path.partition("?")[0].rpartition("/")[2] for _, path in asked] == ["jobs", "pods"]
    assert all("labelSelector=schedd.dev" in path and "limit=500" in path for _, path in asked)
    api.page = 20
    with api.counted() as asked:
        assert len(executor.observe()) == 50
    assert len(asked) == 6


def test_a_list_that_went_out_of_date_begins_anew(executor: KubernetesExecutor, api: KubeApi) -> None:
    api.cluster.starts = False
    executor.submit([job(number) for number in range(6)])
    api.page, api.broken_pages = 4, 1
    assert len({one.name for one in executor.observe()}) == 6
    api.broken_pages = 100
    with pytest.raises(ExecutorError, match="went out of date 3 times"):
        executor.observe()


def test_jobs_of_another_executor_are_not_ours(executor: KubernetesExecutor, api: KubeApi) -> None:
    other = KubernetesExecutor(
        "other",
        KubernetesExecutor.Settings(
            server=api.url, token_file=str(api.token_file), ca_file=str(api.ca_file), namespace="jobs", image=IMAGE
        ),
    )
    api.cluster.starts = False
    executor.submit([job(1)])
    other.submit([job(2)])
    assert [one.name for one in executor.observe()] == ["schedd-0-1-1"]
    assert [one.name for one in other.observe()] == ["schedd-0-2-1"]
    other.close()


def test_too_many_requests_are_told_with_the_time_to_wait(executor: KubernetesExecutor, api: KubeApi) -> None:
    api.mishaps.append(Mishap("GET", "/pods", 429, "TooManyRequests", "slowly", {"Retry-After": "3"}))
    with pytest.raises(ExecutorError, match="answered 429: slowly") as error:
        executor.observe()
    assert error.value.after == 3.0


# Who asks whom


def test_a_token_that_was_replaced_is_read_again(executor: KubernetesExecutor, api: KubeApi) -> None:
    assert executor.observe() == []
    api.tokens = {"second"}
    with pytest.raises(ExecutorError, match=r"does not take the token in .*/token: Unauthorized"):
        executor.observe()
    api.token_file.write_text("second")
    assert executor.observe() == []
    api.token_file.unlink()
    with pytest.raises(ExecutorError, match=r"cannot read .*/token: No such file"):
        executor.observe()


def test_only_the_clusters_own_server_gets_the_token(api: KubeApi, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    stranger = KubeApi(other)
    try:
        with pytest.raises(ExecutorError, match=r"CERTIFICATE_VERIFY_FAILED.*is ca_file that of this server"):
            make(api, ca_file=str(stranger.ca_file)).observe()
        with pytest.raises(ExecutorError, match="CERTIFICATE_VERIFY_FAILED"):
            make(api, ca_file=None).observe()
        with pytest.raises(ExecutorError, match=r"the CA in .* cannot be used"):
            make(api, ca_file=str(tmp_path / "none")).observe()
        with pytest.raises(ExecutorError, match=r"the CA in .* cannot be used"):
            make(api, ca_file=str(api.token_file)).observe()
        assert api.requests == []
        right, ca_file = api.ca_file.read_bytes(), tmp_path / "replaced.crt"
        ca_file.write_bytes(stranger.ca_file.read_bytes())
        replaced = make(api, ca_file=str(ca_file))
        with pytest.raises(ExecutorError, match="CERTIFICATE_VERIFY_FAILED"):
            replaced.observe()
        ca_file.write_bytes(right)
        assert replaced.observe() == []
    finally:
        stranger.close()


def test_a_server_that_is_not_there_is_away(api: KubeApi) -> None:
    with pytest.raises(ExecutorError, match=r"https://127\.0\.0\.1:1: .*Connection refused"):
        make(api, server="https://127.0.0.1:1").observe()
