"""The one table of the API: method, path, verb, call, arguments, and the operations that a call reaches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, get_args

from scheduler.console.api import arguments as args
from scheduler.console.api import looks, verbs
from scheduler.console.api.arguments import Args, read_args
from scheduler.console.pages.bulks import PLANNED, VERBS
from scheduler.console.roles import Verb
from scheduler.console.routes import params_in
from scheduler.model.bulk import Verb as BulkVerb
from scheduler.operations.verbs import task_verbs

PREFIX = "/api/v1"


class Route(NamedTuple):
    """One route. ``operations``: those of the desk that its verb belongs to; none of routes that look."""

    method: str
    path: str
    verb: Verb
    call: Callable[..., Any]
    args: type[args.Args] = args.Args
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


def _looks(path: str, call: Callable[..., Any], given: type[args.Args] = args.Args) -> Route:
    return Route("GET", path, Verb.LOOK, call, given)


def _acts(path: str, verb: Verb, call: Callable[..., Any], given: type[args.Args], *operations: str) -> Route:
    return Route("POST", path, verb, call, given, operations)


_OF_BULKS: tuple[BulkVerb, ...] = get_args(BulkVerb)
ROUTES: tuple[Route, ...] = (
    _looks("/health", looks.health),
    _looks("/status", looks.status),
    _looks("/tasks", looks.list_tasks, args.Tasks),
    _acts("/tasks", Verb.SUBMIT, verbs.submit, args.Submit, "tasks.submit"),
    _looks("/tasks/{id:int}", looks.show_task),
    _looks("/tasks/{id:int}/why", looks.why),
    _looks("/tasks/{id:int}/logs", looks.show_logs, args.Logs),
    _looks("/tasks/{id:int}/graph", looks.show_graph, args.Graph),
    *(
        _acts(f"/tasks/{{id:int}}/{name}", Verb(v.role), verbs.on_task(name, v), v.args, f"verb_{name}.{name}")
        for name, v in task_verbs().items()
    ),
    _acts("/tasks/cancel", Verb.CANCEL, verbs.cancel, args.Cancel, "tasks.cancel", "bulk.cancel"),
    _acts("/tasks/retry", Verb.RETRY, verbs.retry, args.Retry, "tasks.retry", "bulk.retry"),
    _acts("/tasks/rerun", Verb.RETRY, verbs.rerun, args.Rerun, "tasks.rerun", "bulk.rerun"),
    _acts("/tasks/change", Verb.PATCH, verbs.change, args.Change, "tasks.change", "bulk.change"),
    _looks("/dead-letters", looks.list_dead_letters, args.DeadLetters),
    _acts("/dead-letters/replay", Verb.REPLAY, verbs.replay, args.Replay, "dead_letters.replay", "bulk.replay"),
    _acts("/dead-letters/purge", Verb.PURGE, verbs.purge, args.Purge, "bulk.purge"),
    _looks("/schedules", looks.list_schedules),
    _looks("/forecast", looks.forecast, args.Ahead),
    _acts("/schedules/pause", Verb.SCHEDULE_PAUSE, verbs.pause_schedule, args.OfName, "schedules.pause"),
    _acts("/schedules/resume", Verb.SCHEDULE_PAUSE, verbs.resume_schedule, args.OfName, "schedules.resume"),
    _acts("/schedules/run", Verb.SCHEDULE_TRIGGER, verbs.trigger, args.OfName, "schedules.trigger"),
    _acts("/schedules/delete", Verb.SCHEDULE_DELETE, verbs.delete_schedule, args.OfName, "schedules.delete"),
    _looks("/pauses", looks.list_pauses),
    _acts("/pauses/pause", Verb.PAUSE, verbs.pause, args.Scopes, "pauses.pause"),
    _acts("/pauses/resume", Verb.PAUSE, verbs.resume, args.Scopes, "pauses.resume"),
    _looks("/limits", looks.list_limits),
    _acts("/limits/set", Verb.SET, verbs.set_limits, args.SetLimits, "limits.change"),
    _acts("/limits/reset", Verb.SET, verbs.reset_limits, args.Place, "limits.reset"),
    _looks("/workers", looks.list_workers, args.Workers),
    _acts("/workers/drain", Verb.DRAIN, verbs.drain, args.OfWorker, "workers.drain"),
    _acts("/workers/resume", Verb.DRAIN, verbs.undrain, args.OfWorker, "workers.resume"),
    _acts("/workers/restart", Verb.DRAIN, verbs.restart, args.OfWorker, "workers.restart"),
    _looks("/queues", looks.list_queues),
    _looks("/events", looks.list_events, args.Most),
    _acts("/events", Verb.EVENT_EMIT, verbs.emit, args.Emit, "events.emit"),
    _looks("/bulks", looks.list_bulks, args.Most),
    _looks("/bulks/{name}", looks.show_bulk, args.BulkItems),
    *(_acts(f"/bulks/plan/{v}", VERBS[v], partial(verbs.plan_bulk, v), args.Plan) for v in _OF_BULKS if v in PLANNED),
    *(_acts(f"/bulks/start/{v}", VERBS[v], partial(verbs.start_bulk, v), args.Start) for v in _OF_BULKS),
    *(_acts(f"/bulks/stop/{v}", VERBS[v], partial(verbs.stop_bulk, v), args.OfName) for v in _OF_BULKS),
    _acts("/bulks/undo/cancel", Verb.CANCEL, verbs.undo_bulk, args.OfName),
    _looks("/audit", looks.list_audit, args.Audit),
)
DOCUMENT = "/openapi.json"
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
    "saved_views.save": "views are of the pages",
    "saved_views.forget": "the same",
}
"""Operations of roles that no route reaches, and why."""


class Found(NamedTuple):
    """The route of a request, the parameters in its path, and the methods that the path has."""

    route: Route | None
    params: dict[str, Any]
    methods: tuple[str, ...]


def find(method: str, path: str) -> Found:
    """The route of a request; ``path``: without :data:`PREFIX`."""
    matches = [(one, params) for one in ROUTES if (params := one.match(path)) is not None]
    method = "GET" if method == "HEAD" else method
    route, params = next((found for found in matches if found[0].method == method), (None, {}))
    return Found(route, params, tuple(one.method for one, _ in matches))
