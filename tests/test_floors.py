"""The floors of the house: imports go downward only, SQL stays in the store, and the model is pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the lowest floor to the highest. An import goes to a lower floor, never to the same one and never up; imports
# that only a type checker sees count as well, since they hide circles. Inside one room all may import each other.
HOUSE: tuple[frozenset[str], ...] = (
    frozenset({"system"}),
    frozenset({"backoff", "build", "errors", "forking", "interpreter", "interrupts", "ports"}),
    frozenset({"model"}),
    frozenset({"config"}),
    frozenset({"connections", "nonblocking"}),
    frozenset({"store"}),
    frozenset({"http_server", "telemetry"}),
    frozenset({"engine", "operations"}),
    frozenset({"client"}),
    frozenset({"tasks"}),  # the built-in types: they use public names only, see below
    frozenset({"transports"}),
    frozenset({"alerts"}),
    frozenset({"app"}),
    frozenset({"apscheduler", "asgi", "celery", "executors", "messages"}),
    frozenset({"console", "fastapi"}),
    frozenset({"cli", "daemon", "testing"}),
    frozenset({"__main__", "django", "pytest_plugin"}),
)
STORE: tuple[frozenset[str], ...] = (
    frozenset({"schema"}),
    frozenset({"db"}),
    frozenset({"audit", "broken_rows", "predicates", "rollups", "unknown"}),
    frozenset({"alerts", "bulks", "durable", "masks", "pauses", "settings", "views"}),
    frozenset({"graph"}),
    frozenset({"tasks"}),
    frozenset({"workers"}),
    frozenset({"fleet_starts"}),
    frozenset({"inbox_order", "outbox", "reaper", "requests"}),
    frozenset({"inbox"}),
    frozenset({"door_keys", "inbox_held"}),
    frozenset({"gateway_jobs", "placements", "schedule_runs", "schedule_times"}),
    frozenset({"abandoned"}),
    frozenset({"worker_jobs"}),
    frozenset({"schedules"}),
    frozenset({"schedule_sets"}),
    frozenset({"read"}),
    frozenset({"admin", "due_work"}),
)
ENGINE: tuple[frozenset[str], ...] = (
    frozenset({"attempt", "dead_letter_hook", "fair_rotation", "options"}),
    frozenset({"durable"}),
    frozenset({"execution"}),
    frozenset({"moves"}),
    frozenset({"child", "state"}),
    frozenset({"processes"}),
    frozenset({"slots"}),
    frozenset({"dispatch"}),
    frozenset({"maintenance"}),
    frozenset({"direct_starts"}),
    frozenset({"engine"}),
    frozenset({"interrupted", "placed"}),
    frozenset({"gateway"}),
)
BUILDINGS = {"scheduler": HOUSE, "scheduler.store": STORE, "scheduler.engine": ENGINE}
# Imports that go up, each with its reason. Nothing else does.
UPWARD: dict[tuple[str, str], str] = {
    ("scheduler.app", "scheduler.testing.draining"): "Scheduler.for_testing() makes what it has, when it is called",
}
# Modules of one room that know each other, by an import inside a function or one that only a type checker sees, each
# with its reason. No module needs itself to be imported: at the top of modules there is no circle at all.
CIRCLES: dict[frozenset[str], str] = {
    frozenset({"scheduler.app", "scheduler.testing.draining"}): "Scheduler.for_testing() makes what works on one",
    frozenset({"scheduler.model.task", "scheduler.model.typed"}): "a task's options are typed by what takes them",
    frozenset({"scheduler.store.db.statements", "scheduler.store.db.tx"}): "bulk statements take a Tx",
    frozenset({"scheduler.store.tasks.claim", "scheduler.store.tasks.ready_children"}): "ready children become claims",
    frozenset({"scheduler.client.batch", "scheduler.client.builder"}): (
        "a batch makes builders, and a builder may belong to a batch or a graph"
    ),
    frozenset({"scheduler.client.dead_letters", "scheduler.client.schedules", "scheduler.client.tasks"}): (
        "jobs.tasks has the other two as attributes, and they start from it"
    ),
    frozenset({"scheduler.engine.attempt.attempt", "scheduler.engine.attempt.capture"}): "an attempt has its output",
    frozenset({"scheduler.cli.complete", "scheduler.cli.root"}): "completion reads all commands, and is one",
}
DATABASE_MODULES = {"sqlalchemy", "sqlite3", "psycopg", "alembic"}
SQL_PLACES = {"store", "migrations"}
IMPURE = DATABASE_MODULES | {
    *(
        "asyncio",
        "concurrent",
        "http",
        "httpx2",
        "io",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "queue",
    ),
    *("select", "shutil", "signal", "socket", "structlog", "subprocess", "tempfile", "threading", "time"),
    "urllib",
}
IMPURE_CALLS = {"open", "print", "input"}


@dataclass(frozen=True)
class Import:
    path: Path
    line: int
    target: str  # absolute: scheduler.store.read, sqlalchemy
    names: tuple[str, ...]  # what "from target import ..." takes
    lazy: bool  # inside a function
    typing_only: bool

    @property
    def where(self) -> str:
        return f"{self.path.relative_to(ROOT)}:{self.line}"

    @property
    def top(self) -> str:
        return self.target.partition(".")[0]

    def modules(self) -> set[str]:
        """The modules of ours that this reaches."""
        if self.top != "scheduler":
            return set()
        inner = {f"{self.target}.{name}" for name in self.names} & MODULES
        return inner | ({self.target} if len(inner) < len(self.names) or not self.names else set())


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "scheduler":
        parts = ("scheduler", *parts)  # tasks/ and migrations/ are installed inside the package
    return ".".join(parts)


@cache
def imports_in(path: Path) -> tuple[Import, ...]:
    """Those of a file as it is, read once for all tests."""
    return tuple(imports_of(path))


def imports_of(path: Path, source: str | None = None) -> Iterator[Import]:
    package = module_name(path).split(".")[:-1]  # right for an __init__ too, whose name ends in ".__init__"

    def visit(node: ast.AST, lazy: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(path, child.lineno, alias.name, (), lazy, typing_only)
            elif isinstance(child, ast.ImportFrom):
                base = package[: len(package) - child.level + 1] if child.level else []
                target = ".".join([*base, *([child.module] if child.module else [])])
                names = tuple(alias.name for alias in child.names)
                yield Import(path, child.lineno, target, names, lazy, typing_only)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for part in child.body:
                    yield from visit(ast.Module([part], []), lazy, True)
                for part in child.orelse:
                    yield from visit(ast.Module([part], []), lazy, typing_only)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, lazy or function, typing_only)

    yield from visit(ast.parse(source or path.read_text(encoding="utf-8")), False, False)


def files(*places: str) -> list[Path]:
    return sorted(file for place in places for file in (ROOT / place).rglob("*.py"))


def room_of(module: str, building: str) -> str:
    """The room of a building that a module lies in; "" for another building's, and for the building itself."""
    return module.removeprefix(f"{building}.").partition(".")[0] if module.startswith(f"{building}.") else ""


def floor_of(room: str, floors: tuple[frozenset[str], ...]) -> int:
    return next(number for number, rooms in enumerate(floors) if room in rooms)


def all_imports(*places: str) -> list[Import]:
    return [found for file in files(*places) for found in imports_in(file)]


MODULES = {module_name(file).removesuffix(".__init__") for file in files("scheduler", "tasks")}


@pytest.mark.parametrize("building", BUILDINGS)
def test_every_room_has_its_floor(building: str) -> None:
    rooms = {room_of(module, building) for module in MODULES} - {""}
    known = frozenset[str]().union(*BUILDINGS[building])
    assert rooms == known, f"say in BUILDINGS where they stand: {sorted(rooms ^ known)}"


@pytest.mark.parametrize("building", BUILDINGS)
def test_imports_go_downward_only(building: str) -> None:
    floors = BUILDINGS[building]
    wrong = []
    for found in all_imports("scheduler"):
        here = room_of(module_name(found.path).removesuffix(".__init__"), building)
        for module in found.modules():
            there = room_of(module, building)
            if not here or not there or here == there or (module_name(found.path), module) in UPWARD:
                continue
            if floor_of(there, floors) >= floor_of(here, floors):
                wrong.append(f"{found.where}: {here} imports {module}")
    assert not wrong, "\n".join(wrong)


def circles(*, late: bool) -> set[frozenset[str]]:
    """Groups of modules that import each other; ``late``: also inside functions and for type checkers.

    The package itself is left out: its version is plain, and its other names come when asked for.
    """
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph()
    for found in all_imports("scheduler", "tasks", "migrations"):
        if late or not (found.lazy or found.typing_only):
            here = module_name(found.path).removesuffix(".__init__")
            graph.add_edges_from((here, module) for module in found.modules() if module not in (here, "scheduler"))
    return {frozenset(group) for group in nx.strongly_connected_components(graph) if len(group) > 1}


def test_no_module_is_imported_in_a_circle() -> None:
    assert circles(late=False) == set()
    assert circles(late=True) == set(CIRCLES), "name a new one in CIRCLES with its reason, or better, do without"


def test_the_glossary_is_short() -> None:
    """At most 25 words of our own; all others are the field's."""
    words = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Words")[2]
    rows = [line.split("|")[1] for line in words.splitlines() if line.startswith("| ")][2:]
    named = [word.strip() for row in rows for word in row.split(",")]
    assert 10 < len(named) <= 25, named


def test_sql_is_in_the_store_only() -> None:
    wrong = [
        f"{found.where}: imports {found.target}"
        for found in all_imports("scheduler", "tasks", "migrations")
        if found.top in DATABASE_MODULES
        and not found.typing_only
        and room_of(module_name(found.path), "scheduler") not in SQL_PLACES
    ]
    assert not wrong, "\n".join(wrong)


def test_the_model_is_pure() -> None:
    wrong = [
        f"{found.where}: imports {found.target}"
        for found in all_imports("scheduler/model")
        if found.top in IMPURE and not found.typing_only
    ]
    for file in files("scheduler/model"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if called in IMPURE_CALLS:
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno}: calls {called}()")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", ["networkx", "croniter"])
def test_slow_libraries_are_imported_when_used(library: str) -> None:
    wrong = [
        found.where
        for found in all_imports("scheduler")
        if found.top == library and not found.lazy and not found.typing_only
    ]
    assert not wrong, f"{library} is imported with its module: {wrong}"


def test_the_package_itself_is_lazy() -> None:
    """Its names come when asked for; only errors, ports and the model may come with it."""
    wrong = [
        f"{found.where}: imports {found.target}"
        for found in imports_of(ROOT / "scheduler" / "__init__.py")
        if not found.typing_only
        and not found.lazy
        and any(floor_of(room_of(module, "scheduler"), HOUSE) > 2 for module in found.modules())
    ]
    assert not wrong, "\n".join(wrong)


def test_built_in_tasks_use_public_names_only() -> None:
    import scheduler

    public = {*getattr(scheduler, "__all__", ()), "interpreter", "system"}  # modules of public functions, of ports
    wrong = []
    for found in all_imports("tasks"):
        if found.top != "scheduler" or found.target.startswith(("scheduler.tasks", "scheduler.system")):
            continue
        hidden = [name for name in found.names if name not in public]
        if found.target != "scheduler" or hidden:
            wrong.append(f"{found.where}: {found.target} {hidden}")
    assert not wrong, "\n".join(wrong)


def test_migrations_do_not_follow_the_schema() -> None:
    """A migration says what it did when it was written, whatever the schema says today."""
    wrong = [
        found.where
        for found in all_imports("migrations/versions")
        if found.target.startswith("scheduler.store.schema")
        or (found.target == "scheduler.store" and "schema" in found.names)
    ]
    assert not wrong, "\n".join(wrong)


def test_the_test_sees_what_it_looks_for() -> None:
    source = """
if TYPE_CHECKING:
    import sqlalchemy
else:
    import psycopg
def f():
    from ..engine import turn
from .. import store, TaskState
from .state import TaskState
"""
    seen = {found.target: found for found in imports_of(ROOT / "scheduler" / "model" / "probe.py", source)}
    assert seen["sqlalchemy"].typing_only
    assert not seen["psycopg"].typing_only
    assert seen["scheduler.engine"].lazy
    assert seen["scheduler.engine"].modules() == {"scheduler.engine"}
    assert seen["scheduler"].modules() == {"scheduler", "scheduler.store"}
    assert seen["scheduler.model.state"].modules() == {"scheduler.model.state"}
