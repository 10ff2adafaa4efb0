"""``jobs.gc`` and ``jobs.doctor``: look after the store from a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scheduler.build import running
from scheduler.client.threads import in_thread
from scheduler.store.admin import doctor as checks
from scheduler.store.admin import retention
from scheduler.store.admin.doctor import Finding
from scheduler.store.admin.doctor_repair import repair as repairs
from scheduler.store.admin.gc import collect
from scheduler.store.admin.retention import Removed
from scheduler.store.admin.surroundings import check_surroundings
from scheduler.store.db.database import Database


class UpkeepOperations:
    """The part of the Scheduler that looks after the store. Needs ``database``, ``threads``, and what it keeps."""

    database: Database

    def _notify(self) -> None:
        raise NotImplementedError

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

        ``dry_run``: only count it. Returns how many rows went. Raises StoreUnavailableError.
        """
        if dry_run:
            with self.database.read() as tx:
                return retention.dry_run(tx, self._kept)
        return collect(self.database, self._kept)

    def doctor(self, *, full: bool = False) -> Sequence[Finding]:
        """Check what must always hold: each check with its level (ok, note, problem).

        ``full``: looks at every row; else some checks look at those of the newest 100,000 tasks, and one says so.

        Raises StoreUnavailableError.
        """
        self.database.look()
        with self.database.read() as tx:
            return [*check_surroundings(self.database, tx, running()), *checks.check(tx, full=full)]

    def repair(self) -> Sequence[str]:
        """Mend what no worker comes to by itself, in one transaction. Returns a line for each kind of repair.

        Raises StoreUnavailableError.
        """
        done = self.database.change(lambda tx: repairs(tx, counts=self._counts))
        self._notify()
        return done

    gc_async = in_thread(gc)
    doctor_async = in_thread(doctor)
    repair_async = in_thread(repair)
