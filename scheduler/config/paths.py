"""Relative paths of the configuration, made absolute before any task runs: it may change the directory."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from scheduler.config.model import Config
from scheduler.system import files

PATHS = (
    ("tasks", "path"),
    ("console", "users"),
    ("gateway", "cert"),
    ("gateway", "key"),
    ("command", "roots"),
    ("files", "roots"),
    ("files", "blobs"),
    ("http", "ca"),
    ("http", "secrets_dir"),
    ("mail", "ca"),
    ("actions", "key_file"),
    ("actions", "directory"),
    ("cleanup", "roots"),
    ("backup", "sources"),
    ("backup", "destinations"),
)
_FILE = "_file"  # the end of the name of an option of an executor, a source or a sink that is a path


def settled(config: Config) -> Config:
    """The configuration with absolute paths: relative ones count from where the program was started."""
    where, replace = config.directory, msgspec.structs.replace
    changes: dict[str, Any] = {"store": replace(config.store, url=_url(config.store.url, where))}
    for section, name in PATHS:
        given = changes.get(section, getattr(config, section))
        changes[section] = replace(given, **{name: _path(getattr(given, name), where)})
    for table in ("sources", "sinks", "executors"):
        entries: dict[str, Any] = getattr(config, table)
        changes[table] = {
            name: replace(entry, options={key: _option(key, value, where) for key, value in entry.options.items()})
            for name, entry in entries.items()
        }
    changes["executors"] = {
        name: replace(executor, job_config=_path(executor.job_config, where))
        for name, executor in changes["executors"].items()
    }
    return replace(config, **changes)


def _option(name: str, value: Any, where: str) -> Any:
    return _path(value, where) if name.endswith(_FILE) else value


def _path(given: Any, where: str) -> Any:
    if isinstance(given, tuple):
        return tuple(_path(one, where) for one in given)
    return os.path.normpath(os.path.join(where, os.path.expanduser(given))) if isinstance(given, str) else given


def _url(url: str, where: str) -> str:
    """A SQLite URL with an absolute path; any other one as it is."""
    scheme, sign, path = url.partition(":///")
    if not sign or scheme.partition("+")[0] != "sqlite" or path.startswith("file:") or files.is_absolute(path):
        return url
    return f"{scheme}:///{where.replace('%', '%25').replace('?', '%3f')}/{path}"
