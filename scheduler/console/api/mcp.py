"""Serves the tools of one agent over the standard streams, by the SDK of the Model Context Protocol."""

from __future__ import annotations

from functools import partial
from importlib import resources
from typing import Any

import anyio
import anyio.to_thread
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from scheduler import __version__
from scheduler.console.api.tools import Tools
from scheduler.model.texts import storable

SKILL = "schedd://skill"
_CLIENT = 100  # characters of the name of an agent


def skill() -> str:
    """How to write tasks, for agents."""
    return resources.files("scheduler").joinpath("skills", "schedd", "SKILL.md").read_text("utf-8")


def serve(tools: Tools, user: str) -> None:
    """Serve until the client closes the streams. ``user``: in whose name the agent acts."""
    anyio.run(_serve, tools, user)


async def _serve(tools: Tools, user: str) -> None:
    one_by_one = anyio.CapacityLimiter(1)

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=list(map(_described, tools.tools.values())))

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        by = f"{_name_of(ctx)} (agent of {user})"
        call = partial(tools.call, params.name, params.arguments or {}, by)
        found = await anyio.to_thread.run_sync(call, limiter=one_by_one)
        return types.CallToolResult(content=[types.TextContent(text=found.text)], is_error=found.wrong)

    async def list_resources(ctx: Any, params: Any) -> types.ListResourcesResult:
        made = types.Resource(uri=SKILL, name="How to write tasks for schedd", mime_type="text/markdown")
        return types.ListResourcesResult(resources=[made])

    async def read_resource(ctx: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
        if str(params.uri) != SKILL:
            raise ValueError(f"there is no resource {params.uri}; there is {SKILL}")
        text = types.TextResourceContents(uri=SKILL, mime_type="text/markdown", text=skill())
        return types.ReadResourceResult(contents=[text])

    server: Server[Any] = Server(
        "schedd",
        version=__version__,
        instructions=tools.instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
    )
    async with stdio_server() as (given, taken):
        await server.run(given, taken, server.create_initialization_options())


def _described(tool: Any) -> types.Tool:
    hints = types.ToolAnnotations(read_only_hint=tool.looks, destructive_hint=not tool.looks, open_world_hint=False)
    return types.Tool(name=tool.name, description=tool.text, input_schema=tool.schema, annotations=hints)


def _name_of(ctx: Any) -> str:
    """The name that the client gives itself."""
    given = ctx.session.client_params
    name = "" if given is None else storable(given.client_info.name).strip()
    return name[:_CLIENT] or "an agent"
