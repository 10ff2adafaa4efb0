"""``jobs.gc`` and ``jobs.doctor``: look after the store from a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.client.threads import in_thread
from scheduler.operations import upkeep
from scheduler.operations.desk import Desk
from scheduler.operations.upkeep import DoctorFinding, Removed


class UpkeepOperations:
    """The part of the Scheduler that looks after the store. Needs ``desk``, ``threads``, and what it keeps."""

    desk: Desk

    @property
    def _kept(self) -> Mapping[str, float]:
        """Retention, seconds by name."""
        raise NotImplementedError

    @property
    def _counts(self) -> bool:
        """Whether it keeps the numbers of attempts."""
        raise NotImplementedError

    def gc(self, *, dry_run: bool = False) -> Removed:
        """Remove now what has outlived the retention of this Scheduler, as workers do bit by bit.

        ``dry_run``: only count it, as far as the oldest 10,000 of each sort tell; ``more`` says that there are others.
        Returns how many rows went. Raises StoreUnavailableError.
        """
        return upkeep.gc(self.desk, self._kept, dry_run=dry_run)

    def doctor(self, *, full: bool = False) -> Sequence[DoctorFinding]:
        """Check what must always hold: each check with its level (ok, note, problem).

        ``full``: looks at every row; else, beside more than 10,000 tasks, at some rows of each sort,
        and one finding says so.

        Raises StoreUnavailableError.
        """
        return upkeep.doctor(self.desk, full=full)

    def repair(self) -> Sequence[str]:
        """Mend what no worker comes to by itself, in one transaction. Returns a line for each kind of repair.

        Raises StoreUnavailableError.
        """
        return upkeep.repair(self.desk, counts=self._counts)

    gc_async = in_thread(gc)
    doctor_async = in_thread(doctor)
    repair_async = in_thread(repair)
