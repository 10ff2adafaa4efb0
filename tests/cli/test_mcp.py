"""``schedctl mcp``: a child process on the standard streams, asked by the SDK's own client."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler
from scheduler.config.model import Config
from scheduler.console.api.table import ROUTES
from scheduler.console.api.tools import MOST_TEXT, Tools
from scheduler.console.roles import BUILT_IN, Verb
from support.databases import Database, one_database
from support.filled import Filled, fill

from .conftest import PROGRAM, Ctl

pytestmark = pytest.mark.needs("the SDK of MCP")
SECRETS = ("hunter2", "secret-of-url", "a-token-of-ours", "Bearer abcdef")
PATIENCE = 60


class Agent:
    """A client of one server."""

    def __init__(self, client: Any) -> None:
        self.client = client

    async def ask(self, tool: str, **given: Any) -> Any:
        found = await self.client.call_tool(tool, given)
        assert not found.is_error, (tool, found.content[0].text)
        return json.loads(found.content[0].text)

    async def refused(self, tool: str, **given: Any) -> str:
        found = await self.client.call_tool(tool, given)
        assert found.is_error, (tool, found.content[0].text)
        return str(found.content[0].text)

    async def names(self) -> set[str]:
        return {one.name for one in (await self.client.list_tools()).tools}


def talk(ctl: Ctl, talking: Callable[[Agent], Awaitable[None]], *options: str, mode: str = "auto") -> None:
    """Start the server, and talk with it."""
    from mcp import types
    from mcp.client.client import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    started = StdioServerParameters(command=PROGRAM[0], args=[*PROGRAM[1:], "mcp", *options], env=dict(ctl.environment))

    async def main() -> None:
        info = types.Implementation(name="tester", version="1")
        errors = sys.__stderr__  # not that of a test's command, which has no descriptor
        assert errors is not None
        async with Client(stdio_client(started, errlog=errors), client_info=info, mode=mode) as client:
            await asyncio.wait_for(talking(Agent(client)), PATIENCE)

    asyncio.run(main())


@pytest.fixture
def full(database: Database) -> Filled:
    return fill(database.url)


@pytest.mark.both_databases
def test_an_agent_looks_and_changes_nothing(full: Filled, ctl: Ctl) -> None:
    before = ctl.json("audit")

    async def talking(agent: Agent) -> None:
        there = (await agent.client.list_tools()).tools
        assert {one.name for one in there} == {route.call.__name__ for route in ROUTES if route.method == "GET"}
        assert all(one.annotations.read_only_hint and not one.annotations.destructive_hint for one in there)
        assert all(one.description.endswith(".") for one in there)
        for one in there:
            given = {"id": full.dead, "name": full.bulk}
            text = json.dumps(await agent.ask(one.name, **{k: given[k] for k in one.input_schema["required"]}))
            assert not [secret for secret in SECRETS if secret in text], f"{one.name} shows a secret"
        shown = await agent.ask("show_task", id=full.dead)
        assert (shown["state"], shown["payload"]["password"]) == ("dead", "***")
        assert str(full.dead) in (await agent.ask("why", id=full.waiting))["why"]
        assert [one["kind"] for one in (await agent.ask("list_dead_letters"))["groups"]] == ["Mail"]
        logs = await agent.ask("show_logs", id=full.retried)
        assert "TimeoutError: no answer within 5 s" in logs["attempts"][0]["text"]
        assert (await agent.ask("show_graph", id=full.waiting))["edges"]
        assert [one["name"] for one in (await agent.ask("forecast", hours=24))["schedules"]] == ["nightly"]
        assert (await agent.ask("status"))["by_hand"]
        assert "there is no tool plan_retry" in (await agent.refused("plan_retry", ids=[full.dead])).lower()
        assert "is masked" in await agent.refused("list_tasks", filter="payload.password:hunter2")

    talk(ctl, talking)
    assert ctl.json("audit") == before


@pytest.mark.both_databases
def test_an_agent_changes_by_a_plan_then_its_run(full: Filled, ctl: Ctl) -> None:
    async def talking(agent: Agent) -> None:
        planned = await agent.ask("plan_cancel", ids=[full.scheduled], reason="not needed")
        assert planned["would"]["total"] == 1
        assert (await agent.ask("show_task", id=full.scheduled))["state"] == "scheduled"
        done = await agent.ask("run_plan", plan=planned["plan"])
        assert (done["state"], done["done"]) == ("done", 1)
        assert (await agent.ask("show_task", id=full.scheduled))["state"] == "cancelled"
        undo = await agent.ask("plan_undo_bulk", name=planned["plan"])
        assert (await agent.ask("show_task", id=full.scheduled))["state"] == "cancelled"
        assert (await agent.ask("run_plan", plan=undo["plan"]))["done"] == 1
        assert (await agent.ask("show_task", id=full.scheduled))["state"] == "scheduled"

        planned = await agent.ask("plan_pause", queues=["photos"], reason="the disk is full")
        assert [one["name"] for one in await agent.ask("list_pauses")] == ["slow"]
        assert (await agent.ask("run_plan", plan=planned["plan"]))["changed"] == ["queue photos"]
        assert "no bulk" in await agent.refused("run_plan", plan=planned["plan"])

        planned = await agent.ask("plan_change", filter=f"id:{full.scheduled}", priority="high")
        assert planned["would"]["changed"] == [full.scheduled]
        assert (await agent.ask("show_task", id=full.scheduled))["priority"] == "medium"
        await agent.ask("run_plan", plan=planned["plan"])
        assert (await agent.ask("show_task", id=full.scheduled))["priority"] == "high"

    talk(ctl, talking, "--allow", "operator")
    entries = [one for one in ctl.json("audit") if one["via"] == "mcp"]
    assert len(entries) >= 4
    assert {re.sub(r" of .*", "", one["actor"]) for one in entries} == {"tester (agent"}
    assert "the disk is full" in {one["reason"] for one in entries}


def test_an_older_client_has_only_what_is_allowed(full: Filled, ctl: Ctl) -> None:
    with Scheduler(full.url) as jobs:
        bulk = jobs.bulks.create("cancel", kind="Resize").name

    async def talking(agent: Agent) -> None:
        changing = {name for name in await agent.names() if name.startswith("plan_")}
        assert changing == {"plan_retry", "plan_rerun"}
        assert "which --allow does not include" in await agent.refused("run_plan", plan=bulk)
        assert "which --allow does not include" in await agent.refused("stop_bulk", name=bulk)
        planned = await agent.ask("plan_retry", filter="kind:Mail state:dead")
        assert (await agent.ask("run_plan", plan=planned["plan"]))["done"] == 1

    talk(ctl, talking, "--allow", "retry", mode="legacy")
    assert ctl.json("show", full.dead)["state"] == "scheduled"


def test_the_skill_is_a_resource(database: Database, ctl: Ctl) -> None:
    async def talking(agent: Agent) -> None:
        (one,) = (await agent.client.list_resources()).resources
        (read,) = (await agent.client.read_resource(one.uri)).contents
        assert "# Writing tasks for schedd" in read.text

    talk(ctl, talking)


def test_what_may_be_allowed_is_said(ctl: Ctl) -> None:
    assert "--allow nosuch: there are viewer, operator, admin, look, retry" in ctl.fails(2, "mcp", "--allow", "nosuch")


def test_a_missing_package_is_named(ctl: Ctl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.cli.console.find_spec", lambda name: None if name == "mcp" else sys)
    assert "schedctl mcp needs mcp: pip install 'schedd[mcp]'" in ctl.fails(2, "mcp")


def test_each_route_is_a_tool_or_the_step_of_one(full: Filled) -> None:
    with Scheduler(full.url) as jobs:
        every = Tools(jobs, Config(), frozenset(BUILT_IN["admin"]))
        names = list(every.tools)
        assert len(set(names)) == len(names)
        changing = {f"plan_{name}" for name in ("cancel", "retry", "rerun", "replay", "purge", "undo_bulk")}
        own = {
            f"plan_{route.call.__name__}"
            for route in ROUTES
            if route.method == "POST" and hasattr(route.call, "__name__") and route.verb is not Verb.PURGE
        }
        assert {name for name in names if name.startswith("plan_")} == changing | own
        for tool in every.tools.values():
            assert tool.looks or "reason" in tool.schema["properties"], tool.name
            assert set(re.findall(r"#/\$defs/(\w+)", json.dumps(tool.schema))) <= set(tool.schema.get("$defs", ()))


@one_database
def test_wrong_arguments_and_long_answers_are_refused(full: Filled, monkeypatch: pytest.MonkeyPatch) -> None:
    with Scheduler(full.url) as jobs:
        tools = Tools(jobs, Config(), frozenset({Verb.RETRY}))

        def refused(tool: str, **given: Any) -> str:
            found = tools.call(tool, given, "tester")
            assert found.wrong, found
            return found.text

        assert "limit: expected `int` <= 500. list_tasks takes limit, cursor, filter" in refused(
            "list_tasks", limit=501
        )
        assert "contains unknown field `kind`" in refused("list_tasks", kind="Mail")
        assert "id: expected `int`, got `null`" in refused("why")
        assert "id: expected `int`, got `str`" in refused("why", id="1")
        assert "there is no task 99" in refused("why", id=99)
        assert "say which tasks: by ids or by filter" in refused("plan_retry")
        assert "A text has a NUL or half a surrogate pair in it" in refused("list_tasks", filter="a\0b")
        monkeypatch.setattr("scheduler.console.api.tools.MOST_TEXT", 100)
        assert re.search(r"The answer has \d+ characters: ask for less", refused("list_tasks"))
        assert MOST_TEXT > 100


def test_agents_files_lie_in_the_package() -> None:
    import scheduler

    place = Path(scheduler.__file__).parent
    assert "skills/schedd/SKILL.md" in (place / "AGENTS.md").read_text()
    head = (place / "skills" / "schedd" / "SKILL.md").read_text().split("---")[1]
    assert re.search(r"^name: schedd$", head, re.MULTILINE)
    assert re.search(r"^description: .{100,1024}$", head, re.MULTILINE)
