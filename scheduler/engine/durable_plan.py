"""What a durable call (durable.py) wants done outside of it, one thing after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class Ask(NamedTuple):
    """Ask the engine; the answer is the request's."""

    what: str
    args: Mapping[str, Any]


class Load(NamedTuple):
    """Read something, see ``Runtime.load``."""

    what: str
    args: Mapping[str, Any]


class Call(NamedTuple):
    """Call the user's function; the answer is what it returns."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Block(NamedTuple):
    """Nothing to do before ``until`` (microseconds): there is no answer, the handler is unwound."""

    until: int


Plan = Generator[Ask | Load | Call | Block, Any, T]
