"""Tasks of kinds that workers have published, for programs without the handlers: payloads checked by their schema."""

from __future__ import annotations

import datetime
import decimal
import re
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Annotated, Any, Literal, Union

import msgspec

from scheduler.errors import PayloadError, UnregisteredKindError, shown_as
from scheduler.model.concurrency_keys import fields_of
from scheduler.model.json_text import encode_json
from scheduler.model.lanes import LANE_SEPARATOR, check_fairness_key, fair_lane
from scheduler.model.priority import Priority
from scheduler.model.retry import RetryPolicy
from scheduler.model.secrets import Mask, hide_in
from scheduler.model.spec import MAX_KEY, MAX_PAYLOAD, TaskSpec
from scheduler.model.task import TaskOptions
from scheduler.model.texts import storable, within
from scheduler.operations.new_task import NewTask, parents_of, set_options
from scheduler.store.db.database import Database
from scheduler.store.db.tx import Tx
from scheduler.store.read.kinds import KindRecord, get_kind, kind_names


class PublishedKind:
    """A kind as builders need it, made of what workers have published."""

    makes_keys = False  # one that does is refused by spec()

    def __init__(self, record: KindRecord) -> None:
        self.name = record.name
        self.record = record
        self.options = TaskOptions(
            kind=record.name,
            key_retention=record.options.get("key_retention"),
            ranked=bool(record.options.get("ranked")),
        )

    def lacking(self, payload: Any) -> frozenset[str]:
        """The fields that a payload needs and has not."""
        if not isinstance(payload, Mapping):
            return frozenset()
        return frozenset(required_of(self.record)) - frozenset(payload)

    def without(self, names: frozenset[str]) -> PublishedKind:
        """The same kind with a payload that lacks these fields: results of parents bring them later."""
        return PublishedKind(without(self.record, names)) if names else self

    def decode(self, text: str) -> Any:
        """The payload, checked. Raises PayloadError."""
        payload = msgspec.json.decode(text)
        validate(self.record, payload)
        return payload

    def spec(self, value: Any) -> TaskSpec:
        """Make a new task of this kind with the kind's own options. Raises PayloadError."""
        if not isinstance(value, Mapping):
            raise PayloadError(f"payload of {self.name} is a mapping of its fields, not {value!r:.80}")
        return new_spec(self.name, value, self.record)


def new_task(
    kind: str,
    payload: Mapping[str, Any],
    record: KindRecord | None,
    given: NewTask,
    spelled: Callable[[str], str] = str,
) -> TaskSpec:
    """A new task of this kind with these options; ``spelled``: the name of an option where it was given.

    Raises PayloadError, ConfigError, InvalidScheduleError.
    """
    names = parents_of(given.depends_on)
    if twice := sorted(names & payload.keys()):
        raise PayloadError(f"{spelled('payload')} and {spelled('depends_on')} both give {twice[0]}")
    made = new_spec(kind, payload, record and without(record, names))
    set_options(made, given, TaskOptions(kind=kind) if record is None else PublishedKind(record).options, spelled)
    return made


def new_spec(kind: str, value: Mapping[str, Any], record: KindRecord | None) -> TaskSpec:
    """A new task with the options and the lane of its kind, None: one that is not published. Raises PayloadError."""
    refuse_own_keys(record)
    made = usual_task(kind, record)
    made.payload = encode_payload(kind, value)
    if record is not None:
        payload = msgspec.json.decode(made.payload)  # as the worker reads it
        validate(record, payload)
        made.lane = lane_of(kind, payload, record)
    return made


def usual_task(kind: str, record: KindRecord | None) -> TaskSpec:
    """A task with the options that workers have published of its kind, without a payload."""
    given = {} if record is None else record.options
    policy = None if given.get("retry") is None else RetryPolicy.from_json(given["retry"])
    return TaskSpec(
        kind=kind,
        payload="{}",
        lane=kind,
        queue=given.get("queue", "default"),
        priority=given.get("priority", int(Priority.MEDIUM)),
        max_attempts=1 if policy is None else policy.max_attempts,
        retry=given.get("retry"),
        timeout=given.get("timeout"),
        dead_letter=given.get("dead_letter", True),
        schema_version=1 if record is None else record.schema_version,
        result_ttl=given.get("result_ttl"),
        failed_ttl=given.get("failed_ttl"),
        executor=given.get("executor"),
        resources=given.get("resources"),
        executor_options=given.get("executor_options"),
    )


def get_published(tx: Tx, name: str) -> KindRecord:
    """The kind of this name, as workers have published it. Raises UnregisteredKindError."""
    record = None if name != storable(name) else get_kind(tx, name)
    if record is not None:
        return record
    known = kind_names(tx)
    there = f"known are {', '.join(known)}" if known else "none is known: start a worker first"
    raise UnregisteredKindError(f"no worker has registered a kind {name!r:.80}; {there}")


def read_kind(database: Database, name: str) -> PublishedKind:
    """The kind of this name for builders. Raises UnregisteredKindError."""
    with database.read() as tx:
        return PublishedKind(get_published(tx, name))


def encode_payload(kind: str, payload: Any) -> str:
    """A payload as JSON text. Raises PayloadError if it is too long."""
    text = encode_json(payload, f"payload of {kind}")
    if len(text.encode()) > MAX_PAYLOAD:
        raise PayloadError(
            f"payload of {kind} is {len(text.encode())} bytes, over the limit of {MAX_PAYLOAD}; "
            "store the data elsewhere and pass a reference to it"
        )
    return text


def refuse_own_keys(record: KindRecord | None) -> None:
    """Refuse a kind whose keys its program makes (unique, debounce). Raises PayloadError."""
    if record is not None and record.options.get("makes_keys"):
        raise PayloadError(
            f"kind {record.name} makes its keys itself (unique or debounce): schedule it from a program that has it"
        )


def lane_of(kind: str, payload: dict[str, Any], record: KindRecord) -> str:
    """The lane of a task: its kind, or kind + concurrency key, with its fairness key. Raises PayloadError."""
    lane, key = kind, _lane_key(record, payload, "concurrency_key")
    if key is not None:
        lane += LANE_SEPARATOR + within(storable(key), MAX_KEY)
    weight = record.options.get("fairness_weight", 1.0)
    fair = _lane_key(record, payload, "fairness_key")
    return fair_lane(lane, fair and check_fairness_key(fair), weight)


def _lane_key(record: KindRecord, payload: dict[str, Any], option: str) -> str | None:
    rule, name = record.options.get(option), option.replace("_", " ")
    if not rule:
        return None
    if not isinstance(rule, str):
        why = record.options.get(f"{option}_why")
        because = "" if why is None else f" ({why})"
        raise PayloadError(f"the {name} of {record.name} is made by its program{because}: schedule it from Python")
    try:
        return rule.format(**as_read(record, payload, fields_of(rule), name))
    except (KeyError, IndexError, AttributeError, ValueError) as error:
        raise PayloadError(f"{option} of {record.name} cannot be made: {error!r}") from None


def validate(kind: KindRecord, payload: Any) -> None:
    """Check a payload by the kind's schema, as the worker's program will. Raises PayloadError that names the field."""
    text = encode_json(payload, f"payload of {kind.name}")
    try:
        _decoder(msgspec.json.encode(kind.schema)).decode(text)
    except msgspec.ValidationError as error:
        secrets = Mask(kind.schema).secrets(text)
        detail = hide_in(str(error), secrets)
        if detail.startswith("Object contains unknown field") and " - at " not in detail:
            detail += f"; there are {', '.join(_fields(kind)) or 'no fields'}"
        field = _TEXT_INSTEAD.search(str(error))
        given = payload.get(field[1]) if field is not None and isinstance(payload, Mapping) else None
        raise MisfitError(
            f"payload of {kind.name} does not fit: {detail}",
            (field[1], hide_in(given, secrets)) if field is not None and isinstance(given, str) else None,
        ) from None


@shown_as(PayloadError)
class MisfitError(PayloadError):
    """A payload does not fit the schema. ``text``: a field that got a text and wants another type, and that text."""

    def __init__(self, message: str, text: tuple[str, str] | None) -> None:
        super().__init__(message)
        self.text = text


def as_read(kind: KindRecord, payload: dict[str, Any], names: Sequence[str], what: str) -> dict[str, Any]:
    """The fields as the handler's program decodes them, with defaults. Raises PayloadError."""
    fields, found = _fields(kind), {}
    for name in names:
        field = fields.get(name, {})
        if name not in payload and "default" not in field:
            raise PayloadError(f"the {what} of {kind.name} needs {name}, whose default only its program knows")
        try:
            found[name] = msgspec.convert(payload.get(name, field.get("default")), _type_of(field, {}))
        except msgspec.ValidationError as error:
            raise PayloadError(f"payload of {kind.name} does not fit, at {name}: {error}") from None
    return found


def _fields(kind: KindRecord) -> dict[str, Any]:
    fields: dict[str, Any] = root_of(kind.schema).get("properties", {})
    return fields


def root_of(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = schema.get("$defs", {}).get(str(schema["$ref"]).rpartition("/")[2], {})
    return found


def required_of(kind: KindRecord) -> list[str]:
    """The fields that each payload has."""
    return list(root_of(kind.schema).get("required", ()))


def without(kind: KindRecord, names: Collection[str]) -> KindRecord:
    """The kind with a schema that does not ask for these fields: results of parents bring them later."""
    root = root_of(kind.schema)
    loose = root | {"required": [name for name in root.get("required", ()) if name not in names]}
    if root is kind.schema:
        return kind._replace(schema=loose)
    own = str(kind.schema["$ref"]).rpartition("/")[2]
    return kind._replace(schema=kind.schema | {"$defs": kind.schema.get("$defs", {}) | {own: loose}})


_TEXT_INSTEAD = re.compile(r"^Expected `.*, got `str` - at `\$\.([^`]+)`$")
_TYPES: Mapping[str, Any] = {"number": float, "integer": int, "boolean": bool, "null": None}
_FORMATS: Mapping[str, Any] = {
    "uuid": uuid.UUID,
    "decimal": decimal.Decimal,
    "date": datetime.date,
    "date-time": datetime.datetime,
    "time": datetime.time,
    "duration": datetime.timedelta,
}
# How msgspec names a bound of JSON schema.
_BOUNDS = {
    "minimum": "ge",
    "exclusiveMinimum": "gt",
    "maximum": "le",
    "exclusiveMaximum": "lt",
    "multipleOf": "multiple_of",
    "pattern": "pattern",
    **{f"min{what}": "min_length" for what in ("Length", "Items", "Properties")},
    **{f"max{what}": "max_length" for what in ("Length", "Items", "Properties")},
}
_Schema = Mapping[str, Any]
# Generic types, whose parts are only known here.
_Of: Any = SimpleNamespace(union=Union, enum=Literal, map=dict, list=list, tuple=tuple, bound=Annotated)


@lru_cache(maxsize=256)
def _decoder(schema: bytes) -> msgspec.json.Decoder[Any]:
    """Decodes what fits a schema, and refuses all else in the words of the program that published it."""
    found = msgspec.json.decode(schema)
    return msgspec.json.Decoder(_type_of(found, found.get("$defs", {})))


def _type_of(schema: _Schema, defs: Mapping[str, _Schema], within: frozenset[str] = frozenset(), tag: str = "") -> Any:
    """The type that msgspec made this schema of. ``tag``: the field that tells the types of a union from each other.

    ``within``: the types that it is a part of; of one that is a part of itself the first is checked.
    """
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        if name in within:
            return dict if defs[name].get("type") == "object" else Any
        return _type_of(defs.get(name, {}), defs, within | {name}, tag)
    if "anyOf" in schema:
        told = schema.get("discriminator", {}).get("propertyName", "")
        return _known(_Of.union[tuple(_type_of(one, defs, within, told) for one in schema["anyOf"])])
    if "enum" in schema:
        return _known(_Of.enum[tuple(schema["enum"])])

    def part(of: Any) -> Any:
        return _type_of(of, defs, within) if isinstance(of, Mapping) else Any

    sort = schema.get("type")
    if sort == "object" and "properties" in schema:
        return _struct_of(schema, tag, part)
    if sort == "array" and "prefixItems" in schema:
        parts, least = [part(one) for one in schema["prefixItems"]], schema.get("minItems", 0)
        if least == schema.get("maxItems"):
            return _Of.tuple[tuple(parts)]
        optional = [(f"part_{place}", one, None) for place, one in enumerate(parts)]
        fields: list[Any] = [*(one[:2] for one in optional[:least]), *optional[least:]]
        return msgspec.defstruct("Items", fields, array_like=True, forbid_unknown_fields="maxItems" in schema)
    if sort == "object":
        keys = part({"type": "string"} | schema.get("propertyNames", {}))
        made = _Of.map[keys, part(schema.get("additionalProperties"))]
    elif sort == "array":
        made = _Of.list[part(schema.get("items"))]
    elif sort == "string":
        made = bytes if "contentEncoding" in schema else _FORMATS.get(schema.get("format", ""), str)
    else:
        made = _TYPES.get(str(sort), Any)
    bounds = {_BOUNDS[key]: value for key, value in schema.items() if key in _BOUNDS}
    return _known(_Of.bound[made, msgspec.Meta(**bounds)]) if bounds else made


def _struct_of(schema: _Schema, tag: str, part: Callable[[_Schema], Any]) -> Any:
    needed, properties, fields = schema.get("required", ()), schema["properties"], list[Any]()
    for place, (name, one) in enumerate(properties.items()):
        if name != tag:
            field = msgspec.field(name=name) if name in needed else msgspec.field(name=name, default=None)
            fields.append((f"field_{place}", part(one), field))
    own = {"tag_field": tag, "tag": properties[tag]["enum"][0]} if tag in properties else {}
    strict = schema.get("additionalProperties") is False
    return msgspec.defstruct("Fields", fields, kw_only=True, forbid_unknown_fields=strict, **own)


def _known(made: Any) -> Any:
    """The type; anything, where msgspec knows none like it."""
    try:
        msgspec.json.Decoder(made)
    except TypeError:
        return Any
    return made
