"""The payload of ``schedctl submit``: read from ``-P``, checked against the kind's JSON schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
import msgspec

from scheduler.errors import PayloadError

_SHOWN = 60


def read_params(params: Sequence[str]) -> dict[str, Any]:
    """``name=text`` and ``name:=json`` as a dict. Raises UsageError."""
    payload: dict[str, Any] = {}
    for given in params:
        name, equals, text = given.partition("=")
        as_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise click.UsageError(f"-P {given!r} is neither NAME=TEXT nor NAME:=JSON")
        if name in payload:
            raise click.UsageError(f"-P gives {name} twice")
        payload[name] = _json(name, text) if as_json else text
    return payload


def read_json(option: str, text: str) -> Any:
    """Decode an option's JSON. Raises UsageError."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.UsageError(f"{option} is not JSON: {error}") from None


def _json(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.UsageError(f"-P {name}:={text[:_SHOWN]}: not JSON: {error}") from None


@contextmanager
def naming_option() -> Iterator[None]:
    """Says of a field that got a text and wants another type how ``-P`` gives that."""
    from scheduler.operations.published import MisfitError

    try:
        yield
    except MisfitError as error:
        if error.text is None:
            raise
        name, text = error.text
        raise PayloadError(f"{error} (-P {name}:={text[:_SHOWN]} gives it as JSON)") from None
