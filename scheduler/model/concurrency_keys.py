"""Templates of concurrency keys and fairness keys: the fields that they name, and where a key can be made.

A key is made of the payload as it is read back, so that one payload has one key, from every caller: ``1`` given for
a float is 1.0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from string import Formatter

import msgspec
import msgspec.inspect

from scheduler.errors import ConfigError
from scheduler.model.task import LANE_KEYS, TaskOptions

# Types whose values read back from JSON unchanged, and types that JSON is converted to first.
_VERBATIM = (
    msgspec.inspect.StrType,
    msgspec.inspect.IntType,
    msgspec.inspect.BoolType,
    msgspec.inspect.NoneType,
    msgspec.inspect.LiteralType,
)
_READABLE = (
    *_VERBATIM,
    msgspec.inspect.AnyType,
    msgspec.inspect.FloatType,
    msgspec.inspect.UUIDType,
    msgspec.inspect.DecimalType,
    msgspec.inspect.DateType,
)


def check_template(options: TaskOptions, struct: type[msgspec.Struct]) -> None:
    """Check that templates name existing fields. Raises ConfigError."""
    fields = struct.__struct_fields__
    for option in LANE_KEYS:
        rule = getattr(options, option)
        if not isinstance(rule, str):
            continue
        try:
            names = fields_of(rule)
        except ValueError as error:
            raise ConfigError(f"task type {options.kind}: {option} {rule!r} is no template: {error}") from None
        for name in names:
            if name not in fields:
                there = ", ".join(fields) or "none"
                raise ConfigError(f"task type {options.kind}: {option} {rule!r}: no field {name!r} (fields: {there})")


def fields_of(template: str) -> list[str]:
    """The fields that a template names. Raises ValueError."""
    return [re.split(r"[.\[]", name)[0] for _, name, _, _ in Formatter().parse(template) if name is not None]


def is_verbatim(template: str, struct: type[msgspec.Struct]) -> bool:
    """Whether JSON leaves the values of all fields that a template names unchanged."""
    fields = _fields(struct)
    return all(name in fields and _all_of(fields[name].type, _VERBATIM) is None for name in fields_of(template))


def why_private(template: str, struct: type[msgspec.Struct]) -> str | None:
    """Why only the program can make this key; None if a payload's JSON and its schema suffice."""
    return why_fields_are_private(fields_of(template), struct)


def why_fields_are_private(names: Iterable[str], struct: type[msgspec.Struct]) -> str | None:
    """Why only the program can make a key of these fields; None if a payload's JSON and its schema suffice."""
    fields = _fields(struct)
    for name in names:
        field = fields.get(name)
        if field is None or field.name != field.encode_name:
            return f"field {name!r} has another name in the payload"
        odd = _all_of(field.type, _READABLE)
        if odd is not None:
            return f"field {name!r} is of a type whose text only the program knows: {odd}"
    return None


def _fields(struct: type[msgspec.Struct]) -> dict[str, msgspec.inspect.Field]:
    info = msgspec.inspect.type_info(struct)
    return {field.name: field for field in info.fields} if isinstance(info, msgspec.inspect.StructType) else {}


def _all_of(kind: msgspec.inspect.Type, among: tuple[type, ...]) -> str | None:
    """What of a type is not among these; None if all is."""
    if isinstance(kind, msgspec.inspect.UnionType):
        return next((odd for one in kind.types if (odd := _all_of(one, among)) is not None), None)
    if isinstance(kind, msgspec.inspect.Metadata):
        return _all_of(kind.type, among)
    if isinstance(kind, msgspec.inspect.ListType) and among is _READABLE:
        return _all_of(kind.item_type, among)
    return None if isinstance(kind, among) else type(kind).__name__.removesuffix("Type")
