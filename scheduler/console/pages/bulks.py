"""``/bulks``: changes of many tasks: a plan whose scope is frozen, then its run in the background, and its result."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

import msgspec

from scheduler.console.masks import masked, masked_text
from scheduler.console.pages.kinds import fields_of
from scheduler.console.pages.task_verbs import without_commands
from scheduler.console.render import ActionDone, RenderedPage
from scheduler.console.roles import Verb
from scheduler.console.routes import Nav, action, page
from scheduler.console.visit import BadInputError, Visit
from scheduler.errors import UnknownBulkError
from scheduler.model.bulk import MAX_TASKS, WITH_CANARY, BulkState, BulkVerb, ItemResult
from scheduler.model.task_filter import TaskFilter, only
from scheduler.operations import stored_bulks
from scheduler.operations.kinds import get_kind
from scheduler.operations.tasks import told

ITEMS = 100
_UNDOABLE = (BulkState.DONE, BulkState.STOPPED, BulkState.INTERRUPTED)
TYPED_FROM = 100  # of more tasks the number has to be typed before what cannot be taken back
VERBS = {
    "retry": Verb.RETRY,
    "cancel": Verb.CANCEL,
    "rerun": Verb.RETRY,
    "replay": Verb.REPLAY,
    "purge": Verb.PURGE,
    "uncancel": Verb.CANCEL,
}
PLANNED = frozenset(VERBS) - {"uncancel"}


@page("/bulks", nav=Nav("Bulks", "b", 15))
def bulks(visit: Visit) -> RenderedPage:
    """The bulks there were, the newest first."""
    found = visit.jobs.bulks.list(50)
    return RenderedPage("bulks.html", [bulk_view(one) for one in found], {"bulks": found}, "schedctl bulk list")


@page("/bulks/{name}")
def bulk(visit: Visit) -> RenderedPage:
    """A bulk: its plan, how far it is, what became of its tasks."""
    name = visit.params["name"]
    found = visit.jobs.bulks.get(name)
    shown = visit.asked("result")
    if shown and shown not in [one.value for one in ItemResult]:
        raise BadInputError(f"result is one of {', '.join(ItemResult)}")
    cursor = visit.number("cursor")
    items = visit.jobs.bulks.items(name, result=shown or None, limit=ITEMS, cursor=-1 if cursor is None else cursor)
    with visit.read() as tx:
        canary, stale = stored_bulks.outcome_in(tx, stored_bulks.get(tx, name))
    context: dict[str, Any] = {
        "bulk": found,
        "canary": canary if found.state is BulkState.STOPPED else None,
        "stale": stale.ids,
        "stale_more": stale.cut,
        "ran_on": told(stale) if stale else "",
        "items": items,
        "shown": shown,
        "results": list(ItemResult),
        "needs": VERBS[found.verb].value,
        "typed": _is_typed(found.verb, found.options.get("cascade", False)) and found.total > TYPED_FROM,
        "cursor": items[-1].position if len(items) == ITEMS else None,
        "most": MAX_TASKS,
        "with_canary": found.verb in WITH_CANARY,
        "masked_text": masked_text,
        "masked": masked,
        "can_undo": can_undo(found),
    }
    items_data = [
        {"task": i.task_id, "before": i.before, "result": i.result, "note": masked_text(i.note)} for i in items
    ]
    return RenderedPage(
        "bulk.html",
        {**bulk_view(found), "stale": stale.ids, "stale_more": stale.cut, "items": items_data},
        context,
        f"schedctl bulk show {name}",
    )


def bulk_view(one: Any) -> dict[str, Any]:
    """A bulk as JSON, without secrets."""
    view = {name: getattr(one, name) for name in one.__struct_fields__}
    shown = {name: masked(view[name]) for name in ("options", "chosen", "plan")}
    return {**view, **shown, "reason": masked_text(one.reason)}


def _is_typed(verb: str, cascade: bool) -> bool:
    return verb == "purge" or (verb == "cancel" and cascade)


def _plan(visit: Visit, *, verb: BulkVerb) -> ActionDone:
    """Freeze which tasks: those that were ticked, or all that match the filter. Changes none of them."""
    fields = _fields(visit) if verb == "replay" else None
    chosen = _chosen(visit)
    made = visit.jobs.bulks.create(
        verb,
        chosen if fields is None else without_commands(visit, chosen),
        cascade=visit.ticked("cascade"),
        force=visit.ticked("force"),
        downstream=not visit.ticked("alone"),
        fields=fields,
    )
    return ActionDone("This is the plan; nothing is changed yet.", f"/bulks/{made.name}", data=bulk_view(made))


def _fields(visit: Visit) -> dict[str, Any] | None:
    """The field that a replay is to set, by its type in the schema of the kind; None without one."""
    name, given = visit.given("field"), visit.given("value")
    if not name:
        if given:
            raise BadInputError("choose the field that gets this value, or leave both empty")
        return None
    with visit.read() as tx:
        record = get_kind(tx, visit.given("kind"))
    types = {} if record is None else fields_of(record.schema, None)
    if name not in types:
        raise BadInputError(f"there is no field {name!r:.80} that may be set; there are {', '.join(types) or 'none'}")
    if types[name] == "string":
        return {name: given}
    try:
        return {name: msgspec.json.decode(given)}
    except msgspec.DecodeError:
        raise BadInputError(
            f"{name} takes JSON ({types[name]}), which {given!r:.80} is not; a text needs quotes"
        ) from None


def _chosen(visit: Visit) -> TaskFilter:
    if visit.ticked("matching"):
        with visit.read() as tx:
            wanted = visit.filter(tx, visit.given("q"))
        if not wanted.terms:
            raise BadInputError("say which tasks: the filter is empty")
        return wanted
    ids = visit.form.get("id", [])
    if not ids or not all(one.isascii() and one.isdigit() and len(one) < 19 for one in ids):
        raise BadInputError("tick the tasks, or choose all that match the filter")
    return TaskFilter((only("id", *map(int, ids)),))


def _start(visit: Visit, *, verb: str) -> ActionDone:
    """Run the bulk, or go on with it."""
    name = visit.params["name"]
    found = of_verb(visit, name, verb)
    typed = _is_typed(verb, found.options.get("cascade", False)) and found.total > TYPED_FROM
    if typed and visit.given("number") != str(found.total):
        raise BadInputError(f"type the number of tasks, {found.total}, to go on")
    visit.jobs.bulks.start(name, canary=visit.ticked("canary"), rate=_rate(visit.given("rate")))
    visit.site.wake_bulks()
    return ActionDone("It runs in the background.", f"/bulks/{name}")


def _rate(given: str) -> float | None:
    try:
        return float(given) if given else None
    except ValueError:
        raise BadInputError(f"the rate is a number of tasks a second, not {given!r:.40}") from None


def _stop(visit: Visit, *, verb: str) -> ActionDone:
    """Stop after the present transaction."""
    name = visit.params["name"]
    of_verb(visit, name, verb)
    visit.jobs.bulks.stop(name)
    return ActionDone("It stops after the present hundred.", f"/bulks/{name}")


def _undo(visit: Visit, *, verb: str) -> ActionDone:
    """Take back what can be."""
    name = visit.params["name"]
    of_verb(visit, name, verb)
    made = visit.jobs.bulks.undo(name)
    visit.jobs.bulks.start(made.name)
    visit.site.wake_bulks()
    return ActionDone("It is being taken back.", f"/bulks/{made.name}")


def of_verb(visit: Visit, name: str, verb: str) -> Any:
    """The bulk, if its verb is the one that the visitor was checked for. Raises UnknownBulkError."""
    found = visit.jobs.bulks.get(name)
    if found.verb != verb:
        raise UnknownBulkError(name)
    return found


def can_undo(found: Any) -> bool:
    """Whether some of a bulk can be taken back: a cancel of what had not begun."""
    return found.verb == "cancel" and found.state in _UNDOABLE and found.done > 0


for _verb in get_args(BulkVerb):
    if _verb in PLANNED:
        action(f"/bulks/plan/{_verb}", VERBS[_verb])(partial(_plan, verb=_verb))
    action(f"/bulks/{{name}}/{_verb}/start", VERBS[_verb])(partial(_start, verb=_verb))
    action(f"/bulks/{{name}}/{_verb}/stop", VERBS[_verb])(partial(_stop, verb=_verb))
action("/bulks/{name}/cancel/undo", Verb.CANCEL)(partial(_undo, verb="cancel"))
