"""A PostgreSQL of one test alone, which it may stop, restart and break."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from support import postgres_server
from support.session import locked, shared_directory


class OwnServer:
    """See the module. Listens on a Unix socket in ``directory`` only; ``settings`` come on top of the usual ones.

    ``place``: where to keep it, outside of a test run.
    """

    def __init__(self, place: Path | None = None, **settings: str) -> None:
        if place is None:
            place = shared_directory()
            with locked("postgres.lock"):
                self._binaries = postgres_server._binaries(place)
        else:
            self._binaries = postgres_server._binaries(place)
        self.directory = Path(tempfile.mkdtemp(prefix="s", dir=place))
        self.directory.chmod(0o755)
        self.data = self.directory / "pg"
        self.data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.data, nobody.pw_uid, nobody.pw_gid)
        self._settings = {**postgres_server.SETTINGS, **settings}
        postgres_server._run(
            self._binaries / "initdb",
            *("-D", self.data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
        )
        self.start()

    @property
    def socket(self) -> Path:
        """The server's Unix socket."""
        return self.data / ".s.PGSQL.5432"

    def url(self, database: str = "postgres") -> str:
        return postgres_server.url(self.directory, database)

    def start(self) -> None:
        options = " ".join(f"-c {name}='{value}'" for name, value in self._settings.items())
        postgres_server._run(
            self._binaries / "pg_ctl",
            *("-w", "-t", "60", "-D", self.data, "-l", self.data / "log"),
            *("-o", f"-k {self.data} {options}", "start"),
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
            host=str(self.data), user="postgres", dbname=database, autocommit=True, connect_timeout=10
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []

    def migrated(self, name: str = "jobs") -> str:
        """The URL of a new database with our tables."""
        from scheduler.store.migrate import upgrade

        self.sql(f'CREATE DATABASE "{name}"')
        upgrade(self.url(name))
        return self.url(name)

    def close(self) -> None:
        if (self.data / "postmaster.pid").exists():
            try:
                self.stop("immediate")
            except RuntimeError:
                pid = int((self.data / "postmaster.pid").read_text().split()[0])
                os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> OwnServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()
