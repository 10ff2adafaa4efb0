"""Task modules: what of them is registered, and what is said when one does not import."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from scheduler.config.model import CommandSection, Config, TasksSection
from scheduler.config.task_modules import TaskModules, load_modules, make_state
from scheduler.errors import ConfigError, StoreUnavailableError
from scheduler.model.registry import Registry
from scheduler.tasks import BUILTIN


class Jobs:
    """As much of a Scheduler as loading needs."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.called: list[str] = []
        self.away = False

    def register(self, source: Any) -> None:
        self.registry.add(source)

    def schedule(self, what: str) -> None:
        if self.away:
            raise StoreUnavailableError("nothing answers there")
        self.called.append(what)

    def starting(self) -> AbstractContextManager[None]:
        return nullcontext()

    @property
    def kinds(self) -> list[str]:
        return [kind.name for kind in self.registry]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name, imported in list(sys.modules.items()):
        if str(getattr(imported, "__file__", "") or "").startswith(str(tmp_path)):
            del sys.modules[name]


_names = itertools.count()


def module(text: str, name: str = "") -> str:
    name = name or f"jobs{next(_names)}"
    path = Path("lib", *name.split(".")).with_suffix(".py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return name


def config(*modules: str, **tasks: Any) -> Config:
    return Config(tasks=TasksSection(modules=modules, path=("lib",), **tasks))


def refused(*modules: str, **tasks: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load_modules(config(*modules, **tasks), Jobs())
    message = str(caught.value)
    assert len(message.splitlines()) <= 2
    return message


TYPES = """
from scheduler.model.task import Task, task

class Mail(Task):
    to: str
    def run(self, ctx): ...

class Base(Task):
    path: str

class Resize(Base, kind="resize"):
    def run(self, ctx): ...

Alias = Resize

@task
def clean(ctx, days: int = 3): ...

def helper(ctx): ...
"""


# Registering


def test_what_is_defined_there_is_registered() -> None:
    jobs = Jobs()
    assert load_modules(config(module(TYPES)), jobs) == ["Mail", "resize", "clean"]
    assert jobs.kinds == ["Mail", "resize", "clean"]


def test_what_is_imported_there_is_not() -> None:
    first = module(TYPES)
    second = module(f"from {first} import *\n@task\ndef other(ctx): ...\n")
    jobs = Jobs()
    assert load_modules(config(second), jobs) == ["other"]


def test_a_setup_that_two_modules_share_is_called_once() -> None:
    first = module("def setup(jobs): jobs.schedule('shared')")
    jobs = Jobs()
    load_modules(config(first, module(f"from {first} import setup")), jobs)
    assert jobs.called == ["shared"]


def test_setup_is_called_after_registering() -> None:
    name = module(TYPES + "\ndef setup(jobs):\n    jobs.schedule(','.join(jobs.kinds))\n")
    jobs = Jobs()
    load_modules(config(name), jobs)
    assert jobs.called == ["Mail,resize,clean"]


def test_a_module_of_a_package_and_one_listed_twice() -> None:
    module("", "shop.__init__")
    name = module(TYPES, "shop.jobs")
    jobs = Jobs()
    assert load_modules(config(name, name), jobs) == ["Mail", "resize", "clean"]


def test_the_path_comes_in_front_in_its_order(place: Path) -> None:
    for directory in ("a", "b"):
        (place / directory).mkdir()
        (place / directory / "wherefrom.py").write_text(f"def setup(jobs): jobs.schedule({directory!r})")
    jobs = Jobs()
    load_modules(Config(tasks=TasksSection(modules=("wherefrom",), path=("b", "a"))), jobs)
    assert jobs.called == ["b"]
    assert sys.path[:2] == [str(place / "b"), str(place / "a")]


def test_loading_again_takes_only_what_is_new() -> None:
    setup = "\ndef setup(jobs): jobs.schedule(__name__)\n"
    first, second = module(TYPES + setup), module("" + setup)
    jobs = Jobs()
    loader = TaskModules(jobs)
    loader.register(config(first))
    loader.set_up()
    assert loader.register(config(first, second)) == []
    loader.set_up()
    assert jobs.called == [first, second]
    assert loader.idle == []


def test_setup_can_be_tried_again_when_the_store_is_back() -> None:
    setup = "\ndef setup(jobs): jobs.schedule(__name__)\n"
    names = [module(setup), module(setup)]
    jobs = Jobs()
    loader = TaskModules(jobs)
    loader.register(config(*names))
    jobs.away = True
    with pytest.raises(StoreUnavailableError):
        loader.set_up()
    jobs.away = False
    loader.set_up()
    loader.set_up()
    assert jobs.called == names


def test_a_module_with_nothing_in_it_is_logged() -> None:
    loader = TaskModules(Jobs())
    name = module("x = 1")
    assert loader.register(config(name)) == []
    assert loader.idle == [name]


# Built-in types


def test_builtin_types() -> None:
    jobs = Jobs()
    assert load_modules(config(builtin=("FileIdGeneratorTask",)), jobs) == ["FileIdGeneratorTask"]
    assert refused(builtin=("FileId",)) == (
        f"[tasks] builtin: there is no built-in task type 'FileId'; there are {', '.join(BUILTIN)}"
    )


def test_enabled_commands_register_their_type() -> None:
    jobs = Jobs()
    assert load_modules(Config(command=CommandSection(enabled=True)), jobs) == ["CommandTask"]


# State


def test_state_is_what_the_function_returns() -> None:
    name = module("class Shop:\n    @staticmethod\n    def make(): return {'open': True}\n")
    assert make_state(config(state=f"{name}:Shop.make")) == {"open": True}
    assert make_state(config()) is None


@pytest.mark.parametrize(
    ("function", "says"),
    [
        ("other", "there is no 'other' in "),
        ("number", "cannot be called"),
        ("broken", "it failed: {path}:3: RuntimeError: no cash"),
    ],
)
def test_a_state_that_cannot_be_made(place: Path, function: str, says: str) -> None:
    name = module("number = 3\ndef broken():\n    raise RuntimeError('no cash')\n")
    with pytest.raises(ConfigError) as caught:
        make_state(config(state=f"{name}:{function}"))
    assert says.format(path=place / "lib" / f"{name}.py") in str(caught.value)


# Mistakes


@pytest.mark.parametrize(
    ("text", "line", "says"),
    [
        ("import os\nimport nowhere_to_be_found\n", 2, "ModuleNotFoundError: No module named 'nowhere"),
        ("from os import nothing_such\n", 1, "ImportError: cannot import name 'nothing_such' from 'os'"),
        ("x = 1\ny = x +\n", 2, "SyntaxError: invalid syntax"),
        ("def f():\n\treturn 1\n        return 2\n", 3, "TabError"),
        ("\n\n1 / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("def f():\n    return g()\ndef g():\n    raise KeyError('a')\nf()\n", 4, "KeyError: 'a'"),
        ("class A:\n    b = nothing\n", 2, "NameError: name 'nothing' is not defined"),
        ("import re\nre.compile('(')\n", 2, "missing ), unterminated subpattern at position 0"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit: 3"),
        ("raise ValueError('one\\ntwo')\n", 1, "ValueError: one"),
        ("raise ValueError\n", 1, "ValueError"),
        ("def f(): f()\nf()\n", 1, "RecursionError"),
        ("from scheduler.model.task import task\n@task(timeout=-1)\ndef f(ctx): ...\n", 2, "more than 0"),
    ],
)  # fmt: skip
def test_a_module_that_fails_is_named_with_its_line(place: Path, text: str, line: int, says: str) -> None:
    name = module(text)
    message = refused(name)
    assert message.startswith(f"module {name} cannot be imported: {place / 'lib' / name}.py:{line}: ")
    assert says in message


def test_a_module_imported_by_the_listed_one_is_named(place: Path) -> None:
    inner = module("import nowhere_to_be_found\n")
    outer = module(f"import {inner}\n")
    assert f"module {outer} cannot be imported: {place / 'lib' / inner}.py:1: " in refused(outer)


def test_a_module_that_is_not_there() -> None:
    message = refused("nowhere.jobs")
    assert message.startswith("[tasks] modules: there is no module 'nowhere'; ")
    module("", "there.__init__")
    assert "there is no module 'there.jobs'" in refused("there.jobs")
    assert "there is no module 'there.py' (did you mean 'there'?); " in refused("there.py")


@pytest.mark.parametrize(
    ("name", "hint"), [("shop/jobs.py", "; did you mean 'shop.jobs'?"), ("my shop", ""), (".jobs", "'jobs'")]
)
def test_a_name_that_is_none(name: str, hint: str) -> None:
    message = refused(name)
    assert f"{name!r} is not a module name" in message
    assert hint in message


def test_a_type_that_cannot_be_registered() -> None:
    name = module("from scheduler.model.task import Task\nclass Lazy(Task):\n    x: int = 1\n")
    assert refused(name) == f"module {name}: task type Lazy: it has no run(self, ctx) method"
    names = [module("from scheduler.model.task import task\n@task\ndef same(ctx): ...\n") for _ in range(2)]
    assert refused(*names).startswith(f"module {names[1]}: kind 'same' is registered already")


def test_a_setup_that_fails(place: Path) -> None:
    name = module("import json\ndef setup(jobs):\n    json.loads('{')\n")
    assert refused(name).startswith(
        f"setup() of module {name} failed: {place / 'lib' / name}.py:3: JSONDecodeError: Expecting"
    )


def test_a_module_can_be_mended_and_tried_again() -> None:
    name = module("1 / 0\n")
    loader = TaskModules(Jobs())
    with pytest.raises(ConfigError):
        loader.register(config(name))
    module(TYPES + "# longer than before, as bytecode is recognised by time and size\n", name)
    assert loader.register(config(name)) == ["Mail", "resize", "clean"]


def test_a_module_that_the_listed_one_imports_can_be_mended_too() -> None:
    """What it had been stayed in memory, and the mistake was told until a restart."""
    inner = module("a = 1\n")
    outer = module(f"from {inner} import b\n" + TYPES)
    loader = TaskModules(Jobs())
    with pytest.raises(ConfigError, match="cannot import name 'b'"):
        loader.register(config(outer))
    module("a = 1\nb = 'longer than before, as bytecode is recognised by time and size'\n", inner)
    assert loader.register(config(outer)) == ["Mail", "resize", "clean"]


def test_one_mistake_and_nothing_is_registered() -> None:
    first, second = module(TYPES), module("from scheduler.model.task import Task\nclass Bare(Task): ...\n")
    jobs = Jobs()
    loader = TaskModules(jobs)
    for broken in (second, "nowhere_"):
        with pytest.raises(ConfigError):
            loader.register(config(first, broken))
        assert jobs.kinds == []
    module(TYPES.replace("Mail", "Letter").replace("resize", "cut").replace("clean", "tidy"), second)
    mended = ["Mail", "resize", "clean", "Letter", "cut", "tidy"]
    assert loader.register(config(first, second)) == mended == jobs.kinds


def test_an_interrupt_is_not_swallowed() -> None:
    name = module("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_modules(config(name), Jobs())
