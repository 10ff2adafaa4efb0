"""Reads settings from a file, credentials and the environment, and converts each to its type.

It imports only light modules, since ``schedctl`` reads the configuration on every call.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.names import nearest
from scheduler.model.redact import redact
from scheduler.model.times import UNITS, seconds_of_text

PREFIX = "SCHEDD_"
NOT_SETTINGS = frozenset({"SCHEDD_CONFIG", "SCHEDD_DEBUG"})
DURATION = "duration"
Duration = Annotated[float, DURATION]
"""Seconds; written as a number, or as text such as "90s", "24h", "1h30m" or "30d"."""

LONGEST = 1000 * 366 * 86400.0  # a thousand years: beyond it is a mistake
_NUMBER = r"\d+(?:\.\d+)?"
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})
_SHOWN = 80
_ENTRY = r"[a-z][a-z0-9_-]*"  # the name of an entry of a table, such as that of a sink
OPEN = "*"
"""In a table's settings: an entry may have others, whose type only the part of schedd that uses them knows."""


class UnfitSetting(Exception):
    """A value that is not valid for its setting; the text says what was expected."""


def parse_duration(value: object) -> float:
    """Seconds from a number or from text such as "24h". Raises ConfigError."""
    try:
        return _duration(value)
    except UnfitSetting as error:
        raise ConfigError(f"{value!r} is not a duration: expected {error}") from None


def format_duration(seconds: float) -> str:
    """The shortest text that :func:`parse_duration` reads back as ``seconds``: "90s", "24h", "30d"."""
    for unit in ("d", "h", "m"):
        count = seconds / UNITS[unit]
        if count >= 2 and count == int(count):
            return f"{int(count)}{unit}"
    return f"{seconds:.6f}".rstrip("0").rstrip(".") + "s"


def shown(value: object) -> str:
    """A value for an error message: as JSON, without passwords, not too long."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except (TypeError, ValueError):
        text = repr(value)
    text = redact(text)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def convert(kind: Any, value: object, *, text: bool) -> Any:
    """Convert ``value`` to the annotation ``kind``. ``text``: the value is a text from the environment.

    Raises Unfit, whose text says what was expected.
    """
    if kind is object:
        return _anything(value)
    kind, limits, duration = _unwrap(kind)
    if duration:
        result: Any = _duration(value)
        return _within(result, limits, 'seconds, or text such as "90s", "24h" or "30d"')
    if typing.get_origin(kind) is Literal:
        return _choice(value, typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return _list(value, text)
    if typing.get_origin(kind) is dict:
        return _table(value, text)
    if kind is bool:
        return _bool(value, text)
    if kind is int:
        return _within(_int(value, text), limits, "a whole number")
    if kind is float:
        return _within(_float(value, text), limits, "a number")
    if kind is str:
        if not isinstance(value, str) or not value.strip():
            raise UnfitSetting("text, not empty" if value == "" else "text")
        if "\0" in value:  # systems take it in no path, and databases in no text
            raise UnfitSetting("text without NUL")
        return value.strip()
    raise TypeError(f"a setting cannot be of type {kind!r}")  # a mistake in Config, not in a user's file


def is_duration(kind: Any) -> bool:
    """Whether the setting is a number of seconds."""
    return _unwrap(kind)[2]


class SettingsReader:
    """Reads settings from their sources, each method as ``{dotted name: (value, source)}``.

    ``kinds``: the settings there are and their annotated types; ``secret``: those never echoed in an error.
    ``tables``: sections whose entries a user names, each with the settings of an entry: ``alerts.sinks``; of these
    ``secret`` says ``alerts.sinks.*.url``. All raise ConfigError for what cannot be read, is unknown or does not fit.
    """

    def __init__(
        self, kinds: Mapping[str, Any], secret: frozenset[str], tables: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._kinds = kinds
        self._secret = secret
        self._tables = tables or {}
        names = [*kinds, *(f"{table}." for table in self._tables)]
        self._sections = {name[:end] for name in names for end, sign in enumerate(name) if sign == "."}

    def _kind(self, name: str) -> Any:
        """The type of a setting; None if there is none of this name."""
        table, entry, last = _parts(name)
        kinds = self._tables.get(table, {}) if entry else {}
        return self._kinds.get(name) or kinds.get(last) or kinds.get(OPEN)

    def file(self, file: str) -> dict[str, tuple[Any, str]]:
        """The settings of a TOML file."""
        import tomllib

        try:
            tree = tomllib.loads(Path(file).read_bytes().decode("utf-8-sig"))
        except FileNotFoundError:
            raise ConfigError(f"there is no configuration file {file}") from None
        except OSError as error:
            raise ConfigError(f"cannot read the configuration file {file}: {error.strerror or error}") from None
        except UnicodeDecodeError as error:
            raise ConfigError(f"{file} is not UTF-8 text (byte {error.start})") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{file} is not TOML: {error}") from None
        found = {}
        for name, value in self._leaves(tree, file):
            found[name] = (self._converted(name, value, name, f"in {file}", text=False), file)
        return found

    def _leaves(self, tree: dict[str, Any], file: str, prefix: str = "") -> Iterator[tuple[str, Any]]:
        for key, value in tree.items():
            name = prefix + key
            if self._kind(name) is not None:
                yield name, value
            elif _parts(f"{name}.")[0] in self._tables:
                if not isinstance(value, dict) or not re.fullmatch(_ENTRY, key):
                    named = "a name of small letters, digits, - and _"
                    raise ConfigError(f"expected a section [{prefix}NAME] with {named}, not {name}, in {file}")
                yield from self._leaves(value, file, name + ".")
            elif name in self._sections:
                if not isinstance(value, dict):
                    raise ConfigError(f"{name} is a section: write [{name}] and its settings below it, in {file}")
                yield from self._leaves(value, file, name + ".")
            else:
                while isinstance(value, dict) and value:  # a section that does not exist: name a setting in it
                    key, value = next(iter(value.items()))
                    name += "." + key
                raise ConfigError(f"unknown setting {name} in {file}{self._hint(name)}")

    def credentials(self, directory: str | None) -> dict[str, tuple[Any, str]]:
        """The files in ``directory`` named like settings (``store.url``).

        Files that begin with the name of no section are left to the tasks.
        """
        found = {}
        for name in _credential_names(directory):
            where = os.path.join(directory or "", name)
            if self._kind(name) is None or not re.fullmatch(_ENTRY, _parts(name)[1] or "x"):
                if {name.rpartition(".")[0], _parts(name)[0]} & self._sections:
                    raise ConfigError(f"unknown setting: credential {where}{self._hint(name)}")
                continue
            try:
                text = Path(where).read_bytes().decode().rstrip("\r\n")
            except OSError as error:
                raise ConfigError(f"cannot read the credential {where}: {error.strerror}") from None
            except UnicodeDecodeError:
                raise ConfigError(f"the credential {where} is not UTF-8 text") from None
            source = f"credential {name}"
            value = self._converted(name, text, source, f"in {where}", text=True, secret=True)
            found[name] = (value, source)
        return found

    def environment(self, environ: Mapping[str, str]) -> dict[str, tuple[Any, str]]:
        """``SCHEDD_SECTION__NAME``. Other variables may begin with SCHEDD_ too, as a container's links do."""
        known = {PREFIX + name.upper().replace(".", "__"): name for name in self._kinds}
        single = {variable.replace("__", "_"): variable for variable in known}
        found: dict[str, tuple[Any, str]] = {}
        for variable, text in sorted(environ.items()):
            if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
                continue
            if variable in single:
                right = single[variable]
                raise ConfigError(f"unknown setting {variable} in the environment; did you mean {right}?")
            name = known.get(variable) or self._entry(variable)
            if name is None:
                if "__" in variable:
                    raise ConfigError(f"unknown setting {variable} in the environment{_hint(variable, known)}")
                continue
            value = self._converted(name, text, variable, "in the environment", text=True)
            found[name] = (value, variable)
        return found

    def _entry(self, variable: str) -> str | None:
        """The setting of a table's entry that a variable names: ``SCHEDD_ALERTS__SINKS__OPS__URL``."""
        name = variable.removeprefix(PREFIX).lower().replace("__", ".")
        table, entry, _ = _parts(name)
        return name if table in self._tables and re.fullmatch(_ENTRY, entry) and self._kind(name) is not None else None

    def _hint(self, name: str) -> str:
        table, entry, _ = _parts(name)
        return _hint(name, {f"{table}.{entry}.{one}": one for one in self._tables.get(table, ())} or self._kinds)

    def _converted(self, name: str, value: object, called: str, where: str, *, text: bool, secret: bool = False) -> Any:
        """The checked value. Raises ConfigError: the name, the value unless secret, what was expected."""
        kind, (table, _, last) = self._kind(name), _parts(name)
        if text and value == "" and type(None) in typing.get_args(kind):
            return None
        try:
            return convert(kind, value, text=text)
        except UnfitSetting as error:
            hidden = secret or {name, f"{table}.*.{last}"} & self._secret or kind is object
            got = "the value there" if hidden else shown(value)
            raise ConfigError(f"setting {called}: expected {error}, not {got}, {where}") from None


def _parts(name: str) -> tuple[str, str, str]:
    """(table, entry, setting) of ``alerts.sinks.ops.url``."""
    head, _, last = name.rpartition(".")
    table, _, entry = head.rpartition(".")
    return table, entry, last


def _credential_names(directory: str | None) -> list[str]:
    try:
        return sorted(os.listdir(directory)) if directory else []
    except FileNotFoundError:
        return []  # inherited from a service that has ended
    except OSError as error:
        raise ConfigError(
            f"cannot read the credentials in {directory}: {error.strerror}; "
            "if they are another service's, unset CREDENTIALS_DIRECTORY"
        ) from None


def _hint(name: str, names: Mapping[str, object]) -> str:
    """The setting that was probably meant: the same name in another section, or else a close one."""
    section, _, last = name.rpartition(".")
    switch = f"{section}.listen"
    if last == "enabled" and any(other.startswith(f"{section}.") for other in names):
        return f"; {switch} turns it on" if switch in names else ""
    close = [other for other in names if other.rpartition(".")[2] == last]
    close = close or nearest(name, names, least=0.75)
    return f"; did you mean {' or '.join(close[:3])}?" if close else ""


def _unwrap(kind: Any) -> tuple[Any, msgspec.Meta, bool]:
    """The bare type, its limits, and whether it is a duration."""
    limits, duration = msgspec.Meta(), False
    if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union:
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    if typing.get_origin(kind) is Annotated:
        kind, *notes = typing.get_args(kind)
        for note in notes:
            if isinstance(note, msgspec.Meta):
                limits = note
            duration = duration or note == DURATION
    if isinstance(kind, types.UnionType):
        kind = next(part for part in typing.get_args(kind) if part is not type(None))
    return kind, limits, duration


def _within(value: float, limits: msgspec.Meta, what: str) -> float:
    if limits.ge is not None and value < limits.ge:
        raise UnfitSetting(f"{what}, at least {limits.ge:g}")
    if limits.gt is not None and value <= limits.gt:
        raise UnfitSetting(f"{what}, more than {limits.gt:g}")
    if limits.le is not None and value > limits.le:
        raise UnfitSetting(f"{what}, at most {limits.le:g}")
    return value


def _anything(value: object) -> Any:
    """A setting of an open table: its type is checked later."""
    if isinstance(value, str | int | float) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return tuple(value) if isinstance(value, list) else value
    if isinstance(value, dict):
        return _table(value, text=False)
    raise UnfitSetting("text, a number, true, false, a list of texts or a table of such values")


def _table(value: object, text: bool) -> dict[str, Any]:
    if text and isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if isinstance(value, dict) and all(isinstance(one, str | int | float | list | dict) for one in value.values()):
        return {str(name): one for name, one in value.items()}
    raise UnfitSetting('a table such as { name = "text" }, or {"name": "text"} as a text')


def _duration(value: object) -> float:
    expected = 'seconds, or text such as "90s", "24h" or "30d"'
    if isinstance(value, str) and re.fullmatch(_NUMBER, value.strip()):
        result = float(value)
    elif isinstance(value, str) and (seconds := seconds_of_text(value)) is not None:
        result = seconds
    elif isinstance(value, int | float) and not isinstance(value, bool):
        result = float(value) if abs(value) <= LONGEST else math.inf
    else:
        raise UnfitSetting(expected)
    if not 0 <= result <= LONGEST:
        raise UnfitSetting(f"{expected}, from 0 to a thousand years")
    return result


def _bool(value: object, text: bool) -> bool:
    if isinstance(value, bool):
        return value
    if text and isinstance(value, str) and value.strip().lower() in _TRUE | _FALSE:
        return value.strip().lower() in _TRUE
    raise UnfitSetting("true or false")


def _int(value: object, text: bool) -> int:
    if text and isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value.strip()):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise UnfitSetting("a whole number")


def _float(value: object, text: bool) -> float:
    if text and isinstance(value, str) and re.fullmatch(r"-?\d{1,18}(\.\d{1,18})?", value.strip()):
        return float(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max:
        return float(value)
    raise UnfitSetting("a number")


def _choice(value: object, choices: tuple[str, ...]) -> str:
    if isinstance(value, str) and value.strip().lower() in choices:
        return value.strip().lower()
    raise UnfitSetting(", ".join(choices[:-1]) + " or " + choices[-1])


def _list(value: object, text: bool) -> tuple[str, ...]:
    if text and isinstance(value, str):
        if value.lstrip().startswith("["):
            try:
                value = json.loads(value)
            except ValueError:
                raise UnfitSetting('a list: a,b or a JSON list such as ["a", "b"]') from None
        else:
            value = [part.strip() for part in value.split(",") if part.strip()]
    if isinstance(value, list | tuple) and all(isinstance(part, str) and part and "\0" not in part for part in value):
        return tuple(value)
    raise UnfitSetting('a list of texts such as ["a", "b"]')


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the sections."""


@cache
def fields_of(section: type[msgspec.Struct]) -> Mapping[str, Any]:
    """The fields of a section, each with its annotated type.

    It says what ``typing.get_type_hints`` says with its extras, and evaluates each text once: many fields have the same
    type, and every command reads the configuration.
    """
    return {
        name: _evaluated(text, base.__module__)
        for base in reversed(section.__mro__)
        for name, text in getattr(base, "__annotations__", {}).items()
    }


@cache
def _evaluated(text: str, module: str) -> Any:
    alone = types.SimpleNamespace(__annotations__={"": text})
    return typing.get_type_hints(alone, vars(sys.modules[module]), include_extras=True)[""]
