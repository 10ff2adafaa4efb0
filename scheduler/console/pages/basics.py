"""Log-in, preferences, the style sheet, the page of keys, and ``/metrics``, which ``schedctl metrics`` prints too."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from scheduler.config.model import Config
from scheduler.console.answers import own_path
from scheduler.console.render import RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Route, _register, action, page
from scheduler.console.visit import PREFERENCES, THEMES, BadInputError, Visit, is_zone
from scheduler.model.zoned import no_zone
from scheduler.telemetry import prometheus
from scheduler.telemetry.store_figures import read_figures

YEAR = 365 * 86_400


def _handled_by_gate(visit: Visit) -> Response:
    raise AssertionError("the gate answers this itself")


_register(Route("/static/{name}", "GET", Verb.PUBLIC, _handled_by_gate, None, False))
_register(Route("/login", "POST", Verb.PUBLIC, _handled_by_gate, None, False))
_register(Route("/login/link", "POST", Verb.PUBLIC, _handled_by_gate, None, False))
_register(Route("/logout", "POST", Verb.LOOK, _handled_by_gate, None, False))


@page("/login", Verb.PUBLIC)
def log_in(visit: Visit) -> RenderedPage:
    """Where a visitor without a session is sent."""
    context = {"status": 401, "text": "Who are you?", "to": own_path(visit.asked("next"))}
    return RenderedPage("error.html", None, context, live=False, status=401)


@page("/keys")
def keys(visit: Visit) -> RenderedPage:
    """What the keys do."""
    return RenderedPage("keys.html", None, live=False)


@action("/preferences", Verb.LOOK)
def set_preferences(visit: Visit) -> Response:
    """Remember theme and zone in a cookie of the visitor's."""
    theme = visit.given("theme", visit.preferences.theme)
    zone = visit.given("zone", visit.preferences.zone)
    if theme not in THEMES:
        raise BadInputError(f"there is no theme {theme!r}; there are {', '.join(THEMES)}")
    if not is_zone(zone):
        raise BadInputError(no_zone(zone))
    response = RedirectResponse(visit.prefix + (own_path(visit.given("next")) or "/"), 303)
    response.set_cookie(
        PREFERENCES, f"{theme}|{zone}", max_age=YEAR, path=visit.prefix or "/", httponly=True, samesite="strict"
    )
    return response


@page("/metrics")
def metrics(visit: Visit) -> Response:
    """The figures. A program authenticates as for other pages, with a bearer token for example."""
    prometheus.require("/metrics")
    config = visit.site.config or Config()
    kept = config.retention.failed if config.retention.dead is None else config.retention.dead
    with visit.read() as tx:
        found = read_figures(tx, dead_retention=kept, expiry=config.alerts.rules.dead_letters_expiring.within)
    body, kind = prometheus.render(prometheus.make_registry(lambda: found, process=False))
    return Response(body, headers={"content-type": kind})
