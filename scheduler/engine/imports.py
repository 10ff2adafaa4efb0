"""A child process imports what its parent named: see ``model/reference.py``."""

from __future__ import annotations

import importlib
import runpy
import sys
from types import ModuleType
from typing import Any

from scheduler.model.reference import MAIN, MAIN_AGAIN

_main: list[str] | None = None  # the parent's program, until something of it is asked for


def main_is(source: list[str] | None) -> None:
    """Where the parent's program is: (module, its name) or (path, the file)."""
    global _main
    _main = source


def resolve(reference: str) -> Any:
    """What a reference names, imported if need be. Raises whatever the import raises, and AttributeError."""
    module, _, name = reference.partition(":")
    if module == MAIN:
        import_main()
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part)
    return found


def import_main() -> None:
    """Import the parent's program as ``__main__``, but under another name, so that its main guard does not hold."""
    global _main
    if _main is None:
        return
    (how, where), _main = _main, None
    module = ModuleType(MAIN_AGAIN)
    sys.modules[MAIN] = sys.modules[MAIN_AGAIN] = module
    run = runpy.run_module if how == "module" else runpy.run_path
    module.__dict__.update(run(where, run_name=MAIN_AGAIN))
