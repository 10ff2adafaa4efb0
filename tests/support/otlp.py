"""A receiver of OTLP over HTTP that decodes what it gets, and fixtures that give each test a fresh tracer provider."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = ("UNSPECIFIED", "INTERNAL", "SERVER", "CLIENT", "PRODUCER", "CONSUMER")
WAIT_S = 30.0


@dataclass
class Got:
    """A span as it was received. ``links``: (trace id, span id) with the link's attributes."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start: int
    end: int
    attributes: dict[str, Any]
    links: list[tuple[str, str, dict[str, Any]]]
    events: dict[str, dict[str, Any]]
    error: bool
    status: str
    service: str
    scope: str

    @property
    def ids(self) -> tuple[str, str]:
        return self.trace_id, self.span_id

    def linked(self, what: str) -> list[tuple[str, str]]:
        return [(t, s) for t, s, attributes in self.links if attributes.get("schedd.link") == what]


def _value(value: Any) -> Any:
    which = value.WhichOneof("value")
    if which == "array_value":
        return [_value(one) for one in value.array_value.values]
    return getattr(value, which) if which else None


def attributes_in(attributes: Any) -> dict[str, Any]:
    """Attributes of OTLP as a dict."""
    return {one.key: _value(one.value) for one in attributes}


def spans_in(data: bytes) -> list[Got]:
    request = ExportTraceServiceRequest.FromString(data)
    return [
        Got(
            span.name,
            KINDS[span.kind],
            span.trace_id.hex(),
            span.span_id.hex(),
            span.parent_span_id.hex(),
            span.start_time_unix_nano,
            span.end_time_unix_nano,
            attributes_in(span.attributes),
            [(link.trace_id.hex(), link.span_id.hex(), attributes_in(link.attributes)) for link in span.links],
            {event.name: attributes_in(event.attributes) for event in span.events},
            span.status.code == 2,
            span.status.message,
            attributes_in(resource.resource.attributes)["service.name"],
            scope.scope.name,
        )
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]


@dataclass
class Receiver:
    """What has been received. ``hang``: cleared, no request is answered until it is set again."""

    url: str = ""
    spans: list[Got] = field(default_factory=list)
    metrics: list[Any] = field(default_factory=list)
    requests: int = 0
    answering: threading.Event = field(default_factory=threading.Event)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def take(self, path: str, data: bytes) -> None:
        with self.changed:
            self.requests += 1
            self.changed.notify_all()
        self.answering.wait(WAIT_S)
        with self.changed:
            if path == "/v1/traces":
                self.spans += spans_in(data)
            elif path == "/v1/metrics":
                self.metrics.append(ExportMetricsServiceRequest.FromString(data))
            self.changed.notify_all()

    def wait_for(self, count: int, name: str = "") -> list[Got]:
        """The spans whose name begins so, once there are ``count``."""

        def found() -> list[Got]:
            return [span for span in self.spans if span.name.startswith(name)]

        with self.changed:
            assert self.changed.wait_for(lambda: len(found()) >= count, WAIT_S), [s.name for s in self.spans]
            return found()

    def named(self, name: str) -> list[Got]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str) -> Got:
        (found,) = self.named(name)
        return found


@pytest.fixture(scope="session")
def _otlp_server() -> Iterator[Receiver]:
    receiver = Receiver()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            receiver.take(self.path, data)
            try:
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()
            except OSError:  # the exporter has given up
                self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield receiver
    server.shutdown()
    server.server_close()


def forget_providers() -> None:
    """Let the next call of ``set_tracer_provider`` be the first one, as OpenTelemetry's own tests do."""
    trace._TRACER_PROVIDER = None
    trace._TRACER_PROVIDER_SET_ONCE._done = False
    metrics._internal._METER_PROVIDER = None
    metrics._internal._METER_PROVIDER_SET_ONCE._done = False


@pytest.fixture
def otlp(_otlp_server: Receiver) -> Iterator[Receiver]:
    """A receiver that has got nothing yet, in a process without a tracer provider."""
    forget_providers()
    with _otlp_server.changed:
        _otlp_server.spans, _otlp_server.metrics, _otlp_server.requests = [], [], 0
    _otlp_server.answering.set()
    yield _otlp_server
    _otlp_server.answering.set()
    for provider in (trace._TRACER_PROVIDER, metrics._internal._METER_PROVIDER):
        if provider is not None and hasattr(provider, "shutdown"):
            provider.shutdown()
    forget_providers()
