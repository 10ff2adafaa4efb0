"""``schedctl console``, for people, and ``schedctl mcp``, for agents."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

import click

from scheduler.cli.echo import say
from scheduler.cli.options import common
from scheduler.cli.session import Session, note, prints
from scheduler.errors import ConfigError

if TYPE_CHECKING:
    from scheduler.config.model import ConsoleSection

NEEDS = ("starlette", "uvicorn", "jinja2")


AGENTS_NEED = ("mcp", "starlette", "jinja2")
_CONNECTIONS = 3  # a call, a bulk that runs, and a look at whose lock is in the way


@click.command(name="console")
@click.option("--listen", metavar="HOST:PORT|unix:PATH", help="Where to listen; by default [console] listen.")
@click.option("--read-only", is_flag=True, help="Allow no changes.")
@click.option("--open", "opens", is_flag=True, help="Open it in a browser.")
@click.option("--until-stdin-ends", is_flag=True, hidden=True, help="End with the daemon that started this.")
@click.option("--new-user", metavar="NAME:ROLE", help="Print a line for [console] users, and end.")
@common
@prints(("url",), lasting=True)
def console_command(
    session: Session,
    /,
    listen: str | None,
    read_only: bool,
    opens: bool,
    until_stdin_ends: bool,
    new_user: str | None,
) -> None:
    """Serve web pages that show problems and mend them.

    By default you find them at http://127.0.0.1:8321, opened by a link for one use that is printed. Other addresses
    want [console] auth. The console works on the database itself, so it answers even when no daemon runs.
    """
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise ConfigError(f"the console needs {', '.join(missing)}: pip install 'schedd[console]'")
    config = session.config
    if new_user is not None:
        _print_user(new_user, config.console)
        return
    import msgspec

    from scheduler.console.serve import serve

    session.existing()
    if read_only:
        config = msgspec.structs.replace(config, console=msgspec.structs.replace(config.console, read_only=True))

    def tell(url: str) -> None:
        if not until_stdin_ends:
            note("the console listens; Ctrl-C ends it")
        say(url)
        sys.stdout.flush()  # a program that started this may wait for it

    serve(config, listen, opens=opens, tell=tell, until_stdin_ends=until_stdin_ends)


def _print_user(text: str, settings: ConsoleSection) -> None:
    """Print a line of the users file: for a new token, which is printed too, or for a password that is asked for."""
    import secrets

    from scheduler.console.auth import hash_password, hash_token
    from scheduler.console.roles import read_roles

    name, _, role = text.partition(":")
    if not name or not role or any(char.isspace() for char in text):
        raise click.UsageError("--new-user is NAME:ROLE, such as ci:operator")
    if role not in (roles := read_roles(settings.roles)):
        raise click.UsageError(f"there is no role {role!r}; there are {', '.join(roles)}")
    if settings.auth == "basic":
        password = click.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
        say(f"{name} {role} {hash_password(password)}")
        return
    token = secrets.token_urlsafe(32)
    note(f"the token of {name}, shown this once: {token}")
    say(f"{name} {role} {hash_token(token)}")


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
    missing = [name for name in AGENTS_NEED if find_spec(name) is None]
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
    jobs.database.connections = _CONNECTIONS
    tools = Tools(jobs, config, allowed)
    try:
        serve(tools, user())
    finally:
        tools.close()
        jobs.close()
