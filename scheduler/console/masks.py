"""Masks secrets in what pages show: by the schema's ``x-secret``, by names, and in URLs and texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.model.redact import redact

MASK = "***"
_NAME = re.compile(
    r"pass(word|wd|phrase)?|pwd|secret|token|api_?key|authori[sz]ation|cookie|credential|private_?key|dsn"
    r"|session|signature",
    re.IGNORECASE,
)
_MAX_DEPTH = 60


def is_secret_name(name: str) -> bool:
    """Whether a field of this name is masked."""
    return _NAME.search(name.replace("-", "_")) is not None


def secret_path(path: str, schema: Mapping[str, Any] | None = None) -> bool:
    """Whether any part of a path such as ``login.password`` is masked, by its name or by the kind's schema."""
    if any(is_secret_name(part) for part in path.split(".")):
        return True
    node: Any = schema
    for part in path.split("."):
        node = _property(node, schema, part)
        if isinstance(node, dict) and node.get("x-secret"):
            return True
    return False


def masked(value: Any, schema: Mapping[str, Any] | None = None) -> Any:
    """The same with each secret replaced by ``***``."""
    return _mask(value, schema, schema, 0)


def masked_text(text: str | None) -> str | None:
    """A text, such as an error or a log, without the passwords of URLs and values named like a secret."""
    return None if text is None else redact(text)


def masked_json(text: str | None, schema: Mapping[str, Any] | None = None) -> Any:
    """JSON text decoded and masked; what is no JSON as text."""
    if text is None:
        return None
    try:
        return masked(msgspec.json.decode(text), schema)
    except (msgspec.MsgspecError, RecursionError):
        return redact(text)


def _mask(value: Any, node: Any, root: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return MASK
    if isinstance(node, dict) and node.get("x-secret"):
        return None if value is None else MASK
    if isinstance(value, dict):
        return {
            name: MASK
            if is_secret_name(str(name)) and inner is not None
            else _mask(inner, _property(node, root, str(name)), root, depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, list):
        items = _resolved(node, root).get("items")
        return [_mask(inner, items, root, depth + 1) for inner in value]
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**53:
        return str(value)  # JavaScript would round it
    return value


def _resolved(node: Any, root: Any) -> dict[str, Any]:
    """The schema itself, where it is a reference to one of ``$defs``."""
    for _ in range(10):
        reference = node.get("$ref") if isinstance(node, dict) else None
        if not isinstance(reference, str) or not reference.startswith("#/$defs/") or not isinstance(root, dict):
            break
        node = (root.get("$defs") or {}).get(reference.removeprefix("#/$defs/"))
    return node if isinstance(node, dict) else {}


def _property(node: Any, root: Any, name: str) -> Any:
    found = _resolved(node, root)
    properties = found.get("properties")
    if isinstance(properties, dict) and name in properties:
        return properties[name]
    for choice in ("anyOf", "oneOf", "allOf"):
        for one in found.get(choice) or ():
            inner = _property(one, root, name)
            if inner is not None:
                return inner
    return None
