"""What verbs tell of what they leave: stale outcomes, copies beside unique tasks, changes that change nothing."""

from __future__ import annotations

import html
import logging
from collections.abc import Callable

import pytest

from scheduler import Context, Task, Unique, UnknownTaskError
from scheduler.client import dead_letters
from scheduler.store.admin.retention import purge_batch
from scheduler.store.read.status import status
from scheduler.store.tasks import stale
from scheduler.testing import drain
from support.bench import Bench
from support.consoles import ask, console_on, post

from .conftest import Ctl


class Sync(Task, kind="told.Sync", unique=Unique(by=("order",))):
    order: int

    def run(self, ctx: Context) -> int:
        return self.order


def mended_graph(live: Bench) -> tuple[int, int, int]:
    """A dead task, a report that ran on its failure, and what came after the report."""
    (dead,) = live.die("load")
    report = int(live.step("report", dead, when="finished").schedule())
    mail = int(live.step("mail", report).schedule())
    live.drain()
    assert live.states(dead, report, mail) == ["dead", "success", "success"]
    live.script.failing.clear()
    return dead, report, mail


@pytest.mark.parametrize("command", [("retry",), ("dlq", "replay")])
def test_what_ran_on_the_old_outcome_is_named(ctl: Ctl, live: Bench, command: tuple[str, ...]) -> None:
    dead, report, mail = mended_graph(live)
    result = ctl(*command, dead)
    assert f"task {report} ran on the old outcome: `--rerun`" in result.stderr
    assert live.states(report, mail) == ["success", "success"]


@pytest.mark.parametrize("command", [("retry",), ("dlq", "replay")])
def test_rerun_has_it_run_again_after_the_task(ctl: Ctl, live: Bench, command: tuple[str, ...]) -> None:
    dead, report, mail = mended_graph(live)
    result = ctl(*command, "--rerun", dead)
    assert f"task {report} had run on the old outcome, and will run again" in result.stderr
    assert live.states(report, mail) == ["waiting", "waiting"]
    assert live.drain() == ["load", "report", "mail"]


@pytest.mark.parametrize("command", [("retry", "--kind", "Step"), ("dlq", "replay-all")])
def test_what_ran_on_the_old_outcomes_of_many_is_named(ctl: Ctl, live: Bench, command: tuple[str, ...]) -> None:
    _, report, _ = mended_graph(live)
    result = ctl(*command)
    assert result.exit_code == 0, result.output
    assert f"task {report} ran on the old outcome: `schedctl rerun {report}`" in result.stderr
    live.drain()
    assert "old outcome" not in ctl(*command).stderr


@pytest.mark.parametrize("verb", ["retry", "rerun", "replay"])
def test_a_bulk_names_it_at_its_end_and_later(ctl: Ctl, live: Bench, verb: str) -> None:
    dead, report, mail = mended_graph(live)
    given = ["--status", "dead", "--no-downstream"] if verb == "rerun" else []
    name = ctl.json("bulk", "plan", verb, "--kind", "Step", *given)["name"]
    result = ctl("bulk", "run", name)
    assert live.state(dead) != "dead", result.output
    assert f"task {report} ran on the old outcome: `schedctl rerun {report}`" in result.stderr
    live.drain()
    with console_on(live.database) as gate:
        assert f"Task {report} ran on the old outcome" in ask(gate, "GET", f"/bulks/{name}").text
        assert ask(gate, "GET", f"/bulks/{name}.json").json["stale"] == [report]
    live.jobs.rerun(report)
    live.drain()
    with console_on(live.database) as gate:
        assert ask(gate, "GET", f"/bulks/{name}.json").json["stale"] == []
    assert live.state(mail) == "success"


def three_reports(live: Bench) -> tuple[int, list[int]]:
    dead, report, _ = mended_graph(live)
    more = [int(live.step(f"more {n}", dead, when="finished").schedule()) for n in range(2)]
    live.drain()
    return dead, [report, *more]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks are looked at."""
    monkeypatch.setattr(stale, "_MOST", 2)


CUT = "ran on the old outcome, and perhaps others, as the first 2 tasks were looked at"


@pytest.mark.parametrize("command", [("retry",), ("retry", "--kind", "Step"), ("dlq", "replay"), ("dlq", "replay-all")])
def test_a_look_that_ends_early_says_so(few: None, ctl: Ctl, live: Bench, command: tuple[str, ...]) -> None:
    dead, reports = three_reports(live)
    result = ctl(*command, *([dead] if len(command) == 1 or command[1] == "replay" else []))
    assert f"tasks {reports[0]}, {reports[1]} {CUT}" in result.stderr


@pytest.mark.parametrize("command", [("retry",), ("dlq", "replay")])
def test_rerun_reaches_all_however_many(few: None, ctl: Ctl, live: Bench, command: tuple[str, ...]) -> None:
    dead, reports = three_reports(live)
    assert "perhaps" not in ctl(*command, "--rerun", dead).stderr
    assert live.states(*reports) == ["waiting"] * 3


def test_programs_and_pages_say_that_a_look_ended_early(
    few: None, ctl: Ctl, live: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    dead, reports = three_reports(live)
    live.jobs.retry_task(dead)
    assert f"tasks {reports[0]}, {reports[1]} {CUT}; 0 have no line of their own" in caplog.text
    live.drain()
    name = ctl.json("bulk", "plan", "rerun", "--status", "success", "--no-downstream", "kind:Step")["name"]
    result = ctl("bulk", "run", name)
    assert "the first 2 tasks were looked at" in result.stderr
    with console_on(live.database) as gate:
        assert "first 2 tasks were looked at" in ask(gate, "GET", f"/bulks/{name}").text
        assert ask(gate, "GET", f"/bulks/{name}.json").json["stale_more"] is True
        live.drain()
        done = post(gate, f"/tasks/{dead}/rerun.json", alone="1").json
    assert CUT in done["done"]
    assert done["data"]["stale_more"] is True


def test_a_program_says_so_many_in_one_line(
    monkeypatch: pytest.MonkeyPatch, live: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dead_letters, "_SAID", 1)
    dead, _ = three_reports(live)
    live.jobs.retry_task(dead)
    assert caplog.text.count("it ran on the old end of a task that runs again") == 1
    assert "2 have no line of their own" in caplog.text


@pytest.mark.parametrize("verb", ["retry", "replay"])
def test_a_page_names_it(live: Bench, verb: str) -> None:
    dead, report, _ = mended_graph(live)
    with console_on(live.database) as gate:
        done = post(gate, f"/tasks/{dead}/{verb}.json").json
    assert f"Task {report} ran on the old outcome" in done["done"]
    assert done["data"]["stale"] == [report]


def test_programs_are_told_of_many(live: Bench, caplog: pytest.LogCaptureFixture) -> None:
    def again() -> list[int]:
        live.script.failing.add("load")
        live.drain()
        caplog.clear()
        return []

    _, report, _ = mended_graph(live)
    with caplog.at_level(logging.WARNING):
        for change in (
            lambda: live.jobs.retry_failed(kind="Step"),
            lambda: live.jobs.dead_letters.replay_all(kind="Step"),
            lambda: live.jobs.bulks.run(live.jobs.bulks.create("retry", kind=["Step"]).name),
        ):
            caplog.clear()
            change()
            told = [one.task for one in caplog.records if "ran on the old end" in one.getMessage()]  # type: ignore[attr-defined]
            assert told == [report]
            again()


def test_python_says_and_does_the_same(live: Bench, caplog: pytest.LogCaptureFixture) -> None:
    dead, report, mail = mended_graph(live)
    with caplog.at_level(logging.WARNING):
        live.jobs.retry_task(dead)
    assert any("ran on the old end" in record.getMessage() and record.task == report for record in caplog.records)  # type: ignore[attr-defined]
    live.script.failing.add("load")
    live.drain()
    live.script.failing.clear()
    live.jobs.dead_letters.replay(dead, rerun=True)
    assert live.states(report, mail) == ["waiting", "waiting"]


def test_a_copy_beside_a_unique_task_is_told(ctl: Ctl, live: Bench) -> None:
    live.jobs.register(Sync)
    drain(live.jobs)
    made = int(live.jobs.task(Sync(1)).after(60).schedule())
    assert "runs beside" in ctl("copy", made).stderr
    result = ctl("copy", made, "-P", "order:=2")
    assert result.exit_code == 0
    assert "beside" not in result.stderr
    refused = ctl("copy", made, "-P", "order:=2")
    assert refused.exit_code == 4
    assert f"is held by task {result.stdout.strip()}" in refused.stderr
    assert ctl("set", "task", made, "-P", "order:=2").exit_code == 4


def test_a_rerun_of_a_keyed_success_says_that_it_completes_again(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("once").key("order-1").schedule())
    live.drain()
    result = ctl("rerun", made)
    assert result.exit_code == 0
    assert f"`schedctl copy {made}`" in result.stderr


def test_a_change_that_changes_nothing_is_told(ctl: Ctl, live: Bench) -> None:
    made = int(live.step("later").after(600).schedule())
    live.drain()
    before = len(live.jobs.audit(made))
    for change in (("--priority", "medium"), ("-P", "name=later")):
        result = ctl("set", "task", made, *change)
        assert result.exit_code == 0, result.output
        assert f"task {made} had these values already" in result.stderr
    assert not live.jobs.update_task(made, queue="default")
    assert len(live.jobs.audit(made)) == before
    assert live.jobs.update_task(made, queue="other")
    assert len(live.jobs.audit(made)) == before + 1


def test_an_uncancel_is_its_own_verb_in_the_audit(live: Bench) -> None:
    made = int(live.step("later").after(600).schedule())
    live.jobs.cancel_task(made)
    live.jobs.uncancel_task(made)
    assert [entry.action for entry in live.jobs.audit(made)] == ["uncancel", "cancel"]


def test_what_retention_removed_says_how_it_ended(ctl: Ctl, live: Bench) -> None:
    (dead,) = live.die("gone")
    live.execute("UPDATE schedd_tasks SET finished_at = finished_at - 100000000000000")
    kept = dict.fromkeys(("success", "failed"), 1.0) | dict.fromkeys(("outcomes", "events", "results", "audit"), 1e9)
    live.jobs.database.change(lambda tx: purge_batch(tx, kept))
    text = ctl.fails(3, "show", dead)
    assert f"there is no task {dead} any more: it ended as dead, and retention removed it at " in text
    with pytest.raises(UnknownTaskError, match="ended as dead"):
        live.jobs.get_task(dead)


DOORS: dict[str, Callable[[Ctl, Bench, int], object]] = {
    **{
        " ".join(command): lambda ctl, _, task, command=command: ctl.fails(3, *command, task)
        for command in (
            *(("show",), ("why",), ("logs",), ("graph",), ("cancel",), ("retry",), ("rerun",), ("wait",)),
            *(("dlq", "replay"), ("dlq", "show"), ("copy",), ("set", "task", "--priority", "high"), ("compare",)),
        )
    },
    **{
        f"jobs.{name}": lambda _, live, task, name=name: raised(lambda: getattr(live.jobs, name)(task))
        for name in (
            *("get_task", "get_task_status", "get_attempts", "progress", "get_retry_count", "get_last_error"),
            *("get_dependents", "get_task_dependencies", "cancel_task", "retry_task", "rerun", "copy_task", "logs"),
        )
    },
    "jobs.dead_letters.replay": lambda _, live, task: raised(lambda: live.jobs.dead_letters.replay(task)),
    "jobs.result": lambda _, live, task: raised(lambda: live.jobs.result(task, timeout=0)),
    "the page": lambda _, live, task: page_of(live, task),
    "a button": lambda _, live, task: page_of(live, task, "retry.json"),
}


def raised(call: Callable[[], object]) -> str:
    with pytest.raises(UnknownTaskError) as caught:
        call()
    return str(caught.value)


def page_of(live: Bench, task: int, verb: str = "") -> str:
    with console_on(live.database) as gate:
        answer = post(gate, f"/tasks/{task}/{verb}") if verb else ask(gate, "GET", f"/tasks/{task}")
    assert answer.status == 404
    return html.unescape(answer.text)


@pytest.mark.parametrize("door", DOORS)
def test_each_door_says_that_retention_removed_a_task(ctl: Ctl, live: Bench, door: str) -> None:
    """Its outcome is forgotten, too. An id that was never given is none of these."""
    (dead,) = live.die("gone")
    later = live.ended("success")
    for table in ("schedd_attempts WHERE task_id", "schedd_tasks WHERE id"):
        live.execute(f"DELETE FROM {table} = {dead}")
    text = DOORS[door](ctl, live, dead)
    assert f"there is no task {dead} any more: ids up to {later} have been given" in str(text)
    assert "any more" not in str(DOORS[door](ctl, live, later + 1))


def test_submit_has_what_the_builder_has(ctl: Ctl, live: Bench) -> None:
    live.drain()
    options = (
        "--headers",
        '{"a": 1}',
        "--message-type",
        "m",
        "--causation",
        "c",
        "--sequence",
        "-7",
        "--payload-ref",
        "s3://x",
    )
    made = ctl.json("submit", "Step", "-P", "name=x", *options, "--max-duration", "1h", "--max-delay", "30m")["id"]
    task = live.jobs.get_task(made)
    assert (task.message_type, task.causation, task.sequence, task.payload_ref) == ("m", "c", -7, "s3://x")
    assert (task.max_duration, task.max_delay) == (3_600_000_000, 1_800_000_000) or task.max_duration is not None
    cron = ("--cron", "0 3 * * *", "--catch-up", "all", "--overlap", "skip", "--key", "nightly")
    assert ctl.json("submit", "Step", "-P", "name=x", *cron)["schedule"] == "nightly"
    (schedule,) = ctl.json("cron", "list")
    assert (schedule["catchup"], schedule["overlap"]) == ("all", "skip")
    assert "belongs to --cron" in ctl.fails(2, "submit", "Step", "-P", "name=x", "--catch-up", "all")
    ctl.fails(2, "submit", "Step", "-P", "name=x", "--max-delay", "0")


def test_all_tasks_one_after_the_other(live: Bench) -> None:
    made = [int(live.step(f"s{number}").schedule()) for number in range(7)]
    page = live.jobs.list_tasks("Pending", limit=5)
    assert (len(page), page.more) == (5, True)
    assert [task.id for task in live.jobs.iter_tasks("Pending", page=3)] == made[::-1]
    assert list(live.jobs.iter_tasks("success")) == []


def test_pools_that_are_not_counted_to_their_end_say_so(live: Bench) -> None:
    for number in range(4):
        live.step(f"s{number}").schedule()
    with live.jobs.database.read() as tx:
        assert "pools" in status(tx, 3).capped
        assert "pools" not in status(tx, 10).capped
