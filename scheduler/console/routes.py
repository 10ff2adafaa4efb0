"""The one table of routes. Each declares the verb that it is; one without a verb does not register."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from starlette.routing import compile_path

from scheduler.console.roles import Verb
from scheduler.errors import ConfigError

if TYPE_CHECKING:
    from scheduler.console.visit import Visit

F = TypeVar("F", bound=Callable[..., Any])


class Nav(NamedTuple):
    """The entry of a page in the navigation. ``key``: pressed after ``g``; ``place``: the lowest comes first."""

    label: str
    key: str
    place: int


class Route:
    """One route: a path, a method, a verb, and the function that answers. ``asynchronous``: it is a coroutine function
    that gets the request itself; others run in a thread of the console. ``known``: see :func:`page`."""

    def __init__(
        self,
        path: str,
        method: str,
        verb: Verb,
        endpoint: Callable[..., Any],
        nav: Nav | None,
        asynchronous: bool,
        known: Callable[[Visit], bool] | None = None,
    ) -> None:
        if not isinstance(verb, Verb):
            raise ConfigError(f"the route {method} {path} declares no verb")
        if method == "POST" and verb in (Verb.PUBLIC, Verb.LOOK) and path not in HARMLESS_POSTS:
            raise ConfigError(f"the route POST {path} changes something: looking is no verb for it")
        self.path, self.method, self.verb, self.endpoint, self.nav = path, method, verb, endpoint, nav
        self.asynchronous, self.known = asynchronous, known
        compiled(path)

    def match(self, path: str) -> dict[str, Any] | None:
        """The parameters in this path; None if it is another route's."""
        return params_in(self.path, path)


compiled = cache(compile_path)
BIGGEST = 2**63 - 1  # of ids


def params_in(route: str, path: str) -> dict[str, Any] | None:
    """The parameters that a path gives a route's; None if it is not of that form, or a number is none of an id."""
    pattern, _, convertors = compiled(route)
    found = pattern.match(path)
    if found is None:
        return None
    try:
        given = {name: convertors[name].convert(text) for name, text in found.groupdict().items()}
    except ValueError:  # more digits than Python reads
        return None
    return None if any(isinstance(value, int) and value > BIGGEST for value in given.values()) else given


HARMLESS_POSTS = frozenset({"/login", "/login/link", "/logout", "/preferences"})  # change the caller's own cookies only
ROUTES: list[Route] = []


def _register(route: Route) -> None:
    if any(one.path == route.path and one.method == route.method for one in ROUTES):
        raise ConfigError(f"there is a route {route.method} {route.path} already")
    ROUTES.append(route)


def page(
    path: str, verb: Verb = Verb.LOOK, *, nav: Nav | None = None, known: Callable[[Visit], bool] | None = None
) -> Callable[[F], F]:
    """Register a page: ``GET path`` and its JSON twin, ``GET path.json``. The function of a
    :class:`~scheduler.console.visit.Visit` returns a :class:`~scheduler.console.render.Page` or a response.

    ``known``: of a path that ends with a name: whether something has the name of a visit. A name that ends with
    ``.json`` is not taken for the twin of another name then.
    """

    def decorate(function: F) -> F:
        _register(Route(path, "GET", verb, function, nav, False, known))
        return function

    return decorate


def action(path: str, verb: Verb) -> Callable[[F], F]:
    """Register a verb: ``POST path``. The function of a Visit returns a :class:`~scheduler.console.render.Done`."""

    def decorate(function: F) -> F:
        _register(Route(path, "POST", verb, function, None, False))
        return function

    return decorate


def stream(path: str, verb: Verb = Verb.LOOK) -> Callable[[F], F]:
    """Register a coroutine function of a Visit that returns a response of its own, such as a stream."""

    def decorate(function: F) -> F:
        _register(Route(path, "GET", verb, function, None, True))
        return function

    return decorate


class Match(NamedTuple):
    """What a request asks for. ``path``: without the suffix of a ``twin``; ``elsewhere``: another method is known.

    ``named``: what the path means if something has the suffix in its name.
    """

    route: Route | None
    params: dict[str, Any]
    path: str
    elsewhere: bool
    twin: bool = False
    named: Match | None = None


def resolve(method: str, path: str) -> Match:
    """What a request asks for. The suffix ``.json`` is part of a name where the path leads to a verb or a file."""
    found, given_params, other = find(method, path)
    given = Match(found, given_params, path, other)
    if not path.endswith(".json"):
        return given
    if given.route is not None and (given.route.method == "POST" or given.route.verb is Verb.PUBLIC):
        return given
    bare = path.removesuffix(".json")
    bare = "/" if bare in ("/index", "") else bare
    route, params, elsewhere = find(method, bare)
    if route is None:
        return given if given.route is not None else Match(None, {}, bare, elsewhere or given.elsewhere)
    return Match(route, params, bare, False, True, given if given.route is route and route.known else None)


def find(method: str, path: str) -> tuple[Route | None, dict[str, Any], bool]:
    """The route of a request, its parameters, and whether the path is known with another method only."""
    elsewhere = False
    for route in ROUTES:
        params = route.match(path)
        if params is None:
            continue
        if route.method == method or (method == "HEAD" and route.method == "GET"):
            return route, params, False
        elsewhere = True
    return None, {}, elsewhere


def navigation() -> list[tuple[str, Nav]]:
    """The pages that have an entry in the navigation, in their order."""
    return sorted(((route.path, route.nav) for route in ROUTES if route.nav is not None), key=lambda one: one[1].place)
