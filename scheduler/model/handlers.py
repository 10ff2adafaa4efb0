"""Checks that a handler takes its Context as first parameter, or as ``run``'s first one after self."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any

from scheduler.errors import ConfigError

NAMES = frozenset({"ctx", "context", "_ctx", "_context", "_"})
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
# Any type with Context in its name may be one: a protocol or a subclass of the application's.
_CONTEXT = re.compile(r"\b\w*(Context|Ctx)\b|(\w+\.)*(Any|object)\Z|~")
_LONGEST = 100  # characters of a signature in an error


def check_function(function: Callable[..., Any], kind: str) -> None:
    """Whether ``f(ctx, ...)`` takes ctx first. Raises ConfigError that says where it is and what to write."""
    parameters = _parameters(function)
    if parameters is None:
        return
    if parameters and parameters[0].kind in _POSITIONAL and _may_be_context(parameters[0], function):
        return
    there = f"not {_text(parameters[0])!r}" if parameters else "and it has none"
    rest = ", ".join(["ctx", *(_text(one) for one in parameters if one.name not in NAMES)])
    define = "async def" if inspect.iscoroutinefunction(function) else "def"
    raise ConfigError(
        f"task function {kind}: its first parameter must be ctx, {there}{_where(function)}; "
        f"write {define} {getattr(function, '__name__', kind)}({_short(rest)})"
    )


def check_run(function: object, kind: str) -> None:
    """Whether ``run(self, ctx)`` takes ctx. Raises ConfigError that says where it is and what to write."""
    parameters = _parameters(function) if isinstance(function, types.FunctionType) else None
    if parameters is None or any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters[:2]):
        return
    if len(parameters) > 1 and parameters[1].kind in _POSITIONAL and _may_be_context(parameters[1], function):
        return
    raise ConfigError(
        f"task type {kind}: run must take (self, ctx), not ({_short(', '.join(map(_text, parameters)))})"
        f"{_where(function)}; what a task is given are its fields"
    )


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # of something built in
        return None


def _may_be_context(parameter: inspect.Parameter, function: Any) -> bool:
    """By its name; else by its annotation, unless there is none, or it cannot be read yet."""
    annotation = parameter.annotation
    if parameter.name in NAMES or annotation is inspect.Parameter.empty:
        return True
    if isinstance(annotation, str):
        try:
            alone = types.SimpleNamespace(__annotations__={"one": annotation})
            annotation = typing.get_type_hints(alone, getattr(function, "__globals__", {}))["one"]
        except Exception:
            # Only checkers see it, it is defined later, or it is misspelt: registering the task reads it again.
            return True
    return _CONTEXT.search(inspect.formatannotation(annotation)) is not None


def _text(parameter: inspect.Parameter) -> str:
    """As it is written: the inspect module puts an annotation that is not evaluated yet in quotes."""
    written = str(parameter)
    if isinstance(parameter.annotation, str):
        return written.replace(repr(parameter.annotation), parameter.annotation, 1)
    return written


def _where(function: Any) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return "" if code is None else f" ({code.co_filename.rpartition('/')[2]}, line {code.co_firstlineno})"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
