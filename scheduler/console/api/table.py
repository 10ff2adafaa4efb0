"""The one table of the API: method, path, verb, call, arguments, and operations; its description as OpenAPI 3.1."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec

from scheduler import __version__
from scheduler.console.api import arguments, looks, verbs
from scheduler.console.api.arguments import Args, read_args
from scheduler.console.pages.bulks import PLANNED, VERBS
from scheduler.console.roles import Verb
from scheduler.console.routes import params_in
from scheduler.model.bulk import BulkVerb
from scheduler.operations.verbs import task_verbs

PREFIX = "/api/v1"


_OF_BULKS: tuple[BulkVerb, ...] = get_args(BulkVerb)
_PLANNED: tuple[BulkVerb, ...] = tuple(verb for verb in _OF_BULKS if verb in PLANNED)
DOCUMENT = "/openapi.json"
_REF = "#/components/schemas/{name}"
ERRORS = {
    "400": "The request is broken.",
    "401": "Nobody is known by these credentials.",
    "403": "The role does not include it.",
    "404": "There is no such thing.",
    "409": "The state of a task, or a key, does not allow it.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "An argument is wrong; `where` names it.",
    "429": "Too many wrong credentials.",
    "503": "The database does not answer, or too many ask at once: try again.",
}


class ApiRoute(NamedTuple):
    """One route. ``operations``: those of the desk that its verb belongs to; none of routes that look."""

    method: str
    path: str
    verb: Verb
    call: Callable[..., Any]
    args: type[arguments.Args] = arguments.Args
    operations: tuple[str, ...] = ()

    @property
    def summary(self) -> str:
        """What it does, as its call says."""
        call = self.call.func if isinstance(self.call, partial) else self.call
        return " ".join((call.__doc__ or "").split()).replace("``", "`")

    def read(self, given: Any, *, strict: bool) -> Args:
        """Its arguments. Raises Refusal."""
        return read_args(self.args, given, f"{self.method} {PREFIX}{self.path}", strict=strict)

    def match(self, path: str) -> dict[str, Any] | None:
        """The parameters in this path; None if it is another route's."""
        return params_in(self.path, path)


def _looks(path: str, call: Callable[..., Any], given: type[arguments.Args] = arguments.Args) -> ApiRoute:
    return ApiRoute("GET", path, Verb.LOOK, call, given)


def _acts(path: str, verb: Verb, call: Callable[..., Any], given: type[arguments.Args], *operations: str) -> ApiRoute:
    return ApiRoute("POST", path, verb, call, given, operations)


ROUTES: tuple[ApiRoute, ...] = (
    _looks("/health", looks.health),
    _looks("/status", looks.status),
    _looks("/tasks", looks.list_tasks, arguments.Tasks),
    _acts("/tasks", Verb.SUBMIT, verbs.submit, arguments.Submit, "tasks.submit"),
    _looks("/tasks/{id:int}", looks.show_task),
    _looks("/tasks/{id:int}/why", looks.why),
    _looks("/tasks/{id:int}/logs", looks.show_logs, arguments.Logs),
    _looks("/tasks/{id:int}/graph", looks.show_graph, arguments.Graph),
    *(
        _acts(f"/tasks/{{id:int}}/{name}", Verb(v.needs), verbs.on_task(name, v), v.args, f"verb_{name}.{name}")
        for name, v in task_verbs().items()
    ),
    _acts("/tasks/cancel", Verb.CANCEL, verbs.cancel, arguments.Cancel, "tasks.cancel", "bulk.cancel"),
    _acts("/tasks/retry", Verb.RETRY, verbs.retry, arguments.Retry, "tasks.retry", "bulk.retry"),
    _acts("/tasks/rerun", Verb.RETRY, verbs.rerun, arguments.Rerun, "tasks.rerun", "bulk.rerun"),
    _acts("/tasks/change", Verb.PATCH, verbs.change, arguments.Change, "tasks.change", "bulk.change"),
    _looks("/dead-letters", looks.list_dead_letters, arguments.DeadLetters),
    _acts("/dead-letters/replay", Verb.REPLAY, verbs.replay, arguments.Replay, "dead_letters.replay", "bulk.replay"),
    _acts("/dead-letters/purge", Verb.PURGE, verbs.purge, arguments.Purge, "bulk.purge"),
    _looks("/schedules", looks.list_schedules),
    _looks("/forecast", looks.forecast, arguments.Ahead),
    _acts("/schedules/pause", Verb.SCHEDULE_PAUSE, verbs.pause_schedule, arguments.OfName, "schedules.pause"),
    _acts("/schedules/resume", Verb.SCHEDULE_PAUSE, verbs.resume_schedule, arguments.OfName, "schedules.resume"),
    _acts("/schedules/run", Verb.SCHEDULE_TRIGGER, verbs.trigger, arguments.OfName, "schedules.trigger"),
    _acts("/schedules/delete", Verb.SCHEDULE_DELETE, verbs.delete_schedule, arguments.OfName, "schedules.delete"),
    _looks("/pauses", looks.list_pauses),
    _acts("/pauses/pause", Verb.PAUSE, verbs.pause, arguments.Scopes, "pauses.pause"),
    _acts("/pauses/resume", Verb.PAUSE, verbs.resume, arguments.Scopes, "pauses.resume"),
    _looks("/limits", looks.list_limits),
    _acts("/limits/set", Verb.SET, verbs.set_limits, arguments.SetLimits, "limits.change"),
    _acts("/limits/reset", Verb.SET, verbs.reset_limits, arguments.Place, "limits.reset"),
    _looks("/workers", looks.list_workers, arguments.Workers),
    _acts("/workers/drain", Verb.DRAIN, verbs.drain, arguments.OfWorker, "workers.drain"),
    _acts("/workers/resume", Verb.DRAIN, verbs.undrain, arguments.OfWorker, "workers.resume"),
    _acts("/workers/restart", Verb.DRAIN, verbs.restart, arguments.OfWorker, "workers.restart"),
    _looks("/queues", looks.list_queues),
    _looks("/events", looks.list_events, arguments.Most),
    _acts("/events", Verb.EVENT_EMIT, verbs.emit, arguments.Emit, "events.emit"),
    _looks("/bulks", looks.list_bulks, arguments.Most),
    _looks("/bulks/{name}", looks.show_bulk, arguments.BulkItems),
    *(_acts(f"/bulks/plan/{v}", VERBS[v], partial(verbs.plan_bulk, v), arguments.Plan) for v in _PLANNED),
    *(_acts(f"/bulks/start/{v}", VERBS[v], partial(verbs.start_bulk, v), arguments.Start) for v in _OF_BULKS),
    *(_acts(f"/bulks/stop/{v}", VERBS[v], partial(verbs.stop_bulk, v), arguments.OfName) for v in _OF_BULKS),
    _acts("/bulks/undo/cancel", Verb.CANCEL, verbs.undo_bulk, arguments.OfName),
    _looks("/audit", looks.list_audit, arguments.Audit),
)
LEFT_OUT = {
    "masks.reveal": "secrets are shown to people, one task at a time",
    "masks.note_reveal": "the same",
    "tasks.add_dependency": "a program gives dependencies as it submits",
    "tasks.set_retry": "POST /tasks/change sets the retries",
    "tasks.copy": "POST /tasks stores new work",
    "schedules.cancel_runs": "POST /tasks/cancel takes a filter",
    "schedules.backfill": "an operator looks at the plan of a backfill: schedctl cron backfill",
    "alerts.silence": "silences belong to the person on duty",
    "alerts.unsilence": "the same",
    "alerts.note_test": "the same",
    "console.save_view": "views are of the pages",
    "console.forget_view": "the same",
}
"""Operations of roles that no route reaches, and why."""


class RouteFound(NamedTuple):
    """The route of a request, the parameters in its path, and the methods that the path has."""

    route: ApiRoute | None
    params: dict[str, Any]
    methods: tuple[str, ...]


def find(method: str, path: str) -> RouteFound:
    """The route of a request; ``path``: without :data:`PREFIX`."""
    matches = [(one, params) for one in ROUTES if (params := one.match(path)) is not None]
    method = "GET" if method == "HEAD" else method
    route, params = next((found for found in matches if found[0].method == method), (None, {}))
    return RouteFound(route, params, tuple(one.method for one, _ in matches))


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is refused. ``where``: the argument."""

    error: str
    status: int
    where: str | None = None


@cache
def _described() -> dict[str, Any]:
    types: list[Any] = [*dict.fromkeys(one.args for one in ROUTES), *map(result_of, ROUTES), Error]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    of = {str(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        path = PREFIX + re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, of, components)
    text = "The description of this API."
    described = {"summary": text, "x-role-verb": "look", "responses": _responses({"type": "object"})}
    paths[PREFIX + DOCUMENT] = {"get": {"operationId": "openapi", **described}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "schedd", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {f"E{status}": _response(text, of[str(Error)]) for status, text in ERRORS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{"bearer": []}, {"basic": []}, {}],
    }


def document(prefix: str = "") -> dict[str, Any]:
    """The description, as seen below ``prefix``."""
    return {**_described(), "servers": [{"url": prefix or "/"}]}


def result_of(route: ApiRoute) -> Any:
    """The type of an answer."""
    call = route.call.func if isinstance(route.call, partial) else route.call
    return get_type_hints(call)["return"]


def _operation(route: ApiRoute, of: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    schema = of[str(route.args)]
    made: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": route.summary,
        "x-role-verb": route.verb.value,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "integer" if kind else "string"}}
            for name, kind in re.findall(r"\{(\w+)(:int)?\}", route.path)
        ],
        "responses": _responses(of[str(result_of(route))]),
    }
    if route.method == "POST":
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        return made
    fields = components[route.args.__name__]["properties"]
    made["parameters"] += [{"name": name, "in": "query", "schema": field} for name, field in fields.items()]
    return made


def _responses(result: Any) -> dict[str, Any]:
    refused = {status: {"$ref": f"#/components/responses/E{status}"} for status in ERRORS}
    return {"200": _response("Done.", result), **refused}


def _response(text: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
