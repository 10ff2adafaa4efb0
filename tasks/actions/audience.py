"""Whom a signed action is for: the claim ``aud``, as it is made, and as it is checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler import PermanentError
from scheduler.tasks.actions.tokens import DOMAIN, MAX_AUDIENCES, Unverified
from scheduler.tasks.settings import section

_SHOWN = 3  # domains in an error


def named_audience(given: Sequence[str], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The audience of an action to be signed: what the task gives, else ``[actions] audience``.

    Raises PermanentError if there is none although ``[actions] require_audience`` is true, or one is not a domain.
    """
    named = tuple(dict.fromkeys(given or section(settings, "actions").get("audience") or ()))
    if not named and _required(settings):
        raise PermanentError(
            "the action has no audience: name whom it is for (audience=[…] of ActionCreatorTask, "
            "or [actions] audience), or set [actions] require_audience = false"
        )
    for one in named:
        if not isinstance(one, str) or not DOMAIN.match(one):
            raise PermanentError(f"[actions] audience must be domains in lower case, not {one!r}")
    if len(named) > MAX_AUDIENCES:
        raise PermanentError(f"an audience of {len(named)} domains is more than {MAX_AUDIENCES}")
    return named


def check_audience(action: Unverified, server: str, settings: Mapping[str, Any]) -> None:
    """See that an action is for this server. Raises PermanentError with status 403 if it is not."""
    named = action.claims.aud
    if not named:
        if _required(settings):
            raise PermanentError(
                f"{action.action_id} has no audience (aud), so it is not taken for {server}: "
                "its issuer has to name one, or set [actions] require_audience = false here",
                status=403,
            )
    elif server not in named:
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        audiences = ", ".join(named[:_SHOWN]) + more
        raise PermanentError(f"{action.action_id} is for {audiences}, and not for {server} (aud)", status=403)


def _required(settings: Mapping[str, Any]) -> bool:
    return section(settings, "actions").get("require_audience") is not False
