"""For trouble that repeats: pauses that grow, and a log line that comes once."""

from __future__ import annotations

from collections.abc import Hashable

MOST_WAIT = 86_400.0  # seconds that a server may ask to be left alone


class Backoff:
    """Pauses in seconds that grow from ``first`` to ``longest``, each ``factor`` times the one before."""

    def __init__(self, first: float, longest: float, factor: float = 2.0) -> None:
        self.longest = longest
        self._first = first
        self._factor = factor
        self.current = 0.0  # the last pause; 0 after a success

    def next(self) -> float:
        """The next pause."""
        self.current = min(self.longest, max(self._first, self.current * self._factor))
        return self.current

    def reset(self) -> None:
        """Begin again with the first pause: it has succeeded."""
        self.current = 0.0


class LogOnce:
    """Remembers what was logged for each key, so that the same trouble is not logged again until it changes."""

    def __init__(self) -> None:
        self._logged: dict[Hashable, str] = {}

    def is_new(self, text: str = "", key: Hashable = None) -> bool:
        """Whether ``text`` differs from the last one of ``key``, which it then becomes."""
        if self._logged.get(key) == text:
            return False
        self._logged[key] = text
        return True

    def clear(self, key: Hashable = None) -> None:
        """Forget what was logged for ``key``: it is over."""
        self._logged.pop(key, None)


def bounded_wait(seconds: float | None) -> float | None:
    """Seconds that a server asked to wait, as far as they make sense: at least 0, at most a day."""
    if seconds is None or seconds != seconds:
        return None
    return float(min(MOST_WAIT, max(0.0, seconds)))
