"""What a task asks of an executor, and the lanes of tasks that executors place."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler import ConfigError, Resources, Task, task
from scheduler.model.lanes import base_lane, executor_of, kind_of, placed_lane
from scheduler.model.placement import job_name
from scheduler.model.resources import parse_resources, read_resources, resources_from_json
from scheduler.model.task import make_options


def test_sizes_are_bytes_once_it_is_made() -> None:
    made = Resources(cpu=1.5, memory="2G", gpu=1, disk=1024)
    assert (made.memory, made.disk) == (2 * 1024**3, 1024)
    assert str(made) == "cpu 1.5, memory 2 GiB, gpu 1, disk 1 KiB"
    assert resources_from_json(made.to_json()) == made
    assert parse_resources({"cpu": 2, "memory": "1M"}) == Resources(cpu=2, memory=1024**2)
    assert read_resources("cpu=2, memory=4G,gpu=1,disk=100") == Resources(cpu=2, memory="4G", gpu=1, disk=100)
    assert (str(Resources()), resources_from_json(None)) == ("none", Resources())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpu": 0}, "cpu must be a number of cores above 0"),
        ({"cpu": True}, "cpu must be a number"),
        ({"cpu": float("nan")}, "cpu must be a number"),
        ({"gpu": 1.5}, "gpu must be a whole number"),
        ({"memory": "much"}, "resources: memory must be a number of bytes"),
        ({"memory": "9" * 5000}, "resources: memory must be a number of bytes"),
        ({"disk": 0}, "resources: disk must be a number of bytes"),
        ({"tpu": 1}, "there is no 'tpu'; there are cpu, memory, gpu, disk"),
        (8, "resources must be a Resources"),
    ],
)
def test_what_makes_no_sense_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_resources(given)


@pytest.mark.parametrize("text", ["2", "cpu", "cpu=two", "gpu=1.5", "memory=4.5"])
def test_resources_on_the_command_line_are_checked(text: str) -> None:
    with pytest.raises(ConfigError):
        read_resources(text)


@pytest.mark.parametrize("name", ["Slurm", "", "a" * 41, "1a", "a b", "a.b", "ä", 7])
def test_an_executor_has_a_name_that_fits_everywhere(name: Any) -> None:
    with pytest.raises(ConfigError, match=r"task type T: executor must be the name of \[executors.NAME\]"):
        make_options("T", {"executor": name})


def test_options_of_a_type_are_checked_when_it_is_made() -> None:
    made = make_options(
        "T", {"executor": "k8s-big_1", "resources": {"cpu": 1}, "executor_options": {"partition": "gpu"}}
    )
    assert (made.executor, made.resources, made.executor_options) == ("k8s-big_1", '{"cpu":1}', '{"partition":"gpu"}')
    assert make_options("T", {"executor": "local"}).executor is None
    for wrong, message in (
        ([1], "mapping"),
        ({1: 2}, "mapping"),
        ({"a": object()}, "is not JSON"),
        ({"a": "x" * 20000}, "bytes"),
    ):
        with pytest.raises(ConfigError, match=f"task type T: executor_options .*{message}"):
            make_options("T", {"executor_options": wrong})


def test_classes_and_functions_take_them() -> None:
    class Train(Task, executor="batch", resources=Resources(cpu=2)):
        def run(self, ctx: Any) -> None: ...

    @task(executor="batch", resources={"gpu": 1})
    def infer(ctx: Any) -> None: ...

    assert (Train.__task_options__.executor, Train.__task_options__.resources) == ("batch", '{"cpu":2}')
    assert infer.task_options.resources == '{"gpu":1}'


def test_a_lane_says_the_executor_the_kind_and_the_key() -> None:
    lane = placed_lane("slurm", "Train\x1fa\x1fb")
    for one in (lane, f"!{lane}"):
        assert (executor_of(one), kind_of(one), base_lane(one)) == ("slurm", "Train", "Train\x1fa\x1fb")
    for one in ("Train\x1fa", "!Train\x1fa"):
        assert (executor_of(one), kind_of(one), base_lane(one)) == (None, "Train", "Train\x1fa")
    assert placed_lane(None, "Train") == "Train"


def test_a_job_has_a_name_for_every_engine() -> None:
    name = job_name("5005A013-fb2c-4f5e-8a3e-0123456789ab", 2**63 - 1, 2**63 - 1)
    assert name == f"schedd-5005a013-{2**63 - 1}-{2**63 - 1}"
    assert len(name) <= 63
