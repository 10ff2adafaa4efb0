"""The payload of ``schedctl submit``: read from ``-P``, checked against the kind's JSON schema."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Union

import click
import msgspec

from scheduler.errors import PayloadError

if TYPE_CHECKING:
    from scheduler.store.read.kinds import KindRecord

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


def _json(name: str, text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise click.UsageError(f"-P {name}:={text[:_SHOWN]}: not JSON: {error}") from None


def validate(kind: KindRecord, payload: dict[str, Any]) -> None:
    """Check a payload against the kind's schema. Raises PayloadError that names the field."""
    try:
        import jsonschema
    except ModuleNotFoundError:
        raise PayloadError("checking a payload needs the package jsonschema: pip install jsonschema") from None

    usual = jsonschema.Draft202012Validator
    # To JSON schema 1.0 is a whole number, to the worker that decodes the payload it is not.
    types = usual.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    checker = jsonschema.validators.extend(usual, type_checker=types)(kind.schema)
    error = jsonschema.exceptions.best_match(checker.iter_errors(payload))
    if error is None:
        return
    where = ".".join(str(part) for part in error.absolute_path)
    said = error.message if len(error.message) <= 200 else error.message[:199] + "…"
    if error.validator == "type" and isinstance(error.instance, str) and len(error.absolute_path) == 1:
        said += f" (-P {where}:={error.instance[:_SHOWN]} gives it as JSON)"
    if error.validator == "additionalProperties" and not error.absolute_path:
        said += f"; there are {', '.join(_fields(kind)) or 'no fields'}"
    raise PayloadError(f"payload of {kind.name} does not fit{f', at {where}' if where else ''}: {said}")


def as_read(kind: KindRecord, payload: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields as the handler's program decodes them, with defaults. Raises PayloadError."""
    fields, found = _fields(kind), {}
    for name in names:
        field = fields.get(name, {})
        if name not in payload and "default" not in field:
            raise PayloadError(f"the concurrency key of {kind.name} needs {name}, whose default only its program knows")
        try:
            found[name] = msgspec.convert(payload.get(name, field.get("default")), _type_of(field))
        except msgspec.ValidationError as error:
            raise PayloadError(f"payload of {kind.name} does not fit, at {name}: {error}") from None
    return found


def _fields(kind: KindRecord) -> dict[str, Any]:
    schema = kind.schema
    if "$ref" in schema:
        schema = kind.schema.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    fields: dict[str, Any] = schema.get("properties", {})
    return fields


_TYPES = {"number": float, "integer": int, "boolean": bool, "null": None, "string": str}
_FORMATS = {"uuid": uuid.UUID, "decimal": decimal.Decimal, "date": datetime.date}


def _type_of(schema: Mapping[str, Any]) -> Any:
    """The type that this schema describes, as far as concurrency keys need it."""
    if "anyOf" in schema:
        return Union[tuple(map(_type_of, schema["anyOf"]))]  # noqa: UP007  # of what is not known before
    if "enum" in schema:
        return Literal[tuple(schema["enum"])]
    name = schema.get("type")
    if name == "array":
        return list[_type_of(schema.get("items", {}))]  # type: ignore[misc]
    if name == "string":
        return _FORMATS.get(schema.get("format", ""), str)
    return _TYPES.get(str(name), Any)
