"""RetryPolicy: when a failed attempt is tried again, and how long it waits first.

Arithmetic only: the caller passes the random number, and decides what a failure is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, get_args

import msgspec
from msgspec.structs import force_setattr

from scheduler.errors import ConfigError
from scheduler.model.times import SECOND, span_us

Strategy = Literal["exponential", "fixed", "linear", "none"]
_LARGEST = sys.float_info.max  # keeps infinity out; NaN fails every comparison
MAX_COUNT = 2**31 - 1  # the largest count that a database column can hold
STRATEGIES: tuple[str, ...] = get_args(Strategy)


MIN_CRASHES = 3  # crashes of workers that end a task: another task may have caused two


def is_spent(used: int, most: int | None) -> bool:
    """Whether a task whose worker crashed in its last attempt has used up its attempts.

    ``used``: the attempts begun. A task without retries may run again, since it has not failed.
    """
    return most is not None and most > 1 and used >= max(most, MIN_CRASHES)


if TYPE_CHECKING:

    class _Checked(msgspec.Struct, frozen=True):
        """A Struct that says what it does not know."""

else:

    class _CheckedMeta(msgspec.StructMeta):
        def __call__(cls, *args, **kwargs):
            for name in kwargs:
                if name not in cls.__struct_fields__:
                    near = [one for one in cls.__struct_fields__ if one.startswith(name)]
                    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(cls.__struct_fields__)}"
                    raise ConfigError(f"{cls.__name__} has no {name!r}; {hint}")
            try:
                return super().__call__(*args, **kwargs)
            except TypeError as error:
                raise ConfigError(f"{cls.__name__}: {error}") from None

    class _Checked(msgspec.Struct, metaclass=_CheckedMeta, frozen=True):
        """A Struct that says what it does not know."""


class RetryPolicy(_Checked, frozen=True, forbid_unknown_fields=True):
    """How often a task is attempted and how long it waits in between.

    The wait before attempt n+1 is ``min(min_wait * factor**(n-1), max_wait)`` for ``exponential``,
    ``min(min_wait * n, max_wait)`` for ``linear``, ``min_wait`` for ``fixed``; then it is lengthened by up to
    ``jitter`` of itself, beyond ``max_wait`` too, so that retries at the cap do not all come at once. ``none``
    means a single attempt.

    min_wait, max_wait: seconds or timedelta, kept as float seconds (whole microseconds). max_attempts:
    executions, the first one included; None is unlimited. factor: at least 1. jitter: 0 to 1. retry_on:
    exception classes, or their names (bare like ``"ConnectionError"`` or with their module); empty retries
    every error.

    Raises ConfigError for values that do not fit.
    """

    min_wait: float = 10.0
    max_wait: float = 3600.0
    max_attempts: int | None = 5
    factor: float = 2.0
    jitter: float = 0.1
    strategy: Strategy = "exponential"
    retry_on: tuple[str, ...] = ()

    if TYPE_CHECKING:
        # What callers may pass is wider than what is kept: the struct converts in __post_init__.
        def __init__(
            self,
            min_wait: float | timedelta | str = 10.0,
            max_wait: float | timedelta | str = 3600.0,
            max_attempts: int | None = 5,
            factor: float = 2.0,
            jitter: float = 0.1,
            strategy: Strategy = "exponential",
            retry_on: type[BaseException] | str | Iterable[type[BaseException] | str] = (),
        ) -> None: ...

    def __post_init__(self) -> None:
        for name in ("min_wait", "max_wait"):
            force_setattr(self, name, span_us(getattr(self, name), name) / SECOND)
        if self.min_wait > self.max_wait:
            raise ConfigError(
                f"min_wait ({self.min_wait:g} s) is longer than max_wait ({self.max_wait:g} s); "
                "raise max_wait or lower min_wait"
            )
        if self.strategy not in STRATEGIES:
            raise ConfigError(f"strategy must be one of {', '.join(STRATEGIES)}, not {self.strategy!r}")
        _check_attempts(self.max_attempts)
        force_setattr(self, "factor", _number(self.factor, "factor", 1.0, _LARGEST))
        force_setattr(self, "jitter", _number(self.jitter, "jitter", 0.0, 1.0))
        force_setattr(self, "retry_on", _names(self.retry_on))
        if self.strategy == "none":
            force_setattr(self, "max_attempts", 1)  # so that no other code has to know the meaning of "none"

    @classmethod
    def none(cls) -> RetryPolicy:
        """A policy of one attempt without retries, as for a task without a policy."""
        return cls(strategy="none")

    def allows(self, used: int) -> bool:
        """Whether another attempt may follow after ``used`` executions that counted."""
        return self.max_attempts is None or used < self.max_attempts

    def wait_us(self, n: int, random: float) -> int:
        """Microseconds to wait before attempt n+1, after the n-th execution failed.

        n: 1 or more, of any size. random: from 0 up to 1, the share of the jitter to add. The result is never
        less than the policy's wait (to the microsecond), and never more than ``1 + jitter`` times it. Raises
        ValueError for an n or a random outside these.
        """
        if n < 1:
            raise ValueError(f"n counts failed executions from 1, not {n}")
        if not 0.0 <= random <= 1.0:
            raise ValueError(f"random must be between 0 and 1, not {random}")
        base = round(self._base_wait(n) * SECOND)
        return base + int(base * self.jitter * random)

    def _base_wait(self, n: int) -> float:
        if self.strategy == "none":
            return 0.0
        # A wait of 0 and a factor of 1 stay the same at any n, where the power would overflow.
        if self.strategy == "fixed" or self.min_wait == 0:
            return self.min_wait
        try:
            if self.strategy == "linear":
                return min(self.min_wait * n, self.max_wait)
            if self.factor == 1:
                return self.min_wait
            return min(self.min_wait * self.factor ** (n - 1), self.max_wait)
        except OverflowError:  # the true value is beyond every float, so certainly beyond the cap
            return self.max_wait

    def matches(self, error: BaseException) -> bool:
        """Whether ``error`` may be retried by ``retry_on``: by its class or any of its base classes."""
        return self.matches_names(error_names(type(error)))

    def matches_names(self, names: Sequence[str]) -> bool:
        """The same for an error known only by name: ``names`` as :func:`error_names` gives them."""
        if not self.retry_on:
            return True
        known = {*names, *(name.rpartition(".")[2] for name in names)}
        return not known.isdisjoint(self.retry_on)

    def to_json(self) -> str:
        """The policy as compact JSON, every field written: stored policies keep their values."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> RetryPolicy:
        """What :meth:`to_json` wrote. Raises ConfigError when it is something else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ConfigError(f"not a stored retry policy: {error}") from None


def error_names(cls: type[BaseException]) -> list[str]:
    """The qualified names of an exception class and its bases, nearest first, as ``retry_on`` meets them."""
    return [_qualified(base) for base in cls.__mro__ if base is not object]


def _qualified(cls: type) -> str:
    # A class of the script itself has another module name in every process that imports the file.
    return cls.__qualname__ if cls.__module__ == "__main__" else f"{cls.__module__}.{cls.__qualname__}"


def _names(retry_on: object) -> tuple[str, ...]:
    entries = (retry_on,) if isinstance(retry_on, (str, type)) else retry_on
    if not isinstance(entries, Iterable):
        raise ConfigError(f"retry_on must be exception classes or their names, not {retry_on!r}")
    names: list[str] = []
    for entry in entries:
        if isinstance(entry, type) and issubclass(entry, BaseException):
            names.append(_qualified(entry))
        elif isinstance(entry, str) and all(p.isidentifier() or p == "<locals>" for p in entry.split(".")):
            names.append(entry)
        else:
            raise ConfigError(f"retry_on must be exception classes or their names, not {entry!r}")
    return tuple(dict.fromkeys(names))


def _check_attempts(value: object) -> None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_COUNT):
        raise ConfigError(
            f"max_attempts must be a whole number from 1 to {MAX_COUNT}, or None for unlimited, not {value!r}"
        )


def _number(value: object, what: str, low: float, high: float) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and low <= value <= high:
        return float(value)
    bounds = f"from {low:g} to {high:g}" if high < _LARGEST else f"of at least {low:g}"
    raise ConfigError(f"{what} must be a number {bounds}, not {value!r}")


DEFAULT_RETRY = RetryPolicy()
"""What ``with_automatic_retry()`` sets."""
