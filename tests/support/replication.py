"""A PostgreSQL primary and a standby that follows it by streaming, asynchronously, for tests of failovers.

They are Debian's PostgreSQL where it is installed, as people run it, and the wheel's elsewhere: no machine leaves these
tests out.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from support import postgres_server
from support.own_server import JOBS, OwnServer

PATIENCE = 20.0  # seconds


def debian_binaries() -> Path | None:
    """The directory of Debian's newest PostgreSQL server; None: none is installed."""
    found = [
        path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb") if (path.parent / "postgres").exists()
    ]
    return max(found, key=lambda path: float(path.parent.name), default=None)


class _Standby(OwnServer):
    """Follows ``primary``. A copy of the same data directory, so that nothing has to be copied from the running one."""

    def __init__(self, primary: OwnServer, **settings: str) -> None:
        self._primary = primary
        super().__init__(port=free_port(), binaries=debian_binaries(), **settings)

    def prepare(self) -> None:
        (self.data / "standby.signal").touch()
        follows = f"host={self._primary.data} port={self._primary.port} user=postgres"
        with (self.data / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{follows}'\n")


class Pair:
    """See the module. Both listen on 127.0.0.1, too: some spellings of a URL know hosts and ports only."""

    def __init__(self) -> None:
        settings = {"listen_addresses": "127.0.0.1", "wal_keep_size": "64", "wal_receiver_status_interval": "1"}
        settings |= {"wal_log_hints": "on", "full_page_writes": "on"}  # pg_rewind needs them
        self.primary = OwnServer(port=free_port(), binaries=debian_binaries(), **settings)
        try:
            self.standby = _Standby(self.primary, **settings)
        except BaseException:
            self.primary.close()
            raise

    def url(self, spelling: str = "lists", database: str = JOBS) -> str:
        """The URL of both: ``lists`` of hosts and of ports as libpq has them, or ``pairs`` as SQLAlchemy has them."""
        ports = self.primary.port, self.standby.port
        if spelling == "pairs":
            query = "&".join(f"host=127.0.0.1:{port}" for port in ports)
        else:
            query = f"host=127.0.0.1,127.0.0.1&port={ports[0]},{ports[1]}"
        return f"postgresql+psycopg://postgres@/{database}?{query}&target_session_attrs=read-write"

    def caught_up(self) -> None:
        """Wait until the standby has everything that the primary has committed."""
        wanted = self.primary.sql("SELECT pg_current_wal_flush_lsn()")[0][0]
        deadline = time.monotonic() + PATIENCE
        while not self.standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{wanted}'")[0][0]:
            assert time.monotonic() < deadline, "the standby does not catch up"
            time.sleep(0.01)

    def cut(self) -> None:
        """The standby gets nothing any more: what the primary commits from now on is lost with it."""
        self.caught_up()
        self.standby.sql("ALTER SYSTEM SET primary_conninfo = ''")
        self.standby.sql("SELECT pg_reload_conf()")
        deadline = time.monotonic() + PATIENCE
        while self.standby.sql("SELECT count(*) FROM pg_stat_wal_receiver")[0][0]:
            assert time.monotonic() < deadline, "the standby still follows"
            time.sleep(0.01)

    def kill(self) -> None:
        """End all processes of the primary at once."""
        end_at_once(self.primary.data)

    def be_synchronous(self, commit: str) -> None:
        """Have commits wait for the standby. ``commit``: the level of ``synchronous_commit``."""
        self.primary.sql(f"ALTER SYSTEM SET synchronous_commit = {commit}")
        self.primary.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.primary.sql("SELECT pg_reload_conf()")
        follows = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        deadline = time.monotonic() + PATIENCE
        while not self.primary.sql(follows):
            assert time.monotonic() < deadline, "the standby is not synchronous"
            time.sleep(0.01)

    def promote(self) -> None:
        """The standby takes writes from now on."""
        postgres_server._run(self.standby._binaries / "pg_ctl", "-w", "-D", self.standby.data, "promote")

    def demote(self) -> None:
        """The primary takes no more writes, and keeps its sessions.

        The server's main process tells the sessions before it accepts another connection. So once a new connection has
        the setting, the next statement of each session has it, too.
        """
        self.primary.sql("ALTER SYSTEM SET default_transaction_read_only = on")
        self.primary.sql("SELECT pg_reload_conf()")
        deadline = time.monotonic() + PATIENCE
        while self.primary.sql("SHOW default_transaction_read_only")[0][0] != "on":
            assert time.monotonic() < deadline, "the primary still takes writes"
            time.sleep(0.01)

    def fail_over(self) -> None:
        """The primary dies; the standby takes its place."""
        self.kill()
        self.promote()

    def rejoin(self) -> None:
        """The old primary, which is down, follows the new one from now on: they have changed places.

        It takes Debian's PostgreSQL: the wheel's has no pg_rewind.
        """
        new, old = self.standby, self.primary
        new.sql("CHECKPOINT")  # until then its control file has the old timeline
        source = f"host=127.0.0.1 port={new.port} user=postgres dbname=postgres"
        with (old.data / "postgresql.auto.conf").open("a") as settings:  # what else is set comes by the command line
            settings.write("wal_log_hints = on\n")
        rewind = ("-D", old.data, "--source-server", source, "--write-recovery-conf")
        away = new.socket.rename(new.directory / "socket")  # pg_rewind reads all that lies in the data directory
        try:
            postgres_server._run(old._binaries / "pg_rewind", *rewind)
        finally:
            away.rename(new.socket)
        old.start()
        self.primary, self.standby = new, old

    def close(self) -> None:
        self.standby.close()
        self.primary.close()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()


def end_at_once(data: Path) -> None:
    """Kill all processes of the server whose data directory it is."""
    pid, *_, port = (data / "postmaster.pid").read_text().split("\n")[:4]
    main = int(pid)
    children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
    for one in (main, *map(int, children)):
        with suppress(ProcessLookupError):  # the others end by themselves, once they miss the first
            os.kill(one, signal.SIGKILL)
    for lock in ("postmaster.pid", f".s.PGSQL.{port}.lock"):  # they name a process that may be unreaped
        (data / lock).unlink(missing_ok=True)


def free_port() -> int:
    """A port of 127.0.0.1 that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
