"""Checks of settings that a setting's type cannot express."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Callable
from functools import partial
from urllib.parse import unquote

from scheduler.config.addresses import OPEN_CONSOLE, parse_listen
from scheduler.config.alerts import mistakes
from scheduler.config.executors import executor_mistakes, gateway_mistakes
from scheduler.config.messages import message_mistakes
from scheduler.config.model import Config
from scheduler.config.sources import shown
from scheduler.errors import ConfigError
from scheduler.model.defaults import NO_SLOT
from scheduler.model.limits import parse_size
from scheduler.model.names import is_name
from scheduler.model.redact import RAW_AT, TWO_SLASHES, has_raw_at


def check(config: Config) -> None:
    """Check what a setting's type cannot express. Raises ConfigError."""

    def refuse(name: str, why: str) -> typing.NoReturn:
        raise ConfigError(f"setting {name} ({config.origins.get(name, 'default')}): {why}")

    scheme = re.match(r"([a-z][a-z0-9+]*)://", config.store.url)
    if scheme is None or scheme[1].partition("+")[0] not in ("sqlite", "postgresql"):
        refuse("store.url", "not a database URL; use sqlite:///schedd.db or postgresql+psycopg://user@host/db")
    if has_raw_at(config.store.url):
        refuse("store.url", RAW_AT)
    # As store.urls.parse_url refuses it, which brings SQLAlchemy.
    place = config.store.url.partition("://")[2].partition("?")[0]
    if scheme[1].startswith("sqlite") and place in ("", "/", "/:memory:"):
        refuse(
            "store.url", "an in-memory SQLite database does not survive a restart; name a file (sqlite:///schedd.db)"
        )
    if scheme[1].startswith("sqlite") and not place.startswith("/"):
        refuse("store.url", TWO_SLASHES.format(place))
    if scheme[1].startswith("sqlite") and (other := _beside(config, unquote(place[1:]))) is not None:
        refuse(
            "store.url",
            f"there is no {os.path.abspath(unquote(place[1:]))}, but {other}, beside the configuration: a relative "
            "path counts from where the program was started; start it there, or give the absolute path",
        )
    if not config.worker.queues:
        refuse("worker.queues", 'no queue; use ["*"] for all')
    for name, (fits, form) in _ENTRIES.items():
        for entry in config.get(name):
            if not fits(entry):
                refuse(name, f"expected {form}, not {shown(entry)}")
    for name, why in mistakes(config.alerts, bool(config.mail.host and config.mail.sender)):
        refuse(name, why)
    for name, why in message_mistakes(config.sources, config.sinks):
        refuse(name, why)
    for name, why in executor_mistakes(config.executors):
        refuse(name, why)
    for name, why in gateway_mistakes(config.gateway, config.executors):
        refuse(name, why)
    pools = (config.pools.high, config.pools.medium, config.pools.low)
    if not any(pool.slots or pool.async_slots for pool in pools):
        refuse("pools.high.slots", NO_SLOT)
    try:
        parse_size(config.worker.recycle_memory, "it")
    except ConfigError as error:
        refuse("worker.recycle_memory", str(error))
    for name in ("metrics", "console", "door", "gateway"):
        listen = getattr(config, name).listen
        if listen is not None:
            try:
                address = parse_listen(listen)
            except ConfigError as error:
                refuse(f"{name}.listen", str(error))
            if name == "console" and not address.loopback and config.console.auth in (None, "local"):
                refuse("console.listen", OPEN_CONSOLE)
    if config.tasks.state is not None and not re.fullmatch(r"[\w.]+:[\w.]+", config.tasks.state):
        refuse("tasks.state", f'expected "module:function", not {shown(config.tasks.state)}')
    for name, zone in (("console.zone", config.console.zone), ("schedules.timezone", config.schedules.timezone)):
        if zone != "UTC":
            from scheduler.model.zoned import find_zone, no_zone  # imported only when another zone is asked for

            if find_zone(zone) is None:
                refuse(name, no_zone(zone))


def _beside(config: Config, path: str) -> str | None:
    """The database beside the configuration file, if a relative path names no file in this directory.

    A program that starts in another directory would otherwise make a second database, whose tasks no worker runs.
    """
    if config.file is None or path.startswith(("/", "file:")) or os.path.lexists(path):
        return None
    other = os.path.join(os.path.dirname(config.file), path)
    return other if os.path.lexists(other) else None


def _is_queue(entry: str) -> bool:
    return entry == "*" or is_name(entry)


def _is_host(entry: str) -> bool:
    import ipaddress  # only when some are allowed

    try:
        ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return re.fullmatch(r"(?=.*[^\W\d_])[\w.-]+", entry) is not None
    return True


def _is_proxy(entry: str) -> bool:
    import ipaddress  # only when some are trusted

    try:
        return entry == "unix" or bool(ipaddress.ip_network(entry, strict=False))
    except ValueError:
        return False


# The check of each entry of a list, and the error's words for a valid entry.
_ENTRIES: dict[str, tuple[Callable[[str], object], str]] = {
    "worker.queues": (_is_queue, 'the name of a queue, or "*"'),
    "http.allow": (_is_host, "the name of a host, an address, or a network such as 10.0.0.0/8"),
    "http.secrets": (
        partial(re.fullmatch, r"[A-Za-z0-9][A-Za-z0-9_.-]*@(https?://)?[^@\s/]+"),
        '"name@host" or "name@http://host"',
    ),
    "console.trusted_proxies": (_is_proxy, 'an address, a network such as 10.0.0.0/8, or "unix"'),
    "batch.functions": (partial(re.fullmatch, r"[\w.]+:[\w.]+"), '"module:function"'),
}
