"""Classes that settings name by their ``type``, schedd's own and those of entry points, with settings of their own."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import msgspec

from scheduler.config.messages import FILE, is_marked_secret
from scheduler.config.sources import PREFIX, UnfitSetting, convert, shown
from scheduler.errors import ConfigError


class ExtensionGroup(NamedTuple):
    """A group of entry points. ``what``: one of them; ``table``: of the settings; ``own``: schedd's, as
    "module:class": found without a search through all installed packages."""

    name: str
    what: str
    table: str
    own: Mapping[str, str]


class ExtensionTable(Protocol):
    """An entry of an open table: ``type``, and in ``options`` the settings that are not common."""

    @property
    def type(self) -> str: ...
    @property
    def options(self) -> dict[str, Any]: ...

    __struct_fields__: ClassVar[tuple[str, ...]]


def names(group: ExtensionGroup) -> list[str]:
    """The types that there are."""
    from importlib import metadata

    return sorted({*group.own, *(found.name for found in metadata.entry_points(group=group.name))})


def find(group: ExtensionGroup, type_name: str) -> Any:
    """The class of a type. Raises ConfigError: there is none, or it cannot be imported."""
    from importlib import metadata

    place = group.own.get(type_name)
    if place is None:
        place = next((found.value for found in metadata.entry_points(group=group.name, name=type_name)), None)
    if place is None:
        known = ", ".join(names(group)) or "none"
        raise ConfigError(f"there is no {group.what} of type {type_name!r:.80}; there are {known}")
    module, _, attribute = place.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"the {group.what} type {type_name} ({place}) cannot be loaded: {error}") from None


def settings_of(
    struct: type[msgspec.Struct], group: ExtensionGroup, name: str, section: ExtensionTable, origins: Mapping[str, str]
) -> msgspec.Struct:
    """The settings of a class itself, checked. A common setting that ``struct`` has as well is passed on.

    Raises ConfigError for a setting that is unknown, missing, or of another type.
    """
    table = f"{group.table}.{name}"
    kinds = typing.get_type_hints(struct, include_extras=True)
    left, made = dict(section.options), dict[str, Any]()

    def refuse(setting: str, why: str) -> typing.NoReturn:
        raise ConfigError(f"setting {table}.{setting} ({origins.get(f'{table}.{setting}', 'default')}): {why}")

    for field, kind in kinds.items():
        secret = is_marked_secret(kind)
        if secret and f"{field}{FILE}" in left and f"{field}{FILE}" not in kinds:
            if field in left:
                refuse(field, f"there is also {field}{FILE}: say one of the two")
            try:
                left[field] = _read(left.pop(f"{field}{FILE}"))
            except ConfigError as error:
                refuse(f"{field}{FILE}", str(error))
        if field in left:
            value = left.pop(field)
            try:
                made[field] = convert(kind, value, text=_is_text(origins.get(f"{table}.{field}", "")))
            except UnfitSetting as error:
                refuse(field, f"expected {error}" + ("" if secret else f", not {shown(value)}"))
        elif field in section.__struct_fields__ and field != "options":
            made[field] = getattr(section, field)
    if left:
        known = sorted({*kinds, *section.__struct_fields__} - {"options"})
        refuse(
            next(iter(left)), f"{_an(group.what)} of type {section.type} has no such setting; it has {', '.join(known)}"
        )
    missing = [f.name for f in msgspec.structs.fields(struct) if f.required and f.name not in made]
    if missing:
        refuse(missing[0], f"{_an(group.what)} of type {section.type} needs it")
    return struct(**made)


def _an(what: str) -> str:
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def _is_text(origin: str) -> bool:
    """Whether a setting comes from the environment or a credential, where all values are texts."""
    return origin.startswith((PREFIX, "credential "))


def _read(path: object) -> str:
    try:
        text = Path(str(path)).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    if not text:
        raise ConfigError(f"{path} is empty")
    return text
