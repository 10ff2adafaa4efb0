"""Reads the settings of a built-in type, with an error that says how to set a missing one, and the functions that they
name as ``module:function``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from scheduler import PermanentError


def section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """One section of the configuration; empty when there is none."""
    value = settings.get(name)
    return value if isinstance(value, Mapping) else {}


def required(settings: Mapping[str, Any], name: str, key: str, example: str) -> Any:
    """A setting that the task cannot do without. Raises PermanentError that shows how to set it."""
    value = section(settings, name).get(key)
    if value is None or value in ("", [], ()):
        raise PermanentError(f"this task needs the setting {key} of [{name}], for example: [{name}] {key} = {example}")
    return value


def positive(settings: Mapping[str, Any], name: str, key: str, default: int) -> int:
    """A whole number from 1. Raises PermanentError when the setting is something else."""
    value = section(settings, name).get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise PermanentError(f"the setting {key} of [{name}] must be a whole number from 1, not {value!r}")
    return value


def filled(settings: Mapping[str, Any], name: str, key: str, default: str, **values: str) -> str:
    """A URL that has these names in braces, with the values in their places. Raises PermanentError if it has not."""
    pattern = str(section(settings, name).get(key) or default)
    for word, value in values.items():
        if f"{{{word}}}" not in pattern:
            raise PermanentError(f"[{name}] {key} must contain {{{word}}}, as in {default}")
        pattern = pattern.replace(f"{{{word}}}", value)
    return pattern


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
