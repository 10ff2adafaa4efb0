"""``/settings``: the settings in effect and where each comes from; live settings, and who set them."""

from __future__ import annotations

from typing import Any

from scheduler.config.load import describe
from scheduler.console.masks import MASK, masked_text
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import BadInputError, Visit
from scheduler.model.defaults import POOLS
from scheduler.model.live_settings import KEY, KIND, MAX_SLOTS, POOL
from scheduler.model.secrets import is_secret_name
from scheduler.operations import limits

SHOWN = 500  # live settings on one page


@page("/settings", nav=Nav("Settings", "e", 100))
def settings(visit: Visit) -> RenderedPage:
    """Live settings first, then the configuration of this console's process."""
    with visit.read() as tx:
        live = limits.records(tx)
    config = visit.site.config
    configured = [
        (one.name, one.text if not is_secret_name(one.name) or one.value in (None, "", ()) else MASK, one.source)
        for one in ([] if config is None else describe(config))
    ]
    context: dict[str, Any] = {
        "live_settings": [(one, where.fields()) for where, one in list(live.items())[:SHOWN]],
        "left": max(0, len(live) - SHOWN),
        "configured": configured,
        "pools": POOLS,
        "file": None if config is None else config.file,
        "masked_text": masked_text,
    }
    data = {
        "live": [
            {"setting": one.subject, "value": one.value, "since": one.at, "by": one.actor}
            | {"reason": masked_text(one.reason)}
            for one in live.values()
        ],
        "configured": [{"setting": name, "value": text, "source": source} for name, text, source in configured],
    }
    return RenderedPage("settings.html", data, context, "schedctl config check")


@action("/settings/pool", Verb.SET)
def set_pool(visit: Visit) -> ActionDone:
    """Change the slots of a pool, of all workers or of one."""
    name, worker = visit.given("pool"), visit.given_number("worker", least=1)
    changed = visit.jobs.live_settings.pool(
        name,
        slots=visit.given_number("slots", most=MAX_SLOTS),
        async_slots=visit.given_number("async_slots", most=MAX_SLOTS),
        worker=worker,
    )
    fields = {"pool": name, "worker": "" if worker is None else str(worker)}
    undo = ("Undo: let the configuration hold", "/settings/reset", fields)
    return ActionDone(f"Pool {name} is set." if changed else "It was so already.", undo=undo if changed else None)


@action("/settings/reset", Verb.SET)
def reset(visit: Visit) -> ActionDone:
    """Let hold again what programs and configurations say."""
    kind, key, pool = (visit.given(name) or None for name in (KIND, KEY, POOL))
    if (kind is None and key is None) == (pool is None):
        raise BadInputError("say which: pool, kind or key")
    worker = visit.given_number("worker", least=1)
    changed = visit.jobs.live_settings.reset(pool=pool, worker=worker, kind=kind, key=key)
    return ActionDone("What programs and configurations say holds again." if changed else "It was so already.")
