"""Imports the users' task modules, and registers the task types that they define.

Each mistake in them becomes a short ConfigError that names the module, file and line.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from scheduler.config import user_modules
from scheduler.config.model import Config
from scheduler.config.scheduler_options import scheduler_options
from scheduler.errors import ConfigError, SchedulerError, StoreUnavailableError
from scheduler.model.task import Task, TaskFunction

if TYPE_CHECKING:
    from scheduler.model.registry import Registry

BUILTIN = "scheduler.tasks"
_COMMAND = "CommandTask"


class Registering(Protocol):
    """The part of a Scheduler that task modules need."""

    registry: Registry

    def register(self, task_type: Any, /) -> Any:
        """Register a Task class or a @task function."""
        ...

    def starting(self) -> AbstractContextManager[None]:
        """Surround one ``setup()``."""
        ...


def extend_path(config: Config) -> None:
    """Put ``[tasks] path`` in front of ``sys.path``, in its order, relative to the current directory.

    Modules of Python and of schedd are not hidden by what is there.
    """
    wanted = _places(config)
    user_modules.guard(wanted)
    sys.path[:0] = [entry for entry in dict.fromkeys(wanted) if entry not in sys.path]
    importlib.invalidate_caches()


def _places(config: Config) -> list[str]:
    return [os.path.abspath(os.path.expanduser(entry)) for entry in config.tasks.path]


def find_state(config: Config) -> Callable[[], Any] | None:
    """Import the function that ``[tasks] state`` names; None if it is not set. Raises ConfigError."""
    if config.tasks.state is None:
        return None
    extend_path(config)
    setting = f"[tasks] state = {config.tasks.state!r}"
    module_name, _, path = config.tasks.state.partition(":")
    found: Any = _import(module_name, setting)
    for part in path.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{setting}: there is no {part!r} in {module_name}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{setting}: {path} in {module_name} cannot be called")
    function: Callable[[], Any] = found
    return function


def make_state(config: Config) -> Any:
    """Call the function of ``[tasks] state`` and return ``ctx.state``; None if not set. Raises ConfigError."""
    function = find_state(config)
    if function is None:
        return None
    try:
        return function()
    except (Exception, SystemExit) as error:
        _refuse(f"[tasks] state = {config.tasks.state!r}: it failed", error)


class TaskModules:
    """Loads task modules into one scheduler; each module is imported, and its ``setup`` called, once."""

    def __init__(self, scheduler: Registering) -> None:
        self._scheduler = scheduler
        self._imported: dict[str, ModuleType] = {}
        self._set_up: list[Callable[[Registering], object]] = []
        self._kinds: dict[str, None] = {}
        self.idle: list[str] = []
        """Modules that define no task type and have no ``setup``: probably listed by mistake."""

    def register(self, config: Config) -> list[str]:
        """Import the listed modules that are not yet imported; returns the new kinds.

        Raises ConfigError. Then nothing is registered, and the next call imports the modules again."""
        extend_path(config)
        before, already = set(self._kinds), set(sys.modules)
        new: dict[str, ModuleType] = {}
        try:
            found = list(builtin_types(config))
            for name in config.tasks.modules:
                if name not in self._imported and name not in new:
                    new[name] = _import(name, "[tasks] modules")
                    found += [(source, f"module {name}") for source in task_types(new[name])]
            self._try(found)
        except ConfigError:
            _forget(set(sys.modules) - already, config)
            raise
        for source, _ in found:
            self._scheduler.register(source)
            self._kinds[kind_name(source)] = None
        for name, module in new.items():
            if not callable(getattr(module, "setup", None)) and next(task_types(module), None) is None:
                self.idle.append(name)
        self._imported |= new
        return [kind for kind in self._kinds if kind not in before]

    def _try(self, found: list[tuple[Any, str]]) -> None:
        """Check that all of these can be registered together with the present ones. Raises ConfigError."""
        trial = self._scheduler.registry.copy()
        for source, where in found:
            try:
                trial.add(source)
                trial.check_isolation()
            except SchedulerError as error:
                raise ConfigError(f"{where}: {error}") from error

    def set_up(self) -> None:
        """Call ``setup(scheduler)`` of the modules that have one and were not set up yet.

        Raises ConfigError, and StoreUnavailableError as it comes: then the remaining ones can be tried again.
        """
        for name, module in self._imported.items():
            setup = getattr(module, "setup", None)
            if callable(setup) and setup not in self._set_up:  # it may be imported from another listed module
                self._call(name, setup)
                self._set_up.append(setup)

    def _call(self, name: str, setup: Callable[[Registering], object]) -> None:
        try:
            with self._scheduler.starting():
                setup(self._scheduler)
        except StoreUnavailableError:
            raise
        except (Exception, SystemExit) as error:
            _refuse(f"setup() of module {name} failed", error)


def _forget(imported: set[str], config: Config) -> None:
    """Drop the users' own modules among these, so that the next call imports them again.

    These are the listed modules, those of their packages, and those in ``[tasks] path``. Libraries stay, since some of
    them must not be imported twice.
    """
    packages = {name.partition(".")[0] for name in config.tasks.modules}
    places = tuple(os.path.join(place, "") for place in _places(config))
    for name in imported:
        file = str(getattr(sys.modules.get(name), "__file__", None) or "")
        own = file.startswith(places) and file.endswith(".py") and "-packages" + os.sep not in file
        if own or name.partition(".")[0] in packages:
            sys.modules.pop(name, None)


S = TypeVar("S")


def make_scheduler(config: Config, scheduler: Callable[..., S], **more: Any) -> S:
    """Make a ``scheduler`` with this configuration and state. Raises ConfigError."""
    return scheduler(config.store.url, state=make_state(config), **scheduler_options(config), **more)


def load_modules(config: Config, scheduler: Registering) -> list[str]:
    """Register the task types that ``config`` names and call each module's ``setup``; returns the kinds.

    Raises ConfigError, StoreUnavailableError.
    """
    loader = TaskModules(scheduler)
    kinds = loader.register(config)
    loader.set_up()
    return kinds


def kind_name(source: Any) -> str:
    """The kind of a Task class or @task function."""
    options = source.task_options if isinstance(source, TaskFunction) else source.__task_options__
    return str(options.kind)


def task_types(module: ModuleType) -> Iterator[Any]:
    """The Task classes and @task functions defined in ``module``, in its order; imported ones are left out.

    A class without ``run`` from which others derive is their common base, not a task type.
    """
    seen: set[int] = set()
    for value in list(vars(module).values()):
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, TaskFunction):
            if value.function.__module__ == module.__name__:
                yield value
        elif not (isinstance(value, type) and issubclass(value, Task)) or value.__module__ != module.__name__:
            continue
        elif callable(getattr(value, "run", None)) or not value.__subclasses__():
            yield value


def builtin_types(config: Config) -> Iterator[tuple[Any, str]]:
    """The built-in types that ``config`` asks for; CommandTask also when commands are enabled."""
    wanted = dict.fromkeys(config.tasks.builtin, "[tasks] builtin")
    if config.command.enabled:
        wanted.setdefault(_COMMAND, "[command] enabled")
    if not wanted:
        return
    there: dict[str, Any] = _import(BUILTIN, "[tasks] builtin").BUILTIN
    for name, setting in wanted.items():
        if name not in there:
            raise ConfigError(f"{setting}: there is no built-in task type {name!r}; there are {', '.join(there)}")
        yield there[name], f"{setting}: {name}"


def _import(name: str, setting: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        guess = name.removesuffix(".py").replace("/", ".").strip(".")
        hint = f"; did you mean {guess!r}?" if all(p.isidentifier() for p in guess.split(".")) else ""
        raise ConfigError(f"{setting}: {name!r} is not a module name{hint}")
    taken = user_modules.in_the_way(name, user_modules.guarded())
    if taken is not None:
        raise ConfigError(f"{setting}: {user_modules.advice(taken)}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name + ".").startswith(error.name + ".") and not _frames(error.__traceback__):
            hint = f" (did you mean {name.removesuffix('.py')!r}?)" if name.endswith(".py") else ""
            raise ConfigError(
                f"{setting}: there is no module {error.name!r}{hint}; [tasks] path is put in front of sys.path, "
                f"and the current directory, {os.getcwd()}, is on it only if path says so"
            ) from error
        _refuse(f"module {name} cannot be imported", error)
    except (Exception, SystemExit) as error:  # a script without a main guard may exit
        _refuse(f"module {name} cannot be imported", error)


def _refuse(what: str, error: BaseException) -> NoReturn:
    """Raise ConfigError: what failed, file and line, and the error."""
    if isinstance(error, SyntaxError) and error.filename:
        where, detail = f"{error.filename}:{error.lineno or 0}", f"{type(error).__name__}: {error.msg}"
    else:
        frames = _frames(error.__traceback__)
        where = _place(frames)
        text = str(error).strip().partition("\n")[0]
        detail = type(error).__name__ + (f": {text}" if text else "")
    raise ConfigError(f"{what}: {f'{where}: ' if where else ''}{detail}") from error


def _frames(trace: TracebackType | None) -> list[traceback.FrameSummary]:
    """The frames of a traceback below this module and the import machinery."""
    return [
        frame
        for frame in traceback.extract_tb(trace, limit=200)
        if frame.filename not in (__file__, importlib.__file__) and not frame.filename.startswith("<frozen ")
    ]


def _place(frames: list[traceback.FrameSummary]) -> str:
    """Find the user's mistake: the innermost line of the innermost module that was being imported.

    An error inside a library function is reported at the line that called the function.
    """
    if not frames:
        return ""
    start = max((i for i, frame in enumerate(frames) if frame.name == "<module>"), default=0)
    end = start
    while end + 1 < len(frames) and frames[end + 1].filename == frames[start].filename:
        end += 1
    return f"{frames[end].filename}:{frames[end].lineno}"
