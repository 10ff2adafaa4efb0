"""The floors of the house: imports go downward only, SQL stays in the store, and the model is pure.

Imports under ``if TYPE_CHECKING`` do not run and are left alone, except between the two halves of floor 2.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Of each module directly under scheduler/. Those of one floor may import each other, but for 2a and 2b.
FLOORS = {
    "errors": -1,
    "interpreter": -1,
    "ports": -1,
    "model": 0,
    "store": 1,
    "batch": 2,
    "builder": 2,
    "caller": 2,
    "engine": 2,
    "app": 3,
    "cli": 3,
    "config": 3,
    "config_checks": 3,
    "daemon": 3,
    "dead_letters": 3,
    "log": 3,
    "modules": 3,
    "notify": 3,
    "queries": 3,
    "records": 3,
    "settings": 3,
    "signals": 3,
    "supervisor": 3,
    "testing": 3,
}
SIDES = {"builder", "engine"}  # batch and caller are the builder's side; that they never meet the engine, too
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

    def rooms(self) -> set[str]:
        """Which modules directly under scheduler/ this reaches; "" is the package itself."""
        if self.top != "scheduler":
            return set()
        parts = self.target.split(".")
        if len(parts) > 1:
            return {parts[1]}
        return {name if name in FLOORS else "" for name in self.names} or {""}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "scheduler":
        parts = ("scheduler", *parts)  # tasks/ and migrations/ are installed inside the package
    return ".".join(parts)


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


def room_of(path: Path) -> str:
    """The module directly under scheduler/ that a file belongs to; "" for scheduler/__init__.py."""
    parts = module_name(path).split(".")
    return "" if parts[1] == "__init__" else parts[1]


def all_imports(*places: str) -> list[Import]:
    return [found for file in files(*places) for found in imports_of(file)]


def test_every_module_has_its_floor() -> None:
    rooms = {room_of(file) for file in files("scheduler")} - {"", "__main__"}
    assert rooms <= FLOORS.keys(), f"say in FLOORS where they stand: {sorted(rooms - FLOORS.keys())}"


def test_imports_go_downward_only() -> None:
    wrong = []
    for found in all_imports("scheduler"):
        room = room_of(found.path)
        if room == "" or found.typing_only:
            continue
        for target in found.rooms() - {room}:
            # the package itself names everything, so to import it is to look upward
            if FLOORS.get(target, 3) > FLOORS.get(room, 3):
                wrong.append(f"{found.where}: {room} imports {found.target} ({', '.join(found.names)})")
    assert not wrong, "\n".join(wrong)


def test_the_callers_side_and_the_workers_side_never_meet() -> None:
    wrong = [
        f"{found.where}: imports {found.target}"
        for found in all_imports("scheduler")
        if room_of(found.path) in SIDES and found.rooms() & (SIDES - {room_of(found.path)})
    ]
    assert not wrong, "\n".join(wrong)


def test_sql_is_in_the_store_only() -> None:
    wrong = [
        f"{found.where}: imports {found.target}"
        for found in all_imports("scheduler", "tasks", "migrations")
        if found.top in DATABASE_MODULES and not found.typing_only and room_of(found.path) not in SQL_PLACES
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
        if not found.typing_only and not found.lazy and any(FLOORS.get(room, 3) > 0 for room in found.rooms())
    ]
    assert not wrong, "\n".join(wrong)


def test_built_in_tasks_use_public_names_only() -> None:
    import scheduler

    public = set(getattr(scheduler, "__all__", ()))
    wrong = []
    for found in all_imports("tasks"):
        if found.top != "scheduler" or found.target.startswith("scheduler.tasks"):
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
    assert seen["scheduler.engine"].rooms() == {"engine"}
    assert seen["scheduler"].rooms() == {"store", ""}
    assert seen["scheduler.model.state"].rooms() == {"model"}
