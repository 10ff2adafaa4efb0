"""Checks an installation of schedd, for ``schedctl doctor --install``: nothing of it opens the store."""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import shutil
import sys
import sysconfig
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from schedd import PYPI
from scheduler.build import running
from scheduler.config import user_modules
from scheduler.config.model import SECRETS, Config
from scheduler.config.paths import settled
from scheduler.model.texts import listed
from scheduler.model.zoned import find_zone, no_zone
from scheduler.store.admin.doctor import NOTE, OK, PROBLEM, DoctorFinding
from scheduler.store.db.dialect import sqlite_too_old, sqlite_version
from scheduler.system import WINDOWS, files, libc
from scheduler.system.processes import file_limits, user_id

LOW_SPACE = 200 * 1024 * 1024
_A_ZONE = "Europe/Berlin"
FEW_FILES = 1024  # descriptors that a daemon with its listeners and child processes may well need
RELEASED = 1_767_225_600  # 2026-01-01: no clock that is right shows an earlier time
_REQUIREMENT = re.compile(r"([\w.-]+)(\[[\w,-]+\])?\s*(?:>=\s*([\w.]+))?[^;]*(?:;(.*))?")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")
OF_DEVELOPMENT = frozenset({"demo", "quick", "test", "dev", "docs", "release", "bench"})  # for work on schedd
_TIME_ERROR = 5  # of adjtimex(2): the clock is not synchronised


def examine(config: Config) -> list[DoctorFinding]:
    """All checks, in the order in which they are mended."""
    config = settled(config)
    return [
        _python(),
        *_packages(),
        *_extras(config),
        *names(config),
        _commands(),
        *_rights(config),
        _clock(),
        _sqlite(),
        *_disk(config),
        _descriptors(),
    ]


def names(config: Config) -> list[DoctorFinding]:
    """Modules that hide schedd's own, or that schedd's hide."""
    wrong = [PYPI] if _installed("scheduler") is not None else []
    ours = {os.path.dirname(os.path.realpath(place)) for place in sys.modules["scheduler"].__path__}
    places = [config.directory or os.getcwd(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    for place in dict.fromkeys(os.path.realpath(place) for place in places if place):
        for name in ("scheduler", "schedd"):
            for path in (os.path.join(place, f"{name}.py"), os.path.join(place, name, "__init__.py")):
                if os.path.isfile(path) and place not in ours:
                    wrong.append(f"{path} hides schedd's package {name} from programs there: give it another name")
    found = [DoctorFinding("names", PROBLEM, text) for text in wrong]
    found += [
        DoctorFinding("task modules", NOTE, user_modules.advice(path))
        for path in user_modules.hidden(config.tasks.path)
    ]
    return found or [DoctorFinding("names", OK, "nothing hides schedd's packages")]


def _python() -> DoctorFinding:
    text = f"Python {sys.version.split()[0]} in {sys.prefix}, schedd {running()}"
    installed = _installed("schedd")
    own = running().partition("+")[0]
    if installed != own:
        return DoctorFinding("versions", PROBLEM, f"{text}, but {installed} is installed: install it again")
    return DoctorFinding("versions", OK, text)


def _packages() -> Iterator[DoctorFinding]:
    wrong = [text for name, least, extra in _requirements() if extra is None and (text := _misses(name, least))]
    if wrong:
        yield DoctorFinding("packages", PROBLEM, f"{listed(wrong)}: pip install --upgrade schedd")
    else:
        yield DoctorFinding("packages", OK, "all are there")


def _extras(config: Config) -> Iterator[DoctorFinding]:
    needs: dict[str, list[tuple[str, str]]] = {}
    others: list[tuple[str, str]] = []  # an extra, and another that it brings
    for name, least, extra in _requirements():
        if extra is None or extra in OF_DEVELOPMENT:
            continue
        needs.setdefault(extra, [])
        if name.startswith("schedd["):
            others += ((extra, other) for other in name[len("schedd[") : -1].split(","))
        else:
            needs[extra].append((name, least))
    for extra, other in others:
        needs[extra] += needs[other]
    whole, missing = [], {}
    for extra, wanted in sorted(needs.items()):
        wrong = [text for name, least in wanted if (text := _misses(name, least))]
        if wrong:
            missing[extra] = wrong
        else:
            whole.append(extra)
    for extra, why in _wanted(config):
        if extra in missing:
            yield DoctorFinding(
                "extras", PROBLEM, f"{why} needs {listed(missing[extra])}: pip install 'schedd[{extra}]'"
            )
    yield DoctorFinding("extras", OK, f"installed: {', '.join(whole) or 'none'}; not: {', '.join(missing) or 'none'}")


def _wanted(config: Config) -> Iterator[tuple[str, str]]:
    """The extras that the configuration needs, and the settings that do."""
    if config.store.url.startswith("postgresql"):
        yield "postgres", "[store] url"
    listens = {
        "metrics": config.metrics.listen,
        "console": config.console.listen,
        "door": config.door.listen,
        "gateway": config.gateway.listen,
    }
    for extra, address in listens.items():
        if address is not None:
            yield extra, f"[{extra}] listen"
    if config.otel.enabled:
        yield "otel", "[otel] enabled"
    types = {f"[sources.{name}]": str(one.type) for name, one in config.sources.items()}
    types |= {f"[sinks.{name}]": str(one.type) for name, one in config.sinks.items()}
    types |= {f"[executors.{name}]": str(one.type) for name, one in config.executors.items()}
    for section, extra in types.items():
        yield extra, section


def _commands() -> DoctorFinding:
    own = Path(sysconfig.get_path("scripts"))
    for name in ("schedd", "schedctl"):
        found = shutil.which(name)
        if found is None:
            text = f"{name} is not on PATH: use {own / name}, or python -m scheduler"
            return DoctorFinding("commands", NOTE, text)
        if Path(found).parent.resolve() != own.resolve():
            return DoctorFinding(
                "commands", NOTE, f"{name} on PATH is {found}, of another installation than {own / name}"
            )
    return DoctorFinding("commands", OK, f"schedd and schedctl are in {own}")


def _rights(config: Config) -> Iterator[DoctorFinding]:
    wrong = []
    if config.file is not None and os.path.exists(config.file):
        secret = [name for name, origin in config.origins.items() if origin == config.file and _is_secret(config, name)]
        if secret and files.for_others(config.file) & 0o004:
            text = f"every user may read {config.file}, which has {listed(secret)}: chmod o-r, or use credentials"
            yield DoctorFinding("rights", NOTE, text)
    for place in config.tasks.path:
        if not os.access(place, os.R_OK | os.X_OK):
            wrong.append(f"[tasks] path {place} cannot be read")
    path = _store_file(config)
    if path is not None:
        for one, access in ((path.parent, os.W_OK | os.X_OK), (path, os.R_OK | os.W_OK)):
            if (one == path.parent or one.exists()) and not os.access(one, access):
                wrong.append(f"{one} cannot be written by {_user()}" if one.exists() else f"{one} does not exist")
    for text in wrong:
        yield DoctorFinding("rights", PROBLEM, text)
    if not wrong:
        yield DoctorFinding("rights", OK, f"{_user()} may read and write what schedd needs")


def _is_secret(config: Config, name: str) -> bool:
    if name == "store.url":
        return bool(re.search(r"//[^/@]*:[^/@]+@", config.store.url))
    return name in SECRETS or (name.startswith("alerts.sinks.") and name.rpartition(".")[2] in ("secret", "token"))


def _clock() -> DoctorFinding:
    if time.time() < RELEASED:
        return DoctorFinding(
            "clock", PROBLEM, f"the clock shows {time.strftime('%Y-%m-%d', time.gmtime())}: set it right"
        )
    if find_zone(_A_ZONE) is None:
        return DoctorFinding("clock", PROBLEM, no_zone(_A_ZONE))
    if _synchronised() is False:
        text = "no time server keeps this machine's clock right, so workers of several machines may disagree"
        return DoctorFinding("clock", NOTE, text)
    return DoctorFinding("clock", OK, "it is plausible" if _synchronised() is None else "a time server keeps it right")


def _synchronised() -> bool | None:
    """Whether the kernel takes its clock for synchronised; None where that cannot be known."""
    state = libc.call("adjtimex", ctypes.create_string_buffer(1024))  # zeros: it only reads
    return None if state is None or state < 0 else state != _TIME_ERROR


def _sqlite() -> DoctorFinding:
    text = sqlite_too_old()
    return (
        DoctorFinding("sqlite", OK, f"SQLite {sqlite_version()}")
        if text is None
        else DoctorFinding("sqlite", PROBLEM, text)
    )


def _disk(config: Config) -> Iterator[DoctorFinding]:
    path = _store_file(config)
    place = Path(config.directory or os.getcwd()) if path is None else path.parent
    try:
        free = shutil.disk_usage(place).free
    except OSError as error:
        yield DoctorFinding("disk", PROBLEM, f"{place}: {error.strerror}")
        return
    level = PROBLEM if free < LOW_SPACE and path is not None else OK
    yield DoctorFinding("disk", level, f"{free // 2**20} MiB free in {place}")


def _descriptors() -> DoctorFinding:
    hard = file_limits()[1]
    if 0 <= hard < FEW_FILES:
        text = f"a process may open {hard} files at most: allow {FEW_FILES} (ulimit -Hn, LimitNOFILE= of the service)"
        return DoctorFinding("descriptors", NOTE, text)
    return DoctorFinding("descriptors", OK, f"a process may open {'any number of' if hard < 0 else hard} files")


def _store_file(config: Config) -> Path | None:
    scheme, sign, path = config.store.url.partition(":///")
    if not sign or scheme.partition("+")[0] != "sqlite" or path.startswith("file:") or not path:
        return None
    return Path(path.partition("?")[0])


def _user() -> str:
    return f"uid {user_id()}"


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _requirements() -> Iterable[tuple[str, str, str | None]]:
    """Name, lower bound and extra of what this version of schedd wants on this Python.

    An extra that brings another one wants ``schedd[OTHER]``.
    """
    for text in importlib.metadata.requires("schedd") or ():
        found = _REQUIREMENT.fullmatch(text)
        if found is None:
            continue
        marker = found[4] or ""
        extra = _EXTRA.search(marker)
        if "python_version <" in marker and sys.version_info >= (3, 12):
            continue
        if "win32" in marker and not WINDOWS:
            continue
        name = found[1] + (found[2] or "") if found[1] == "schedd" else found[1]
        yield name, found[3] or "0", None if extra is None else extra[1]


def _misses(name: str, least: str) -> str | None:
    """What is wrong with an installed package, None if nothing is."""
    there = _installed(name)
    if there is None:
        return f"{name}, which is not installed"
    return f"{name} {least} (there is {there})" if _numbers(there) < _numbers(least) else None


def _numbers(version: str) -> list[int]:
    found = [int(part) for part in re.findall(r"\d+", re.split(r"[a-z+]", version, maxsplit=1)[0])]
    while found and not found[-1]:
        found.pop()
    return found
