"""The description of the API as OpenAPI 3.1, made of the table."""

from __future__ import annotations

import re
from functools import cache, partial
from typing import Any, get_type_hints

import msgspec

from scheduler import __version__
from scheduler.console.api.table import DOCUMENT, PREFIX, ROUTES, Route

_REF = "#/components/schemas/{name}"
ERRORS = {
    "400": "The request is broken.",
    "401": "Nobody is known by these credentials.",
    "403": "The role does not include it.",
    "404": "There is no such thing.",
    "409": "The state of a task, or a key, does not allow it.",
    "413": "The body is too large.",
    "415": "The body is not JSON.",
    "422": "An argument is wrong; `where` names it.",
    "429": "Too many wrong credentials.",
    "503": "The database does not answer, or too many ask at once: try again.",
}


class Error(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request is refused. ``where``: the argument."""

    error: str
    status: int
    where: str | None = None


@cache
def _described() -> dict[str, Any]:
    types: list[Any] = [*dict.fromkeys(one.args for one in ROUTES), *map(result_of, ROUTES), Error]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    of = {str(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        path = PREFIX + re.sub(r"\{(\w+):\w+\}", r"{\1}", route.path)
        paths.setdefault(path, {})[route.method.lower()] = _operation(route, of, components)
    text = "The description of this API."
    described = {"summary": text, "x-role-verb": "look", "responses": _responses({"type": "object"})}
    paths[PREFIX + DOCUMENT] = {"get": {"operationId": "openapi", **described}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "schedd", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "responses": {f"E{status}": _response(text, of[str(Error)]) for status, text in ERRORS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{"bearer": []}, {"basic": []}, {}],
    }


def document(prefix: str = "") -> dict[str, Any]:
    """The description, as seen below ``prefix``."""
    return {**_described(), "servers": [{"url": prefix or "/"}]}


def result_of(route: Route) -> Any:
    """The type of an answer."""
    call = route.call.func if isinstance(route.call, partial) else route.call
    return get_type_hints(call)["return"]


def _operation(route: Route, of: dict[str, Any], components: dict[str, Any]) -> dict[str, Any]:
    schema = of[str(route.args)]
    made: dict[str, Any] = {
        "operationId": re.sub(r"\W+", "_", f"{route.method.lower()}{route.path}").strip("_"),
        "summary": route.summary,
        "x-role-verb": route.verb.value,
        "parameters": [
            {"name": name, "in": "path", "required": True, "schema": {"type": "integer" if kind else "string"}}
            for name, kind in re.findall(r"\{(\w+)(:int)?\}", route.path)
        ],
        "responses": _responses(of[str(result_of(route))]),
    }
    if route.method == "POST":
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
        return made
    fields = components[route.args.__name__]["properties"]
    made["parameters"] += [{"name": name, "in": "query", "schema": field} for name, field in fields.items()]
    return made


def _responses(result: Any) -> dict[str, Any]:
    refused = {status: {"$ref": f"#/components/responses/E{status}"} for status in ERRORS}
    return {"200": _response("Done.", result), **refused}


def _response(text: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
