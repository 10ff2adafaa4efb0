"""Registered kinds: how payloads are encoded, decoded and checked. Pure: no database, no engine."""

from __future__ import annotations

import copy
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

import msgspec
import msgspec.inspect

from scheduler.errors import ConfigError, PayloadError, UnregisteredKindError
from scheduler.model.capacity import ASYNC, PROCESS, THREAD
from scheduler.model.concurrency_keys import check_template, fields_of, is_verbatim, why_fields_are_private, why_private
from scheduler.model.fingerprint import describe
from scheduler.model.handlers import NAMES
from scheduler.model.json_text import encode_json
from scheduler.model.lanes import LANE_SEPARATOR, check_fairness_key, fair_lane
from scheduler.model.names import check_name
from scheduler.model.reference import reference_of
from scheduler.model.secrets import lost_mark, marked_fields
from scheduler.model.spec import MAX_KEY, MAX_PAYLOAD, TaskSpec, copied, plain
from scheduler.model.task import Task, TaskFunction, TaskOptions
from scheduler.model.texts import storable, within
from scheduler.model.unique import DerivedKey, check_fields, key_of
from scheduler.system import LINUX, NEEDS_LINUX

_encoder = msgspec.json.Encoder(enc_hook=plain)


class Kind:
    """One registered task type."""

    def __init__(
        self,
        source: type[Task] | TaskFunction[Any, Any],
        options: TaskOptions,
        struct: type[msgspec.Struct],
        run: Callable[[Any, Any], Any],
        body: Callable[..., Any],
        build: Callable[[int, str], Any] | None,
    ) -> None:
        self.source = source
        self.options = options
        self.makes_keys = options.unique is not None or options.debounce is not None
        self.name = options.kind
        self.struct = struct
        self.usual = _usual_spec(options)
        self.run = run
        self.runs = f"{source.__name__}.run" if isinstance(source, type) else source.function.__name__
        self.is_async = inspect.iscoroutinefunction(body)
        self.slot_type = PROCESS if options.isolation == "process" else ASYNC if self.is_async else THREAD
        self.build = build
        self.on_attempt_failed: Callable[[Any, Any, BaseException], Any] | None = getattr(
            source, "on_attempt_failed", None
        )
        self.on_failed: Callable[[Any, Any, BaseException], Any] | None = getattr(source, "on_failed", None)
        self._serialize = getattr(source, "serialize", None)
        self._upgrade = getattr(source, "upgrade", None)
        try:
            self._decoder = msgspec.json.Decoder(struct)
            if build is None and self._serialize is None:
                msgspec.json.schema(struct)  # refuses types that no JSON can become
        except TypeError as error:
            # Its last line says which type; the ones above what to do about it with msgspec's own functions.
            problem = str(error).splitlines()[-1]
            if problem.startswith("'<' not supported"):  # msgspec sorts the values that a schema lists
                problem = f"a Literal of both texts and numbers needs msgspec 0.22 or later, not {msgspec.__version__}"
            raise ConfigError(f"task type {self.name}: {problem}") from None
        except Exception as error:  # evaluating an annotation may raise anything
            raise ConfigError(f"task type {self.name}: cannot read its annotations: {describe(error).text}") from None
        self._partial: dict[frozenset[str], Kind] = {}
        rules = [rule for rule in (options.concurrency_key, options.fairness_key) if isinstance(rule, str)]
        own = build is not None or self._serialize is not None
        self._verbatim = own or all(is_verbatim(rule, struct) for rule in rules)
        self._fair = options.fairness_key is not None or options.fairness_weight != 1

    @cached_property
    def reference(self) -> tuple[str, str | None]:
        """Where a child process finds the type and its own ``build``. Raises ConfigError if it cannot."""
        own = self.build is not None and self.build != getattr(self.source, "build", None)
        build = reference_of(self.build, f"build of task type {self.name}") if own else None
        return reference_of(self.source, f"task type {self.name}"), build

    def without(self, names: frozenset[str]) -> Kind:
        """The same kind with a payload that lacks these fields: results of parents bring them later."""
        names &= frozenset(self.struct.__struct_fields__)
        if not names or self.build is not None or self._serialize is not None:
            return self
        made = self._partial.get(names)
        if made is None:
            made = self._partial[names] = copy.copy(self)
            given = [f for f in msgspec.structs.fields(self.struct) if f.name not in names]
            fields = [(f.name, f.type, _as_given(f)) for f in given]
            made.struct = msgspec.defstruct(self.name, fields, kw_only=True, forbid_unknown_fields=True)
            made._decoder = msgspec.json.Decoder(made.struct)
        return made

    def lacking(self, payload: Any) -> frozenset[str]:
        """The fields that a payload of JSON needs and has not."""
        if not isinstance(payload, Mapping) or self.build is not None or self._serialize is not None:
            return frozenset()
        fields = msgspec.structs.fields(self.struct)
        return frozenset(f.name for f in fields if f.required and f.encode_name not in payload)

    def takes(self, name: str) -> bool:
        """Whether a parent's result of this name becomes a field of the payload."""
        return self.build is None and self._serialize is None and name in self.struct.__struct_fields__

    def decode_with(self, text: str, version: int, task_id: int, results: Mapping[str, Any]) -> Any:
        """:meth:`decode`, with the results of parents as the fields of their names. Raises PayloadError."""
        taken = {name: value for name, value in results.items() if self.takes(name)}
        if taken:
            encoded = dict(zip(self.struct.__struct_fields__, self.struct.__struct_encode_fields__, strict=True))
            found = msgspec.json.decode(self.upgraded(text, version))
            if isinstance(found, dict):
                found |= {encoded[name]: value for name, value in taken.items()}
                text, version = encode_json(found, f"payload of {self.name}"), self.options.schema_version
        return self.decode(text, version, task_id)

    def encode(self, value: Any) -> str:
        """The payload of an instance as JSON text, checked by reading it back. Raises PayloadError."""
        if self._serialize is not None:
            custom = self._serialize(value)
            text = custom if isinstance(custom, str) else encode_json(custom, f"payload of {self.name}")
            if text != storable(text):
                raise PayloadError(f"payload of {self.name}: serialize() gave a text with NUL or half a surrogate pair")
        else:
            text = encode_json(value, f"payload of {self.name}")
        self._check_size(text)
        self.decode(text)
        return text

    def spec(self, value: Any) -> TaskSpec:
        """Make a new task of this kind with the kind's own options. Raises PayloadError."""
        made = copied(self.usual)  # half of what it takes to make one by its fields
        made.payload, made.lane = self.encode(value), self.lane(value)
        if self.makes_keys:
            self._make_key(made, value)
        return made

    def key(self, value: Any, text: str) -> str:
        """The key that the fields of a payload make. ``text``: the payload as it is stored. Raises PayloadError."""
        option = self.options.unique or self.options.debounce
        assert option is not None
        custom = self.build is not None or self._serialize is not None
        read = value if custom else self._decoder.decode(text)
        fields = {name: getattr(read, name) for name in self.struct.__struct_fields__}
        try:
            return key_of(msgspec.to_builtins(fields, enc_hook=plain), option.by)
        except TypeError as error:
            raise PayloadError(f"{option!r} of {self.name} cannot make a key: {error}") from None

    def derived_key(self, value: Any, text: str, before: str, version: int, task_id: int) -> DerivedKey | None:
        """The key of a payload that takes the place of the payload ``before``; None for a kind without such keys.

        Raises PayloadError.
        """
        if not self.makes_keys:
            return None
        try:
            present = self.decode(before, version, task_id)
            was = self.key(present, self.encode(present))
        except PayloadError:
            was = None  # what cannot be read makes no key
        unique = self.options.unique
        return DerivedKey(
            self.key(value, text),
            was,
            None if unique is None else unique.mask,
            0 if unique is None else unique.retention_us,
        )

    def _make_key(self, spec: TaskSpec, value: Any) -> None:
        unique, debounce = self.options.unique, self.options.debounce
        spec.key = self.key(value, spec.payload)
        if unique is not None:
            spec.key_retention, spec.unique_states = unique.retention_us, unique.mask
        elif debounce is not None:
            spec.key_retention, spec.conflict = 0, "replace"
            spec.delay, spec.debounce = debounce.wait_us, debounce.longest_us

    def _check_size(self, text: str) -> None:
        size = len(text) if text.isascii() else len(text.encode())
        if size > MAX_PAYLOAD:
            raise PayloadError(
                f"payload of {self.name} is {size} bytes, over the limit of {MAX_PAYLOAD}; "
                "store the data elsewhere and pass a reference (see payload_ref)"
            )

    def decode(self, text: str, version: int | None = None, task_id: int = 0) -> Any:
        """Decode a stored payload; older schema versions go through ``upgrade``. Raises PayloadError."""
        try:
            if version is not None and version != self.options.schema_version:
                text = self.upgraded(text, version)
            if self.build is not None:
                return self._built(self.build, task_id, text)
            return self._decoder.decode(text)
        except msgspec.MsgspecError as error:
            raise PayloadError(f"payload of {self.name} does not fit: {error}") from None

    def _built(self, build: Callable[[int, str], Any], task_id: int, text: str) -> Any:
        try:
            return build(task_id, text)
        except PayloadError:
            raise
        except Exception as error:
            raise PayloadError(f"payload of {self.name}: its build() cannot read it: {describe(error).text}") from None

    def upgraded(self, text: str, version: int) -> str:
        """A stored payload of this schema version as one of the present version. Raises PayloadError."""
        mine = self.options.schema_version
        if version > mine:
            raise PayloadError(f"payload of {self.name} has schema_version {version}, this program knows {mine}")
        if self._upgrade is None or version == mine:
            return text
        return encode_json(self._upgrade(msgspec.json.decode(text), version), f"upgraded payload of {self.name}")

    def lane(self, value: Any) -> str:
        """The lane of a task: the kind, or kind + concurrency key, with its fairness key and weight."""
        lane = self.name
        if self.options.concurrency_key is not None:
            lane += LANE_SEPARATOR + within(storable(self._lane_key("concurrency_key", value)), MAX_KEY)
        if not self._fair:
            return lane
        key = "" if self.options.fairness_key is None else self._lane_key("fairness_key", value)
        return fair_lane(lane, key and check_fairness_key(key), self.options.fairness_weight)

    def _lane_key(self, name: str, value: Any) -> str:
        rule = getattr(self.options, name)
        try:
            return str(rule(value) if callable(rule) else rule.format(**msgspec.structs.asdict(self._as_read(value))))
        except Exception as error:
            raise PayloadError(f"{name} of {self.name} cannot be made: {error!r}") from None

    def _as_read(self, value: Any) -> Any:
        return value if self._verbatim else self._decoder.decode(_encoder.encode(value))

    def published_key_template(self, name: str = "concurrency_key") -> str | bool:
        """The concurrency key, or the fairness key, as workers publish it for programs without the type.

        The template, if the payload's JSON and its schema suffice to make the key; else whether there is a key."""
        rule = getattr(self.options, name)
        return rule if isinstance(rule, str) and self.why_key_is_private(name) is None else rule is not None

    def why_key_is_private(self, name: str = "concurrency_key") -> str | None:
        """Why programs without the type cannot make this key; None if they can, or there is none."""
        rule = getattr(self.options, name)
        if rule is None:
            return None
        if not isinstance(rule, str):
            return "it is what a function returns"
        if self._serialize is not None or self.build is not None:
            return "the payload is read or written in a way of its own"
        return why_private(rule, self.struct)

    def published_keys(self) -> dict[str, Any]:
        """How workers publish the keys that the fields of a payload make.

        ``key_fields``: the names in the payload that count; None: only the program can read them. ``key_why``: why only
        the program can make the key; None: the payload's JSON and its schema suffice.
        """
        option = self.options.unique or self.options.debounce
        if option is None:
            return {"makes_keys": False}
        names, unique = option.by or self.struct.__struct_fields__, self.options.unique
        made: dict[str, Any] = {"makes_keys": True, "key_fields": None}
        made["key_why"] = "the payload is read or written in a way of its own"
        if self._serialize is None and self.build is None:
            renamed = dict(zip(self.struct.__struct_fields__, self.struct.__struct_encode_fields__, strict=True))
            made["key_fields"] = [renamed[name] for name in names]
            made["key_why"] = why_fields_are_private(names, self.struct)
        made["unique_states"] = None if unique is None else unique.mask
        made["unique_for"] = 0 if unique is None else unique.retention_us
        return made

    @property
    def built_in(self) -> bool:
        """Whether it is a type of schedd's own, such as one that runs commands or publishes messages."""
        code = self.source if isinstance(self.source, type) else self.source.function
        return str(getattr(code, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]

    @property
    def upgrades(self) -> bool:
        """Whether it turns older payloads into present ones."""
        return self._upgrade is not None

    def schema(self) -> dict[str, Any]:
        """JSON schema of the payload; empty (anything) for a type with its own ``serialize`` or ``build``."""
        try:
            return {} if self._serialize is not None else msgspec.json.schema(self.struct)
        except TypeError:
            return {}


def _as_given(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return msgspec.field(default=field.default, name=field.encode_name)
    if field.default_factory is not msgspec.NODEFAULT:
        return msgspec.field(default_factory=field.default_factory, name=field.encode_name)
    return msgspec.field(name=field.encode_name)


def _usual_spec(options: TaskOptions) -> TaskSpec:
    retry = options.retry
    return TaskSpec(
        kind=options.kind,
        payload="",
        lane=options.kind,
        queue=options.queue,
        priority=int(options.priority),
        max_attempts=1 if retry is None else retry.max_attempts,
        retry=None if retry is None else retry.to_json(),
        timeout=options.timeout,
        dead_letter=options.dead_letter,
        schema_version=options.schema_version,
        result_ttl=options.result_ttl,
        failed_ttl=options.failed_ttl,
        executor=options.executor,
        resources=options.resources,
        executor_options=options.executor_options,
    )


class Registry:
    """The kinds of one scheduler."""

    def __init__(self) -> None:
        self._by_name: dict[str, Kind] = {}
        self._by_source: dict[int, Kind] = {}
        self.telling: dict[str, str] = {}
        """The kinds whose successes are told, each with its sink (``on_success``)."""

    def copy(self) -> Registry:
        """A copy with the same kinds."""
        made = Registry()
        made._by_name, made._by_source = dict(self._by_name), dict(self._by_source)
        made.telling = dict(self.telling)
        return made

    def check_isolation(self) -> None:
        """Raises ConfigError for a kind that wants child processes on a system that has none for it."""
        for kind in self:
            _check_isolation(kind)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def get(self, name: str) -> Kind | None:
        return self._by_name.get(name)

    def named(self, name: str) -> Kind:
        """The kind with this name. Raises UnregisteredKindError."""
        kind = self._by_name.get(name)
        if kind is None:
            known = ", ".join(sorted(self._by_name)) or "none"
            raise UnregisteredKindError(f"kind {name!r} is not registered here (registered: {known})")
        return kind

    def of(self, source: object) -> Kind:
        """The kind of a Task class or @task function. Raises UnregisteredKindError."""
        kind = self._by_source.get(id(source))
        if kind is None:
            name = getattr(source, "__name__", repr(source))
            raise UnregisteredKindError(f"{name} is not registered with this scheduler; call register({name}) first")
        return kind

    def of_instance(self, value: Task) -> Kind:
        """The kind of an instance: what its ``kind_of()`` says, else its class's."""
        kind_of = getattr(value, "kind_of", None)
        return self.named(kind_of()) if kind_of is not None else self.of(type(value))

    def add(
        self,
        source: type[Task] | TaskFunction[Any, Any],
        kind: str | None = None,
        build: Callable[[int, str], Any] | None = None,
        *,
        runs: bool = False,
    ) -> Kind:
        """Register a type. The same type twice is harmless; another type under the same name is a ConfigError.

        ``runs``: an engine runs already, so that what cannot run on this system is refused.
        """
        made = make_kind(source, kind, build)
        if runs:
            _check_isolation(made)
        present = self._by_name.get(made.name)
        if present is not None:
            if present.source is source:
                return present
            raise ConfigError(f"kind {made.name!r} is registered already, by {present.source!r}; give one a kind=")
        self._by_name[made.name] = made
        self._by_source[id(source)] = made
        if made.options.on_success is not None:
            self.telling[made.name] = made.options.on_success
        return made


def _check_isolation(kind: Kind) -> None:
    if kind.slot_type == PROCESS and not LINUX:
        raise ConfigError(f'kind {kind.name!r}: isolation="process" {NEEDS_LINUX}; leave it out, or run it there')


def make_kind(source: Any, kind: str | None, build: Callable[[int, str], Any] | None) -> Kind:
    """Check a type and prepare it. Raises ConfigError."""
    if isinstance(source, TaskFunction):
        options, (struct, run) = source.task_options, _of_function(source)
        body: Any = source.function
    elif isinstance(source, type) and issubclass(source, Task):
        options, struct = source.__task_options__, source
        body = getattr(source, "run", None)
        if not callable(body):
            raise ConfigError(f"task type {options.kind}: it has no run(self, ctx) method")
        _check_methods(source)
        run = body
        build = build or getattr(source, "build", None)
    else:
        raise ConfigError(
            f"cannot register {source!r}: it is neither a Task class nor a @task function"
            + ("; decorate it with @task" if callable(source) else "")
        )
    if isinstance(kind, (type, TaskFunction)):
        raise ConfigError(
            f"register() takes one task type at a time, and {kind!r} is a second one: call it once for each"
        )
    if kind is not None:
        options = msgspec.structs.replace(options, kind=check_name("kind", kind))
    check_template(options, struct)
    for option in (options.unique, options.debounce):
        if option is not None:
            check_fields(options.kind, option, struct.__struct_fields__)
    made = Kind(source, options, struct, run, body, build)
    if options.isolation == "process":
        made.reference  # noqa: B018 (found now: a deploy may remove the module later)
    _check_secrets(made)
    return made


def _check_secrets(kind: Kind) -> None:
    """Refuse secrets that a key would show, or that could not be hidden. Raises ConfigError."""
    options, secret = kind.options, marked_fields(kind.struct)
    try:
        lost = lost_mark(kind.struct)
    except (NameError, TypeError):  # an annotation that cannot be read here: msgspec has read it by itself
        lost = None
    if lost is not None:
        raise ConfigError(f"task type {kind.name}: {lost} is a struct: mark the fields in it as Secret, not the whole")
    if not secret:
        return
    if not kind.schema():
        raise ConfigError(f"task type {kind.name}: with serialize() of its own no field can be a Secret")
    rules = (options.concurrency_key, options.fairness_key)
    keyed = {name for rule in rules if isinstance(rule, str) for name in fields_of(rule)}
    for option in (options.unique, options.debounce):
        if option is not None:
            keyed |= set(kind.struct.__struct_fields__ if option.by is None else option.by)
    shown = sorted(keyed & secret)
    if shown:
        raise ConfigError(f"task type {kind.name}: {shown[0]} is a Secret, and keys are shown: name other fields (by=)")


def _check_methods(source: type[Task]) -> None:
    """Check that ``run`` and the hooks accept the arguments that the engine passes. Raises ConfigError."""
    for name, given in (("run", "ctx"), ("on_attempt_failed", "ctx, error"), ("on_failed", "ctx, error")):
        method = getattr(source, name, None)
        try:
            signature = inspect.signature(method) if callable(method) else None
        except (TypeError, ValueError):  # of something built in
            continue
        if signature is None:
            continue
        try:
            signature.bind(None, *given.split(", "))
        except TypeError:
            kind = source.__task_options__.kind
            raise ConfigError(f"task type {kind}: {name} must take (self, {given}), not {signature}") from None


def _of_function(source: TaskFunction[Any, Any]) -> tuple[type[msgspec.Struct], Callable[[Any, Any], Any]]:
    name, function = source.task_options.kind, source.function
    parameters = list(inspect.signature(function).parameters.values())
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except Exception as error:
        raise ConfigError(f"task function {name}: cannot read its annotations: {error}") from None
    fields: list[Any] = []
    keyword_only: list[str] = []
    for parameter in parameters[1:]:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
            keyword_only.append(parameter.name)
        elif parameter.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD:
            raise ConfigError(
                f"task function {name}: parameter {parameter.name!r} must be named; "
                "*args, **kwargs and positional-only ones have no place in a payload"
            )
        annotation = hints.get(parameter.name, Any)
        if parameter.default is inspect.Parameter.empty:
            fields.append((parameter.name, annotation))
        else:
            fields.append((parameter.name, annotation, _default(parameter.default)))
    try:
        # By position where that can be: to make one by its names takes three times as long.
        struct = msgspec.defstruct(name, fields, kw_only=bool(keyword_only), forbid_unknown_fields=True)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"task function {name}: {error}") from None
    positional = [p.name for p in parameters[1:] if p.name not in keyword_only]

    def run(value: Any, ctx: Any) -> Any:
        if not keyword_only and type(value) is struct:
            return function(ctx, *msgspec.structs.astuple(value))
        return function(ctx, *[getattr(value, n) for n in positional], **{n: getattr(value, n) for n in keyword_only})

    return struct, run


def _default(value: Any) -> Any:
    if isinstance(value, (list, dict, set, bytearray)):
        return msgspec.field(default_factory=lambda: copy.copy(value))
    return value


def bind(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Make the payload instance for a call ``function(ctx, *args, **kwargs)``. Raises PayloadError."""
    assert isinstance(kind.source, TaskFunction)
    try:  # the usual call, in a fifth of the time
        if kind.source.all_positional:
            return kind.struct(*args, **kwargs)
        names = kind.source.positional
        if len(args) <= len(names):
            return kind.struct(**dict(zip(names, args, strict=False)), **kwargs)
    except TypeError:
        pass  # the signature says what is wrong
    try:
        bound = kind.source.signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise PayloadError(f"payload of {kind.name} does not fit: {error}{context_hint(kind.source)}") from None
    values = dict(list(bound.arguments.items())[1:])
    return kind.struct(**values)


def context_hint(function: TaskFunction[Any, Any]) -> str:
    """Says which parameter is the Context, where its name does not."""
    first = next(iter(function.signature.parameters))
    return "" if first in NAMES else f" (its first parameter, {first!r}, is the Context)"


def bind_some(kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, frozenset[str]]:
    """:func:`bind` for a call that lacks arguments: the payload without them, and their names. Raises PayloadError."""
    assert isinstance(kind.source, TaskFunction)
    try:
        given = dict(list(kind.source.signature.bind_partial(None, *args, **kwargs).arguments.items())[1:])
    except TypeError:
        bind(kind, args, kwargs)  # says what is wrong
        raise
    parameters = list(kind.source.signature.parameters.values())[1:]
    lacking = frozenset(p.name for p in parameters if p.default is p.empty and p.name not in given)
    return kind.without(lacking).struct(**given), lacking


def parts_of(source: Any, item: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """A task for an item, as (task, args, kwargs): an instance as it is, a mapping as fields, else as the first field.

    ``source``: a Task class or @task function. Raises PayloadError.
    """
    if isinstance(item, Task):
        return item, (), {}
    args, kwargs = ((), dict(item)) if isinstance(item, Mapping) else ((item,), {})
    if isinstance(source, TaskFunction):
        return source, args, kwargs
    try:
        return source(*args, **kwargs), (), {}
    except TypeError as error:
        raise PayloadError(f"payload of {getattr(source, '__name__', source)} does not fit: {error}") from None
