"""Which part of the suite ``make programs`` runs: on SQLite; ``make executors`` runs it on PostgreSQL, too. With
engines that only ``make executors`` has, ``.ci/run`` tries a part of it: one test of each way that a job may take.
``make programs`` runs that part of ``futures`` and ``process``, too, whose jobs are executed one by one. All of it
runs on ``warm``, which forks jobs, but for those behind a gate: the shell of ``process`` executes them."""

import pytest

EXECUTED = ("futures", "process")
# None, or the one row of a test with several.
IN_EVERY_RUN = {
    "test_jobs_run_and_record": None,
    "test_a_submission_without_an_answer_is_looked_for": "answer",
    "test_a_daemon_that_is_killed_loses_and_doubles_nothing": "after submit",
    "test_a_job_that_is_killed_runs_again": "in the body",
    "test_a_job_that_the_engine_forgets_goes_on": None,
    "test_what_waits_in_the_engine_is_cancelled_at_once": None,
    "test_a_job_that_hears_nothing_is_ended_by_the_engine": None,
    "test_a_preempted_task_uses_no_attempt": None,
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "executors/conformance/" not in item.nodeid or item.get_closest_marker("kube"):  # make kube runs all
            continue
        row = item.nodeid.rpartition("[")[2]
        in_part = any(f"-{rig}" in row for rig in EXECUTED) and not _is_in_every_run(item)
        if "postgresql" in row or in_part:
            item.add_marker(pytest.mark.executors)
        if item.get_closest_marker("executors") and not _is_in_every_run(item):
            item.add_marker(pytest.mark.full)


def _is_in_every_run(item: pytest.Item) -> bool:
    assert isinstance(item, pytest.Function)
    row = IN_EVERY_RUN.get(item.originalname, "no such row")
    return row is None or row in item.callspec.params.values()
