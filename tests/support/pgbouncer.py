"""A pgbouncer in front of a server: the one of the system, which ``make faults`` needs."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

MISSING = (
    "this test needs pgbouncer, which is not installed: on Debian and Ubuntu, apt-get install pgbouncer "
    "(it is one of the requirements of `make faults`)"
)


class PgBouncer:
    """Listens on a Unix socket in ``directory``; ``mode``: transaction or session."""

    def __init__(self, directory: Path, server: Path, mode: str, pool_size: int = 20) -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
        assert program is not None, MISSING
        self.directory = directory
        directory.chmod(0o755)
        (directory / "users").write_text('"postgres" ""\n')
        config = directory / "pgbouncer.ini"
        config.write_text(
            f"[databases]\n* = host={server.parent}\n[pgbouncer]\nlisten_addr =\nlisten_port = 6432\n"
            f"unix_socket_dir = {directory}\nauth_type = trust\nauth_file = {directory / 'users'}\n"
            f"pool_mode = {mode}\ndefault_pool_size = {pool_size}\nmax_client_conn = 500\nserver_fast_close = 1\n"
        )
        owner = {}
        if os.geteuid() == 0:  # it refuses to run as root
            nobody = pwd.getpwnam("nobody")
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)
            owner = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.log = directory / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [program, str(config)], stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd="/", **owner
            )
        deadline = time.monotonic() + 10
        while not self._answers():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as one:
            return one.connect_ex(str(self.directory / ".s.PGSQL.6432")) == 0

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@/{database}?host={self.directory}&port=6432"

    def close(self) -> None:
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> PgBouncer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.close()
