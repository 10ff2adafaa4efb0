"""``/metrics``: the figures of the store for Prometheus, as ``schedctl metrics`` prints them."""

from __future__ import annotations

from starlette.responses import Response

from scheduler.config.model import Config
from scheduler.console.routes import page
from scheduler.console.visit import Visit
from scheduler.telemetry import prometheus
from scheduler.telemetry.store_figures import read_figures


@page("/metrics")
def metrics(visit: Visit) -> Response:
    """The figures. A program authenticates as for other pages, with a bearer token for example."""
    prometheus.require("/metrics")
    config = visit.site.config or Config()
    kept = config.retention.failed if config.retention.dead is None else config.retention.dead
    with visit.read() as tx:
        found = read_figures(tx, dead_retention=kept, expiry=config.alerts.rules.dead_letters_expiring.within)
    body, kind = prometheus.render(prometheus.make_registry(lambda: found, process=False))
    return Response(body, headers={"content-type": kind})
