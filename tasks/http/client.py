"""HTTP client of the built-in types, with bounds for addresses, size of the answer and time."""

from __future__ import annotations

import asyncio
import functools
import importlib
import ssl
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from scheduler import PermanentError
from scheduler.tasks.http.client_log import unlogged
from scheduler.tasks.http.errors import Unreachable
from scheduler.tasks.http.secrets import Secrets, needs_secret
from scheduler.tasks.http.ssrf_guard import AddressRules
from scheduler.tasks.settings import section

if TYPE_CHECKING:
    import httpx2

CONNECT_TIMEOUT = 10.0  # seconds
READ_TIMEOUT = 30.0  # seconds without a byte
SINK_CHUNK = 256 * 1024  # bytes that a sink is given at a time
MOVED = frozenset({301, 302, 303, 307, 308})
_FOR_THIS_HOST = frozenset({"authorization", "cookie", "proxy-authorization"})


Sink = Callable[[bytes], object]


class HttpCall(NamedTuple):
    """What to send. ``max_body``: bytes of the answer's body that are kept; ``redirects``: how many are followed."""

    method: str
    url: str
    headers: Mapping[str, str] = {}
    body: bytes | None = None
    timeout: float = 30.0
    max_body: int = 64 * 1024
    redirects: int = 0


class HttpReply(NamedTuple):
    """What came back. ``url``: after redirects; ``truncated``: there was more than was kept."""

    status: int
    headers: dict[str, str]
    body: bytes
    truncated: bool
    url: str


async def send(call: HttpCall, settings: Mapping[str, Any], secrets: Secrets, sink: Sink | None = None) -> HttpReply:
    """Send a request and read the answer. Raises Unreachable (also for its timeout) and PermanentError.

    ``sink``: takes the body of a 200 by pieces, in a thread; the reply has none then. ``max_body`` holds for it too.
    What it raises is raised. Each address that is connected to is looked at first, after every redirect again.
    """
    try:
        httpx2 = await asyncio.to_thread(importlib.import_module, "httpx2")  # some 0.1 s, which others need not wait
    except ImportError:
        raise PermanentError("requests over HTTP need httpx2: pip install 'schedd[http]'") from None
    http = section(settings, "http")
    rules = AddressRules(http.get("allow") or ())
    limits = httpx2.Timeout(connect=CONNECT_TIMEOUT, read=READ_TIMEOUT, write=READ_TIMEOUT, pool=None)
    context = await asyncio.to_thread(_trust, http.get("ca"))
    try:
        with unlogged():
            async with (
                asyncio.timeout(call.timeout),
                httpx2.AsyncClient(verify=context, timeout=limits, trust_env=False) as client,
            ):
                return await _follow(client, call, rules, secrets, sink)
    except (PermanentError, Unreachable) as error:  # what a redirect says may be in it
        error.args = tuple(secrets.hidden(one) if isinstance(one, str) else one for one in error.args)
        raise
    except TimeoutError:
        raise Unreachable(f"{shown(call.method, call.url)} took longer than {call.timeout:g} s") from None
    except httpx2.TransportError as error:
        detail = secrets.hidden(str(error)) or type(error).__name__
        raise Unreachable(f"{shown(call.method, call.url)}: {detail}") from None
    except (httpx2.InvalidURL, ValueError) as error:
        raise PermanentError(f"{shown(call.method, call.url)}: {secrets.hidden(str(error))}") from None


async def _follow(
    client: httpx2.AsyncClient, call: HttpCall, rules: AddressRules, secrets: Secrets, sink: Sink | None
) -> HttpReply:
    import httpx2

    url, method, headers, body = httpx2.URL(call.url), call.method, dict(call.headers), call.body
    for left in range(call.redirects, -1, -1):
        check(url)
        reply = await _once(client, call._replace(method=method, headers=headers, body=body), url, rules, secrets, sink)
        target = reply.headers.get("location")
        if reply.status not in MOVED or target is None:
            return reply
        if call.redirects == 0:
            return reply
        if left == 0:
            raise PermanentError(f"{shown(call.method, call.url)} is redirected more than {call.redirects} times")
        before, url = url, url.join(target)
        if (before.scheme, url.scheme) == ("https", "http"):
            raise PermanentError(f"{shown(call.method, call.url)} is redirected from https to http")
        if (before.scheme, before.host, before.port) != (url.scheme, url.host, url.port):
            headers = {
                name: value
                for name, value in headers.items()
                if name.lower() not in _FOR_THIS_HOST and not needs_secret(value)
            }
        if reply.status == 303 or (reply.status in (301, 302) and method == "POST"):
            method, body = ("HEAD" if method == "HEAD" else "GET"), None
            headers = {name: value for name, value in headers.items() if not name.lower().startswith("content-")}
    raise AssertionError("not reached")


def check(url: httpx2.URL) -> None:
    """Raises PermanentError for a URL that is not one of the web."""
    if url.scheme not in ("http", "https") or not url.host:
        raise PermanentError(f"not a URL of the web: {url.scheme}://{url.host}; it begins with https:// or http://")
    if url.userinfo:
        raise PermanentError("a password does not belong in a URL, which is shown: use a header with a ${secret}")


async def _once(
    client: httpx2.AsyncClient,
    call: HttpCall,
    url: httpx2.URL,
    rules: AddressRules,
    secrets: Secrets,
    sink: Sink | None,
) -> HttpReply:
    import httpx2

    port = url.port or (443 if url.scheme == "https" else 80)
    addresses = await rules.resolve(url.host, port)
    headers = {name: secrets.filled(value, url.scheme, url.host) for name, value in call.headers.items()}
    headers.setdefault("accept-encoding", "identity")  # what is decoded may be a thousand times as long
    headers["host"] = url.netloc.decode("ascii")
    for number, address in enumerate(addresses, 1):
        # To the address that was looked at; name and certificate are those of the host all the same.
        request = client.build_request(
            call.method,
            url.copy_with(host=address),
            headers=headers,
            content=call.body,
            extensions={"sni_hostname": url.host},
        )
        try:
            response = await client.send(request, stream=True)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            if number == len(addresses):
                raise
            continue
        try:
            if sink is not None and response.status_code != 200:
                return await _read(response, min(call.max_body, SINK_CHUNK), url, None)  # only to say what is wrong
            return await _read(response, call.max_body, url, sink)
        finally:
            await response.aclose()
    raise AssertionError("not reached")


async def _read(response: httpx2.Response, max_body: int, url: httpx2.URL, sink: Sink | None) -> HttpReply:
    body, passed, truncated = bytearray(), 0, False
    async for chunk in response.aiter_raw():
        body += chunk
        if passed + len(body) > max_body:
            truncated = True
            break
        if sink is not None and len(body) >= SINK_CHUNK:
            await asyncio.to_thread(sink, bytes(body))
            passed += len(body)
            body.clear()
    if sink is not None and not truncated:
        await asyncio.to_thread(sink, bytes(body))
        body.clear()
    headers = {name.lower(): value for name, value in response.headers.items()}
    return HttpReply(response.status_code, headers, bytes(body[:max_body]), truncated, str(url))


@functools.lru_cache(maxsize=4)
def _trust(ca: str | None) -> ssl.SSLContext:
    return trust(ca, "[http] ca")  # some milliseconds to make, so it is kept


def trust(ca: str | None, setting: str) -> ssl.SSLContext:
    """Certificates of the system, or of this file. Raises Unreachable if it cannot be read."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # it does not say which file
        raise Unreachable(f"the certificates of {setting} = {ca!r} cannot be read: {error.strerror or error}") from None


def shown(method: str, url: str) -> str:
    """A request for an error's text: without what may be a secret in its URL."""
    return f"{method} {url.partition('?')[0].partition('#')[0]}"
