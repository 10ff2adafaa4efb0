"""What goes to a child process by pickle, and comes back: functions of ``ctx.cpu``, arguments, results, errors.

A function that can be imported travels by its reference. Any other goes by value, by cloudpickle, which is imported
only then. Both processes are of the same program, and none of this is ever stored.
"""

from __future__ import annotations

import importlib
import inspect
import pickle
import runpy
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from scheduler.errors import ConfigError
from scheduler.model.fingerprint import describe
from scheduler.model.reference import MAIN, MAIN_AGAIN, is_findable, reference_of

_main_source: list[str] | None = None  # of the parent's program, until it is imported


def set_main(source: list[str] | None) -> None:
    """Set where the parent's program is: ("module", its name) or ("path", the file)."""
    global _main_source
    _main_source = source


def resolve(reference: str) -> Any:
    """Import what a reference names. Raises AttributeError, and what the import raises."""
    module, _, name = reference.partition(":")
    if module == MAIN:
        import_main()
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part)
    return value


def import_main() -> None:
    """Import the parent's program under another name, so that its main guard is false."""
    global _main_source
    if _main_source is None:
        return
    (how, where), _main_source = _main_source, None
    module = ModuleType(MAIN_AGAIN)
    sys.modules[MAIN] = sys.modules[MAIN_AGAIN] = module
    run = runpy.run_module if how == "module" else runpy.run_path
    module.__dict__.update(run(where, run_name=MAIN_AGAIN))


_by_value = threading.Lock()  # while cloudpickle is told of a module


def packed_call(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[str, bytes]:
    """A call for a child: the function's reference and its pickled arguments; "" and both, pickled by value.

    Raises TypeError, which names what cannot be sent.
    """
    if inspect.iscoroutinefunction(function):
        raise TypeError(f"ctx.cpu: {_name(function)} is a coroutine function, and a child calls plain functions")
    try:
        reference = reference_of(function)
    except ConfigError:
        return "", _by_value_of(function, args)
    try:
        return reference, dumps(args)
    except Exception as error:
        raise TypeError(_refusal(function, args, error)) from error


def called(reference: str, data: bytes) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function and arguments of such a call, in the child."""
    if not reference:
        function, args = pickle.loads(data)
        return function, args
    function = resolve(reference)
    if b"__main__" in data:
        import_main()
    return function, pickle.loads(data)


def dumps(value: Any) -> bytes:
    """The pickled value, with functions and classes by value that cannot be imported."""
    try:
        return pickle.dumps(value)
    except Exception:
        import cloudpickle  # few need it

        data: bytes = cloudpickle.dumps(value)
        return data


def packed_result(function: Callable[..., Any], value: Any) -> bytes:
    """What a function returned. Raises TypeError if it cannot be sent."""
    try:
        return dumps(value)
    except Exception as error:
        raise TypeError(
            f"ctx.cpu: what {_name(function)} returned, {_type(value)}, cannot be sent to another process: {error}"
        ) from error


def packed_error(error: BaseException) -> bytes:
    """The pickled error; one that cannot be pickled becomes a RuntimeError with its text."""
    try:
        data = dumps(error)
        pickle.loads(data)
    except BaseException:  # its own code runs here
        return pickle.dumps(RuntimeError(describe(error).text))
    return data


def _by_value_of(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    import cloudpickle

    module = sys.modules.get(getattr(function, "__module__", None) or "")
    # Its children cannot import such a module, so whatever is of it goes by value.
    hidden = module is not None and module.__name__ != "__main__" and not is_findable(module.__name__)
    with _by_value:
        if hidden:
            cloudpickle.register_pickle_by_value(module)
        try:
            data: bytes = cloudpickle.dumps((function, args))
        except Exception as error:
            raise TypeError(_refusal(function, args, error)) from error
        finally:
            if hidden:
                cloudpickle.unregister_pickle_by_value(module)
    return data


def _refusal(function: Callable[..., Any], args: tuple[Any, ...], error: Exception) -> str:
    """Why a call cannot be sent, with the variable or argument that is to blame."""
    culprits = [(f"its argument {number}", value) for number, value in enumerate(args, 1)]
    if inspect.isfunction(function):
        found = inspect.getclosurevars(function)
        culprits += [(f"its variable {name!r}", value) for name, value in {**found.nonlocals, **found.globals}.items()]
    for what, value in culprits:
        try:
            dumps(value)
        except Exception as refused:
            return f"ctx.cpu: {_name(function)} cannot be sent to another process: {what}, {_type(value)}: {refused}"
    return f"ctx.cpu: {_name(function)} cannot be sent to another process: {error}"


def _name(function: Any) -> str:
    name = getattr(function, "__qualname__", None)
    code = getattr(function, "__code__", None)
    where = f" (line {code.co_firstlineno} of {code.co_filename})" if code is not None and "<" in str(name) else ""
    return f"{name if isinstance(name, str) else repr(function)}{where}"


def _type(value: Any) -> str:
    return f"a {type(value).__qualname__}"
