"""NaN and infinity are no JSON: they are refused, with where they are; nothing else is."""

from __future__ import annotations

import enum
import math
import struct
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as some

from scheduler import PayloadError, Task
from scheduler.model.json_text import encode_json
from scheduler.model.spec import TaskId


@dataclass
class Point:
    x: float
    y: float | None = None


class Level(enum.Enum):
    NONE = math.nan


class Fit(Task):
    loss: float | None = None
    rows: tuple[Any, ...] = ()

    def run(self, ctx: Any) -> None: ...


ODD = struct.unpack(">d", bytes.fromhex("7ff0000000000001"))[0]  # a NaN unlike others


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (math.nan, "nan at $"),
        (-math.inf, "-inf at $"),
        (ODD, "nan at $"),
        ({"a": [1.5, None, {"b": math.inf}]}, "inf at $.a[2].b"),
        ({1: {2.5: (None, math.nan)}}, "nan at $[1].2.5[1]"),
        ({"big": 2**100, "small": math.nan}, "nan at $.small"),
        (Point(1.0, math.nan), "nan at $.y"),
        ([Point(math.nan)], "nan at $[0].x"),
        (Fit(rows=([math.nan],)), "nan at $.rows[0][0]"),
        ([Level.NONE], "nan at $[0]"),
        ({math.nan}, "nan at $[0]"),
    ],
)
def test_what_is_refused(value: Any, found: str) -> None:
    with pytest.raises(PayloadError) as error:
        encode_json(value, "the result")
    assert str(error.value) == f"the result is not JSON: it has {found}; put None or a text there"


@pytest.mark.parametrize(
    "value",
    [None, [None], "null", {"null": None}, [1.7e308, -1.7e308, None], [2**64, None], Fit(), [TaskId(7), None]],
)
def test_what_is_not(value: Any) -> None:
    assert encode_json(value, "it") == msgspec.json.encode(value, enc_hook=int).decode()


_JSON = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats() | some.text(some.characters(codec="utf-8")),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(some.characters(codec="utf-8")), inner),
)


def finite(value: Any) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return all(map(finite, inner)) and not (isinstance(value, float) and not math.isfinite(value))


@given(_JSON)
def test_what_is_encoded_comes_back(value: Any) -> None:
    if finite(value):
        assert msgspec.json.decode(encode_json(value, "it")) == value
    else:
        with pytest.raises(PayloadError, match=r"it is not JSON: it has -?(nan|inf) at "):
            encode_json(value, "it")


def test_what_is_found_however_deep_it_is() -> None:
    value: Any = math.nan
    for _ in range(500):
        value = [value]
    with pytest.raises(PayloadError, match=r"nan at \$(\[0\]){500};"):
        encode_json(value, "it")
