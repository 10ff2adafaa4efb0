"""Whoever only looks changes no byte of the store and makes no file, whatever the state of the store."""

from __future__ import annotations

import hashlib
import inspect
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest

from scheduler import Context, Scheduler, SchedulerError, task
from scheduler.cli.root import root
from scheduler.operations.verbs import task_verbs
from support.databases import Database
from support.runner import Runner
from support.stored_forms import everything, execute, load

# Commands whose purpose is a change, or a file. Every other one is called here.
CHANGES = {
    *task_verbs(),
    *("run", "submit", "cancel", "retry", "rerun", "copy", "pause", "resume", "set key", "set kind", "set pool"),
    *("set queue", "set task", "bulk plan", "bulk run", "bulk stop", "bulk undo", "dlq purge", "dlq replay"),
    *("cron add", "cron from-apscheduler", "cron import", "cron sync"),
    *("dlq replay-all", "cron backfill", "cron cancel", "cron delete", "cron pause", "cron resume", "cron trigger"),
    *("event emit", "alerts silence", "alerts unsilence", "sources pause", "sources resume", "sources redrive"),
    *("sinks pause", "sinks resume", "worker drain", "worker restart", "worker resume", "gc", "db backup"),
    *("db copy", "db export", "db import", "db upgrade", "inbox release", "console", "mcp"),
    *("init", "service install", "service uninstall"),
}
# They say nothing of the store, or nothing bad.
NO_STORE = {("completion",), ("config", "check"), ("alerts", "test"), ("service", "status")} | {
    (one, "check") for one in ("sources", "sinks", "executors")
}
ARGUMENTS: dict[tuple[str, ...], list[str]] = {
    ("wait",): ["1", "--timeout", "5"],
    ("completion",): ["bash"],
    ("cron", "next"): ["every"],
    ("cron", "runs"): ["every"],
    ("bulk", "show"): ["none"],
    ("dlq", "show"): ["2"],
    ("compare",): ["1", "2"],
}
BESIDE = [("gc", "--dry-run"), ("cancel", "--kind", "quick", "--dry-run"), ("retry", "--kind", "quick", "--dry-run")]


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield path, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        found = command.get_command(context, name)
        assert found is not None
        yield from leaves(found, (*path, name))


def reads() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for path, command in leaves(root):
        if " ".join(path) in CHANGES:
            continue
        needed = [one for one in command.params if isinstance(one, click.Argument) and one.required]
        found.append((*path, *ARGUMENTS.get(path, ["1" for _ in needed])))
    return [*found, *BESIDE]


def files(directory: Path) -> dict[str, Any]:
    """Each file with its digest and times; the index of the write-ahead log is of those that have it open."""
    return {
        str(path.relative_to(directory)): (
            None
            if path.is_dir() or path.name.endswith("-shm")
            else (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        )
        for path in sorted(directory.rglob("*"))
    }


def state(database: Database) -> Any:
    return files(database.path.parent) if database.is_sqlite else everything(database)


def call(database: Database, arguments: tuple[str, ...], place: Path) -> Any:
    environment = {"SCHEDD_STORE__URL": database.url, "SCHEDD_CONFIG": "", "SCHEDD_DEBUG": "", "HOME": str(place)}
    return Runner(env=environment).invoke(root, arguments)


@task
def quick(ctx: Context, n: int = 0) -> int:
    return n


@task
def bad(ctx: Context) -> None:
    raise ValueError("never")


def filled(url: str) -> None:
    with Scheduler(url) as jobs:
        jobs.register(quick)
        jobs.register(bad)
        jobs.result(jobs.task(quick).schedule(), timeout=20)
        jobs.wait(jobs.task(bad).schedule(), timeout=20)
        jobs.task(quick).after(3600).schedule()
        jobs.task(quick).key("every").every(3600).schedule()


@pytest.mark.case(96)
def test_no_command_that_looks_changes_the_store_or_makes_a_file(database: Database, tmp_path: Path) -> None:
    filled(database.url)
    before = state(database)
    for arguments in reads():
        result = call(database, arguments, tmp_path)
        assert "Traceback" not in result.stderr, (arguments, result.output)
        assert result.exit_code in (0, 1, 3, 4) or arguments[:2] in NO_STORE, (arguments, result.output)
        assert state(database) == before, arguments
    assert files(tmp_path) == {}


@pytest.mark.case(96)
def test_beside_an_older_store_each_says_in_one_line_what_to_do(empty_database: Database, tmp_path: Path) -> None:
    load(empty_database)
    before = state(empty_database)
    for arguments in reads():
        result = call(empty_database, arguments, tmp_path)
        assert state(empty_database) == before, arguments
        assert "Traceback" not in result.stderr, (arguments, result.output)
        if arguments[:1] not in NO_STORE and arguments[:2] not in NO_STORE:
            said = [line for line in result.stderr.splitlines() if "schedctl db upgrade" in line]
            assert len(said) == 1, (arguments, result.output)
            assert result.exit_code in (1, 5), arguments
    assert files(tmp_path) == {}


@pytest.mark.case(96)
@pytest.mark.parametrize("command", ["cancel 3", "retry 2", "pause --queue default", "run -- true", "event emit e 1"])
def test_no_command_that_changes_tasks_upgrades_the_store(
    empty_database: Database, tmp_path: Path, command: str
) -> None:
    load(empty_database)
    before = everything(empty_database)
    result = call(empty_database, tuple(command.split()), tmp_path)
    assert (result.exit_code, "schedctl db upgrade" in result.stderr) == (5, True), result.output
    assert everything(empty_database) == before


@pytest.mark.case(96, pure=True)
@pytest.mark.parametrize("empty", [False, True])
def test_where_there_is_no_store_none_is_made(tmp_path: Path, empty: bool) -> None:
    place, home = tmp_path / "store", tmp_path / "home"
    place.mkdir()
    home.mkdir()
    if empty:
        (place / "jobs.db").touch()
    before = files(place)
    for arguments in reads():
        result = call(Database(f"sqlite:///{place}/jobs.db", "sqlite"), arguments, home)
        assert "Traceback" not in result.stderr, (arguments, result.output)
        assert files(place) == before, arguments


_DIES = """
import os, sys
from scheduler import Scheduler
jobs = Scheduler(sys.argv[1])
jobs.submit("quick", {"n": 7})
os._exit(1)
"""


@pytest.mark.case(96, pure=True)
@pytest.mark.parametrize("dialect", ["sqlite"], indirect=True)
def test_what_a_killed_program_left_in_the_log_stays_there(database: Database, tmp_path: Path) -> None:
    """The last connection that may write would bring it into the file."""
    filled(database.url)
    subprocess.run([sys.executable, "-c", _DIES, database.url], check=False)
    assert os.path.getsize(f"{database.path}-wal") > 0
    before = state(database)
    for arguments in (("list",), ("status",), ("doctor",), ("show", "1")):
        assert call(database, arguments, tmp_path).exit_code in (0, 1)
        assert state(database) == before, arguments
    jobs = Scheduler(database.url)
    assert len(jobs.list_tasks()) == 4
    jobs.close()
    assert state(database) == before


# Methods of a Scheduler that change something, run, or are no call. Every other one is called here.
METHODS = {
    *("acting", "add_dependency", "batch", "be_worker_of", "cancel_task", "cancel_tasks", "cleanup_completed_tasks"),
    *("cleanup_events", "cleanup_tasks", "close", "copy_task", "emit_event", "for_testing", "from_config", "gc"),
    *("on_dead_letter", "on_end", "pause", "publish", "reconfigure", "recurring", "register", "release_held", "repair"),
    *(
        "rerun",
        "rerun_tasks",
        "reveal",
        "resume",
        "retry_failed",
        "retry_task",
        "retry_tasks",
        "set_retry_policy",
        "start",
        "start_job",
    ),
    *("starting", "stop", "stop_now", "submit", "task", "uncancel_task", "update_task", "update_tasks"),
}
VALUES: dict[str, Any] = {"task_id": 1, "ids": [1], "at": datetime.now(UTC)}


def looks(jobs: Scheduler) -> None:
    """Call every method that only reads."""
    calls: list[Any] = [jobs.gc, jobs.schedules.list, jobs.dead_letters.list, jobs.bulks.list]
    keywords: list[dict[str, Any]] = [{"dry_run": True}, {}, {}, {}]
    for name, method in inspect.getmembers(Scheduler, inspect.isfunction):
        if name.startswith("_") or name.endswith("_async") or name in METHODS:
            continue
        taken = list(inspect.signature(method).parameters.values())[1:]
        given = {p.name: VALUES[p.name] for p in taken if p.default is p.empty and p.kind is not p.VAR_KEYWORD}
        if "timeout" in inspect.signature(method).parameters:
            given["timeout"] = 0
        calls.append(getattr(jobs, name))
        keywords.append(given)
    assert len(calls) > 25
    for one, given in zip(calls, keywords, strict=True):
        with suppress(SchedulerError, TimeoutError):  # there may be no such store, or no such task
            one(**given)


@pytest.mark.case(96)
def test_no_method_that_reads_changes_the_store(database: Database) -> None:
    filled(database.url)
    before = state(database)
    jobs = Scheduler(database.url)
    looks(jobs)
    jobs.close()
    assert state(database) == before


@pytest.mark.case(96)
@pytest.mark.parametrize("older", [False, True])
def test_no_method_that_reads_makes_or_upgrades_a_store(empty_database: Database, older: bool) -> None:
    """A program that then stores a task does."""
    if older:
        load(empty_database)
        execute(empty_database, "UPDATE schedd_workers SET state = 2")
    before = state(empty_database)
    jobs = Scheduler(empty_database.url, auto_migrate=True)
    jobs.register(quick)
    looks(jobs)
    assert state(empty_database) == before
    made = jobs.task(quick).schedule()
    assert jobs.get_task(made).kind == "quick"
    jobs.close()
