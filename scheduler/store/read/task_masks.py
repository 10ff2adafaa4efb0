"""The one mask of what people see of tasks: secrets that types declare, fields named like one, passwords in URLs.

Pages, commands and ``jobs.masked()`` use it, so that what one of them hides, all hide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from scheduler.model.compare import FieldChange, changes
from scheduler.model.redact import redact
from scheduler.model.secrets import HIDDEN, MARK, Mask, hide_in, is_secret_name
from scheduler.store.db.tx import Tx
from scheduler.store.masks import masks
from scheduler.store.read.history import attempts
from scheduler.store.read.kinds import kind_names
from scheduler.store.read.tasks import TaskRecord

MASK = HIDDEN
_VALUES = ("default", "examples", "const")
_MAX_DEPTH = 60
_SHORTEST = 4  # a shorter text would be found in every other word
_PROBE = "a value"


class TaskMask:
    """Hides the secrets of one task: in its payload, and wherever else their texts stand."""

    def __init__(self, mask: Mask | None = None, payloads: Iterable[str | None] = ()) -> None:
        self._mask = mask
        found: set[str] = set()
        for text in payloads:
            if text is not None:
                _collect(_decoded(text), False, found, 0)
        declared = frozenset[str]() if mask is None else mask.secrets(*payloads)
        self._secrets = declared | {text for text in found if len(text) >= _SHORTEST}

    def payload(self, text: str | None) -> Any:
        """A stored payload, decoded. What is no JSON is shown as text, unless its type declares secrets."""
        if text is None:
            return None
        value = _decoded(text)
        if value is None and text != "null":
            return MASK if self._mask is not None else self.text(text)
        return self.decoded(value)

    def decoded(self, payload: Any) -> Any:
        """A payload that is decoded already."""
        return self.value(payload if self._mask is None else self._mask.payload(payload))

    def hides(self, text: str | None) -> bool:
        """Whether something of this stored payload is hidden."""
        value = None if text is None else _decoded(text)
        return value is not None and self.decoded(value) != value

    def plain(self, value: Any) -> Any:
        """Names and keys, which are hidden only where they are a secret of the payload."""
        return hide_in(value, self._secrets)

    def value(self, value: Any) -> Any:
        """Headers, results, checkpoints and the like."""
        return masked(hide_in(value, self._secrets))

    def json(self, text: str | None) -> Any:
        """A stored value, decoded."""
        if text is None:
            return None
        value = _decoded(text)
        return self.text(text) if value is None and text != "null" else self.value(value)

    def text(self, text: str | None) -> str | None:
        """An error, or what an attempt wrote."""
        shown: str | None = hide_in(masked_text(text), self._secrets)
        return shown


class TaskMasks:
    """Makes the masks of tasks of several kinds, within one read."""

    mask: type[TaskMask] = TaskMask

    def __init__(self, tx: Tx, kinds: Iterable[str]) -> None:
        self._tx, self._masks = tx, masks(tx, kinds)

    def of(self, task: TaskRecord, *payloads: str | None) -> TaskMask:
        """The mask of a task; ``payloads``: those that earlier attempts had."""
        return self.mask(self._masks.get(task.kind), (task.payload, *payloads))

    def of_all(self, task: TaskRecord) -> TaskMask:
        """The mask of a task, also of the secrets that its earlier attempts had, if it has secrets at all."""
        mask = self.of(task)
        if task.kind not in self._masks and not mask.hides(task.payload):
            return mask
        return self.of(task, *(one.envelope.payload for one in attempts(self._tx, task.id)))

    def of_kind(self, kind: str, *payloads: str | None) -> TaskMask:
        """The mask for a payload of this kind."""
        return self.mask(self._masks.get(kind), payloads)


def payload_changes(masks: Sequence[TaskMask], payloads: Sequence[str | None]) -> list[FieldChange]:
    """The differences of two payloads, masked. Of two hidden values that differ it says that they do."""
    shown = [mask.payload(text) for mask, text in zip(masks, payloads, strict=True)]
    found = changes(*shown)
    seen = {change.path for change in found}
    for change in changes(*(None if text is None else _decoded(text) for text in payloads)):
        path = _hidden_at(shown[1], change.path) if change.added else _hidden_at(shown[0], change.path)
        if path is not None and path not in seen:
            seen.add(path)
            found.append(FieldChange(path, MASK, f"{MASK} (another)"))
    return found


def _hidden_at(value: Any, path: str) -> str | None:
    """Where on this path a value is hidden; None: nowhere."""
    walked = ""
    for part in re.findall(r"\[\d+\]|[^.\[]+", path):
        if isinstance(value, str):
            break
        if isinstance(value, list) and part.startswith("["):
            number = int(part[1:-1])
            value = value[number] if number < len(value) else None
            walked += part
        elif isinstance(value, dict) and part in value:
            value = value[part]
            walked = f"{walked}.{part}" if walked else part
        else:
            return None
    return walked if isinstance(value, str) and MASK in value else None


def masked_schema(schema: Any) -> Any:
    """A published schema without the defaults and examples of secret fields."""
    return _mask_schema(schema, False)


def _mask_schema(schema: Any, secret: bool) -> Any:
    if isinstance(schema, list):
        return [_mask_schema(one, secret) for one in schema]
    if not isinstance(schema, Mapping):
        return schema
    secret = secret or schema.get(MARK) is True
    made: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _VALUES:
            made[name] = MASK if secret and value is not None else _mask(value, 0)
        elif name in ("properties", "$defs") and isinstance(value, Mapping):
            made[name] = {
                field: _mask_schema(inner, secret or (name == "properties" and is_secret_name(str(field))))
                for field, inner in value.items()
            }
        else:
            made[name] = _mask_schema(value, secret)
    return made


def secret_path(tx: Tx, path: str) -> bool:
    """Whether a field of payloads such as ``login.password`` is masked: by its name, or by a kind of the workers."""
    parts = path.split(".")
    if any(map(is_secret_name, parts)):
        return True
    probe: Any = _PROBE
    for part in reversed(parts):
        probe = [probe] if part.isdigit() else {part: probe}
    whole = {path: _PROBE}
    found = masks(tx, kind_names(tx)).values()
    return any(mask.payload(one) != one for mask in found for one in (probe, whole))


def masked(value: Any) -> Any:
    """The same with ``***`` for each value with a secret's name, and without the passwords of URLs."""
    return _mask(value, 0)


def masked_text(text: str | None) -> str | None:
    """A text without the passwords of URLs and values named like a secret."""
    return None if text is None else redact(text)


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError):
        return None


def _mask(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        return MASK
    if isinstance(value, Mapping):
        return {
            name: MASK if inner is not None and is_secret_name(str(name)) else _mask(inner, depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_mask(inner, depth + 1) for inner in value]
    if isinstance(value, str):
        return redact(value)
    return value


def _collect(value: Any, secret: bool, found: set[str], depth: int) -> None:
    """The texts below names like a secret's."""
    if depth > _MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            _collect(inner, secret or is_secret_name(str(name)), found, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            _collect(inner, secret, found, depth + 1)
    elif secret and isinstance(value, str):
        found.add(value)
