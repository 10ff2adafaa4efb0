"""A verb on a task is three files, by which every door has it: shown by a verb that a copy of the tree gets."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from scheduler import ConfigError, Scheduler, task
from scheduler.cli.root import COMMANDS, root
from scheduler.config.model import ApiSection, Config
from scheduler.console import app, principal
from scheduler.console.api.table import document
from scheduler.console.api.tools import Tools
from scheduler.console.roles import Verb
from scheduler.operations.verbs import task_verbs
from support.consoles import ask, post
from support.runner import Runner

ROOT = Path(__file__).parents[1]
FILES = {
    "operations/verb_postpone.py": '''
from typing import Annotated

from msgspec import Meta

from scheduler.model import state as st
from scheduler.model.state import TaskState
from scheduler.operations.desk import Desk
from scheduler.operations.new_task import Act
from scheduler.operations.verbs import TaskVerb
from scheduler.store import audit


class Postpone(Act, kw_only=True):
    minutes: Annotated[int, Meta(ge=1)]


def postpone(desk: Desk, task_id: int, given: Postpone) -> None:
    """Let a scheduled task run later."""

    def work(tx):
        tx.run(
            f"UPDATE schedd_tasks SET run_at = run_at + :us WHERE id = :id AND state = {st.SCHEDULED}",
            us=given.minutes * 60_000_000,
            id=task_id,
        )
        audit.record(tx, "postpone", tasks=[task_id], minutes=given.minutes)

    desk.write(work)


VERB = TaskVerb(postpone, "retry", {TaskState.SCHEDULED}, "Task {id} runs later.", Postpone)
''',
    "cli/verb_postpone.py": '''
import click

from scheduler.cli.task_verbs import act
from scheduler.cli.options import TASK_ID, acts, common
from scheduler.cli.session import prints


@click.command(name="postpone")
@click.argument("task_id", metavar="ID", type=TASK_ID)
@click.option("--minutes", type=int, required=True)
@acts
@common
@prints(("id", "kind", "state"))
def postpone_command(session, /, task_id, minutes):
    """Let a scheduled task run later."""
    act(session, "postpone", task_id, minutes=minutes)
''',
    "console/templates/verb_postpone.html": """
{% call m.ask("Postpone…", "/tasks/" ~ task.id ~ "/postpone", "retry") %}
<label>Minutes <input name="minutes"></label>
{% endcall %}
""",
}


@task
def Report(ctx: Any) -> None: ...


def show_doors(url: str) -> None:
    """The verb through the client, ``schedctl``, the pages, the API and the tools of agents. Runs in the copy."""
    jobs = Scheduler(url)
    jobs.register(Report)
    made = int(jobs.task(Report).after("1h").schedule())
    begin = jobs.get_task(made).run_at

    def later() -> float:
        return (jobs.get_task(made).run_at - begin).total_seconds() / 60

    name = "postpone_task"
    postpone: Any = getattr(jobs, name)
    postpone(made, minutes=1)
    asyncio.run(getattr(jobs, f"{name}_async")(made, minutes=1))
    with pytest.raises(ConfigError, match="minutes"):
        postpone(made, minutes="1")
    with pytest.raises(ConfigError, match="minutes"):
        postpone(made)
    assert later() == 2

    ran = Runner(env={"SCHEDD_STORE__URL": url}).invoke(
        root, ["postpone", str(made), "--minutes", "4", "--reason", "x"]
    )
    assert (ran.exit_code, "scheduled" in ran.stdout) == (0, True), ran.output
    assert later() == 6

    path = f"/tasks/{made}/postpone"
    for role, allowed in (("viewer", False), ("operator", True)):
        gate = app(jobs, lambda scope, role=role: principal("ada", role), config=Config(api=ApiSection(enabled=True)))
        assert (f'action="{path}"' in ask(gate, "GET", f"/tasks/{made}").text) is allowed
        assert post(gate, path, minutes="8").status == (303 if allowed else 403)
        given = {"body": b'{"minutes": 16}', "headers": {"content-type": "application/json"}}
        found = ask(gate, "POST", f"/api/v1{path}", **given)
        assert found.status == (200 if allowed else 403)
        assert not allowed or found.json["changed"] == [made]
        assert later() == (30 if allowed else 6)
        gate.close()
    described = document()["paths"]["/api/v1/tasks/{id}/postpone"]["post"]
    assert (described["summary"], described["x-role-verb"]) == ("Let a scheduled task run later.", "retry")

    tools = Tools(jobs, Config(), frozenset({Verb.RETRY}))
    plan = msgspec.json.decode(tools.call("plan_postpone", {"id": made, "minutes": 32}, "agent").text)["plan"]
    assert not tools.call("run_plan", {"plan": plan, "reason": "y"}, "agent").wrong
    tools.close()
    assert later() == 62
    entries = [(one.actor, one.via, one.reason) for one in jobs.audit(made, action="postpone")]
    assert [via for _, via, _ in entries] == ["mcp", "api", "page", "cli", "python", "python"], entries
    assert [(by, reason) for by, _, reason in entries][:2] == [("agent", "y"), ("ada", None)]
    assert entries[3][2] == "x"
    jobs.close()


def test_a_verb_is_added_by_three_files(tmp_path: Path) -> None:
    ignored = shutil.ignore_patterns("__pycache__")
    for name in ("schedd", "scheduler", "tasks", "migrations"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
    for name, text in FILES.items():
        (tmp_path / "scheduler" / name).write_text(text, encoding="utf-8")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "tests")])}
    show = f"import test_task_verbs; test_task_verbs.show_doors('sqlite:///{tmp_path}/jobs.db')"
    subprocess.run([sys.executable, "-c", show], cwd=tmp_path, env=environ, check=True, timeout=110)


def test_each_verb_has_its_command_and_a_role() -> None:
    for name, one in task_verbs().items():
        assert COMMANDS[name][0] == f"verb_{name}"
        assert Verb(one.needs)
        assert one.done.format(id=1)
    assert {name.removeprefix("verb_") for name, _ in COMMANDS.values() if name.startswith("verb_")} == {*task_verbs()}
