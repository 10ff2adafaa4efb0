"""``--reveal``, and the masks of what is printed without it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from scheduler.cli.options import acts

if TYPE_CHECKING:
    from scheduler.operations.desk import Tx
    from scheduler.operations.masks import ViewMasks

F = TypeVar("F", bound=Callable[..., Any])


def reveals(command: F) -> F:
    """Adds ``--reveal``, with ``--by`` and ``--reason``."""
    return click.option("--reveal", is_flag=True, help="Also show secrets of payloads; the audit records it.")(
        acts(command)
    )


def masks_of(tx: Tx, kinds: Iterable[str]) -> ViewMasks:
    """What hides the secrets of tasks of these kinds. Imported when it is first needed."""
    from scheduler.operations.masks import ViewMasks

    return ViewMasks(tx, kinds)
