"""New payloads of stored tasks: checked, and with everything that derives from a payload: lane, schema version, key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.errors import PayloadError, UnregisteredKindError
from scheduler.model.json_text import encode_json
from scheduler.model.registry import Kind, Registry
from scheduler.model.spec import plain
from scheduler.model.task import Task
from scheduler.model.unique import DerivedKey, key_of
from scheduler.operations.published import as_read, encode_payload, lane_of, validate, without
from scheduler.store.db.tx import Tx
from scheduler.store.read.kinds import KindRecord, get_kind
from scheduler.store.tasks.patch import NewPayload, StoredPayload

_MISSING = object()


def of_registered(
    registry: Registry, kind: Kind, present: StoredPayload, value: Any, fields: Mapping[str, Any] | None = None
) -> NewPayload:
    """The payload ``value`` (an instance, or all its fields), or the present one with other ``fields``.

    Raises PayloadError.
    """
    if fields is not None:
        text = kind.upgraded(present.text, present.schema_version)
        value = {**_decoded_fields(present.id, text), **fields}
    if not isinstance(value, Task):
        kind = kind.without(kind.lacking(value) & present.named)
        value = kind.decode(encode_json(value, f"payload of {kind.name}"))
    elif registry.of_instance(value).name != kind.name:
        raise PayloadError(f"task {present.id} is of kind {kind.name}; {type(value).__name__} is another one")
    text = kind.encode(value)
    key = kind.derived_key(value, text, present.text, present.schema_version, present.id)
    return NewPayload(text, kind.lane(value), kind.options.schema_version, key)


def of_published(
    record: KindRecord, present: StoredPayload, value: Any, fields: Mapping[str, Any] | None = None
) -> NewPayload:
    """:func:`of_registered` for a kind that only workers have. Raises PayloadError."""
    record = without(record, present.named)
    if fields is not None:
        _refuse_older(record, present)
        value = {**_decoded_fields(present.id, present.text), **fields}
    text = encode_payload(record.name, value)
    payload = msgspec.json.decode(text)  # as the worker reads it
    validate(record, payload)
    key = _derived_key(record, present, payload)
    return NewPayload(text, lane_of(record.name, payload, record), record.schema_version, key)


def patched_payload(tx: Tx, present: StoredPayload, fields: Mapping[str, Any]) -> NewPayload:
    """A stored payload with other fields, as the kind that workers have published wants it.

    Raises UnregisteredKindError, PayloadError.
    """
    return of_published(published_kind(tx, present.kind), present, None, fields)


def published_kind(tx: Tx, name: str) -> KindRecord:
    """The kind of this name, which payloads are checked by. Raises UnregisteredKindError."""
    record = get_kind(tx, name)
    if record is None:
        raise UnregisteredKindError(f"no worker has registered a kind {name!r}: its payload cannot be checked")
    return record


def _decoded_fields(task_id: int, text: str) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise PayloadError(f"the payload of task {task_id} has no fields: give another one, whole")
    return found


def _refuse_older(record: KindRecord, present: StoredPayload) -> None:
    """Fields of an older payload are those of an older type: only the program turns it into a present one."""
    if present.schema_version == record.schema_version or not record.options.get("upgrades", True):
        return
    raise PayloadError(
        f"the payload of task {present.id} has schema_version {present.schema_version}, kind {record.name} has "
        f"{record.schema_version}: give another payload, whole, or change it from the program, which can upgrade it"
    )


def _derived_key(record: KindRecord, present: StoredPayload, payload: Any) -> DerivedKey | None:
    """The key that the payload makes. Raises PayloadError if only the program can make another one."""
    options = record.options
    if not options.get("makes_keys"):
        return None
    names, why = options.get("key_fields"), options.get("key_why", "its workers are older")
    before = _object(present.text)
    if before is not None and _unchanged(before, payload, names):
        return None
    if names is None or why is not None:
        raise PayloadError(
            f"the key of {record.name} (unique or debounce) is made by its program ({why}): change it from Python"
        )
    return DerivedKey(
        _key(record, payload, names),
        None if before is None else _key_before(record, before, names),
        options.get("unique_states"),
        options.get("unique_for"),
    )


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _unchanged(before: dict[str, Any], payload: Any, names: list[str] | None) -> bool:
    if names is None or not isinstance(payload, dict):
        return bool(before == payload)
    return all(before.get(name, _MISSING) == payload.get(name, _MISSING) for name in names)


def _key(record: KindRecord, payload: dict[str, Any], names: list[str]) -> str:
    found = as_read(record, payload, names, "key")
    return key_of(msgspec.to_builtins(found, enc_hook=plain), tuple(names))


def _key_before(record: KindRecord, payload: dict[str, Any], names: list[str]) -> str | None:
    try:
        return _key(record, payload, names)
    except PayloadError:
        return None  # what cannot be read makes no key
