"""The console: pages that say what is wrong, why, and how to mend it. An ASGI app of the extra ``console``.

``from scheduler.console import app`` makes one for a program's own server; ``schedctl console`` serves one by itself.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scheduler.app import Scheduler
    from scheduler.config.model import Config, ConsoleSection
    from scheduler.console.gate import Gate
    from scheduler.console.roles import Principal

User = Callable[[Mapping[str, Any]], "Principal | Awaitable[Principal | None] | None"]


def app(
    jobs: Scheduler,
    user: User | None = None,
    *,
    settings: ConsoleSection | None = None,
    config: Config | None = None,
) -> Gate:
    """Make the ASGI app of the console, to be mounted in a program: ``app.mount("/jobs", console.app(jobs, user=…))``.

    ``user(scope)``: the visitor, from what the program's own authentication has put into the ASGI scope; None: the
    answer is 401. It may be a coroutine function. ``settings``: as ``[console]``; ``listen`` and ``auth``
    are not used. ``config``: the settings that the page /settings shows. Raises ConfigError.
    """
    from scheduler.console.auth import CallerAuth
    from scheduler.console.gate import make_gate
    from scheduler.errors import ConfigError

    if user is None:
        raise ConfigError("a mounted console needs user=: a function of the ASGI scope that says who asks")
    return make_gate(jobs, CallerAuth(user), settings, config)


def principal(name: str, role: str = "viewer") -> Principal:
    """Someone who may do what ``role`` (viewer, operator, admin) may do. Raises ConfigError for another role."""
    from scheduler.console.roles import BUILT_IN, Principal
    from scheduler.errors import ConfigError

    if role not in BUILT_IN:
        raise ConfigError(f"there is no role {role!r}; there are {', '.join(BUILT_IN)}")
    return Principal(name, role, BUILT_IN[role])
