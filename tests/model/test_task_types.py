"""Task classes, @task functions and their options: what is refused, and the sentence that says why."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from msgspec import Meta

from scheduler import AsyncContext, ConfigError, Context, PayloadError, Priority, RetryPolicy, Scheduler, Task, task
from scheduler.model.rate import Rate, parse_rate
from scheduler.model.registry import Registry, bind
from scheduler.operations.published import lane_of
from scheduler.store.read.kinds import KindRecord


def refused(error: type[Exception], says: str, build: Callable[[], Any]) -> None:
    with pytest.raises(error) as raised:
        build()
    assert type(raised.value) is error
    assert says in str(raised.value), str(raised.value)


def no_body(ctx: Any) -> None: ...


hidden_type = task(kind="hidden", isolation="process")(lambda ctx: None)


def local_type() -> Any:
    class Local(Task, isolation="process"):
        def run(self, ctx: Context) -> None: ...

    return Local


LIMITS = (("memory", "much"), ("memory", 5), ("cpu", 0), ("cpu", "1"), ("files", 2), ("files", True), ("threads", 1))


OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("unknown option 'colour'; there are concurrency_key, dead_letter,", {"colour": "red"}),
    ("kind 'two words' is not a name", {"kind": "two words"}),
    ("kind 5 is not a name", {"kind": 5}),
    ("kind '' is not a name", {"kind": ""}),
    ("kind '1st' is not a name", {"kind": "1st"}),
    ("is not a name", {"kind": "k" * 201}),
    ("queue '!' is not a name", {"queue": "!"}),
    ("priority must be high, medium or low, not 'urgent'", {"priority": "urgent"}),
    ("retry must be a RetryPolicy, not 3", {"retry": 3}),
    ("timeout must be more than 0, not 0", {"timeout": 0}),
    ("timeout must be seconds or a timedelta, not '5x'; a text has units", {"timeout": "5x"}),
    ("result_ttl must be more than 0", {"result_ttl": -1}),
    ("failed_ttl must be more than 0", {"failed_ttl": 0}),
    ("stall_after must be seconds or a timedelta", {"stall_after": True}),
    ('rate_limit must look like "100/min"', {"rate_limit": "often"}),
    ('rate_limit must look like "100/min"', {"rate_limit": "0/min"}),
    ('rate_limit must look like "100/min"', {"rate_limit": "5/0s"}),
    ('rate_limit must look like "100/min"', {"rate_limit": "5/week"}),
    ('rate_limit must look like "100/min"', {"rate_limit": 100}),
    ('rate_limit must look like "100/min"', {"rate_limit": f"{'9' * 5000}/s"}),
    ("rate_limit is over 2147483647 starts, or its period over a thousand years", {"rate_limit": "2147483648/s"}),
    ("rate_limit is over 2147483647 starts, or its period over a thousand years", {"rate_limit": "1/366001day"}),
    ("isolation must be thread or process, not 'fork'", {"isolation": "fork"}),
    ("on_stall must be report or reclaim, not 'kill'", {"on_stall": "kill"}),
    ("on_stall='reclaim' needs stall_after", {"on_stall": "reclaim"}),
    ("max_concurrency must be a whole number from 1", {"max_concurrency": 0}),
    ("max_concurrency must be a whole number from 1", {"max_concurrency": 1.5}),
    ("schema_version must be a whole number from 1", {"schema_version": True}),
    ("schema_version must be a whole number from 1", {"schema_version": 2**31}),
    ("concurrency_key must be", {"concurrency_key": 5}),
    ("limits hold in a child process only", {"limits": {"memory": "1G"}}),
    ("limits must be a dict", {"isolation": "process", "limits": "1G"}),
    *((f"limits: {name}", {"isolation": "process", "limits": {name: value}}) for name, value in LIMITS[:-1]),
    ("limits: there is no limit 'threads'", {"isolation": "process", "limits": dict(LIMITS[-1:])}),
]


@pytest.mark.parametrize(("says", "options"), OPTIONS, ids=[f"{n}-{next(iter(o))}" for n, (_, o) in enumerate(OPTIONS)])
def test_options_that_do_not_fit(says: str, options: dict[str, Any]) -> None:
    refused(ConfigError, says, lambda: task(**options)(no_body))
    if "kind" in options:
        return

    def make_class() -> None:
        class Refused(Task, **options):
            pass

    refused(ConfigError, f"task type Refused: {says}", make_class)


def test_options_that_fit() -> None:
    @task(
        kind="mail.send",
        queue="mail",
        priority="high",
        retry=RetryPolicy(),
        timeout=timedelta(seconds=1),
        rate_limit="100 / 5 min",
        max_concurrency=1,
        concurrency_key="{to}",
        dead_letter=False,
        result_ttl=60,
        schema_version=3,
    )
    def send(ctx: Context, to: str) -> None: ...

    options = send.task_options
    assert (options.kind, options.queue, options.priority, options.timeout) == (
        *("mail.send", "mail", Priority.HIGH, 1_000_000),
    )
    assert options.rate_limit == Rate(100, 300_000_000)


def test_the_lane_is_the_kind_and_its_concurrency_key() -> None:
    @task(kind="mail.send", concurrency_key="{to}")
    def send(ctx: Context, to: str) -> None: ...

    kind = Registry().add(send)
    assert kind.lane(bind(kind, ("a@b",), {})) == "mail.send\x1fa@b"


class Colour(Enum):
    RED = "red"


@pytest.mark.parametrize(
    ("annotation", "why"),
    [
        *(
            (kind, None)
            for kind in (str, int, bool, Any, date, str | None, Literal["a"], Literal[1], Annotated[int, Meta(ge=1)])
        ),
        *((kind, None) for kind in (float, UUID, UUID | None, Decimal, Annotated[float, Meta(ge=1)])),
        *((kind, None) for kind in (list[str], list[float | None], list, Sequence[UUID])),
        (Colour, "Enum"),
        (datetime, "DateTime"),  # without a zone its schema is that of a text
        (None | Colour, "Enum"),
        (list[Colour], "Enum"),
        (tuple[int, int], "Tuple"),
        (dict[str, int], "Dict"),
        (set[int], "Set"),
        (bytes, "Bytes"),
    ],
)
def test_a_concurrency_key_is_published_where_others_can_make_the_same(annotation: Any, why: str | None) -> None:
    def paint(ctx: Context, of: Any, other: Colour) -> None: ...

    paint.__annotations__["of"] = annotation
    rule = "a {of} one"
    kind = Registry().add(task(concurrency_key=rule)(paint))
    assert kind.published_key_template() == (rule if why is None else True)
    reason = None if why is None else f"field 'of' is of a type whose text only the program knows: {why}"
    assert kind.why_key_is_private() == reason
    for other, private in ((task(concurrency_key=str)(paint), "it is what a function returns"), (task(paint), None)):
        kind = Registry().add(other)
        assert (kind.published_key_template(), kind.why_key_is_private()) == (private is not None, private)


@pytest.mark.parametrize(
    ("annotation", "rule", "given", "key"),
    [
        (float, "{of}", (1, 1.0), "1.0"),
        (float | None, "{of:.1f}", (1, 1.0), "1.0"),
        (int | float, "{of}", (1,), "1"),
        (float, "{of}", (1e300, 10**300), "1e+300"),
        (list[float], "{of}", ([1, 2.5], (1.0, 2.5)), "[1.0, 2.5]"),
        (list[int], "{of[0]}", ([1, 2], (1, 2)), "1"),
        (UUID, "{of}", (UUID(int=10), str(UUID(int=10)), UUID(int=10).hex.upper()), str(UUID(int=10))),
        (UUID, "{of.hex}", (UUID(int=10), str(UUID(int=10))), UUID(int=10).hex),
        (list[UUID], "{of}", ([UUID(int=10)], [str(UUID(int=10))]), f"[{UUID(int=10)!r}]"),
        (Decimal, "{of}", (Decimal("1.50"), "1.50"), "1.50"),
        (date, "{of:%Y-%m}", (date(2026, 1, 31), "2026-01-31"), "2026-01"),
        (Literal["a"] | float, "{of}", (2, 2.0), "2.0"),
        (Any, "{of}", ([1, "a", None],), "[1, 'a', None]"),
    ],
)
def test_one_payload_has_one_lane_from_every_caller(annotation: Any, rule: str, given: Any, key: str) -> None:
    """As instances that were never read, or as ``schedctl`` has it: JSON and a schema."""

    def paint(ctx: Context, of: Any) -> None: ...

    paint.__annotations__["of"] = annotation
    kind = Registry().add(task(concurrency_key=rule)(paint))
    options = {"concurrency_key": kind.published_key_template()}
    record = KindRecord("paint", json.loads(json.dumps(kind.schema())), options, 1, 0)
    for value in given:
        made = bind(kind, (value,), {})
        assert kind.lane(made) == f"paint\x1f{key}"
        assert lane_of("paint", json.loads(kind.encode(made)), record) == f"paint\x1f{key}"


def test_a_default_that_only_the_program_knows() -> None:
    class Paint(Task, concurrency_key="{of}-{at}"):
        of: float = 1
        at: UUID = msgspec.field(default_factory=lambda: UUID(int=1))

        def run(self, ctx: Context) -> None: ...

    kind = Registry().add(Paint)
    record = KindRecord("Paint", kind.schema(), {"concurrency_key": kind.published_key_template()}, 1, 0)
    says = "the concurrency key of Paint needs at, whose default only its program knows"
    refused(PayloadError, says, lambda: lane_of("Paint", {}, record))
    refused(PayloadError, "does not fit, at at: Invalid UUID", lambda: lane_of("Paint", {"at": "x"}, record))
    assert lane_of("Paint", {"at": str(UUID(int=2))}, record) == f"Paint\x1f1.0-{UUID(int=2)}"


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1/s", Rate(1, 10**6)),
        ("5/2s", Rate(5, 2 * 10**6)),
        (" 7 / hour ", Rate(7, 3600 * 10**6)),
        ("9/day", Rate(9, 86400 * 10**6)),
    ],
)
def test_rates(text: str, rate: Rate) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["0/s", "00/s", "5/0s", "5/00s", "5/s/s", "5", "-5/s", "5/-1s", "5/week"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ConfigError, match="rate_limit must look like"):
        parse_rate(text)


def test_options_are_inherited_but_the_kind_is_not() -> None:
    class Base(Task, kind="base", queue="mail", timeout=5):
        def run(self, ctx: Context) -> None: ...

    class Derived(Base, timeout=9):
        pass

    assert (Derived.__task_options__.kind, Derived.__task_options__.queue) == ("Derived", "mail")
    assert (Base.__task_options__.timeout, Derived.__task_options__.timeout) == (5_000_000, 9_000_000)


class Bodiless(Task):
    x: int


class Exotic(Task):
    x: Callable[[], int]

    def run(self, ctx: Context) -> None: ...


def alone() -> type[Task]:
    class Alone(Task):
        def run(self) -> None: ...

    return Alone


def data_in_run() -> type[Task]:
    class Given(Task):
        def run(self, a: int) -> None: ...

    return Given


class Curious(Task):
    def run(self, ctx: Context, more: int) -> None: ...


class Unheard(Task):
    def run(self, ctx: Context) -> None: ...

    def on_failed(self, ctx: Context) -> None: ...


class Keyed(Task, concurrency_key="{to.host}-{form}"):
    to: str

    def run(self, ctx: Context) -> None: ...


class HalfKeyed(Task, concurrency_key="{to"):
    to: str

    def run(self, ctx: Context) -> None: ...


class Unresolved(Task):
    x: "Missing"  # type: ignore[name-defined]  # noqa: F821, UP037

    def run(self, ctx: Context) -> None: ...


def starred(ctx: Any, *args: int) -> None: ...


def keywords(ctx: Any, **kwargs: int) -> None: ...


def positional(ctx: Any, x: int, /) -> None: ...


def no_ctx() -> None: ...


def only_keywords(*, ctx: Any) -> None: ...


def unresolved(ctx: Any, x: "Missing") -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037


SOURCES: list[tuple[str, Any]] = [
    ("task type Bodiless: it has no run(self, ctx) method", lambda: Bodiless),
    ("task type Exotic: type", lambda: Exotic),
    ("task type Alone: run must take (self, ctx), not (self) (test_task_types.py, line ", alone),
    ("task type Given: run must take (self, ctx), not (self, a: int) (test_task_types.py, line ", data_in_run),
    ("task type Curious: run must take (self, ctx), not (self, ctx", lambda: Curious),
    ("task type Unheard: on_failed must take (self, ctx, error), not (self, ctx", lambda: Unheard),
    ("task type Keyed: concurrency_key '{to.host}-{form}': no field 'form' (fields: to)", lambda: Keyed),
    ("task type HalfKeyed: concurrency_key '{to' is no template: expected '}'", lambda: HalfKeyed),
    ("task type Unresolved: cannot read its annotations: NameError: name 'Missing' is not", lambda: Unresolved),
    ("task function starred: parameter 'args' must be named", lambda: task(starred)),
    ("task function keywords: parameter 'kwargs' must be named", lambda: task(keywords)),
    ("task function positional: parameter 'x' must be named", lambda: task(positional)),
    ("task function no_ctx: its first parameter must be ctx", lambda: task(no_ctx)),  # type: ignore[arg-type]
    ("task function only_keywords: its first parameter must be ctx", lambda: task(only_keywords)),  # type: ignore[arg-type]
    ("task function unresolved: cannot read its annotations: name 'Missing'", lambda: task(unresolved)),
    ("it is neither a Task class nor a @task function; decorate it with @task", lambda: no_body),
    ("it is neither a Task class nor a @task function", lambda: 5),
    ("kind '<lambda>' is not a name", lambda: task(lambda ctx: None)),
    ("task type Local cannot be run in a child process: it is defined inside a function", local_type),
    (
        "task type hidden cannot be run in a child process: it is a lambda",
        lambda: hidden_type,
    ),
    ("something else there; give it that name at the top level", lambda: task(isolation="process")(no_body)),
]


@pytest.mark.parametrize(("says", "source"), SOURCES, ids=[says[:45] for says, _ in SOURCES])
def test_types_that_cannot_be_registered(says: str, source: Callable[[], Any]) -> None:
    registry = Registry()
    refused(ConfigError, says, lambda: registry.add(source()))
    assert len(registry) == 0


def test_two_types_are_registered_by_two_calls() -> None:
    registry = Registry()
    wrong: Any = Mail
    refused(ConfigError, "register() takes one task type at a time", lambda: registry.add(task(no_body), wrong))
    assert len(registry) == 0


def test_a_literal_that_an_old_msgspec_cannot_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    def paint(ctx: Context, of: Literal["a", 1]) -> None: ...

    def schema(struct: object) -> None:
        sorted(["a", 1])  # type: ignore[type-var]

    monkeypatch.setattr(msgspec.json, "schema", schema)
    refused(
        ConfigError,
        "task type paint: a Literal of both texts and numbers needs msgspec 0.22",
        lambda: Registry().add(task(paint)),
    )


class Mail(Task):
    to: str

    def run(self, ctx: Context) -> str:
        return self.to


def test_registering_twice() -> None:
    jobs = Scheduler("sqlite:////nowhere/at/all/jobs.db")
    jobs.register(Mail)
    jobs.register(Mail)
    assert len(jobs.registry) == 1

    @task(kind="Mail")
    def impostor(ctx: Context) -> None: ...

    refused(ConfigError, "kind 'Mail' is registered already, by", lambda: jobs.register(impostor))
    jobs.register(impostor, kind="mail2")
    refused(ConfigError, "kind 'no good' is not a name", lambda: jobs.register(Mail, kind="no good"))
    assert [kind.name for kind in jobs.registry] == ["Mail", "mail2"]


class Custom(Task):
    """Stores itself in a form of its own."""

    parts: tuple[str, ...]

    def serialize(self) -> Any:
        return "nonsense" if self.parts == ("bad",) else {"joined": "-".join(self.parts)}

    @staticmethod
    def build(task_id: int, context: str) -> Custom:
        return Custom(tuple(msgspec.json.decode(context)["joined"].split("-")))

    def run(self, ctx: Context) -> None: ...


def test_serialize_and_build_go_there_and_back() -> None:
    kind = Registry().add(Custom)
    text = kind.encode(Custom(("a", "b")))
    assert text == '{"joined":"a-b"}'
    assert kind.decode(text) == Custom(("a", "b"))
    refused(PayloadError, "its build() cannot read it: DecodeError", lambda: kind.encode(Custom(("bad",))))


def test_a_build_that_raises_is_a_payload_that_does_not_fit() -> None:
    def build(task_id: int, context: str) -> Mail:
        raise ZeroDivisionError("build is broken")

    kind = Registry().add(Mail, build=build)
    refused(
        PayloadError, "its build() cannot read it: ZeroDivisionError: build is broken", lambda: kind.encode(Mail("a"))
    )


@pytest.mark.parametrize("rule", ["{to.host}", lambda value: 1 / 0])
def test_a_concurrency_key_that_cannot_be_made(rule: Any) -> None:
    @task(concurrency_key=rule)
    def capped(ctx: Context, to: str) -> None: ...

    kind = Registry().add(capped)
    refused(PayloadError, "concurrency_key of capped cannot be made", lambda: kind.lane(bind(kind, ("a",), {})))


def test_a_concurrency_key_is_something_that_can_be_stored() -> None:
    @task(concurrency_key="{to}")
    def capped(ctx: Context, to: str) -> None: ...

    kind = Registry().add(capped)
    lane = kind.lane(bind(kind, ("a\x00b" + "x" * 500,), {}))
    assert "\x00" not in lane
    assert len(lane) <= len("capped") + 1 + 255


def test_versions_newer_than_the_program_and_upgrades_that_fail() -> None:
    class Grown(Task, schema_version=2):
        to: str

        @staticmethod
        def upgrade(payload: dict[str, Any], version: int) -> dict[str, Any]:
            return {"to": payload["address"]}

        def run(self, ctx: Context) -> None: ...

    kind = Registry().add(Grown)
    assert kind.decode('{"address":"a"}', 1) == Grown("a")
    refused(PayloadError, "has schema_version 3, this program knows 2", lambda: kind.decode('{"to":"a"}', 3))
    refused(PayloadError, "payload of Grown does not fit", lambda: kind.decode("{", 1))


@pytest.mark.parametrize("default", [[1], {"a": 1}, {1}])
def test_mutable_defaults_are_not_shared(default: Any) -> None:
    @task
    def collect(ctx: Context, into: Any = default) -> None: ...

    kind = Registry().add(collect)
    one, two = (kind.decode("{}") for _ in range(2))
    assert one.into == two.into == default
    assert one.into is not two.into


@pytest.mark.parametrize("attempts", [0, -1, 1.5, True, "3", 2**31])
def test_attempts_that_cannot_be_counted(attempts: Any) -> None:
    refused(ConfigError, "max_attempts must be a whole number", lambda: RetryPolicy(max_attempts=attempts))


def data(a: int) -> None: ...


async def several(path: str, width: int = 800) -> None: ...


def aliased(c: AsyncContext, n: int) -> None: ...


def anything(c: Any, n: int) -> None: ...


def unannotated(c, n: int) -> None: ...  # type: ignore[no-untyped-def]


def unread(c: "Missing", n: int) -> None: ...  # type: ignore[name-defined]  # noqa: F821, UP037


def by_name(context: int, n: int) -> None: ...


def optional(c: Context | None, n: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (data, "task function data: its first parameter must be ctx, not 'a: int' (test_task_types.py, line "),
        (data, "; write def data(ctx, a: int)"),
        (several, "; write async def several(ctx, path: str, width: int = 800)"),
        (no_ctx, "its first parameter must be ctx, and it has none (test_task_types.py, line "),
        (only_keywords, "; write def only_keywords(ctx)"),
    ],
)
def test_a_function_without_ctx_is_refused_where_it_is_decorated(function: Any, says: str) -> None:
    refused(ConfigError, says, lambda: task(function))
    refused(ConfigError, says, lambda: task(queue="mail")(function))


@pytest.mark.parametrize("function", [aliased, anything, unannotated, unread, by_name, optional])
def test_what_may_be_ctx_is_taken_for_it(function: Any) -> None:
    assert task(function).positional == ("n",)


def test_an_unannotated_first_parameter_is_named_when_a_call_does_not_fit() -> None:
    registry = Registry()
    kind = registry.add(task(unannotated))
    says = "too many positional arguments (its first parameter, 'c', is the Context)"
    refused(PayloadError, says, lambda: bind(kind, (1, 2), {}))
