"""Builders of tasks and recurrences. A builder checks each call at once; ``schedule()`` stores."""

from __future__ import annotations

import hashlib
from collections.abc import Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Self, TypeAlias, overload

import msgspec

from scheduler.client.builder_parts import Given, PlacingCalls, RecurrenceCalls
from scheduler.client.submitter import TaskSubmitter
from scheduler.errors import ConfigError, InvalidScheduleError, PayloadError
from scheduler.model.lanes import check_fairness_key, check_weight
from scheduler.model.parent_names import MAX_NAME
from scheduler.model.priority import Priority, PriorityName
from scheduler.model.recurrence import Recurrence
from scheduler.model.registry import Kind, bind, bind_some, parts_of
from scheduler.model.retry import RetryPolicy
from scheduler.model.running import inherit
from scheduler.model.spec import Draft, EdgeSpec, TaskId, TaskSpec, copied
from scheduler.model.state import DEFAULT_OTHERWISE, Otherwise, OtherwiseName, When, WhenName
from scheduler.model.task import Task, TaskFunction
from scheduler.model.texts import storable
from scheduler.model.typed import R, R_co, Runs, RunsAsync
from scheduler.operations.new_task import Conflict, set_fairness, set_option, set_rank, set_retry
from scheduler.operations.published import PublishedKind
from scheduler.store.schedules import ScheduleSpec

if TYPE_CHECKING:
    from scheduler.client.batch import Batch, RecurringGraph
    from scheduler.client.submitter import AwaitedConnection, PlainConnection

_ITS_OWN_TIMES = "a recurring schedule has times of its own: at() and after() are for single tasks"
_NO_CONFLICT = "a schedule of the same name is updated: key(conflict='reject') is for single tasks"

Seconds = float | timedelta | str
_Parents: TypeAlias = "int | TaskBuilder[Any] | Iterable[int | TaskBuilder[Any]]"


class _Builder(PlacingCalls, RecurrenceCalls["RecurringBuilder"]):
    """The common base of builders for single tasks and recurrences."""

    # The names of a function's arguments, or all that is known of them. No objects: the collector walks a batch's.
    _call: tuple[str, ...] | Given | None = None
    _lacking: frozenset[str] = frozenset()

    def __init__(
        self, caller: TaskSubmitter, kind: Kind | PublishedKind, value: Any, batch: Batch | RecurringGraph | None = None
    ) -> None:
        self._caller = caller
        self._kind = kind
        self._batch = batch
        self._spec = kind.spec(value)
        self._parents: dict[int | TaskBuilder[Any], tuple[When, Otherwise]] = {}
        self._names: dict[str, int | TaskBuilder[Any]] | None = None

    def key(self, key: str, conflict: Conflict = "keep", retention: Seconds | None = None) -> Self:
        """The caller's name for this piece of work, unique per kind while it lives or is retained.

        ``conflict``: ``keep`` returns the task that holds the key, ``reject`` raises DuplicateKeyError,
        ``replace`` gives it this payload, these options and these edges in place of its own: at once if no attempt is
        under way, else for one more run after it. An ended task is left as it is, and a new one is made.
        ``retention``: how long after its success the key stays taken (seconds or timedelta; by default the kind's
        ``key_retention``, else ``[retention] keys``, 24 h). Raises PayloadError, ConfigError.
        """
        if self._kind.makes_keys:
            raise ConfigError(f"kind {self._kind.name} makes its keys itself (unique or debounce): leave key() out")
        self._set("key", key)._set("conflict", conflict)
        if conflict == "reject" and self._recurrence is not None:
            raise InvalidScheduleError(_NO_CONFLICT)
        self._spec.key_retention = self._kind.options.key_retention
        return self if retention is None else self._set("key_retention", retention)

    def _set(self, name: str, value: Any) -> Self:
        set_option(self._spec, name, value)
        return self

    def depend_on(
        self,
        tasks: _Parents | Mapping[str, int | TaskBuilder[Any]],
        when: When | WhenName = "success",
        otherwise: Otherwise | OtherwiseName | None = None,
        *,
        name: str | None = None,
    ) -> Self:
        """Wait for these tasks: ids, or builders of the same batch.

        ``when``: success, failure or finished. ``otherwise``: fail, skip, run or wait: what happens once the condition
        can no longer be met (default: fail for success, skip for failure). ``name``: of one task; several have theirs
        in a mapping, ``{"load": load_id}``. The result of a named task is the argument of that name where the handler
        is a function, and the field of that name of a Task class; ``ctx.results["load"]`` is it, too. Raises
        ConfigError for other values, for one task with two different conditions, and for a name that is taken or that
        the function has no parameter for.
        """
        if name is not None or isinstance(tasks, Mapping):
            tasks = self._name_parents(tasks, name)
        if self._recurrence is not None:
            raise InvalidScheduleError("a recurring schedule cannot depend on tasks: each of its runs is a new task")
        edge = _conditions(when, otherwise)
        new: dict[int | TaskBuilder[Any], tuple[When, Otherwise]] = {}
        known, batch = self._parents, self._batch
        # The common case first: isinstance() with Iterable is slow.
        for parent in tasks if type(tasks) is list or isinstance(tasks, Iterable) else (tasks,):
            if type(parent) is not TaskBuilder or batch is None or parent._batch is not batch:
                self._check_parent(parent)
            new[parent] = edge
            if known and (present := known.get(parent, edge)) != edge:
                which = 0 if present[0] != edge[0] else 1
                raise ConfigError(
                    f"depend_on names {parent!r} twice with different conditions: "
                    f"{('when', 'otherwise')[which]}={present[which]} and {edge[which]}"
                )
        known.update(new)
        return self

    def _name_parents(self, tasks: Any, name: str | None) -> Iterable[int | TaskBuilder[Any]]:
        """Note the names of parents. Raises ConfigError."""
        if name is not None:
            if not isinstance(tasks, int | TaskBuilder):
                raise ConfigError(f'a name is for one task, not {tasks!r:.80}: several are {{"name": task, …}}')
            tasks = {name: tasks}
        names = {} if self._names is None else self._names
        for one, parent in tasks.items():
            self._check_parent(parent)
            if not isinstance(one, str) or not 1 <= len(one) <= MAX_NAME or one != storable(one):
                raise ConfigError(f"the name of a parent is a text of 1 to {MAX_NAME} characters, not {one!r:.80}")
            if names.get(one, parent) != parent:
                raise ConfigError(f"depend_on names two tasks {one!r}: {names[one]!r} and {parent!r}")
            if (given := self._given()) is not None:
                given.check(one)
        self._names = {**names, **tasks}
        return list(dict.fromkeys(tasks.values()))

    def _check_complete(self) -> None:
        """Raise PayloadError if the function lacks an argument that no parent brings."""
        if self._lacking and (given := self._given()) is not None:
            given.refuse_lacking(self._lacking, self._spec.payload, self._names or ())

    def _given(self) -> Given | None:
        if self._call is None or isinstance(self._call, Given):
            return self._call
        assert isinstance(self._kind, Kind)
        return Given(self._kind, self._kind.struct.__struct_fields__, self._call)

    def _check_parent(self, parent: int | TaskBuilder[Any]) -> None:
        if isinstance(parent, TaskBuilder):
            if self._batch is None or parent._batch is not self._batch:
                raise ConfigError(
                    "depend_on takes builders of the same batch only; schedule the other task first and pass its id"
                )
        elif not isinstance(parent, int) or isinstance(parent, bool):
            raise ConfigError(f"depend_on takes task ids and builders, not {parent!r}")
        elif not 1 <= parent < 2**63:
            raise ConfigError(f"depend_on: {parent} is not a task id")

    def with_retry(self, policy: RetryPolicy) -> Self:
        """Retry as the policy says. Raises ConfigError."""
        if not isinstance(policy, RetryPolicy):
            raise ConfigError(f"with_retry takes a RetryPolicy, not {policy!r}")
        set_retry(self._spec, policy)
        return self

    def with_automatic_retry(self) -> Self:
        """Retry with the defaults of RetryPolicy: 10 s doubling up to an hour, five attempts."""
        return self.with_retry(RetryPolicy())

    def priority(self, level: Priority | PriorityName) -> Self:
        """High, medium or low. Raises ConfigError."""
        return self._set("priority", level)

    def rank(self, number: int) -> Self:
        """The order among ready tasks of one priority, whatever their kinds: from 33, the first, to -33. Others have 0.

        For kinds that are ``ranked=True``: each rank is a lane of its own. Raises ConfigError.
        """
        set_rank(self._spec, number, ranked=self._kind.options.ranked)
        return self

    def fairness_key(self, key: str) -> Self:
        """Whose turn it takes: keys of a kind take turns by weight, whatever each has waiting.

        A text of at most 64 characters, such as a customer; by default that of the type, else that of the handler that
        schedules the task, else none. Raises PayloadError.
        """
        set_fairness(self._spec, check_fairness_key(key))
        return self

    def fairness_weight(self, weight: float) -> Self:
        """How much the turns of its fairness key weigh beside others: 2 gets twice the starts of 1, the default.

        From 0.001 to 1000. A weight that is set live of the key goes before it. Raises ConfigError.
        """
        set_fairness(self._spec, weight=check_weight(weight))
        return self

    def queue(self, name: str) -> Self:
        """The namespace whose workers may run it. Raises ConfigError."""
        return self._set("queue", name)

    def at(self, when: datetime) -> Self:
        """Not before this instant (aware). Raises InvalidScheduleError."""
        if self._recurrence is not None:
            raise InvalidScheduleError(_ITS_OWN_TIMES)
        return self._set("at", when)

    def after(self, delay: Seconds) -> Self:
        """Not before this long from the moment it is stored: seconds or timedelta. Raises ConfigError."""
        if self._recurrence is not None:
            raise InvalidScheduleError(_ITS_OWN_TIMES)
        return self._set("after", delay)

    def timeout(self, limit: Seconds) -> Self:
        """The longest one attempt may run: seconds or timedelta. Raises ConfigError."""
        return self._set("timeout", limit)

    def headers(self, headers: Mapping[str, Any]) -> Self:
        """Set JSON values that travel beside the payload. Raises PayloadError."""
        return self._set("headers", headers)

    def correlation(self, correlation_id: str) -> Self:
        """Set the correlation id; by default that of the handler that schedules the task, else the task's own id."""
        return self._set("correlation", correlation_id)

    def causation(self, causation_id: str) -> Self:
        """Set the cause of this task; by default the id of the task whose handler schedules it."""
        return self._set("causation", causation_id)

    def subject(self, subject: str) -> Self:
        """Set the subject of the message."""
        return self._set("subject", subject)

    def message_type(self, name: str) -> Self:
        """Set the type of the message, if it is not the kind: a name or URI of the system that it comes from."""
        return self._set("message_type", name)

    def sequence(self, number: int) -> Self:
        """Set a number that the handler can read; schedd does not order by it."""
        return self._set("sequence", number)

    def payload_ref(self, uri: str) -> Self:
        """Set the place of the data, for payloads too large to store."""
        return self._set("payload_ref", uri)

    def max_duration(self, limit: Seconds) -> Self:
        """Cancel the task once it has lived this long since it was stored, retries and waiting included.

        Seconds or timedelta. Raises ConfigError.
        """
        return self._set("max_duration", limit)

    def max_delay(self, limit: Seconds) -> Self:
        """Cancel the task once it has made no progress for this long while it could run, or runs.

        Progress is its first start, and after it a checkpoint, a progress report or a heartbeat. Seconds or timedelta.
        Raises ConfigError.
        """
        return self._set("max_delay", limit)

    # recurrences

    def _recurring(self, recurrence: Recurrence) -> RecurringBuilder:
        if self._batch is not None:
            raise InvalidScheduleError("a batch holds single tasks; register a recurring schedule outside of it")
        self._check_complete()
        if self._parents:
            raise InvalidScheduleError("a recurring schedule cannot depend on tasks: each of its runs is a new task")
        if self._kind.makes_keys:
            raise InvalidScheduleError(unique_recurs(self._kind.name))
        if self._spec.run_at or self._spec.delay:
            raise InvalidScheduleError(_ITS_OWN_TIMES)
        if self._spec.conflict == "reject":
            raise InvalidScheduleError(_NO_CONFLICT)
        made = RecurringBuilder.__new__(RecurringBuilder)
        made.__dict__.update(self.__dict__)
        made._recurrence = recurrence
        return made


class TaskBuilder(_Builder, Generic[R_co]):
    """Builds one task, and stores it."""

    if TYPE_CHECKING:

        def _returns(self) -> R_co: ...

    def __repr__(self) -> str:
        return f"<builder of {self._kind.name}>"

    @overload
    def then(self, task: RunsAsync[R], /) -> TaskBuilder[R]: ...
    @overload
    def then(self, task: Runs[R], /) -> TaskBuilder[R]: ...
    @overload
    def then(self, task: Task | str, /, *args: Any) -> TaskBuilder: ...
    @overload
    def then(self, task: TaskFunction[..., Coroutine[Any, Any, R]], /, *args: Any, **kwargs: Any) -> TaskBuilder[R]: ...
    @overload
    def then(self, task: TaskFunction[..., R], /, *args: Any, **kwargs: Any) -> TaskBuilder[R]: ...
    def then(self, task: Any, /, *args: Any, **kwargs: Any) -> TaskBuilder[Any]:
        """Begin the task that follows this one's success, and return its builder.

        The result of this task is the first parameter of a function that you leave out: ``.then(parse, width=3)``. A
        function without one, and a Task instance, only come after it. ``schedule()`` of any builder of the chain
        stores all of them, or none, and returns that one's id. Raises UnregisteredKindError, PayloadError.
        """
        from scheduler.client.batch import Chain

        if self._batch is None:
            self._batch = chain = Chain(self._caller)
            chain.add(self)
        made: TaskBuilder[Any] = self._batch.task(task, *args, **kwargs)
        given = made._given()
        return made.depend_on(self, name=None if given is None else given.free())

    def schedule(self, connection: PlainConnection | None = None) -> TaskId[R_co]:
        """Store the task and return its id, an int with ``.created``. A task whose id was returned survives a crash.

        ``connection``: the caller's own, SQLAlchemy's or Django's; the task then commits or rolls back with its rows.
        Raises UnknownDependencyError, DuplicateKeyError, StoreUnavailableError; of a transaction of REPEATABLE READ or
        SERIALIZABLE sqlalchemy.exc.OperationalError (serialization_failure) if it gives a task other parents, and
        cannot see all that waits for that task: run that transaction again.
        """
        if self._batch is not None:
            return self._batch.schedule_chain(self, connection)
        return self._caller.store_one(self._finished({}), connection)

    async def schedule_async(self, connection: AwaitedConnection | None = None) -> TaskId[R_co]:
        """:meth:`schedule` without blocking the event loop.

        ``connection``: the caller's own AsyncSession or AsyncConnection; the task then commits or rolls back with the
        caller's rows.
        """
        if connection is None:
            return await self._caller.threads.call(self.schedule)
        if self._batch is not None:
            return await self._batch.schedule_chain_async(self, connection)
        return (await self._caller.store_async([self._finished({})], connection))[0]

    def _drafted(self) -> Draft:
        """The draft for a handler that spawns this task. Raises ConfigError."""
        if self._batch is not None:
            raise ConfigError("this builder belongs to a batch or a chain, which stores it at its end; do not spawn it")
        return Draft(self._kind.name, lambda: self._finished({}))

    def _finished(self, positions: Mapping[TaskBuilder[Any], int]) -> TaskSpec:
        self._refuse_recurrence_settings()
        spec = self._with_edges(positions)
        inherit(spec)
        return spec

    def _with_edges(self, positions: Mapping[TaskBuilder[Any], int]) -> TaskSpec:
        if self._caller.before_schedule is not None:
            self._caller.before_schedule(self)
        if self._lacking:
            self._check_complete()
        spec = copied(self._spec) if self._batch is None else self._spec  # a batch stores it once
        if self._parents:
            spec.edges = [
                EdgeSpec(positions[p], when, other, local=True)
                if isinstance(p, TaskBuilder)
                else EdgeSpec(int(p), when, other)
                for p, (when, other) in self._parents.items()
            ]
            if self._names is not None:
                at = {parent: i for i, parent in enumerate(self._parents)}
                spec.parent_names = {name: at[parent] for name, parent in self._names.items()}
        return spec


class RecurringBuilder(_Builder):
    """Builds one recurring schedule, and registers it."""

    def _drafted(self) -> Draft:
        raise InvalidScheduleError("a handler spawns single tasks; a recurring schedule is registered by a program")

    def __repr__(self) -> str:
        return f"<recurring builder of {self._kind.name}>"

    def schedule(self, connection: None = None, *, replace: bool = False) -> str:
        """Register the schedule, or update the one of the same name; returns the name.

        The name is the ``key()``, else the kind and a hash of the payload. ``replace``: also in place of a schedule of
        another kind. Raises StoreUnavailableError; DuplicateScheduleError if another kind's schedule has the name, or
        if this program has registered another recurrence of the same task without a key.
        """
        if connection is not None:
            raise ConfigError("connection= is for single tasks; a recurring schedule is registered by itself")
        made = self._schedule_spec(replace)
        self._caller.register_schedule(made, keyed=self._spec.key is not None)
        return made.name

    def _schedule_spec(self, replace: bool = False) -> ScheduleSpec:
        if self._caller.before_schedule is not None:
            self._caller.before_schedule(self)
        spec = self._spec
        kept = spec.key_retention if spec.key is not None else self._kind.options.key_retention
        name = spec.key or f"{spec.kind}-{hashlib.sha256(spec.payload.encode()).hexdigest()[:12]}"
        return ScheduleSpec(
            name,
            self._bounded_recurrence(name),
            msgspec.structs.replace(spec, key=None, key_retention=kept),
            self._catchup or "skip",
            self._overlap or "allow",
            self._run_on_startup,
            replace,
            self._jitter,
        )

    async def schedule_async(self, *, replace: bool = False) -> str:
        """:meth:`schedule` without blocking the event loop."""
        return await self._caller.threads.call(self.schedule, replace=replace)


def unique_recurs(kind: str) -> str:
    """Why a kind that makes its own keys cannot recur."""
    return f"kind {kind} makes its keys itself (unique or debounce), and a schedule's runs have keys of their slots"


def _conditions(when: str, otherwise: str | None) -> tuple[When, Otherwise]:
    """Raises ConfigError."""
    try:
        return _known_conditions(when, otherwise)
    except (TypeError, ValueError):
        pass
    if when not in list(When):
        raise ConfigError(f"when must be success, failure or finished, not {when!r}")
    raise ConfigError(f"otherwise must be fail, skip, run or wait, not {otherwise!r}")


@lru_cache(maxsize=64)
def _known_conditions(when: str, otherwise: str | None) -> tuple[When, Otherwise]:
    """Raises ValueError, TypeError."""
    end = When(when)
    return end, DEFAULT_OTHERWISE[end] if otherwise is None else Otherwise(otherwise)


def make_builder(
    caller: TaskSubmitter,
    batch: Batch | RecurringGraph | None,
    task: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> TaskBuilder[Any]:
    """Make a builder for a Task instance, a call of a @task function, or a kind's name with its payload.

    Raises UnregisteredKindError, PayloadError.
    """
    made: TaskBuilder[Any]
    if isinstance(task, str):
        if len(args) != 1 or kwargs:
            raise PayloadError(f'a kind by its name takes its payload: ("{task:.80}", {{"field": value, …}})')
        named, value, lacking = caller.named(task, args[0])
        made = _partial(caller, named, value, batch, lacking)
        if isinstance(args[0], Mapping):
            made._call, made._lacking = Given(named, None, tuple(args[0])), lacking
        return made
    if isinstance(task, TaskFunction):
        kind = caller.registry.of(task)
        given = task.positional[: len(args)] + tuple(kwargs)
        try:
            made = TaskBuilder(caller, kind, bind(kind, args, kwargs), batch)
            made._call = given
        except PayloadError:
            value, lacking = bind_some(kind, args, kwargs)
            if not lacking:
                raise
            made = _partial(caller, kind, value, batch, lacking)
            made._call, made._lacking = Given(kind, kind.struct.__struct_fields__, given), lacking
        return made
    if isinstance(task, Task):
        if args or kwargs:
            raise PayloadError("a task instance takes no further arguments: its fields are the payload")
        return TaskBuilder(caller, caller.registry.of_instance(task), task, batch)
    if isinstance(task, type) and issubclass(task, Task):
        raise PayloadError(f"pass an instance, {task.__name__}(…), not the class")
    raise PayloadError(f"task() takes a Task instance, a @task function or a kind's name, not {task!r:.80}")


def _partial(
    caller: TaskSubmitter, kind: Kind | PublishedKind, value: Any, batch: Any, lacking: frozenset[str]
) -> TaskBuilder[Any]:
    """A builder whose payload lacks fields that its parents are to bring."""
    try:
        return TaskBuilder(caller, kind.without(lacking), value, batch)
    except PayloadError:
        if lacking and isinstance(kind, PublishedKind):
            kind.spec(value)  # a lane or a key is made of them: say what is missing
        raise


class SpecFactory:
    """Drafts the tasks that handlers spawn. The engine gets one, since it does not import builders."""

    def __init__(self, caller: TaskSubmitter) -> None:
        self._caller = caller

    def draft(self, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Draft:
        """Draft a Task instance, a builder, or a @task function with its arguments.

        Raises PayloadError, UnregisteredKindError, InvalidScheduleError for a recurrence, ConfigError for a builder of
        a batch.
        """
        if not isinstance(task, _Builder):
            task = make_builder(self._caller, None, task, args, kwargs)
        elif args or kwargs:
            raise PayloadError("a builder takes no further arguments: it has its payload")
        drafted: Draft = task._drafted()
        return drafted

    def draft_of_item(self, kind: Any, item: Any) -> Draft:
        """Draft a task of this kind for an item: an instance, a mapping of fields, or the first field's value."""
        source = self._caller.registry.named(kind).source if isinstance(kind, str) else kind
        return self.draft(*parts_of(source, item))

    def stored(self, kind: str, payload: str) -> Draft:
        """Draft a task of this kind from a stored payload. Raises UnregisteredKindError, PayloadError."""
        known = self._caller.registry.named(kind)
        return TaskBuilder(self._caller, known, known.decode(payload))._drafted()

    def name_of(self, kind: Any) -> str:
        """The name of a kind: a class, a @task function or the name itself. Raises UnregisteredKindError."""
        registry = self._caller.registry
        return registry.named(kind).name if isinstance(kind, str) else registry.of(kind).name
