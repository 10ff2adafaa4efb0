"""Imports in a child process what its parent named by reference."""

from __future__ import annotations

import importlib
import runpy
import sys
from types import ModuleType
from typing import Any

from scheduler.model.reference import MAIN, MAIN_AGAIN

_main_source: list[str] | None = None  # of the parent's program, until it is imported


def set_main(source: list[str] | None) -> None:
    """Set where the parent's program is: ("module", its name) or ("path", the file)."""
    global _main_source
    _main_source = source


def resolve(reference: str) -> Any:
    """Import what a reference names. Raises AttributeError, and what the import raises."""
    module, _, name = reference.partition(":")
    if module == MAIN:
        import_main()
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def import_main() -> None:
    """Import the parent's program under another name, so that its main guard is false."""
    global _main_source
    if _main_source is None:
        return
    (how, where), _main_source = _main_source, None
    module = ModuleType(MAIN_AGAIN)
    sys.modules[MAIN] = sys.modules[MAIN_AGAIN] = module
    run = runpy.run_module if how == "module" else runpy.run_path
    module.__dict__.update(run(where, run_name=MAIN_AGAIN))
