"""HttpTask and ActionDeliveryTask against real servers. Most of them misbehave."""

from __future__ import annotations

import asyncio
import base64
import email.utils
import ipaddress
import json
import re
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from scheduler import AsyncContext, PermanentError, Retry, Scheduler, task
from scheduler.tasks import ActionDeliveryTask, HttpTask
from scheduler.tasks.http.errors import Refused, Unreachable, seconds_of
from scheduler.tasks.http.secrets import Secrets
from scheduler.tasks.http.ssrf_guard import AddressRules
from support.certificates import Certificates
from support.databases import Database, one_database

from .fake import AsyncFakeContext
from .server import Server, answer, reset, serving

LOCAL = {"http": {"allow": ["127.0.0.1"]}}


def run(task: Any, settings: dict[str, Any] | None = None, **more: Any) -> Any:
    return asyncio.run(task.run(AsyncFakeContext(LOCAL if settings is None else settings, **more)))


# The usual way


def test_a_request_and_its_answer() -> None:
    with serving(answer(201, b'{"ok": 1}', Content_Type="application/json", Set_Cookie="session=1")) as server:
        result = run(HttpTask(server.url + "/things?x=1", "POST", {"X-Own": "yes"}, json={"a": [1]}))
    (asked,) = server.asked
    assert (asked.method, asked.path, json.loads(asked.body)) == ("POST", "/things?x=1", {"a": [1]})
    assert asked.headers["x-own"] == "yes"
    assert asked.headers["host"] == f"127.0.0.1:{server.port}"
    assert asked.headers["idempotency-key"] == "task-42"
    assert result["status"] == 201
    assert result["body"] == '{"ok": 1}'
    assert result["headers"]["content-type"] == "application/json"
    assert "set-cookie" not in result["headers"]
    assert (result["truncated"], result["url"]) == (False, server.url + "/things?x=1")


@pytest.mark.case(61)
@pytest.mark.parametrize(
    ("key", "sent"),
    [
        ("order-42", "order-42"),
        ("Bestellung für Ä", "Bestellung%20f%C3%BCr%20%C3%84"),
        ("a\r\nb: %41", "a%0D%0Ab:%20%2541"),
    ],
)
def test_any_key_makes_an_idempotency_key(key: str, sent: str) -> None:
    with serving(answer(200)) as server:
        for task in (HttpTask(server.url, "POST"), ActionDeliveryTask("bob.example", action())):
            ctx = AsyncFakeContext(LOCAL | {"actions": {"inbox": f"{server.url}/{{recipient}}"}})
            ctx.idempotency_key = key
            asyncio.run(task.run(ctx))  # type: ignore[arg-type]
    assert [asked.headers["idempotency-key"] for asked in server.asked] == [sent, sent]


def test_long_and_binary_answers() -> None:
    with serving(answer(200, b"y" * 100_000)) as server:
        result = run(HttpTask(server.url, max_body=1000))
    assert (result["body"], result["truncated"]) == ("y" * 1000, True)
    with serving(answer(200, b"\x00\xff")) as server:
        assert run(HttpTask(server.url))["body_base64"] == "AP8="


def test_statuses_that_are_welcome() -> None:
    with serving(answer(404)) as server:
        assert run(HttpTask(server.url, ok=[404]))["status"] == 404


def test_without_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(PermanentError, match=r"pip install 'schedd\[http\]'"):
        run(HttpTask("http://127.0.0.1:1"))


gate, blocked = threading.Event(), threading.Semaphore(0)


def block() -> None:
    blocked.release()
    assert gate.wait(30)


@task
async def blocks_a_thread(ctx: AsyncContext) -> None:
    await asyncio.to_thread(block)


@pytest.mark.case(80)
@one_database
def test_it_waits_for_no_handler_that_blocks_its_thread(database: Database) -> None:
    gate.clear()
    jobs = Scheduler(database.url, settings=LOCAL)
    jobs.register(HttpTask)
    jobs.register(blocks_a_thread)
    with serving(answer(200)) as server, jobs:
        others = [jobs.task(blocks_a_thread).schedule() for _ in range(12)]
        for _ in others:
            assert blocked.acquire(timeout=30)
        assert jobs.result(jobs.task(HttpTask(server.url)).schedule(), timeout=30)["status"] == 200
        gate.set()
        assert {info.state for info in jobs.wait(others, timeout=30).values()} == {"success"}
    jobs.close()


# Failures


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 599])
def test_transient_statuses(status: int) -> None:
    with serving(answer(status, b"busy")) as server, pytest.raises(Refused, match=f"answered {status}: busy") as failed:
        run(HttpTask(server.url))
    assert failed.value.status == status


@pytest.mark.parametrize("status", [300, 304, 400, 401, 403, 404, 409, 410, 418, 422])
def test_permanent_statuses(status: int) -> None:
    with serving(answer(status)) as server, pytest.raises(PermanentError, match=f"answered {status}") as failed:
        run(HttpTask(server.url))
    assert failed.value.status == status


def test_retry_after_is_honoured() -> None:
    with serving(answer(429, Retry_After="120")) as server, pytest.raises(Retry) as failed:
        run(HttpTask(server.url))
    assert (failed.value.after, failed.value.status) == (120.0, 429)
    later = email.utils.formatdate(time.time() + 100, usegmt=True)
    assert 95 <= (seconds_of(later) or 0) <= 100
    assert seconds_of(email.utils.formatdate(time.time() - 100, usegmt=True)) == 0
    assert seconds_of("99999999999999999999") == 86_400
    assert [seconds_of(text) for text in (None, "soon", "", "-5", "Mon, 99 Foo")] == [None] * 5


def closed_port() -> int:
    server = Server(b"")
    server.close()
    return server.port


@pytest.mark.parametrize("timeout", [0.3])
@pytest.mark.parametrize("how", ["stall", "drip"])
def test_a_server_that_never_ends(how: str, timeout: float) -> None:
    server = Server(b"")
    server._answers = [getattr(server, how)]
    began = time.monotonic()
    try:
        with pytest.raises(Unreachable, match=r"took longer than 0\.3 s"):
            run(HttpTask(server.url + "/x?secret=1", timeout=timeout))
    finally:
        server.close()
    assert time.monotonic() - began < 25, "it waited for the end of a stall of 30 s"


def test_servers_that_break_off_or_talk_nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    short = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nConnection: close\r\n\r\nshort"
    for odd in (reset, b"", b"nonsense\r\n\r\n", short):
        with serving(odd) as server, pytest.raises(Unreachable, match=f"GET {server.url}/a: "):
            run(HttpTask(server.url + "/a?key=hunter2"))
    with pytest.raises(Unreachable):
        run(HttpTask(f"http://127.0.0.1:{closed_port()}"))

    def look(host: str, *_: Any, **__: Any) -> Any:
        assert host == "nowhere.invalid"
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", look)  # the machine's own may take longer to say so than a request may
    with pytest.raises(Unreachable, match=r"nowhere\.invalid has no address: Name or service not known"):
        run(HttpTask("http://nowhere.invalid/"))


def test_errors_do_not_show_the_query() -> None:
    with serving(answer(404)) as server, pytest.raises(PermanentError) as failed:
        run(HttpTask(server.url + "/a?key=hunter2"))
    assert "hunter2" not in str(failed.value)


# Where it may go


@pytest.fixture(autouse=True)
def stays_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of these tests leaves the machine, whatever is broken."""
    connect = socket.socket.connect

    def checked(self: socket.socket, address: Any) -> None:
        assert not isinstance(address, tuple) or ipaddress.ip_address(address[0]).is_loopback, address
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", checked)


PRIVATE = """127.0.0.1 localhost 10.0.0.1 192.168.1.1 169.254.169.254 0.0.0.0 [::1] [fe80::1] [fd00::1]
[::ffff:127.0.0.1] [64:ff9b::7f00:1] [2002:7f00:1::] 224.0.0.1 100.64.0.1 2130706433
0x7f000001 127.1 0 255.255.255.255 240.0.0.1 198.18.0.1 192.0.0.192 168.63.129.16 100.100.100.200
[::] [::127.0.0.1] [::ffff:0:127.0.0.1] [::ffff:169.254.169.254] [::ffff:a9fe:a9fe] [fec0::1] [ff02::1] [100::1]
[64:ff9b:1::1] [64:ff9b::a9fe:a9fe] [2002:a9fe:a9fe::] [2001:0:7f00:1::] [4000::1] [fd00:ec2::254] [2001:db8::1]"""


@pytest.mark.parametrize("host", PRIVATE.split())
def test_addresses_that_are_not_public_are_refused(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if host == "localhost":  # a name that not every machine has

        def look(_: str, port: int, *__: Any, **___: Any) -> list[Any]:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

        monkeypatch.setattr(socket, "getaddrinfo", look)
    with pytest.raises(PermanentError, match="not public"):
        run(HttpTask(f"http://{host}:1/"), {})


def test_an_address_in_octal_is_none() -> None:
    with pytest.raises(PermanentError, match="Invalid IPv4 address"):
        run(HttpTask("http://0177.0.0.1:1/"), {})


def test_what_is_allowed() -> None:
    rules = AddressRules(["10.1.0.0/16", "::1", "crm.internal"])
    assert rules.admit("x", ipaddress.ip_address("10.1.2.3"))
    assert not rules.admit("x", ipaddress.ip_address("10.2.2.3"))
    assert rules.admit("x", ipaddress.ip_address("::ffff:10.1.2.3"))
    assert rules.admit("x", ipaddress.ip_address("::1"))
    assert rules.admit("CRM.internal.", ipaddress.ip_address("192.168.0.9"))
    assert rules.admit("x", ipaddress.ip_address("8.8.8.8"))
    assert not rules.admit("x", ipaddress.ip_address("64:ff9b::a00:1"))


# The special-purpose registries of the IANA, multicast, and the metadata services of clouds.
SPECIAL = [
    "0.0.0.0/8",
    "0.0.0.0/32",
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.0.0/29",
    "192.0.0.8/32",
    "192.0.0.9/32",
    "192.0.0.10/32",
    "192.0.0.170/32",
    "192.0.0.171/32",
    "192.0.2.0/24",
    "192.31.196.0/24",
    "192.52.193.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "192.175.48.0/24",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
    "224.0.0.0/4",
    "240.0.0.0/4",
    "255.255.255.255/32",
    "168.63.129.16/32",
    "100.100.100.200/32",
    "::1/128",
    "::/128",
    "::/96",
    "64:ff9b:1::/48",
    "100::/64",
    "100:0:0:1::/64",
    "2001::/23",
    "2001::/32",
    "2001:1::1/128",
    "2001:1::2/128",
    "2001:1::3/128",
    "2001:2::/48",
    "2001:3::/32",
    "2001:4:112::/48",
    "2001:10::/28",
    "2001:20::/28",
    "2001:30::/28",
    "2001:db8::/32",
    "2002::/16",
    "2620:4f:8000::/48",
    "3fff::/20",
    "5f00::/16",
    "fc00::/7",
    "fd00:ec2::254/128",
    "fe80::/10",
    "fec0::/10",
    "ff00::/8",
]


@pytest.mark.parametrize("special", SPECIAL)
def test_no_special_purpose_address_is_public(special: str) -> None:
    """Its first, a middle and its last one; of IPv4 also IPv4-mapped and by NAT64."""
    network = ipaddress.ip_network(special)
    rules = AddressRules([])
    for one in {network[0], network[network.num_addresses // 2], network[-1]}:
        ways = [one]
        if one.version == 4:
            ways += [ipaddress.ip_address(f"{prefix}{one}") for prefix in ("::ffff:", "64:ff9b::", "::")]
        for way in ways:
            assert not rules.admit("x", way), way
        assert AddressRules([special]).admit("x", one), "what is allowed is"


def test_public_addresses_are_admitted() -> None:
    """Next to the special ones, too."""
    public = """
        1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 172.15.255.255 172.32.0.0 192.0.1.0 192.88.98.255
        192.88.100.0 198.17.255.255 198.20.0.0 223.255.255.255 168.63.129.17 2001:200:: 2001:db7:: 2001:db9:: 2003::
        2606:4700:4700::1111 2620:4f:8001:: 3ffe:ffff:: 3fff:1000:: ::ffff:1.1.1.1 64:ff9b::1.1.1.1
    """
    for one in public.split():
        assert AddressRules([]).admit("x", ipaddress.ip_address(one)), one


def test_redirects_are_followed_and_looked_at_again() -> None:
    with serving(answer(200, b"there")) as target:
        with serving(answer(302, Location=f"{target.url}/end")) as server:
            headers = {"Authorization": "Bearer x", "X-Own": "1"}
            result = run(HttpTask(server.url, "POST", headers, body="data"))
        assert (result["body"], result["url"]) == ("there", f"{target.url}/end")
        assert server.asked[0].headers["authorization"] == "Bearer x"
        (asked,) = target.asked
        assert (asked.method, asked.body) == ("GET", b"")
        assert "authorization" not in asked.headers, "another server was told"
        assert asked.headers["x-own"] == "1"
    with serving(answer(302, Location="http://10.9.9.9/")) as server, pytest.raises(PermanentError, match="not public"):
        run(HttpTask(server.url))
    with serving(answer(302, Location="file:///etc/x")) as server, pytest.raises(PermanentError, match="of the web"):
        run(HttpTask(server.url))
    with serving(answer(302, Location="/again")) as server, pytest.raises(PermanentError, match="more than 5 times"):
        run(HttpTask(server.url))
    assert len(server.asked) == 6
    with serving(answer(307, Location="/again")) as server, pytest.raises(PermanentError, match="answered 307"):
        run(HttpTask(server.url, redirects=0))


def test_a_name_that_leads_elsewhere_by_the_next_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was looked at is what is connected to; and after a redirect to the same name it is looked at again."""
    looks = iter(["127.0.0.1", "10.9.9.9"])

    def look(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        assert host == "rebind.example"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(looks), port))]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    with serving(answer(302, Location="/again")) as server, pytest.raises(PermanentError, match=r"is at 10\.9\.9\.9"):
        run(HttpTask(f"http://rebind.example:{server.port}/"))
    (asked,) = server.asked
    assert asked.headers["host"] == f"rebind.example:{server.port}"
    assert next(looks, None) is None, "one look for each connection"


METADATA = ["169.254.169.254", "[::ffff:169.254.169.254]", "2852039166", "0xa9fea9fe", "[fd00:ec2::254]", "192.0.0.192"]


@pytest.mark.parametrize("host", METADATA)
def test_a_redirect_to_what_a_machine_says_of_itself(host: str) -> None:
    away = answer(302, Location=f"http://{host}/latest/meta-data/iam/")
    with serving(away) as server, pytest.raises(PermanentError, match="not public"):
        run(HttpTask(server.url))


def test_only_the_public_ones_of_several_addresses_are_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    def look(host: str, port: int, *_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in ("10.9.9.9", "127.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", look)
    with serving(answer(200)) as server:
        run(HttpTask(f"http://two.example:{server.port}/"))
        with pytest.raises(PermanentError, match=r"is at 10\.9\.9\.9, 127\.0\.0\.1, which is not public"):
            run(HttpTask(f"http://two.example:{server.port}/"), {})
    assert len(server.asked) == 1


def test_a_redirect_that_keeps_the_method() -> None:
    with serving(answer(308, Location="/there"), answer(200)) as server:
        run(HttpTask(server.url, "PUT", body="data"))
    assert [(a.method, a.path, a.body) for a in server.asked] == [("PUT", "/", b"data"), ("PUT", "/there", b"data")]


def test_tls_is_checked_against_the_name(certificates: Certificates) -> None:
    settings = {"http": {"allow": ["127.0.0.1"], "ca": str(certificates.ca)}}
    with serving(answer(200, b"secure"), tls=certificates.server("127.0.0.1")) as server:
        assert run(HttpTask(server.url), settings)["body"] == "secure"
        with pytest.raises(Unreachable, match="certificate"):
            run(HttpTask(server.url))
    other = certificates.server("other.example")
    with serving(answer(200), tls=other) as server, pytest.raises(Unreachable, match="certificate"):
        run(HttpTask(server.url), settings)
    own, away = certificates.server("127.0.0.1"), answer(302, Location="http://127.0.0.1:1/")
    with serving(away, tls=own) as server, pytest.raises(PermanentError, match="from https to http"):
        run(HttpTask(server.url), settings)


# Secrets


def test_secrets_go_to_their_host_only(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    http = {"allow": ["127.0.0.1"], "secrets": ["token@127.0.0.1"], "secrets_dir": str(tmp_path)}
    headers = {"Authorization": "Bearer ${token}"}
    with serving(answer(200, b"you said hunter2", X_Echo="hunter2")) as server:
        result = run(HttpTask(server.url, headers=headers), {"http": http})
    assert server.asked[0].headers["authorization"] == "Bearer hunter2"
    assert "hunter2" not in json.dumps(result)
    with serving(answer(400, b"bad token hunter2")) as server, pytest.raises(PermanentError) as failed:
        run(HttpTask(server.url, headers=headers), {"http": http})
    assert "hunter2" not in str(failed.value)
    for wrong, says in (
        ({"secrets": ["token@other.example"]}, "may not get the secret 'token'"),
        ({"secrets": []}, "may not get"),
        ({"secrets_dir": None}, "there are no secrets"),
        ({"secrets_dir": "/nowhere"}, "cannot be read"),
    ):
        with serving(answer(200)) as server, pytest.raises(PermanentError, match=says):
            run(HttpTask(server.url, headers=headers), {"http": http | wrong})
        assert not server.asked


@pytest.mark.parametrize(
    ("entry", "url", "allowed"),
    [
        ("token@crm.internal", "https://crm.internal", True),
        ("token@https://crm.internal", "https://crm.internal", True),
        ("token@CRM.internal", "https://crm.Internal", True),
        ("token@http://crm.internal", "https://crm.internal", True),
        ("token@http://crm.internal", "http://crm.internal", True),
        ("token@crm.internal", "http://crm.internal", False),
        ("token@https://crm.internal", "http://crm.internal", False),
        ("token@10.1.2.3", "http://10.1.2.3", False),
        ("token@localhost", "http://localhost", True),
        ("token@127.0.0.1", "http://127.0.0.1", True),
        ("token@::1", "http://::1", True),
    ],
)
def test_secrets_leave_this_machine_encrypted(tmp_path: Path, entry: str, url: str, allowed: bool) -> None:
    (tmp_path / "token").write_text("hunter2\n")
    secrets = Secrets({"http": {"secrets": [entry], "secrets_dir": str(tmp_path)}})
    scheme, _, host = url.partition("://")
    if allowed:
        assert secrets.filled("${token}", scheme, host) == "hunter2"
        return
    says = re.escape(
        f"the secret 'token' would go to {host} unencrypted: use https://, "
        f"or allow that with token@http://{host} in [http] secrets"
    )
    with pytest.raises(PermanentError, match=f"^{says}$"):
        secrets.filled("${token}", scheme, host)


def test_a_request_in_the_clear_is_not_sent_with_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def here(_rules: AddressRules, _host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(AddressRules, "resolve", here)
    (tmp_path / "token").write_text("hunter2\n")
    http = {"secrets": ["token@crm.internal"], "secrets_dir": str(tmp_path)}
    headers = {"Authorization": "Bearer ${token}"}
    with serving(answer(200)) as server:
        request = HttpTask(server.url.replace("127.0.0.1", "crm.internal"), headers=headers)
        with pytest.raises(PermanentError, match=r"would go to crm\.internal unencrypted"):
            run(request, {"http": http})
        assert not server.asked
        assert run(request, {"http": http | {"secrets": ["token@http://crm.internal"]}})["status"] == 200
    assert server.asked[0].headers["authorization"] == "Bearer hunter2"


KEY = 'hunter2"of the/crm'


HOST = "Hunter2-of-the-crm"


@pytest.mark.parametrize(
    ("reply", "fields"),
    [
        (answer(200, f"you said {KEY}".encode()), {"max_body": 20}),  # cut in its middle
        (answer(403, b"x" * 190 + KEY.encode()), {}),  # cut in the error
        (answer(200, b"\0 you said " + KEY.encode()), {}),  # not text
        (answer(200, b"\xff\0" + KEY.encode()), {"max_body": 15}),
        (answer(200, json.dumps({"you said": KEY}).encode()), {}),
        (answer(200, b"", X_Echo=quote(KEY)), {}),
        (answer(200, base64.b64encode(KEY.encode())), {}),
        (answer(302, Location="/" + quote(KEY)), {}),
        (answer(302, Location=f"http://{HOST}.invalid/"), {}),
        (answer(302, Location=f"ftp://{HOST}/"), {}),
        (answer(302, Location=f"http://{HOST}:port/"), {}),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-" + HOST.encode() + b": 1\r\n\r\n", {}),
        (HOST.encode() + b"\r\n\r\n", {}),
    ],
)
def test_a_server_that_repeats_a_secret(tmp_path: Path, reply: bytes, fields: dict[str, Any]) -> None:
    """schedd keeps no usable part of the secret."""
    key = HOST if HOST.encode() in reply else KEY
    (tmp_path / "token").write_text(key)
    http = {"allow": ["127.0.0.1"], "secrets": ["token@127.0.0.1"], "secrets_dir": str(tmp_path)}
    with serving(reply, answer(200)) as server:
        try:
            result = run(HttpTask(server.url, headers={"X-Key": "${token}"}, **fields), {"http": http})
            shown = json.dumps(result, ensure_ascii=False) + unbased(result)
        except (PermanentError, Unreachable) as error:
            shown = f"{error} {error.args} {error.__cause__}"
    assert server.asked[0].headers["x-key"] == key
    assert "hunter2" not in shown.lower()
    assert base64.b64encode(KEY.encode()).decode() not in shown


def unbased(result: dict[str, Any]) -> str:
    return base64.b64decode(result.get("body_base64", "")).decode("utf-8", "replace")


@pytest.mark.parametrize(
    "fields",
    [
        {"url": "ftp://x"},
        {"url": "https://me:pw@x/"},
        {"url": "https://x", "body": "a", "json": 1},
        {"url": "https://x", "headers": {"X": "a\r\nb"}},
        {"url": "https://x", "headers": {"": "a"}},
    ],
)
def test_what_is_refused_when_built(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        HttpTask(**fields)


def test_an_address_of_mail_in_a_query_is_no_password() -> None:
    assert HttpTask("https://api.example.com?of=ada@example.org").url.endswith("?of=ada@example.org")


def test_certificates_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for file, why in (("missing.pem", "No such file"), ("nonsense.pem", "")):
        (tmp_path / "nonsense.pem").write_text("nonsense")
        with pytest.raises(Unreachable, match=rf"\[http\] ca = '.*{file}' cannot be read: {why}"):
            run(HttpTask("https://127.0.0.1"), {"http": {"ca": str(tmp_path / file)}})


# Deliveries

INBOX = {"http": {"allow": ["127.0.0.1"]}}


def action(**claims: Any) -> str:
    """An action with a signature of zeros, for bob unless ``aud`` says otherwise."""
    fields = {"iss": "alice.example", "iat": 1, "t": "POST", "aud": "bob.example"} | claims
    parts = (json.dumps({"alg": "ES384"}).encode(), json.dumps(fields).encode(), bytes(96))
    return ".".join(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts)


def deliver(server: Server, *, results: dict[int, Any] | None = None, **fields: Any) -> Any:
    settings = INBOX | {"actions": {"inbox": f"{server.url}/to/{{recipient}}/api/inbox"}}
    return run(ActionDeliveryTask("bob.example", **fields), settings, results=results or {})


def test_a_delivery() -> None:
    token = action()
    with serving(answer(202)) as server:
        assert deliver(server, token=token, related=["d.e.f"]) == {"recipient": "bob.example", "status": 202}
    (asked,) = server.asked
    assert asked.path == "/to/bob.example/api/inbox"
    assert json.loads(asked.body) == {"token": token, "related": ["d.e.f"]}
    assert asked.headers["idempotency-key"] == "task-42"
    with serving(answer(202)) as server:
        deliver(server, results={3: {"token": token}, 4: {"file_id": "f1~x"}})
    assert json.loads(server.asked[0].body)["token"] == token
    with pytest.raises(PermanentError, match="there are 0 tokens"):
        deliver(server)


@pytest.mark.parametrize(
    ("status", "error"), [(503, Refused), (429, Refused), (403, PermanentError), (302, PermanentError)]
)
def test_deliveries_that_fail(status: int, error: type[Exception]) -> None:
    with serving(answer(status, b"no", Location="/else")) as server, pytest.raises(error, match="the inbox of bob"):
        deliver(server, token=action())


@pytest.mark.case(90, pure=True)
def test_an_action_goes_to_its_audience_only() -> None:
    with serving(answer(202)) as server:
        for token, message in (
            (action(aud=["carol.example"]), r"is for carol\.example, and not for bob\.example"),
            (action(aud=[]), "not a signed action: aud names 0 domains"),
            ("x", "not a signed action"),
        ):
            with pytest.raises(PermanentError, match=message):
                deliver(server, token=token)
        assert server.asked == []
        deliver(server, token=action(aud=["carol.example", "bob.example"]))
        assert len(server.asked) == 1


@pytest.mark.parametrize(
    "recipient", ["", "Bob.example", "bob example", "a/b", "x@y", "-a.example", "a" * 64 + ".example", "a..b"]
)
def test_recipients_that_are_none(recipient: str) -> None:
    with pytest.raises(ValueError):
        ActionDeliveryTask(recipient, "x")


def test_the_usual_inbox() -> None:
    from scheduler.tasks.actions.delivery import inbox_of

    assert inbox_of({}, "bob.example") == "https://cl-o.bob.example/api/inbox"
    with pytest.raises(PermanentError, match="must contain"):
        inbox_of({"actions": {"inbox": "https://x/"}}, "bob.example")
