"""Which running attempts have moved and which stand still, until a transaction that is due anyway writes it."""

from __future__ import annotations

from collections.abc import Collection

from scheduler.store.db.tx import Tx
from scheduler.store.tasks import control
from scheduler.store.tasks.attempts import AttemptStanding, write_standing

Key = tuple[int, int]  # (task id, claim)


class Moves:
    """``stamps``: have moved; ``standing``: have stopped, None: have gone on since that was written."""

    def __init__(self) -> None:
        self.stamps: set[Key] = set()
        self.standing: dict[Key, AttemptStanding | None] = {}

    def __bool__(self) -> bool:
        return bool(self.stamps or self.standing)

    def write(self, tx: Tx, worker: int, gone: Collection[Key] = ()) -> None:
        """Write it. ``gone``: have ended. What a failed transaction has not written is looked at again soon."""
        stamps, self.stamps = self.stamps, set()
        standing, self.standing = self.standing, {}
        beats = [(*key, None, None) for key in sorted(stamps) if key not in gone]
        if beats:
            control.stamp(tx, worker, beats)
        rows = [(*key, found) for key, found in sorted(standing.items(), key=_key_of) if key not in gone]
        if rows:
            write_standing(tx, worker, rows)


def _key_of(item: tuple[Key, AttemptStanding | None]) -> Key:
    return item[0]
