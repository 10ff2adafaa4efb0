"""Task, what ``@app.task`` and ``@shared_task`` make of a function, and the signatures that are built of it."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn, Self

from scheduler.celery.apps import App, AsyncResult, GroupResult, Join, current_app
from scheduler.celery.options import LINKS, configure, task_options
from scheduler.client.batch import Batch
from scheduler.client.builder import Seconds, TaskBuilder
from scheduler.errors import ConfigError, PayloadError, PermanentError, Retry
from scheduler.model.fingerprint import describe
from scheduler.model.state import When
from scheduler.model.task import TaskFunction

_CONTEXT: ContextVar[Any] = ContextVar("schedd_celery", default=None)


class Request(NamedTuple):
    """``self.request``: ``id`` is None outside of a run; ``retries`` is 0 in the first attempt."""

    id: str | None
    retries: int
    task: str
    correlation_id: str | None


class Task(TaskFunction[..., Any]):
    """A task type made by ``@app.task`` or ``@shared_task``; ``self`` of its function with ``bind=True``."""

    def __init__(self, function: Callable[..., Any], given: Mapping[str, Any], app: App | None = None) -> None:
        options = dict(given)
        self.run, self.bind, self._app = function, bool(options.pop("bind", False)), app
        name = options.pop("name", None)
        self.name: str = _name_of(function, app) if name is None else name
        ends = options.get("isolation") == "process" or inspect.iscoroutinefunction(function)
        options = task_options(self.name, options, retries=self.bind, ends=ends)
        policy = options.get("retry")
        attempts = 1 if policy is None else policy.max_attempts
        self.max_retries: int | None = None if attempts is None else attempts - 1
        self.default_retry_delay: float | None = None
        if policy is not None and policy.strategy == "fixed":
            self.default_retry_delay = policy.min_wait
        super().__init__(self._handler(), {**options, "kind": self.name})

    def _handler(self) -> Callable[..., Any]:
        """The function as schedd calls it, with its context in front. Raises ConfigError."""
        function = self.run
        parameters = list(inspect.signature(function).parameters.values())
        if self.bind and not parameters:
            raise ConfigError(f"task {self.name}: bind=True passes the task: write def {function.__name__}(self)")
        own = parameters[1:] if self.bind else parameters
        for one in own:  # here, not at the first use of the app: the line of the mistake is in the traceback
            if one.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
                raise ConfigError(
                    f"task {self.name}: parameter {one.name!r} must be named; *args, **kwargs and positional-only ones "
                    "have no place in a payload"
                )

        def call(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            token = _CONTEXT.set(ctx)
            try:
                return self(*args, **kwargs)
            finally:
                _CONTEXT.reset(token)

        async def call_async(ctx: Any, *args: Any, **kwargs: Any) -> Any:
            token = _CONTEXT.set(ctx)
            try:
                return await self(*args, **kwargs)
            finally:
                _CONTEXT.reset(token)

        handler: Callable[..., Any] = call_async if inspect.iscoroutinefunction(function) else call
        functools.update_wrapper(handler, function)
        name = next(name for name in ("ctx", "_ctx", "_") if name not in {one.name for one in own})
        context = inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)
        setattr(handler, "__signature__", inspect.Signature([context, *own]))  # noqa: B010
        names = {one.name for one in own} | {"return"}
        handler.__annotations__ = {name: a for name, a in function.__annotations__.items() if name in names}
        return handler

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now."""
        return self.run(self, *args, **kwargs) if self.bind else self.run(*args, **kwargs)

    def registered(self, scheduler: Any) -> None:
        """Store calls where they run: the daemon's Scheduler, or a test's, takes the place of the app's own."""
        self.app.use(scheduler)

    @property
    def app(self) -> App:
        """The app that it belongs to; of a shared task the one that was made last."""
        return self._app or current_app()

    @property
    def ctx(self) -> Any:
        """The Context of the attempt under way, with all that schedd has. Raises ConfigError outside of a run."""
        ctx = _CONTEXT.get()
        if ctx is None:
            raise ConfigError(f"task {self.name} is not run by a worker: there is no ctx")
        return ctx

    @property
    def request(self) -> Request:
        """The attempt under way."""
        ctx = _CONTEXT.get()
        if ctx is None:
            return Request(None, 0, self.name, None)
        claimed = ctx._attempt.claimed
        retries = max(0, claimed.attempt - claimed.attempt_base - 1)
        return Request(str(ctx.id), retries, self.name, ctx.correlation_id)

    def retry(self, *, countdown: Seconds | None = None, exc: BaseException | None = None, **others: Any) -> NoReturn:
        """End this attempt, and run the task again ``countdown`` later; by default as its options say.

        In the last attempt ``exc`` is raised instead: by default, the exception that is being handled.
        """
        for name in others:
            raise PermanentError(f"self.retry takes countdown and exc, not {name}: max_retries is the decorator's")
        error = exc if exc is not None else sys.exc_info()[1]
        if error is not None and self.max_retries is not None and self.request.retries >= self.max_retries:
            raise error
        after = self.default_retry_delay if countdown is None else countdown
        raise Retry(after=after, reason=None if error is None else describe(error).text) from error

    def delay(self, *args: Any, **kwargs: Any) -> AsyncResult:
        """Store a call. Raises PayloadError, StoreUnavailableError."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any
    ) -> AsyncResult:
        """Store a call with ``countdown, eta, expires, queue, priority, key, headers, link, link_error, connection``.

        ``connection``: the caller's own; the task then commits or rolls back with its rows. Raises ConfigError,
        PayloadError, InvalidScheduleError, StoreUnavailableError.
        """
        made: AsyncResult = Signature(self).apply_async(args, kwargs, **options)
        return made

    def s(self, *args: Any, **kwargs: Any) -> Signature:
        """The signature of a call, which the result of the task before it completes."""
        return Signature(self, args, kwargs)

    def si(self, *args: Any, **kwargs: Any) -> Signature:
        """The signature of a call that takes no result."""
        return Signature(self, args, kwargs, immutable=True)


def _name_of(function: Callable[..., Any], app: App | None) -> str:
    module = function.__module__
    if module == "__main__" and app is not None and app.main:
        module = app.main
    return f"{module}.{function.__name__}"


class _Canvas:
    """Calls that are stored together, all or none."""

    many = False
    """Whether its result is a GroupResult."""

    def _app(self) -> App:
        raise NotImplementedError

    def clone(self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Any:
        """A copy with more arguments in front, and other options."""
        raise NotImplementedError

    def _add(self, batch: Batch, before: TaskBuilder[Any] | None, when: When = When.SUCCESS) -> list[TaskBuilder[Any]]:
        """Add the tasks, to run after this end of ``before``; returns those whose results count. Raises ConfigError."""
        raise NotImplementedError

    def __or__(self, other: _Canvas) -> chain:
        return chain(self, other)

    def set(self, **options: Any) -> Self:
        """A copy with these options of ``apply_async``."""
        made: Self = self.clone(**options)
        return made

    def delay(self, *args: Any, **kwargs: Any) -> Any:
        """:meth:`apply_async` with more arguments in front."""
        return self.apply_async(args, kwargs)

    def apply_async(
        self,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        connection: Any = None,
        **options: Any,
    ) -> Any:
        """Store all of it, in one transaction. Returns an AsyncResult; of a group, or what ends in one, a GroupResult.

        Raises ConfigError, PayloadError, InvalidScheduleError, StoreUnavailableError.
        """
        work, app = self.clone(args, kwargs, **options), self._app()
        with app.scheduler.batch(connection=connection) as batch:
            made = work._add(batch, None)
        ids = dict(zip(batch._builders, batch.ids, strict=True))
        results = [AsyncResult(ids[builder], app) for builder in made]
        return GroupResult(results) if self.many else results[0]


class Signature(_Canvas):
    """One call."""

    def __init__(
        self,
        task: Task,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        immutable: bool = False,
    ) -> None:
        self.task, self.args, self.kwargs = task, tuple(args), dict(kwargs or {})
        self.options, self.immutable = dict(options or {}), immutable

    def __repr__(self) -> str:
        return f"{self.task.name}.{'si' if self.immutable else 's'}{self.args!r:.80}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself, here and now."""
        made = self.clone(args, kwargs)
        return self.task(*made.args, **made.kwargs)

    def _app(self) -> App:
        return self.task.app

    def clone(self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> Signature:
        if self.immutable:
            args, kwargs = (), None
        together = {**self.kwargs, **(kwargs or {})}
        return Signature(self.task, (*args, *self.args), together, {**self.options, **options}, self.immutable)

    def _add(self, batch: Batch, before: TaskBuilder[Any] | None, when: When = When.SUCCESS) -> list[TaskBuilder[Any]]:
        task, args, kwargs, name = self.task, self.args, self.kwargs, None
        if before is not None and self.options.get("countdown") is not None:
            raise ConfigError(f"{self!r}: countdown would not count from the end of the task before it; take eta=")
        if when is When.FAILURE and not self.immutable:
            raise ConfigError(
                f"link_error={self!r}: write {task.name}.si(…): it is passed no request and no error; "
                "self.ctx.dependency_failures() has the ids and the errors"
            )
        if before is not None and not self.immutable:
            if not task.positional:
                raise ConfigError(f"{self!r} takes no argument, so no result of the task before it; write si()")
            try:
                bound = task.signature.bind_partial(None, None, *args, **kwargs)
            except TypeError as error:
                raise PayloadError(f"payload of {task.name} does not fit: {error}") from None
            name, args = task.positional[0], ()
            kwargs = dict(list(bound.arguments.items())[2:])
        caller = batch._caller
        if caller.registry.get(task.name) is None:  # a shared task that was declared after its app had a Scheduler
            caller.registry.add(task)
        builder: TaskBuilder[Any] = batch.task(task, *args, **kwargs)
        configure(builder, self.options, f"{self!r}", caller.database.now())
        if before is not None:
            builder.depend_on(before, when, name=name)
        for link in LINKS:
            for follower in _listed(self.options.get(link)):
                follower._add(batch, builder, When.SUCCESS if link == "link" else When.FAILURE)
        return [builder]


def _listed(given: Any) -> list[_Canvas]:
    """The signatures of one, or of several. Raises ConfigError."""
    found: list[Any] = [] if given is None else [given] if isinstance(given, _Canvas | Task) else list(given)
    for one in found:
        if not isinstance(one, _Canvas):
            raise ConfigError(f"a signature is needed, such as task.s(1), not {one!r:.80}")
    return found


class _Several(_Canvas):
    def __init__(self, *tasks: Any) -> None:
        given = tasks[0] if len(tasks) == 1 and not isinstance(tasks[0], _Canvas | Task) else tasks
        self.tasks = _listed(given)

    def __repr__(self) -> str:
        return f"{type(self).__name__}{tuple(self.tasks)!r:.80}"

    def _app(self) -> App:
        return self.tasks[0]._app() if self.tasks else current_app()


class group(_Several):
    """Calls that run side by side."""

    many = True

    def clone(self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> group:
        args = tuple(args)
        return group([one.clone(args, kwargs, **options) for one in self.tasks])

    def _add(self, batch: Batch, before: TaskBuilder[Any] | None, when: When = When.SUCCESS) -> list[TaskBuilder[Any]]:
        return [builder for one in self.tasks for builder in one._add(batch, before, when)]


class chain(_Several):
    """Calls one after the other; the result of each is the first argument of the next, of a group the list of all."""

    def __init__(self, *tasks: Any) -> None:
        super().__init__(*tasks)
        self.tasks = [part for one in self.tasks for part in (one.tasks if isinstance(one, chain) else [one])]
        if not self.tasks:
            raise ConfigError("a chain needs a task")
        self.many = self.tasks[-1].many

    def clone(self, args: Iterable[Any] = (), kwargs: Mapping[str, Any] | None = None, **options: Any) -> chain:
        links = {name: options.pop(name) for name in LINKS if name in options}
        first, *rest = self.tasks
        steps = [first.clone(args, kwargs, **options), *rest]
        steps[-1] = steps[-1].clone(**links)
        return chain(steps)

    def _add(self, batch: Batch, before: TaskBuilder[Any] | None, when: When = When.SUCCESS) -> list[TaskBuilder[Any]]:
        made: list[TaskBuilder[Any]] = []
        for i, step in enumerate(self.tasks):
            if i:
                before, when = made[0] if not self.tasks[i - 1].many else _joined(batch, made), When.SUCCESS
            made = step._add(batch, before, when)
        return made


def _joined(batch: Batch, parts: list[TaskBuilder[Any]]) -> TaskBuilder[Any]:
    builder: TaskBuilder[Any] = batch.task(Join(len(parts)))
    if parts:
        builder.depend_on({str(i): part for i, part in enumerate(parts)})
    return builder


def chord(header: Any, body: _Canvas | None = None) -> Any:
    """``chord(tasks)(body)`` stores a group, and a task that gets the list of its results; ``chord(tasks, body)``
    is that chain, not stored yet."""
    parts = header if isinstance(header, group) else group(header)
    if body is None:
        return lambda body: chain(parts, body).apply_async()
    return chain(parts, body)
