"""Limits, the ``limits`` class option: what an attempt may use in a child process."""

from __future__ import annotations

import math
import re
from datetime import timedelta

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.times import SECOND, span_us

_SIZE = re.compile(r"(\d{1,20})\s*([KMGT]?)(?:i?B)?\Z", re.IGNORECASE)
_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}
LEAST_MEMORY = 1024 * 1024
LEAST_FILES = 8


class ResourceLimits(msgspec.Struct, frozen=True):
    """``memory``: bytes that an attempt may add; ``cpu``: seconds; ``files``: open files that it may add."""

    memory: int | None = None
    cpu: int | None = None
    files: int | None = None

    def __str__(self) -> str:
        parts = []
        if self.memory is not None:
            parts.append(f"memory {size_text(self.memory)}")
        if self.cpu is not None:
            parts.append(f"cpu {self.cpu} s")
        if self.files is not None:
            parts.append(f"files {self.files}")
        return ", ".join(parts)


def parse_limits(given: object) -> ResourceLimits:
    """``{"memory": "256M", "cpu": 30, "files": 100}`` -> Limits. Raises ConfigError."""
    if not isinstance(given, dict):
        raise ConfigError(f'limits must be a dict such as {{"memory": "256M", "cpu": 30}}, not {given!r}')
    unknown = sorted(str(name) for name in given if name not in ResourceLimits.__struct_fields__)
    if unknown:
        raise ConfigError(f"limits: there is no limit {unknown[0]!r}; there are memory, cpu and files")
    memory, cpu, files = (given.get(name) for name in ("memory", "cpu", "files"))
    return ResourceLimits(
        None if memory is None else parse_size(memory, "limits: memory", LEAST_MEMORY),
        None if cpu is None else _seconds(cpu),
        None if files is None else _count(files),
    )


def parse_size(given: object, what: str, least: int = 0) -> int:
    """Bytes, from a number of them or a text such as ``256M`` or ``2 GiB``. Raises ConfigError."""
    size = given
    if isinstance(given, str) and (match := _SIZE.match(given.strip())):
        size = int(match[1]) * 1024 ** _POWERS[match[2].upper()]
    if not isinstance(size, int) or isinstance(size, bool) or not least <= size < 2**62:
        at_least = f", at least {size_text(least)}" if least else ""
        raise ConfigError(f'{what} must be a number of bytes or a text such as "256M"{at_least}, not {given!r}')
    return size


def size_text(size: int) -> str:
    """``256 MiB``."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size >= 1024**power:
            return f"{size / 1024**power:.4g} {unit}"
    return f"{size} bytes"


def _seconds(given: object) -> int:
    if not isinstance(given, (int, float, timedelta)) or isinstance(given, bool):
        raise ConfigError(f"limits: cpu must be seconds, not {given!r}")
    return math.ceil(span_us(given, "limits: cpu", positive=True) / SECOND)


def _count(given: object) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not LEAST_FILES <= given < 2**20:
        raise ConfigError(f"limits: files must be a whole number of at least {LEAST_FILES}, not {given!r}")
    return given
