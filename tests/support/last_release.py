"""The last release, which share/release.py keeps in tests/releases: its wheel and a filled store, beside this checkout.

Until there is a release, a commit stands for it whose schema is the one before.
"""

from __future__ import annotations

import io
import json
import lzma
import os
import time
import zipfile
from pathlib import Path

import sqlalchemy as sa

from support.databases import Database
from support.processes import Child, Nursery
from support.session import locked, shared_directory

RELEASES = Path(__file__).parents[1] / "releases"
_HOUR, _DAY = 3_600_000_000, 86_400_000_000  # microseconds
CONTROL = ("-c", "from scheduler.cli import main; main()")


def stored() -> list[str]:
    """The lines of its store."""
    (path,) = RELEASES.glob("*.store.xz")
    return lzma.decompress(path.read_bytes()).decode().splitlines()


def schema() -> str:
    return str(json.loads(stored()[0])["schema"])


def keep_as_of_now(database: Database) -> None:
    """Make the store as if it had been kept within the last day: nothing has expired since, or come due.

    Whole days are added, so that a schedule's times stay times of it.
    """
    engine = sa.create_engine(database.url)
    with engine.begin() as connection:
        kept = connection.scalar(sa.text("SELECT max(created_at) FROM schedd_tasks"))
        by = (time.time_ns() // 1000 - _HOUR - kept) // _DAY * _DAY
        for table in sa.inspect(connection).get_table_names():
            for column in sa.inspect(connection).get_columns(table):
                if isinstance(column["type"], sa.Integer):
                    name = column["name"]
                    changed = f"UPDATE {table} SET {name} = {name} + :by WHERE {name} > :first"
                    connection.execute(sa.text(changed), {"by": by, "first": kept - 365 * _DAY})
        # It is due a day after it was made: in one or two days then.
        connection.execute(sa.text("UPDATE schedd_tasks SET run_at = run_at + :day WHERE key = 'later'"), {"day": _DAY})
    engine.dispose()


def unpacked() -> Path:
    """The directory that holds its packages: a wheel of text alone needs no installing."""
    place = shared_directory() / "last-release"
    with locked("last-release.lock"):
        if not place.exists():
            (path,) = RELEASES.glob("*.whl.xz")
            with zipfile.ZipFile(io.BytesIO(lzma.decompress(path.read_bytes()))) as wheel:
                wheel.extractall(place)
    return place


class Shop:
    """The users' program of tests/releases/shop.py on one store, with the last release or with this checkout."""

    def __init__(self, database: Database, nursery: Nursery) -> None:
        self.database = database
        self.nursery = nursery
        self.notes = nursery.place / "notes"
        self.notes.touch()
        self.configure()
        os.environ["SHOP_NOTES"] = str(self.notes)

    def configure(self, lease: float = 30) -> None:
        self.nursery.write(
            "config.toml",
            f'[store]\nurl = "{self.database.url}"\n[tasks]\nmodules = ["shop"]\npath = ["{RELEASES}"]\n'
            f"[worker]\nlease = {lease}\ndrain = 60\n[pools.medium]\nslots = 4\n[pools.high]\nslots = 1\n",
        )

    def old(self, *arguments: str, url: str = "") -> Child:
        """Start Python with the last release."""
        ours = {"PYTHONPATH": str(unpacked()), "PYTHONDONTWRITEBYTECODE": "", "SHOP_NOTES": str(self.notes)}
        return self.nursery.start(*arguments, **ours, **({"SCHEDD_STORE__URL": url} if url else {}))

    def old_control(self, *arguments: str, url: str = "") -> str:
        """What its schedctl prints."""
        child = self.old(*CONTROL, "--config", "config.toml", *arguments, url=url)
        assert child.end() == 0, child.rest(child.err)
        return "\n".join(child.rest(child.out))

    def old_daemon(self, url: str = "") -> Child:
        child = self.old("-m", "scheduler.daemon", "--config", "config.toml", url=url)
        child.expect('"ready"')
        return child

    def new_daemon(self) -> Child:
        child = self.nursery.start("-m", "scheduler.daemon", "--config", "config.toml", SHOP_NOTES=str(self.notes))
        child.expect('"ready"')
        return child

    def noted(self) -> list[tuple[int, int, str]]:
        """Task, process and what was done, of each note."""
        lines = (line.split() for line in self.notes.read_text().splitlines())
        return [(int(task), int(pid), what) for task, pid, what in lines]
