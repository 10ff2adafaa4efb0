"""A project's settings: ``settings.SCHEDD`` has sections of the configuration, ``TASKS`` the options of backends.

``SCHEDD = {"store": {"url": ...}, "worker": {"queues": ["mail"]}, "console": {"listen": ...}}``. Both may be left out:
the store lies in Django's own database then.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections

OPTIONS = ("database", "url", "modules")
# What of the driver's own settings in DATABASES another connection to the same database needs.
_CONNECTING = ("service", "passfile", "sslmode", "sslcert", "sslkey", "sslrootcert", "sslcrl", "options")
_MEMORY = "sqlite:////nowhere/in-djangos-memory"  # never opened: what lies in memory is read through Django


def sections(options: Mapping[str, Any] = MappingProxyType({})) -> Mapping[str, Any]:
    """``settings.SCHEDD``, and over it the sections among a backend's options. Raises ImproperlyConfigured."""
    given = getattr(settings, "SCHEDD", None) or {}
    if not isinstance(given, Mapping) or not all(isinstance(section, Mapping) for section in given.values()):
        raise ImproperlyConfigured('SCHEDD is a dict of sections, such as {"worker": {"queues": ["mail"]}}')
    return {**given, **{name: value for name, value in options.items() if isinstance(value, Mapping)}}


def url_of(options: Mapping[str, Any]) -> str | None:
    """Where the store lies, if it was said; None: in the database of Django."""
    found = options.get("url") or sections(options).get("store", {}).get("url")
    return None if found is None else str(found)


def database_of(options: Mapping[str, Any]) -> str:
    """The alias of the database of Django that has the store. Raises ImproperlyConfigured."""
    alias = str(options.get("database", DEFAULT_DB_ALIAS))
    if alias not in connections:
        raise ImproperlyConfigured(f"there is no database {alias!r}; there are {', '.join(connections)}")
    return alias


def console_url(options: Mapping[str, Any]) -> str | None:
    """Where people reach the console, if it is known: as alerts say it, else where the daemon listens."""
    found = sections(options)
    section = found.get("console", {})
    said, place = found.get("alerts", {}).get("console_url"), str(section.get("listen") or "unix:")
    if said is not None or place.startswith("unix:"):
        return None if said is None else str(said)
    return f"http://{place}{section.get('prefix') or ''}/"


def is_memory(alias: str) -> bool:
    """Whether this database of Django lies in memory, as that of tests does on SQLite."""
    name = str(connections[alias].settings_dict["NAME"])
    return connections[alias].vendor == "sqlite" and (":memory:" in name or "mode=memory" in name)


def django_url(alias: str) -> str:
    """The URL of a database of Django, at this moment: tests change its name. Raises ImproperlyConfigured."""
    connection = connections[alias]
    given = connection.settings_dict
    if connection.vendor == "sqlite":
        return _MEMORY if is_memory(alias) else f"sqlite:///{os.path.abspath(given['NAME'])}"
    if connection.vendor != "postgresql":
        raise ImproperlyConfigured(
            f"schedd keeps tasks in SQLite or PostgreSQL, and the database {alias!r} is {connection.vendor}: "
            'name another one in OPTIONS {"database": ...}, or SCHEDD["store"]["url"]'
        )
    query = {name: str(value) for name, value in given.get("OPTIONS", {}).items() if name in _CONNECTING}
    host, port, user = str(given.get("HOST") or ""), str(given.get("PORT") or ""), str(given.get("USER") or "")
    if host.startswith("/"):
        query["host"], host = host, ""
        if port:
            query["port"], port = port, ""
    password = str(given.get("PASSWORD") or "")
    who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    place = f"{who}{'@' if who else ''}{host}{f':{port}' if port else ''}"
    name = quote(str(given.get("NAME") or ""), safe="")
    return f"postgresql+psycopg://{place}/{name}" + (f"?{urlencode(query)}" if query else "")


def keep_one_log() -> None:
    """Take away the handler that Django's default settings put beside the daemon's, which writes the same lines."""
    django_log = logging.getLogger("django")
    for handler in [one for one in django_log.handlers if type(one) is logging.StreamHandler]:
        django_log.removeHandler(handler)


def environment(options: Mapping[str, Any], modules: list[str]) -> dict[str, str]:
    """The configuration as ``SCHEDD_SECTION__NAME``, which child processes get, too. ``modules``: of tasks."""
    found = dict(_flat(sections(options), "SCHEDD_"))
    found["SCHEDD_STORE__URL"] = url_of(options) or django_url(database_of(options))
    own = sections(options).get("tasks", {}).get("modules", ())
    names = own.split(",") if isinstance(own, str) else map(str, own)
    found["SCHEDD_TASKS__MODULES"] = ",".join(dict.fromkeys([*modules, *filter(None, names)]))
    return found


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, value in tree.items():
        variable = prefix + str(name).upper()
        if isinstance(value, Mapping):
            yield from _flat(value, f"{variable}__")
        elif isinstance(value, list | tuple | set | frozenset):
            yield variable, json.dumps([str(one) for one in value])  # whose texts may have commas
        elif isinstance(value, timedelta):
            yield variable, f"{value.total_seconds()}s"
        elif isinstance(value, bool):
            yield variable, str(value).lower()
        elif value is not None:
            yield variable, str(value)
