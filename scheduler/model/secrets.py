"""Secret fields of payloads: how a type marks them, and how they are hidden from people. Pure.

Programs and the database have the values in the clear. What shows a task to people shows ``***`` in place of each.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

HIDDEN = "***"
MARK = "x-secret"
_SHORTEST = 4  # a shorter text would be found in every other word
Secret = msgspec.Meta(extra_json_schema={MARK: True})  # Annotated[str, Secret]
_LOST: WeakKeyDictionary[type, str | None] = WeakKeyDictionary()
_NAME = (  # compiled at the first name
    r"(?i)pass(word|wd|phrase|(?!ed$|ed_))|pwd|secret|token|api_?key|authori[sz]ation|cookie|credential|private_?key"
    r"|dsn|session|signature"
)


def is_secret_name(name: str) -> bool:
    """Whether a field of this name is taken for a secret, although no type marks it."""
    return re.search(_NAME, name.replace("-", "_")) is not None


def has_secret_name(value: Any) -> bool:
    """Whether a decoded JSON value has a field, at any depth, whose name is one of a secret."""
    if isinstance(value, Mapping):
        return any(is_secret_name(str(name)) or has_secret_name(inner) for name, inner in value.items())
    return isinstance(value, list | tuple) and any(map(has_secret_name, value))


class Mask:
    """Hides the secrets of one kind. ``schema``: the JSON schema of its payload, as workers have published it."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._schema = schema
        self._defs: Mapping[str, Any] = schema.get("$defs", {})

    def payload(self, value: Any) -> Any:
        """A decoded payload with ``***`` for each secret in it. None stays None."""
        return self._hide(self._schema, value, [])

    def text(self, payload: str | None) -> str | None:
        """The same for a payload as JSON text; a text that is no JSON is hidden whole."""
        if payload is None:
            return None
        try:
            value = msgspec.json.decode(payload)
        except (msgspec.MsgspecError, RecursionError):
            return f'"{HIDDEN}"'
        return msgspec.json.encode(self.payload(value)).decode()

    def secrets(self, *payloads: str | None) -> frozenset[str]:
        """The secret texts of these payloads, which what an attempt wrote may show, too."""
        found: list[Any] = []
        for text in payloads:
            if text is None:
                continue
            try:
                self._hide(self._schema, msgspec.json.decode(text), found)
            except (msgspec.MsgspecError, RecursionError):
                continue
        return frozenset(part for value in found for part in _texts(value) if len(part) >= _SHORTEST)

    def _hide(self, schema: Any, value: Any, found: list[Any]) -> Any:
        if value is None or not isinstance(schema, Mapping):
            return value
        if schema.get(MARK) is True:
            if value != HIDDEN:
                found.append(value)
            return HIDDEN
        reference = schema.get("$ref")
        if isinstance(reference, str):
            value = self._hide(self._defs.get(reference.rpartition("/")[2]), value, found)
        for variants in ("anyOf", "oneOf", "allOf"):
            for variant in schema.get(variants, ()):
                value = self._hide(variant, value, found)
        if isinstance(value, dict):
            fields, other = schema.get("properties", {}), schema.get("additionalProperties")
            return {name: self._hide(fields.get(name, other), item, found) for name, item in value.items()}
        if isinstance(value, list):
            first, other = schema.get("prefixItems", ()), schema.get("items")
            return [
                self._hide(first[place] if place < len(first) else other, item, found)
                for place, item in enumerate(value)
            ]
        return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return [] if isinstance(value, bool) or value is None else [str(value)]


def hide_in(value: Any, secrets: Iterable[str]) -> Any:
    """Texts with ``***`` in place of these secrets, also within lists and mappings; what is no text stays."""
    ordered = sorted(secrets, key=len, reverse=True)
    return _hide_in(value, ordered) if ordered else value


def _hide_in(value: Any, secrets: Sequence[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, HIDDEN)
        return value
    if isinstance(value, dict):
        return {name: _hide_in(item, secrets) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_hide_in(item, secrets) for item in value]
    return value


def marked_fields(struct: type[msgspec.Struct]) -> set[str]:
    """The fields of a struct that are, or have in them, a secret."""
    schema = msgspec.json.schema(struct)
    mask = Mask(schema)
    fields = mask._defs.get(schema.get("$ref", "").rpartition("/")[2], schema).get("properties", {})
    return {name for name, field in fields.items() if _has_mark(field, mask._defs, set())}


def _has_mark(schema: Any, defs: Mapping[str, Any], seen: set[str]) -> bool:
    if isinstance(schema, list):
        return any(_has_mark(one, defs, seen) for one in schema)
    if not isinstance(schema, Mapping):
        return False
    if schema.get(MARK) is True:
        return True
    name = str(schema.get("$ref", "")).rpartition("/")[2]
    if name and name not in seen:
        seen.add(name)
        if _has_mark(defs.get(name), defs, seen):
            return True
    return any(_has_mark(value, defs, seen) for key, value in schema.items() if key != "default")


def lost_mark(struct: type[msgspec.Struct]) -> str | None:
    """The name of a field whose mark no schema would show, None if there is none: msgspec drops the mark of a struct
    that is marked as a whole, so that its own fields have to be marked."""
    if struct not in _LOST:  # to read the annotations is most of a registration
        _LOST[struct] = _lost_mark(struct, set())
    return _LOST[struct]


def _lost_mark(struct: type[msgspec.Struct], seen: set[type]) -> str | None:
    seen.add(struct)
    for name, hint in typing.get_type_hints(struct, include_extras=True).items():
        if _marks_struct(hint):
            return name
        for inner in _structs(hint):
            found = None if inner in seen else _lost_mark(inner, seen)
            if found is not None:
                return f"{name}.{found}"
    return None


def _marks_struct(hint: Any) -> bool:
    parts = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Annotated and any(part is Secret for part in parts[1:]):
        return bool(_structs(parts[0]))
    return any(_marks_struct(part) for part in parts)


def _structs(hint: Any) -> list[type[msgspec.Struct]]:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return [hint]
    return [found for part in typing.get_args(hint) for found in _structs(part)]
