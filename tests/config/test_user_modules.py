"""Modules of users whose names are taken: found, told, and never imported in place of what has the name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import scheduler
from scheduler.config import user_modules
from scheduler.config.model import Config, TasksSection
from scheduler.config.task_modules import TaskModules
from scheduler.errors import ConfigError
from scheduler.model.registry import Registry


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(user_modules, "_finder", user_modules._TakenFirst())
    return tmp_path


@pytest.mark.case(101, pure=True)
def test_a_taken_name_is_found_where_it_was(place: Path) -> None:
    (place / "colorsys.py").write_text("MINE = 1\n")
    (place / "own_colours.py").write_text("MINE = 1\n")
    sys.modules.pop("colorsys", None)
    user_modules.guard([str(place)])
    import colorsys

    assert not hasattr(colorsys, "MINE")
    assert __import__("own_colours").MINE == 1
    assert user_modules.guarded() == [str(place)]


@pytest.mark.case(101, pure=True)
def test_what_cannot_be_imported_is_told_with_what_to_do(place: Path) -> None:
    (place / "random.py").touch()
    (place / "scheduler").mkdir()
    (place / "scheduler" / "__init__.py").touch()
    (place / "email").mkdir()  # no package: it hides nothing
    (place / "mine.py").touch()
    assert [user_modules.advice(path) for path in user_modules.hidden([str(place), "/nowhere"])] == [
        f"{place}/random.py is never imported: Python has a module random; give it another name",
        f"{place}/scheduler is never imported: schedd needs a module scheduler; give it another name",
    ]


def test_a_checkout_of_schedd_is_not_in_its_own_way() -> None:
    root = Path(scheduler.__file__).parents[1]
    assert not [path for path in user_modules.hidden([str(root)]) if path.endswith("/scheduler")]


def test_a_listed_module_with_a_taken_name_is_refused(place: Path) -> None:
    (place / "random.py").touch()

    class Modules:
        registry = Registry()

        def register(self, _: object) -> None: ...
        def starting(self) -> object: ...

    config = Config(tasks=TasksSection(modules=("random",), path=(str(place),)))
    with pytest.raises(ConfigError, match=r"modules: .*random.py is never imported.* give it another name"):
        TaskModules(Modules()).register(config)  # type: ignore[arg-type]
