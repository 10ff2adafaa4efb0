"""A payload is judged by the published schema of its kind as the worker judges it, in the same words."""

from __future__ import annotations

import enum
import json
from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from scheduler.errors import PayloadError
from scheduler.operations.published import validate
from scheduler.store.read.kinds import KindRecord


class Card(msgspec.Struct, tag=True):
    number: str


class Cash(msgspec.Struct, tag="coins"):
    sum: int = 0


class Spot(msgspec.Struct, array_like=True):
    x: int
    y: str = "z"


class Range(NamedTuple):
    low: int
    high: int


class Hint(TypedDict, total=False):
    text: str


class Colour(enum.Enum):
    RED = "red"
    GREEN = "green"


class Order(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    first_line: Annotated[int, Meta(ge=1, description="a line")]
    paid: Card | Cash | None = None
    spot: Spot | None = None
    range: Range | None = None
    hint: Hint | None = None
    colour: Colour = Colour.RED
    prices: dict[str, float] = {}
    short: dict[Annotated[str, Meta(min_length=2)], Any] = {}
    level: Literal["a", "b"] | None = "a"
    number: Literal[1, 2] = 1
    raw: bytes = b""
    day: date | None = None
    lasts: timedelta | None = None
    amount: Decimal | None = None
    id: UUID | None = None
    pair: tuple[int, str] | None = None
    some: Annotated[list[int], Meta(max_length=2)] = []
    odd: set[int] = set()
    up_to: Annotated[int, Meta(le=5, multiple_of=2)] | None = None
    code: Annotated[str, Meta(pattern="^a+$", max_length=3)] = "a"
    sharp: bool = False
    mixed: int | str | float | None = None


class Node(msgspec.Struct):
    name: str
    below: list[Node] = []


VALUES: list[Any] = [
    *(None, True, 0, 2, 7, -1, 1.0, 1.5, "", "a", "aaaa", "b", "red", "2026-01-31", "P1D", "1.5", "YQ=="),
    *("6f1e9d6e-0000-4000-8000-000000000000", [], [1], [1, "a"], [1, "a", 2], ["a"], {}, {"a": 1}, {"ab": "x"}),
    *({"type": "Card", "number": "1"}, {"type": "coins"}, {"type": "coins", "sum": "1"}, {"type": "bill"}, {"text": 5}),
]


def verdict(judge: Any, payload: Any) -> str | None:
    try:
        judge(payload)
    except (msgspec.ValidationError, PayloadError) as error:
        return str(error).removeprefix("payload of Order does not fit: ").partition("; there are ")[0]
    return None


def test_every_value_of_every_field() -> None:
    record = KindRecord("Order", msgspec.json.schema(Order), {}, 1, 0)
    worker = msgspec.json.Decoder(Order)
    for field in (*(one.encode_name for one in msgspec.structs.fields(Order)), "other"):
        for value in VALUES:
            payload = {"firstLine": 2} | {field: value}
            wanted = verdict(lambda given: worker.decode(json.dumps(given)), payload)
            assert verdict(lambda given: validate(record, given), payload) == wanted, (field, value)


def test_a_type_that_has_itself_as_a_part() -> None:
    record = KindRecord("Node", msgspec.json.schema(Node), {}, 1, 0)
    validate(record, {"name": "a", "below": [{"name": "b", "below": []}]})
    with pytest.raises(PayloadError, match=r"Expected `object`, got `int` - at `\$\.below\[0\]`"):
        validate(record, {"name": "a", "below": [5]})


def test_a_text_in_place_of_another_value_is_told() -> None:
    record = KindRecord("Order", msgspec.json.schema(Order), {}, 1, 0)
    with pytest.raises(PayloadError, match="Expected `int`, got `str`") as raised:
        validate(record, {"firstLine": "7"})
    assert getattr(raised.value, "text", None) == ("firstLine", "7")
