"""A request of a running attempt, and the transaction that answers it (see ``handle.py``)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from scheduler.store.db.tx import Tx

Answer = dict[str, Any]


class AttemptRequest(NamedTuple):
    """One request: its attempt, what it asks for, and its arguments. ``again``: it may have been done already."""

    task_id: int
    claim: int
    what: str
    args: Mapping[str, Any]
    again: bool = False

    @property
    def key(self) -> tuple[int, int]:
        """The claim, which is the fence together with the worker."""
        return self.task_id, self.claim

    @property
    def label(self) -> tuple[int, str]:
        """The checkpoint that is to be made."""
        return self.task_id, self.args["name"]


@dataclass
class Work:
    """The transaction that answers requests. ``woken``: tasks that are due now because of it."""

    tx: Tx
    woken: int = 0
