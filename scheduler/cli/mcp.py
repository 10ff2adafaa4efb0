"""``schedctl mcp``."""

from __future__ import annotations

from importlib.util import find_spec

import click

from scheduler.cli.options import common
from scheduler.cli.session import Session, prints
from scheduler.errors import ConfigError

NEEDS = ("mcp", "starlette", "jinja2")
CONNECTIONS = 3  # a call, a bulk that runs, and a look at whose lock is in the way


@click.command(name="mcp")
@click.option(
    "--allow", metavar="VERB|ROLE", multiple=True, help="Also allow such changes: retry, operator; repeatable."
)
@common
@prints((), lasting=True)
def mcp_command(session: Session, /, allow: tuple[str, ...]) -> None:
    """Serve an agent over stdin and stdout, by the Model Context Protocol.

    Agents look; they change nothing without --allow, which takes a verb or a role of the console. Each change is a
    plan first, then its run. The audit names the agent and your user. Secrets are hidden as on the pages.
    """
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(f"schedctl mcp needs {', '.join(missing)}: pip install 'schedd[mcp]'")
    from scheduler.app import Scheduler
    from scheduler.console.api.mcp import serve
    from scheduler.console.api.tools import Tools
    from scheduler.console.roles import Verb, read_roles
    from scheduler.operations.desk import user

    config = session.config
    roles = read_roles(config.console.roles)
    verbs = {verb.value: frozenset({verb}) for verb in Verb if verb not in (Verb.PUBLIC, Verb.REVEAL)}
    unknown = [one for one in allow if one not in roles | verbs]
    if unknown:
        raise click.UsageError(f"--allow {unknown[0]}: there are {', '.join([*roles, *verbs])}")
    allowed = frozenset[Verb]().union(*({**verbs, **roles}[one] for one in allow))
    session.existing()
    jobs = Scheduler(config.store.url, auto_migrate=False)
    jobs.database.application_name = "schedd-mcp"
    jobs.database.connections = CONNECTIONS
    tools = Tools(jobs, config, allowed)
    try:
        serve(tools, user())
    finally:
        tools.close()
        jobs.close()
