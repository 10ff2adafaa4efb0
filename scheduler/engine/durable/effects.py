"""Effects that a durable call yields; a driver performs each and sends the answer."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")


class RequestEffect(NamedTuple):
    """Send the engine a request; the answer is the engine's reply."""

    what: str
    args: Mapping[str, Any]


class SendEffect(NamedTuple):
    """Send the engine a request; the answer is the future of its reply."""

    what: str
    args: Mapping[str, Any]


class Await(NamedTuple):
    """The answer is the reply to a request that was sent."""

    reply: Future[dict[str, Any]]


class Read(NamedTuple):
    """Read from the store through ``Runtime.load``; the answer is what it returns."""

    what: str
    args: Mapping[str, Any]


class FunctionEffect(NamedTuple):
    """Call the user's function; the answer is what it returns."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Suspend(NamedTuple):
    """Suspend the attempt until ``until`` (microseconds): the handler is unwound, no answer."""

    until: int


Effect = RequestEffect | SendEffect | Await | Read | FunctionEffect | Suspend
Steps = Generator[Effect, Any, T]
