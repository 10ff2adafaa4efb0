"""Functions that the configuration names as ``module:function``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

from scheduler import PermanentError

NAME = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*\Z")


def imported(name: str) -> Callable[..., Any]:
    """The function. Raises PermanentError for what cannot be imported, or is not a plain function."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise PermanentError(f"{name} cannot be imported: {error}") from None
    if not callable(found) or inspect.iscoroutinefunction(found):
        raise PermanentError(f"{name} is not a plain function")
    function: Callable[..., Any] = found
    return function
