"""Counts the CPU time of functions from outside: no hook is left in the product.

Each named function is replaced, wherever a module of ours refers to it, by one that reads the thread's CPU clock before
and after. What a function calls that is counted, too, is taken off its own time, so stages add up. A wrapper's own
cost is measured first and taken off as well: what is between its two readings off its stage, the rest
off its caller's.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import contextmanager
from time import process_time_ns, thread_time_ns
from typing import Any

MODULES = ("scheduler", "contenders")


class Stages:
    """CPU nanoseconds by stage, over all threads."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._every: list[tuple[dict[str, int], dict[str, int], dict[str, int]]] = []
        self._lock = threading.Lock()
        self._inside = self._outside = 0.0
        self.missing: list[str] = []
        self._begun = 0
        self._calibrate()

    def _mine(self) -> Any:
        local = self._local
        try:
            return local.stack, local.spent
        except AttributeError:
            # own time, calls, and calls made from there, by stage
            local.stack, local.spent = [], (defaultdict(int), defaultdict(int), defaultdict(int))
            with self._lock:
                self._every.append(local.spent)
            return local.stack, local.spent

    def counted(self, function: Callable[..., Any], stage: str) -> Callable[..., Any]:
        """The function, with its time counted for ``stage``."""
        mine = self._mine

        def call(*args: Any, **options: Any) -> Any:
            stack, (own, calls, made) = mine()
            below = [0, stage]
            if stack:
                made[stack[-1][1]] += 1
            stack.append(below)
            begun = thread_time_ns()
            try:
                return function(*args, **options)
            finally:
                took = thread_time_ns() - begun
                stack.pop()
                own[stage] += took - below[0]
                calls[stage] += 1
                if stack:
                    stack[-1][0] += took

        return call

    def replace(self, path: str, stage: str) -> None:
        """Count ``module:name`` or ``module:Class.name``; one that is no longer there is noted."""
        module_name, _, name = path.partition(":")
        owner: Any = importlib.import_module(module_name)
        *parents, last = name.split(".")
        try:
            for parent in parents:
                owner = getattr(owner, parent)
            original = owner.__dict__[last]
        except (AttributeError, KeyError):
            self.missing.append(path)
            return
        wrapped = self.counted(original, stage)
        if parents:
            setattr(owner, last, wrapped)
            return
        for module in list(sys.modules.values()):
            if (module.__name__ or "").partition(".")[0] in MODULES and vars(module).get(last) is original:
                setattr(module, last, wrapped)

    def replace_context(self, path: str, stage: str) -> None:
        """Count the entering and leaving of what a method returns as a context manager, and not the block."""
        module_name, _, name = path.partition(":")
        class_name, _, last = name.partition(".")
        owner = getattr(importlib.import_module(module_name), class_name)
        original = getattr(owner, last, None)
        if original is None:
            self.missing.append(path)
            return
        stages = self

        @contextmanager
        def counted(*args: Any, **options: Any) -> Any:
            manager = original(*args, **options)
            given = stages.counted(manager.__enter__, stage)()
            try:
                yield given
            except BaseException as error:
                if not stages.counted(manager.__exit__, stage)(type(error), error, error.__traceback__):
                    raise
            else:
                stages.counted(manager.__exit__, stage)(None, None, None)

        setattr(owner, last, counted)

    def _calibrate(self) -> None:
        def nothing() -> None:
            pass

        def many() -> None:
            for _ in range(4_000):
                inner()

        inner = self.counted(nothing, "inner")
        outer = self.counted(many, "outer")
        found = []
        for _ in range(5):
            self.clear()
            outer()
            own, _ = self._sums()
            found.append((own["inner"] / 4_000, own["outer"] / 4_000))
        self._inside, self._outside = min(found)
        self.clear()

    def clear(self) -> None:
        with self._lock:
            for each in self._every:
                for kept in each:
                    kept.clear()
        self._begun = process_time_ns()

    def _sums(self) -> tuple[dict[str, float], dict[str, int]]:
        own: dict[str, float] = defaultdict(float)
        calls: dict[str, int] = defaultdict(int)
        with self._lock:
            for times, counts, made in self._every:
                for stage, took in times.items():
                    own[stage] += took - counts[stage] * self._inside - made[stage] * self._outside
                    calls[stage] += counts[stage]
        return own, calls

    def read(self) -> tuple[dict[str, float], float]:
        """Microseconds by stage, and of the whole process less the wrappers' own, since :meth:`clear`."""
        whole = process_time_ns() - self._begun
        own, calls = self._sums()
        wrappers = sum(calls.values()) * (self._inside + self._outside)
        return {stage: took / 1000 for stage, took in own.items()}, (whole - wrappers) / 1000
