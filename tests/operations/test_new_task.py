"""The options of a new task are the same, and mean the same, at each door."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
import pytest

from scheduler import ConfigError, PayloadError, RetryPolicy, Scheduler, Task
from scheduler.cli.task_options import options_of, read_options, spelled
from scheduler.client.builder import TaskBuilder
from scheduler.console.api.arguments import Submit
from scheduler.model.task import TaskOptions
from scheduler.operations.new_task import Act, NewTask, PlacedTask, set_options
from support.runner import Runner

OPTIONS = tuple(name for name in NewTask.__struct_fields__ if name not in Act.__struct_fields__)
# As it is given to the API, to schedctl, and to the builder.
GIVEN: dict[str, tuple[Any, str, Any]] = {
    "after": ("90m", "1h30m", 5400),
    "retry": (3, "3", RetryPolicy(2, 60, 4, 3, 0.5, "exponential")),
    "retry_wait": (2, "2s", None),
    "retry_max_wait": ("1m", "1m", None),
    "retry_strategy": ("exponential", "exponential", None),
    "retry_factor": (3, "3", None),
    "retry_jitter": (0.5, "0.5", None),
    "priority": ("low", "LOW", "low"),
    "key": ("k", "k", "k"),
    "conflict": ("replace", "replace", None),
    "key_retention": ("7d", "7d", None),
    "rank": (3, "3", 3),
    "fairness_key": ("ada", "ada", "ada"),
    "fairness_weight": (2, "2", 2),
    "queue": ("q", "q", "q"),
    "timeout": (90, "90", 90),
    "correlation": ("c", "c", "c"),
    "subject": ("s", "s", "s"),
    "headers": ({"a": 1}, '{"a": 1}', {"a": 1}),
    "message_type": ("m", "m", "m"),
    "causation": ("x", "x", "x"),
    "sequence": (-5, "-5", -5),
    "payload_ref": ("s3://b/k", "s3://b/k", "s3://b/k"),
    "max_duration": ("1h", "1h", 3600),
    "max_delay": (60, "1m", 60),
}


class Ranked(Task, ranked=True):
    def run(self, ctx: Any) -> None: ...


def builder() -> TaskBuilder[Any]:
    jobs = Scheduler("sqlite:///unused.db")
    jobs.register(Ranked)
    return jobs.task(Ranked())


def from_command(*arguments: str) -> PlacedTask:
    """The options that a command with these arguments gets."""
    got: list[PlacedTask] = []
    command = click.command()(options_of(PlacedTask)(lambda **given: got.append(read_options(PlacedTask, given))))
    done = Runner().invoke(command, arguments)
    assert done.exit_code == 0, done.output
    return got[0]


def test_each_option_is_at_each_door() -> None:
    assert set(OPTIONS) == {*GIVEN, "depends_on", "at"}
    assert set(OPTIONS) <= set(Submit.__struct_fields__)
    shown = Runner().invoke(click.command()(options_of(PlacedTask)(lambda **_: None)), ["--help"]).stdout
    assert all(f"{spelled(name)} " in shown for name in PlacedTask.__struct_fields__ if name != "reason")
    retries = {name for name in OPTIONS if name.startswith("retry")}
    for name in set(OPTIONS) - retries - {"depends_on", "conflict", "key_retention"}:
        assert callable(getattr(TaskBuilder, name)), name


def test_the_same_option_makes_the_same_task() -> None:
    usual = builder()._spec
    sent = {"kind": "Ranked", **{name: value for name, (value, _, _) in GIVEN.items()}}
    by_api = msgspec.json.decode(json.dumps(sent), type=Submit)
    by_command = from_command(*(f"{spelled(name)}={text}" for name, (_, text, _) in GIVEN.items()))
    built = builder().key("k", conflict="replace", retention="7d").with_retry(GIVEN["retry"][2])
    for name, (_, _, value) in GIVEN.items():
        if value is not None and name not in ("key", "retry"):
            getattr(built, name)(value)
    for given in (by_api, by_command):
        made = msgspec.structs.replace(usual)
        set_options(made, given, TaskOptions(kind="Ranked", ranked=True))
        made.edges = ()
        assert made == built._spec
    changed = {name for name in usual.__struct_fields__ if getattr(usual, name) != getattr(built._spec, name)}
    assert {"lane", "retry", "max_attempts", "headers", "delay", "timeout"} <= changed


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (NewTask(after=1, at=datetime.now(UTC)), ConfigError, "--in and --at exclude each other"),
        (NewTask(retry_jitter=0.1), ConfigError, "--retry-jitter belongs to --retry"),
        (NewTask(conflict="reject"), ConfigError, "--conflict belongs to --key"),
        (NewTask(retry=1, retry_factor=0.5), ConfigError, "factor must be a number of at least 1"),
        (NewTask(retry=1, retry_wait="1h", retry_max_wait=60), ConfigError, "raise max_wait or lower min_wait"),
        (NewTask(subject=""), PayloadError, "subject is a text of 1 to 255 characters"),
        (NewTask(rank=1), ConfigError, "has no ranks"),
    ],
)
def test_options_that_cannot_be(wrong: NewTask, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        set_options(builder()._spec, wrong, TaskOptions(kind="T"), spelled)
