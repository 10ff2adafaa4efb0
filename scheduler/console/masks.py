"""The mask of tasks for pages, whose scripts read numbers with 53 bits only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.model.secrets import Mask
from scheduler.operations import masks
from scheduler.operations.masks import MASK as MASK
from scheduler.operations.masks import TaskMask as TaskMask
from scheduler.operations.masks import masked_text as masked_text


class _PageMask(masks.TaskMask):
    """Hides the secrets of one task."""

    def value(self, value: Any) -> Any:
        """Headers, results, checkpoints and the like."""
        return exact(super().value(value))


class PageTaskMasks(masks.TaskMasks):
    """Makes the masks of tasks of several kinds, within one read."""

    mask = _PageMask


def masked(value: Any) -> Any:
    """The same with ``***`` for each value with a secret's name, and without the passwords of URLs."""
    return exact(masks.masked(value))


def masked_json(text: str | None, schema: Mapping[str, Any] | None = None) -> Any:
    """A stored value, decoded and masked, also by its kind's ``schema``; what is no JSON as text."""
    return _PageMask(Mask(schema) if schema else None, (text,)).payload(text)


def exact(value: Any) -> Any:
    """The same with integers that a script would round as texts."""
    if isinstance(value, dict):
        return {name: exact(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [exact(inner) for inner in value]
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**53:
        return str(value)  # JavaScript would round it
    return value
