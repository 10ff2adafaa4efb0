"""The desk: doors call operations, and each verb of a role belongs to an operation."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path

from test_floors import all_imports, module_name

from scheduler.console.roles import Verb
from scheduler.operations.verbs import task_verbs

ROOT = Path(__file__).parents[1]
# The operations of each verb that a role may have.
OPERATIONS: dict[Verb, tuple[str, ...]] = {
    Verb.REVEAL: ("masks.reveal", "masks.note_reveal"),
    Verb.CANCEL: ("tasks.cancel", "bulk.cancel", "schedules.cancel_runs"),
    Verb.RETRY: ("tasks.retry", "tasks.rerun", "bulk.retry", "bulk.rerun"),
    Verb.REPLAY: ("dead_letters.replay", "bulk.replay"),
    Verb.PATCH: ("tasks.change", "tasks.add_dependency", "tasks.set_retry", "bulk.change"),
    Verb.PURGE: ("bulk.purge",),
    Verb.SUBMIT: ("tasks.submit", "tasks.copy"),
    Verb.DRAIN: ("workers.drain", "workers.resume", "workers.restart"),
    Verb.PAUSE: ("pauses.pause", "pauses.resume"),
    Verb.SET: ("limits.change", "limits.reset"),
    Verb.SCHEDULE_PAUSE: ("schedules.pause", "schedules.resume"),
    Verb.SCHEDULE_TRIGGER: ("schedules.trigger", "schedules.backfill"),
    Verb.SCHEDULE_DELETE: ("schedules.delete",),
    Verb.EVENT_EMIT: ("events.emit",),
    Verb.SILENCE: ("alerts.silence", "alerts.unsilence", "alerts.note_test"),
    Verb.SAVE_VIEW: ("console.save_view", "console.forget_view"),
}
for _name, _verb in task_verbs().items():
    OPERATIONS[Verb(_verb.needs)] += (f"verb_{_name}.{_name}",)
READING = {Verb.PUBLIC, Verb.LOOK}
# Operations of stored bulks: each is of the verb that the bulk has, which the door checks.
OF_ANY_VERB = ("create", "start", "stop", "undo")


def test_doors_import_nothing_of_the_store() -> None:
    found = {
        module_name(one.path)
        for one in all_imports("scheduler/cli", "scheduler/console")
        if not one.typing_only and any(module.startswith("scheduler.store") for module in one.modules())
    }
    assert not found, f"call an operation instead: {sorted(found)}"


def test_each_verb_belongs_to_operations() -> None:
    assert set(OPERATIONS) | READING == set(Verb)
    for name in OF_ANY_VERB:
        assert callable(getattr(import_module("scheduler.operations.stored_bulks"), name))
    for verb, names in OPERATIONS.items():
        for name in names:
            module, _, function = name.partition(".")
            operation = getattr(import_module(f"scheduler.operations.{module}"), function)
            assert operation.__module__ == f"scheduler.operations.{module}", f"{verb}: {name} is defined elsewhere"


def test_an_operation_is_of_one_verb() -> None:
    named = [name for names in OPERATIONS.values() for name in names]
    assert len(named) == len(set(named))


def test_what_changes_takes_a_desk() -> None:
    """A function of a desk opens its own transaction; a read that pages compose takes the transaction."""
    wrong = []
    for names in OPERATIONS.values():
        for name in names:
            module, _, function = name.partition(".")
            tree = ast.parse((ROOT / "scheduler" / "operations" / f"{module}.py").read_text(encoding="utf-8"))
            made = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
            if [arg.arg for arg in made.args.args][:1] != ["desk"]:
                wrong.append(name)
    assert not wrong
