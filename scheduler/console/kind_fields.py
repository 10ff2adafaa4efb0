"""The fields of a kind's payload, as its published schema has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.model.secrets import is_secret_name


def fields_of(schema: Mapping[str, Any], payload: Any) -> dict[str, str]:
    """The fields that may be changed, each with its JSON type: those of the published schema that hide no secret."""
    inner = schema
    if "$ref" in schema:
        inner = schema.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    fields = inner.get("properties", {})
    hidden = {name for name, value in payload.items() if value == "***"} if isinstance(payload, dict) else set()
    return {
        name: str(field.get("type", "any")) if isinstance(field, Mapping) else "any"
        for name, field in fields.items()
        if name not in hidden and not is_secret_name(name) and not (isinstance(field, Mapping) and "x-secret" in field)
    }
