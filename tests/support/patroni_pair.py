"""Two servers of PostgreSQL that Patroni runs, and the etcd that it asks who leads (Debian's patroni and etcd-server).

Its ``synchronous_mode`` has each commit wait for the standby. All listen on loopback only.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from support.own_server import JOBS
from support.replication import debian_binaries, end_at_once, free_port
from support.session import files_directory

PROGRAMS = ("patroni", "patronictl", "etcd")
PATIENCE = 120.0  # seconds
TTL, LOOP, RETRY = 20, 2, 5  # seconds: of the leader's key, between two looks, and in which a look may be repeated
SCOPE = "jobs"
WHAT = ("all", "replication")  # "all" databases are without it


class Node:
    """One server and its Patroni."""

    def __init__(self, name: str, place: Path, etcd: int) -> None:
        self.name, self.data, self.port = name, place / name, free_port()
        self._config, self._log = place / f"{name}.yml", place / f"{name}.log"
        parameters = {"unix_socket_directories": str(place), "max_connections": 100, "fsync": "off"}
        user = {"username": "postgres", "password": "-"}
        address, rest = f"127.0.0.1:{self.port}", f"127.0.0.1:{free_port()}"
        binaries = debian_binaries()
        assert binaries is not None, "Debian's PostgreSQL is missing: apt-get install postgresql"
        config = {
            "scope": SCOPE,
            "name": name,
            "restapi": {"listen": rest, "connect_address": rest},
            "etcd3": {"host": f"127.0.0.1:{etcd}"},
            "bootstrap": {
                "dcs": {"ttl": TTL, "loop_wait": LOOP, "retry_timeout": RETRY, "synchronous_mode": True},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}, "no-sync"],
            },
            "postgresql": {
                "listen": address,
                "connect_address": address,
                "data_dir": str(self.data),
                "bin_dir": str(binaries),
                "pgpass": str(place / f"{name}.pgpass"),
                "authentication": {"superuser": user, "replication": user},
                "parameters": parameters,
                "basebackup": [{"checkpoint": "fast"}],  # else it waits for the next one
                "pg_hba": ["local all all trust", *(f"host {what} all 127.0.0.1/32 trust" for what in WHAT)],
            },
            "watchdog": {"mode": "off"},
        }
        self._config.write_text(json.dumps(config))  # which YAML is, too
        self._patroni: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._patroni = _start(["patroni", str(self._config)], self._log)

    def kill(self) -> None:
        """End Patroni and the server at once."""
        if self._patroni is not None:
            self._patroni.kill()
            self._patroni.wait()
            self._patroni = None
        if (self.data / "postmaster.pid").exists():
            end_at_once(self.data)

    def control(self, *arguments: str) -> None:
        """Run ``patronictl``. Raises CalledProcessError."""
        subprocess.run(
            ["patronictl", "-c", str(self._config), *arguments],
            check=True,
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
        )

    def sql(self, statement: str, database: str = "postgres") -> list[Any]:
        """Run one statement by itself as the owner."""
        import psycopg

        with psycopg.connect(
            host="127.0.0.1", port=self.port, user="postgres", dbname=database, autocommit=True, connect_timeout=10
        ) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description is not None else []

    def answers(self, statement: str) -> bool:
        """Whether it is there and the statement finds a row."""
        import psycopg

        try:
            return bool(self.sql(statement))
        except psycopg.Error:
            return False

    def tail(self) -> str:
        return f"Patroni of {self.name}:\n" + "\n".join(self._log.read_text().splitlines()[-30:])


class PatroniPair:
    """See the module. ``primary`` is the one that led first."""

    def __init__(self) -> None:
        self._place = Path(tempfile.mkdtemp(prefix="p", dir=files_directory()))
        self._place.chmod(0o755)
        if os.geteuid() == 0:
            os.chown(self._place, pwd.getpwnam("nobody").pw_uid, pwd.getpwnam("nobody").pw_gid)
        client, peer = free_port(), free_port()
        self.primary, self.standby = (Node(name, self._place, client) for name in ("one", "two"))
        at = (f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}")
        argv = ["etcd", "--data-dir", str(self._place / "etcd"), "--unsafe-no-fsync"]
        argv += ["--listen-client-urls", at[0], "--advertise-client-urls", at[0]]
        argv += ["--listen-peer-urls", at[1], "--initial-advertise-peer-urls", at[1]]
        argv += ["--initial-cluster", f"default={at[1]}"]
        self._etcd = _start(argv, self._place / "etcd.log")
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        from scheduler.store.db.migrate import upgrade

        self.primary.start()
        self._until(lambda: self.primary.answers("SELECT 1 WHERE NOT pg_is_in_recovery()"), "the first one leads")
        self.standby.start()
        self.primary.sql(f'CREATE DATABASE "{JOBS}"')
        upgrade(self.url())

    def be_synchronous(self, commit: str) -> None:
        """Wait until commits wait for the standby. ``commit``: the level, which Patroni leaves alone."""
        self.primary.sql(f"ALTER SYSTEM SET synchronous_commit = {commit}")
        self.primary.sql("SELECT pg_reload_conf()")
        follows = "SELECT 1 FROM pg_stat_replication WHERE sync_state = 'sync'"
        self._until(lambda: self.primary.answers(follows), "the standby is synchronous")

    def url(self) -> str:
        """The URL of both."""
        query = f"host=127.0.0.1,127.0.0.1&port={self.primary.port},{self.standby.port}"
        return f"postgresql+psycopg://postgres@/{JOBS}?{query}&target_session_attrs=read-write"

    def switch_over(self) -> None:
        """``patronictl switchover``, until the other one takes writes."""
        names = ("--primary", self.primary.name, "--candidate", self.standby.name)
        self.standby.control("switchover", SCOPE, *names, "--force")
        self._promoted()

    def fail_over(self) -> None:
        """The leader dies with its Patroni; its key runs out, and the other one is promoted."""
        self.primary.kill()
        self._promoted()

    def _promoted(self) -> None:
        takes_writes = "SELECT 1 WHERE NOT pg_is_in_recovery()"
        self._until(lambda: self.standby.answers(takes_writes), "the standby is promoted")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}\n{self._tails()}"
            time.sleep(0.05)

    def _tails(self) -> str:
        return "\n".join(node.tail() for node in (self.primary, self.standby) if node._log.exists())

    def close(self) -> None:
        self.standby.kill()
        self.primary.kill()
        self._etcd.kill()
        self._etcd.wait()
        shutil.rmtree(self._place, ignore_errors=True)

    def __enter__(self) -> PatroniPair:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()


def _start(argv: list[str], log: Path) -> subprocess.Popen[bytes]:
    program = shutil.which(argv[0])
    assert program is not None, f"{argv[0]} is missing. On Debian and Ubuntu: apt-get install patroni etcd-server"
    unprivileged: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        unprivileged = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    environ = {"LC_ALL": "C", "PATH": os.environ.get("PATH", ""), "HOME": str(log.parent)}
    with log.open("ab") as output:
        return subprocess.Popen(
            [program, *argv[1:]],
            cwd=log.parent,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            **unprivileged,
        )
