"""``[gateway]``: how jobs without a database reach the store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated

from msgspec import Meta

from scheduler.config.executors import Executor
from scheduler.config.section import Section
from scheduler.model.job_token import MIN_SECRET


class Gateway(Section, frozen=True):
    """``[gateway]``: the address at which jobs of executors with ``store = "gateway"`` reach this daemon, instead
    of the database."""

    # The address at which jobs without a database reach this daemon: `HOST:PORT` or `unix:PATH`. It needs the extra
    # `gateway`; see [executors](../guides/executors.md#the-jobs-store).
    listen: str | None = None
    # Addresses of gateways for such jobs, of any daemons of the store.
    urls: tuple[str, ...] = ()
    # The secret of their tokens, the same in all daemons.
    secret: str | None = None
    # Bytes that a job may send at once.
    max_body: Annotated[int, Meta(ge=64 * 1024, le=256 * 1024 * 1024)] = 16 * 1024 * 1024
    # A file with a certificate, for https.
    cert: str | None = None
    # A file with its key.
    key: str | None = None


_URL = re.compile(r"https?://(\[[0-9A-Fa-f:.]+\]|[\w.-]+)(:\d{1,5})?(/[\w./~-]*)?")


def gateway_mistakes(gateway: Gateway, executors: Mapping[str, Executor]) -> Iterator[tuple[str, str]]:
    """What is wrong with these settings: (dotted name, why)."""
    users = [name for name, executor in executors.items() if executor.store == "gateway"]
    for url in gateway.urls:
        if not _URL.fullmatch(url):
            yield "gateway.urls", f"expected URLs such as https://schedd.internal:8470, not {url!r:.100}"
    if users and not gateway.urls:
        yield "gateway.urls", f'jobs of executor {users[0]} have store = "gateway": say where they find one'
    if gateway.secret is None and (users or gateway.listen is not None):
        yield "gateway.secret", "tokens of jobs need it, the same in all daemons: make one with `openssl rand -hex 32`"
    if gateway.secret is not None and len(gateway.secret) < MIN_SECRET:
        yield "gateway.secret", f"it has at least {MIN_SECRET} characters"
    if (gateway.cert is None) != (gateway.key is None):
        yield "gateway.cert", "cert and key come together"
    for name in users:
        if executors[name].job_config is None:
            yield (
                f"executors.{name}.job_config",
                'with store = "gateway" jobs have a configuration file of their own, without [store] and secrets: '
                "name it, such as /etc/schedd/job.toml",
            )
        if executors[name].place == "worker":
            yield f"executors.{name}.store", 'workers need the database: store = "gateway" is for place = "task"'
