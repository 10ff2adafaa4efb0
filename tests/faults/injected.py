"""The faults of the campaigns. Each is a function of the campaign; it returns when the fault is over or under way."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from faults.campaign import Campaign, Stop
from support.own_server import OwnServer
from support.proxy import Proxy

Fault = Callable[[Campaign], None]
# A worker that is cut off by these for most of its lease may lose what it holds, and nothing stops a thread's handler
# from outside. The others it overcomes at once.
OUTLASTS = ("hole", "refuse")


def kill(campaign: Campaign) -> None:
    """kill -9 of one worker, and another one in its place."""
    seat = campaign.busy()
    campaign.stops.append(Stop(seat.process.pid, time.monotonic_ns(), float("inf"), True))
    seat.process.kill()
    seat.replace()


def freeze(seconds: float) -> Fault:
    """SIGSTOP for longer than the lease, wherever it stands, inside a transaction too; then SIGCONT."""

    def fault(campaign: Campaign) -> None:
        process = campaign.busy().process
        since = time.monotonic_ns()
        process.kill(signal.SIGSTOP)
        time.sleep(seconds)
        process.kill(signal.SIGCONT)
        campaign.stops.append(Stop(process.pid, since, time.monotonic_ns() + 1e9, False))

    return fault


def restart(server: OwnServer, mode: str) -> Fault:
    """The server goes and comes back."""

    def fault(campaign: Campaign) -> None:
        server.restart(mode)

    return fault


def way(proxies: list[Proxy], what: str, seconds: float, *, tight: bool) -> Fault:
    """Something happens for a while to the way of one worker to the server.

    ``tight``: its lease is so short that on a busy machine each of these may cost it.
    """

    def fault(campaign: Campaign) -> None:
        seat = campaign.busy()
        proxy = proxies[campaign.seats.index(seat)]
        since = time.monotonic_ns()
        if what == "delay":
            hit = proxy.delay(0.05)
        else:
            hit = {"cut": proxy.cut, "half-close": proxy.half_close, "hole": proxy.hole, "refuse": proxy.refuse}[what]()
        assert hit, f"no connection was hit by {what}"
        time.sleep(seconds)
        proxy.heal()
        if tight or what in OUTLASTS:
            campaign.stops.append(Stop(seat.process.pid, since, time.monotonic_ns() + 1e9, False))

    return fault


def clock(offset: float) -> Fault:
    """The wall clock of one worker is set to be off by so many seconds."""

    def fault(campaign: Campaign) -> None:
        campaign.some().process.send("clock", offset=offset)

    return fault
