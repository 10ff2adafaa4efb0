"""Import paths, ``module:qualified.name``, by which a child process finds a class or a function.

A class or function without one (defined in a function, at a prompt) is refused when it is registered.
"""

from __future__ import annotations

import sys
from typing import Any

from scheduler.errors import ConfigError

MAIN = "__main__"
MAIN_AGAIN = "__mp_main__"  # the script as a child process imports it: its main guard does not hold there


def reference_of(thing: object, what: str = "") -> str:
    """The import path of ``thing``, a class or a function. Raises ConfigError, which says why it has none.

    ``what``: its name in the error; by default its own.
    """
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    called = what or (name if isinstance(name, str) else repr(thing))
    if not isinstance(module, str) or not isinstance(name, str):
        raise ConfigError(f"{called} cannot be run in a child process: it is no class or function with a name")
    if "<" in name:
        inside = "it is a lambda" if name.endswith("<lambda>") else "it is defined inside a function"
        raise ConfigError(
            f"{called} cannot be run in a child process: {inside}, where nothing can import it; "
            "define it at the top level of a module"
        )
    if module in (MAIN, MAIN_AGAIN):
        if module == MAIN and main_source() is None:
            raise ConfigError(
                f"{called} cannot be run in a child process: it is defined in a program without a file; "
                "define it in a module"
            )
    elif not is_findable(module):
        raise ConfigError(
            f"{called} cannot be run in a child process: no module {module!r} is found on sys.path; "
            "define it in a module that can be imported by its name"
        )
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        raise ConfigError(
            f"{called} cannot be run in a child process: {module}.{name} is something else there; "
            "give it that name at the top level of its module"
        )
    return f"{module}:{name}"


def is_findable(module: str) -> bool:
    """Whether an import by name would find the module; that it is loaded here is no proof."""
    parent = module.rpartition(".")[0]
    path = None
    if parent:
        path = getattr(sys.modules.get(parent), "__path__", None)
        if path is None or not is_findable(parent):
            return False
    for finder in sys.meta_path:
        try:
            if finder.find_spec(module, path) is not None:
                return True
        except (ImportError, AttributeError, ValueError):
            continue
    return False


def main_source() -> tuple[str, str] | None:
    """How a child process imports this program's main script: ("module", name) or ("path", file), or None."""
    main = sys.modules.get(MAIN)
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return "module", str(spec.name)
    file = getattr(main, "__file__", None)
    return None if file is None or str(file).startswith("<") else ("path", str(file))
