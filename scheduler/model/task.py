"""Task types as users write them: ``Task`` classes and ``@task`` functions, with their options."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    TypedDict,
    Unpack,
    dataclass_transform,
    overload,
)

import msgspec

from scheduler.errors import ConfigError
from scheduler.model.handlers import check_function, check_run
from scheduler.model.lanes import check_weight
from scheduler.model.limits import ResourceLimits, parse_limits
from scheduler.model.names import check_name, check_whole, is_name
from scheduler.model.priority import Priority, PriorityName
from scheduler.model.rate import Rate, parse_rate
from scheduler.model.resources import Resources, parse_executor, parse_options, parse_resources
from scheduler.model.retry import MAX_COUNT, RetryPolicy
from scheduler.model.times import span_us
from scheduler.model.typed import R_co
from scheduler.model.unique import Debounce, Unique

P = ParamSpec("P")


class TaskOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The class options of a task type, checked. Durations are microseconds.

    ``resources``, ``executor_options``: as JSON.
    """

    kind: str
    queue: str = "default"
    priority: Priority = Priority.MEDIUM
    retry: RetryPolicy | None = None
    timeout: int | None = None
    isolation: str = "thread"
    max_concurrency: int | None = None
    rate_limit: Rate | None = None
    concurrency_key: str | Callable[[Any], str] | None = None
    fairness_key: str | Callable[[Any], str] | None = None
    fairness_weight: float = 1.0
    dead_letter: bool = True
    result_ttl: int | None = None
    failed_ttl: int | None = None
    key_retention: int | None = None
    unique: Unique | None = None
    debounce: Debounce | None = None
    stall_after: int | None = None
    on_stall: str = "report"
    determinism: str = "report"
    schema_version: int = 1
    ranked: bool = False
    limits: ResourceLimits | None = None
    on_success: str | None = None
    executor: str | None = None
    resources: str | None = None
    executor_options: str | None = None


class OptionArgs(TypedDict, total=False):
    """What ``class X(Task, ...)`` and ``@task(...)`` take; bare numbers are seconds."""

    kind: str | None
    queue: str
    priority: Priority | PriorityName
    retry: RetryPolicy | None
    timeout: float | timedelta | str | None
    isolation: Literal["thread", "process"]
    max_concurrency: int | None
    rate_limit: str | None
    concurrency_key: str | Callable[[Any], str] | None
    fairness_key: str | Callable[[Any], str] | None
    fairness_weight: float
    dead_letter: bool
    result_ttl: float | timedelta | str | None
    failed_ttl: float | timedelta | str | None
    key_retention: float | timedelta | str | None
    unique: Unique | None
    debounce: Debounce | None
    stall_after: float | timedelta | str | None
    on_stall: Literal["report", "reclaim"]
    determinism: Literal["report", "strict"]
    schema_version: int
    ranked: bool
    limits: dict[str, Any] | None
    on_success: str | None
    executor: str | None
    resources: Resources | Mapping[str, Any] | None
    executor_options: Mapping[str, Any] | None


LANE_KEYS = ("concurrency_key", "fairness_key")  # made of the payload, by a template or a function
OPTION_NAMES = frozenset(OptionArgs.__annotations__)


def make_options(default_kind: str, args: dict[str, Any]) -> TaskOptions:
    """Check the options of one type. Raises ConfigError that names the kind and the option."""
    given = args.get("kind")
    kind = check_name("kind", default_kind if given is None else given)
    try:
        return TaskOptions(**_checked(kind, args))
    except ConfigError as error:
        raise ConfigError(f"task type {kind}: {error}") from None


def _unknown(option: str) -> str:
    return f"unknown option {option!r}; there are {', '.join(sorted(OPTION_NAMES))}"


def _checked(kind: str, args: dict[str, Any]) -> dict[str, Any]:
    unknown = sorted(set(args) - OPTION_NAMES)
    if unknown:
        raise ConfigError(_unknown(unknown[0]))
    done: dict[str, Any] = {"kind": kind}
    for name in ("timeout", "result_ttl", "failed_ttl", "stall_after"):
        if args.get(name) is not None:
            done[name] = span_us(args[name], name, positive=True)
    if args.get("key_retention") is not None:
        done["key_retention"] = span_us(args["key_retention"], "key_retention")
    if "queue" in args:
        done["queue"] = check_name("queue", args["queue"])
    if "priority" in args:
        done["priority"] = Priority.parse(args["priority"])
    retry = args.get("retry")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise ConfigError(f"retry must be a RetryPolicy, not {retry!r}")
    done["retry"] = retry
    if args.get("rate_limit") is not None:
        done["rate_limit"] = parse_rate(args["rate_limit"])
    for name, allowed in (
        ("isolation", ("thread", "process")),
        ("on_stall", ("report", "reclaim")),
        ("determinism", ("report", "strict")),
    ):
        if name in args:
            if args[name] not in allowed:
                raise ConfigError(f"{name} must be {' or '.join(allowed)}, not {args[name]!r}")
            done[name] = args[name]
    for name in ("max_concurrency", "schema_version"):
        if args.get(name) is not None:
            done[name] = check_whole(args[name], name, 1, MAX_COUNT)
    if done.get("on_stall") == "reclaim" and "stall_after" not in done:
        raise ConfigError("on_stall='reclaim' needs stall_after")
    if args.get("limits"):
        if done.get("isolation") != "process":
            raise ConfigError('limits hold in a child process only; add isolation="process"')
        done["limits"] = parse_limits(args["limits"])
    if args.get("on_success") is not None:
        sink = args["on_success"]
        if not isinstance(sink, str) or not sink.startswith("sinks.") or not is_name(sink):
            raise ConfigError(f'on_success must name a sink, such as "sinks.shop", not {sink!r}')
        done["on_success"] = sink
    done |= placing(args)
    done["dead_letter"] = bool(args.get("dead_letter", True))
    done["ranked"] = bool(args.get("ranked", False))
    for name in LANE_KEYS:
        rule = args.get(name)
        if rule is not None and not isinstance(rule, str) and not callable(rule):
            raise ConfigError(f"{name} must be a template such as '{{field}}', or a function, not {rule!r}")
        done[name] = rule
    if args.get("fairness_weight") is not None:
        done["fairness_weight"] = check_weight(args["fairness_weight"])
    for name, needed in (("unique", Unique), ("debounce", Debounce)):
        option = args.get(name)
        if option is not None and not isinstance(option, needed):
            raise ConfigError(f"{name} must be a {needed.__name__}, not {option!r}")
        done[name] = option
    if done["unique"] is not None and done["debounce"] is not None:
        raise ConfigError("unique and debounce exclude each other: both make the key of a task")
    if "key_retention" in done and (done["unique"] is not None or done["debounce"] is not None):
        raise ConfigError("key_retention is for keys of the caller's: unique has a period, and debounce none")
    return done


def placing(args: Mapping[str, Any]) -> dict[str, str | None]:
    """The options of a task that are for an executor, as they are stored. Raises ConfigError."""
    done: dict[str, str | None] = {}
    if "executor" in args:
        done["executor"] = parse_executor(args["executor"])
    if args.get("resources") is not None:
        done["resources"] = parse_resources(args["resources"]).to_json()
    if args.get("executor_options") is not None:
        done["executor_options"] = msgspec.json.encode(parse_options(args["executor_options"])).decode()
    return done


if TYPE_CHECKING:

    class ClassArgs(OptionArgs, total=False):
        """What a class line takes: the options of a task type, and those of msgspec.Struct that fit one."""

        frozen: bool
        eq: bool
        order: bool
        kw_only: bool
        forbid_unknown_fields: bool
        omit_defaults: bool
        repr_omit_defaults: bool
        weakref: bool
        dict: bool
        gc: bool
        cache_hash: bool
        rename: Literal["lower", "upper", "camel", "pascal", "kebab"] | Callable[[str], str | None] | None

    # Said here anew, since a class whose own metaclass says it may have frozen subclasses though it is not frozen.
    @dataclass_transform(field_specifiers=(msgspec.field,))
    class _TaskMeta(msgspec.StructMeta):
        # Pyright checks a class line by the metaclass; mypy knows of none of the options, and takes all.
        def __new__(
            mcls, name: str, bases: tuple[type, ...], namespace: Any, /, **options: Unpack[ClassArgs]
        ) -> _TaskMeta: ...

    class Task(msgspec.Struct, metaclass=_TaskMeta):
        """Base of task types: a msgspec.Struct whose fields are the payload and whose ``run(ctx)`` does the work."""

        __task_options__: ClassVar[TaskOptions]

else:

    class _TaskMeta(type(msgspec.Struct)):
        """Takes the class options out of the class line before msgspec sees it."""

        def __new__(mcls, name, bases, namespace, **kwargs):
            options = {k: kwargs.pop(k) for k in list(kwargs) if k in OPTION_NAMES}
            kwargs.setdefault("forbid_unknown_fields", True)
            try:
                cls = super().__new__(mcls, name, bases, namespace, **kwargs)
            except TypeError as error:
                said = str(error)  # which each Python words in its own way
                unknown = next((k for k in kwargs if f"'{k}'" in said and "keyword argument" in said), None)
                if unknown is None:
                    raise
                raise ConfigError(f"task type {name}: {_unknown(unknown)}") from None
            inherited = dict(getattr(cls, "__task_args__", {}))
            inherited.pop("kind", None)
            cls.__task_args__ = inherited | options
            cls.__task_options__ = make_options(name, cls.__task_args__)
            check_run(namespace.get("run"), cls.__task_options__.kind)
            return cls

        def __init__(cls, name, bases, namespace, **kwargs):
            super().__init__(name, bases, namespace)

    class Task(msgspec.Struct, metaclass=_TaskMeta):
        """Base of task types: a msgspec.Struct whose fields are the payload and whose ``run(ctx)`` does the work."""

        __task_options__: ClassVar[TaskOptions]
        __task_args__: ClassVar[dict]


class TaskFunction(Generic[P, R_co]):
    """A task type made by ``@task``; the function stays callable as before."""

    def __init__(self, function: Callable[Concatenate[Any, P], R_co], args: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.task_options = make_options(getattr(function, "__name__", "task"), args)
        check_function(function, self.task_options.kind)

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The function's own."""
        return inspect.signature(self.function)

    @functools.cached_property
    def positional(self) -> tuple[str, ...]:
        """The parameters that may be given by position, except ``ctx``."""
        parameters = list(self.signature.parameters.values())[1:]
        return tuple(p.name for p in parameters if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD)

    @functools.cached_property
    def all_positional(self) -> bool:
        """Whether all parameters may be given by position."""
        return len(self.positional) == len(self.signature.parameters) - 1

    def registered(self, scheduler: Any) -> None:
        """Take note of a Scheduler that has registered it."""

    def __call__(self, ctx: Any, *args: P.args, **kwargs: P.kwargs) -> R_co:
        return self.function(ctx, *args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.task_options.kind}>"


@overload
def task(function: Callable[Concatenate[Any, P], R_co], /) -> TaskFunction[P, R_co]: ...
@overload
def task(
    **options: Unpack[OptionArgs],
) -> Callable[[Callable[Concatenate[Any, P], R_co]], TaskFunction[P, R_co]]: ...
def task(function: Any = None, /, **options: Any) -> Any:
    """Make a task type of a function ``f(ctx, ...)``. Takes the class options of a Task. Bound to no scheduler.

    Its first parameter is the Context: it has no annotation, one that may be a Context, or the name ``ctx``.

    Raises ConfigError for an option that is unknown or does not fit, and for a function without ctx.
    """
    if function is not None:
        return TaskFunction(function, {})
    return lambda f: TaskFunction(f, options)
