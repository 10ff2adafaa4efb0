"""A PostgreSQL of one test alone, which it may stop, restart and break."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from support import postgres_server
from support.session import files_directory, locked, shared_directory

JOBS = "jobs"  # a database that is there, and migrated, in each of a run


class OwnServer:
    """See the module. Listens on a Unix socket in ``directory`` only; ``settings`` come on top of the usual ones.

    ``place``: where to keep one that is made anew, outside of a test run; in one they are copies of the first.
    ``port``: under which it listens; other than the usual one for those that are to be reached by TCP, too.
    ``binaries``: whose PostgreSQL it is; None: the wheel's.
    """

    def __init__(
        self, place: Path | None = None, *, port: int = 5432, binaries: Path | None = None, **settings: str
    ) -> None:
        self.port = port
        self._copied = place is None
        template = _template(binaries) if place is None else None
        place = place or shared_directory()
        self._binaries = binaries or postgres_server._binaries(place)
        self.directory = Path(tempfile.mkdtemp(prefix="s", dir=files_directory() if self._copied else place))
        self.directory.chmod(0o755)
        self.data = self.directory / "pg"
        self._settings = {**postgres_server.SETTINGS, **settings}
        if template is None:
            self.data.mkdir(mode=0o700)
            _give_away(self.data)
            postgres_server._run(
                self._binaries / "initdb",
                *("-D", self.data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
            )
        else:
            shutil.copytree(template, self.data)
            _give_away(self.data, *self.data.rglob("*"))
        self.prepare()
        self.start()

    def prepare(self) -> None:
        """Change the data directory before the first start."""

    @property
    def socket(self) -> Path:
        """The server's Unix socket."""
        return self.data / f".s.PGSQL.{self.port}"

    def url(self, database: str = "postgres") -> str:
        url = postgres_server.url(self.directory, database)
        return url if self.port == 5432 else f"{url}&port={self.port}"

    def start(self) -> None:
        options = " ".join(f"-c {name}='{value}'" for name, value in self._settings.items())
        postgres_server._run(
            self._binaries / "pg_ctl",
            *("-w", "-t", "60", "-D", self.data, "-l", self.data / "log"),
            *("-o", f"-k {self.data} -p {self.port} {options}", "start"),
        )

    def stop(self, mode: str = "fast") -> None:
        """``fast`` ends the sessions and shuts down in order; ``immediate`` is a crash: it recovers when it starts."""
        postgres_server._run(self._binaries / "pg_ctl", "-w", "-D", self.data, "-m", mode, "stop")

    def restart(self, mode: str) -> None:
        self.stop(mode)
        self.start()

    def sql(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run one statement by itself as the owner."""
        import psycopg

        with psycopg.connect(
            host=str(self.data),
            port=self.port,
            user="postgres",
            dbname=database,
            autocommit=True,
            connect_timeout=10,
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []

    def migrated(self, name: str = JOBS) -> str:
        """The URL of a new database with our tables."""
        from scheduler.store.db.migrate import upgrade

        if self._copied and name == JOBS:
            return self.url(name)
        self.sql(f'CREATE DATABASE "{name}"')
        upgrade(self.url(name))
        return self.url(name)

    def close(self) -> None:
        if (self.data / "postmaster.pid").exists():
            try:
                self.stop("immediate")
            except RuntimeError:
                pid = int((self.data / "postmaster.pid").read_text().split()[0])
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> OwnServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()


def _template(binaries: Path | None) -> Path:
    """The data directory of a server that has ended, made once in a run: making and migrating one takes seconds."""
    place = shared_directory()
    template = place / ("own-server" if binaries is None else f"own-server-{binaries.parent.name}")
    with locked("postgres.lock"):
        if not template.exists():
            draft = OwnServer(place, binaries=binaries)
            draft.migrated()
            draft.stop()
            (draft.data / "log").unlink()
            draft.data.rename(template)
            draft.close()
    return template


def _give_away(*paths: Path) -> None:
    """To whom PostgreSQL runs as."""
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in paths:
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
