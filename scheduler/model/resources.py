"""Resources: what a task needs of the machine that an executor finds for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.limits import parse_size, size_text

LOCAL = "local"  # no executor: workers claim the task
MAX_OPTIONS = 16 * 1024  # bytes of executor_options as JSON
_MOST_CPU = 1_000_000


class Resources(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The needs of a task: ``Resources(cpu=8, memory="32G", gpu=1, disk="100G")``.

    ``cpu``: cores, also a fraction of one. ``memory``, ``disk``: bytes, or a text such as ``"512M"``; they are bytes
    once it is made. ``gpu``: how many. None: whatever the executor gives. Raises ConfigError.
    """

    cpu: float | None = None
    memory: int | str | None = None
    gpu: int | None = None
    disk: int | str | None = None

    def __post_init__(self) -> None:
        cpu, gpu = self.cpu, self.gpu
        number = isinstance(cpu, (int, float)) and not isinstance(cpu, bool)
        if cpu is not None and not (number and 0 < cpu <= _MOST_CPU):
            raise ConfigError(f"resources: cpu must be a number of cores above 0, not {cpu!r}")
        if gpu is not None and (not isinstance(gpu, int) or isinstance(gpu, bool) or not 0 <= gpu < 2**20):
            raise ConfigError(f"resources: gpu must be a whole number from 0, not {gpu!r}")
        for name in ("memory", "disk"):
            size = getattr(self, name)
            if size is not None:
                msgspec.structs.force_setattr(self, name, parse_size(size, f"resources: {name}", 1))

    @property
    def memory_bytes(self) -> int | None:
        """``memory`` in bytes."""
        return None if self.memory is None else parse_size(self.memory, "memory")

    @property
    def disk_bytes(self) -> int | None:
        """``disk`` in bytes."""
        return None if self.disk is None else parse_size(self.disk, "disk")

    def __str__(self) -> str:
        parts = [] if self.cpu is None else [f"cpu {self.cpu:g}"]
        if self.memory_bytes is not None:
            parts.append(f"memory {size_text(self.memory_bytes)}")
        if self.gpu is not None:
            parts.append(f"gpu {self.gpu}")
        if self.disk_bytes is not None:
            parts.append(f"disk {size_text(self.disk_bytes)}")
        return ", ".join(parts) or "none"

    def to_json(self) -> str:
        """As it is stored."""
        return msgspec.json.encode(self).decode()


def resources_from_json(text: str | None) -> Resources:
    """What is stored of a task; nothing for None."""
    return Resources() if text is None else msgspec.json.decode(text, type=Resources)


def parse_resources(given: object) -> Resources:
    """A Resources, or its fields as a mapping. Raises ConfigError."""
    if isinstance(given, Resources):
        return given
    if not isinstance(given, Mapping):
        raise ConfigError(f"resources must be a Resources, such as Resources(cpu=8, memory='32G'), not {given!r:.80}")
    unknown = sorted(str(name) for name in given if name not in Resources.__struct_fields__)
    if unknown:
        raise ConfigError(f"resources: there is no {unknown[0]!r}; there are {', '.join(Resources.__struct_fields__)}")
    return Resources(**given)


def read_resources(text: str) -> Resources:
    """``cpu=2,memory=4G`` -> Resources. Raises ConfigError."""
    given: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (one.strip() for one in part.partition("="))
        if not equals:
            raise ConfigError(f'resources are written as "cpu=2,memory=4G", not {text!r:.80}')
        number = float if name == "cpu" else int
        try:
            given[name] = number(value)
        except ValueError:
            given[name] = value
    return parse_resources(given)


def parse_executor(given: object) -> str | None:
    """The executor that is to place a task; None for ``"local"``. Raises ConfigError."""
    if given is None or given == LOCAL:
        return None
    if not isinstance(given, str) or not is_executor_name(given):
        raise ConfigError(
            f'executor must be the name of [executors.NAME], or "{LOCAL}", not {given!r:.80}; a name has a small '
            "letter first, then small letters, digits, _ and -, 40 at most"
        )
    return given


def is_executor_name(name: str) -> bool:
    """Whether an executor may have this name."""
    first, rest = name[:1], name[1:].replace("_", "").replace("-", "")
    small = name.isascii() and name == name.lower()
    return small and first.isalpha() and len(name) <= 40 and (not rest or rest.isalnum()) and name != LOCAL


def parse_options(given: object) -> dict[str, Any]:
    """The executor's own options of a task: a mapping that JSON can hold. Raises ConfigError."""
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError(f"executor_options must be a mapping of names to values, not {given!r:.80}")
    try:
        text = msgspec.json.encode(dict(given))
        made: dict[str, Any] = msgspec.json.decode(text)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"executor_options is not JSON: {error}") from None
    if len(text) > MAX_OPTIONS:
        raise ConfigError(f"executor_options is {len(text)} bytes of JSON, over the limit of {MAX_OPTIONS}")
    return made
