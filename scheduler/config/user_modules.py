"""Where the users' own modules are, and that none of them is taken for a module of Python or of schedd.

A file ``random.py`` or ``email.py`` in ``[tasks] path`` would be imported by libraries that mean Python's, in the
daemon and, sooner, in a child process, which has imported less.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

OURS = ("scheduler", "alembic", "msgspec", "psycopg", "sqlalchemy", "structlog")
TAKEN = frozenset(sys.stdlib_module_names).union(OURS)


class _TakenFirst(MetaPathFinder):
    """Finds the modules that have these names already, behind the users' places."""

    def __init__(self) -> None:
        self.places: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`. None: the other finders go on."""
        if path is not None or name not in TAKEN or not self.places:
            return None
        return PathFinder.find_spec(name, [entry for entry in sys.path if entry not in self.places])


_finder = _TakenFirst()


def guard(places: Iterable[str]) -> None:
    """Let nothing in these directories hide a module of Python or of schedd."""
    _finder.places += [place for place in places if place not in _finder.places]
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def guarded() -> list[str]:
    """The directories of the users' modules."""
    return list(_finder.places)


def hidden(places: Iterable[str]) -> Iterator[str]:
    """The files and packages in these directories that cannot be imported by their names, for these are taken."""
    for place in places:
        try:
            with os.scandir(place) as entries:
                found = sorted(entry.name for entry in entries if _names(entry) in TAKEN)
        except OSError:
            continue
        yield from (os.path.join(place, name) for name in found)


def in_the_way(module: str, places: Iterable[str]) -> str | None:
    """The file in these directories that is meant by this name, which is taken; None if there is none."""
    top = module.partition(".")[0]
    return next((path for path in hidden(places) if _stem(os.path.basename(path)) == top), None)


def loaded_files() -> list[str]:
    """The files of the users' own modules that are imported: not Python's, schedd's, or an installed package's."""
    python = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
    found = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or name.partition(".")[0] in ("__main__", "scheduler", "schedd"):
            continue
        if file.endswith(".py") and "-packages" + os.sep not in file and not file.startswith(python):
            found.append(os.path.abspath(file))
    return sorted(set(found))


def advice(path: str) -> str:
    """What to do about such a file, in a line."""
    name = _stem(os.path.basename(path))
    whose = "schedd needs" if name in OURS else "Python has"
    return f"{path} is never imported: {whose} a module {name}; give it another name"


def _names(entry: os.DirEntry[str]) -> str | None:
    """The name of the module that it is, None if it is none."""
    if entry.name.endswith(".py"):
        return _stem(entry.name)
    package = entry.is_dir() and os.path.exists(os.path.join(entry.path, "__init__.py"))
    return entry.name if package and not _is_python_s(entry.path) else None


def _is_python_s(package: str) -> bool:
    """Whether it is the very package that has the name: a checkout of schedd is on the path."""
    present = sys.modules.get(os.path.basename(package))
    file = getattr(present, "__file__", None)
    return file is not None and os.path.dirname(os.path.realpath(file)) == os.path.realpath(package)


def _stem(name: str) -> str:
    return name.removesuffix(".py")
