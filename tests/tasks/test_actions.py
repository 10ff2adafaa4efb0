"""ActionCreatorTask and ActionVerifierTask: signatures, permissions, keys and files, against a real server."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from scheduler import PermanentError
from scheduler.tasks import ActionCreatorTask, ActionVerifierTask
from scheduler.tasks.actions import verifier
from scheduler.tasks.actions.store import ActionStore
from scheduler.tasks.actions.tokens import action_id_of, is_signed_by, load_public_key, public_keys, read
from scheduler.tasks.actions.verifier import MISSING_KEY_TTL, RING
from scheduler.tasks.files.blob_store import BlobStore, Incoming
from scheduler.tasks.http import client
from scheduler.tasks.http.errors import Refused, Unreachable
from scheduler.tasks.http.secrets import Secrets

from .fake import AsyncFakeContext, FakeContext
from .server import Asked, Server, answer, serving

PHOTO = b"a photo"
UNREACHABLE = "http://127.0.0.1:1"


def new_key(curve: ec.EllipticCurve | None = None) -> bytes:
    key = ec.generate_private_key(curve or ec.SECP384R1())
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


KEY = new_key()


class Side:
    """One of the two servers' stores, and its settings. Requests go to ``server``."""

    def __init__(self, place: Path, server: str = UNREACHABLE, **actions: Any) -> None:
        place.mkdir(exist_ok=True)
        (place / "key.pem").write_bytes(KEY)
        self.blobs, self.actions = BlobStore(place / "blobs"), ActionStore(place / "actions")
        self.settings: dict[str, Any] = {
            "actions": {
                "name": "alice.example" if server == UNREACHABLE else "bob.example",
                "audience": ["bob.example"],
                "key_file": str(place / "key.pem"),
                "directory": str(place / "actions"),
                "keys": f"{server}/{{issuer}}/api/me/keys",
                "files": f"{server}/{{issuer}}/api/files/{{file_id}}",
                "following": ["alice.example"],
                **actions,
            },
            "files": {"blobs": str(place / "blobs")},
            "http": {"allow": ["127.0.0.1"]},
        }

    def file(self, data: bytes = PHOTO) -> str:
        file_id = self.blobs.put(data).file_id
        self.blobs.add_metadata(7, file_id, {"size": len(data)})
        return str(file_id)

    def make(self, type: str = "POST", content: Any = None, **fields: Any) -> Any:
        results = fields.pop("results", None)
        ctx = fields.pop("ctx", None) or FakeContext(results=results)
        ctx.settings = self.settings
        return ActionCreatorTask(7, type, content, **fields).run(ctx)

    def take(self, token: str) -> Any:
        return asyncio.run(ActionVerifierTask(7, token).run(AsyncFakeContext(self.settings)))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_keys_are_known() -> None:
    RING.clear()


@pytest.fixture
def alice(tmp_path: Path) -> Side:
    return Side(tmp_path / "alice")


class Published:
    """What alice's server says: ``keys`` and ``files``; ``asked``: how often for what."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.keys: list[dict[str, Any]] = public_keys(KEY)
        self.status = 200
        self.files: dict[str, bytes] = {}

    def __call__(self, connection: Any, asked: Asked) -> None:
        name = asked.path.rpartition("/")[2]
        if name == "keys":
            connection.sendall(answer(self.status, json.dumps({"name": "alice", "keys": self.keys}).encode()))
        elif name in self.files:
            connection.sendall(answer(200, self.files[name], Content_Type="image/jpeg; charset=x"))
        else:
            connection.sendall(answer(404))

    def count(self, what: str) -> int:
        return sum(what in asked.path for asked in self.server.asked)


@pytest.fixture
def published() -> Iterator[Published]:
    with serving(b"") as server:
        made = Published(server)
        server._answers = [made]
        yield made


@pytest.fixture
def bob(tmp_path: Path, published: Published) -> Side:
    return Side(tmp_path / "bob", published.server.url)


def forge(key: bytes = KEY, headers: dict[str, Any] | None = None, **claims: Any) -> str:
    claims = {"iss": "alice.example", "iat": int(time.time()), "t": "POST", "c": 1, "aud": "bob.example"} | claims
    token = jwt.encode({k: v for k, v in claims.items() if v is not ...}, key, "ES384", headers)
    return token if s_of(token) <= ORDER // 2 else twin(token)


# The order of P-384, as FIPS 186-4 has it.
ORDER = (
    39402006196394479212279040100143613805079739270465446667946905279627659399113263569398956308152294913554433653942643
)


def s_of(token: str) -> int:
    """The second half of an ES384 signature."""
    return int.from_bytes(base64.urlsafe_b64decode(token.rpartition(".")[2])[48:])


def twin(token: str) -> str:
    """The same token by its other valid signature: (r, n-s)."""
    head, _, signature = token.rpartition(".")
    raw = base64.urlsafe_b64decode(signature)
    other = (ORDER - int.from_bytes(raw[48:])).to_bytes(48)
    return f"{head}.{base64.urlsafe_b64encode(raw[:48] + other).decode()}"


# Making


def test_an_action(alice: Side) -> None:
    first, second = alice.file(), alice.file(b"another")
    parent = action_id_of("x")
    results = {3: {"file_id": second}, 2: {"file_id": first}, 4: {"other": 1}, 5: None}
    made = alice.make("IMG", {"text": "Grüße"}, parent=parent, attachments=[second], expires_in=3600, results=results)
    token = made["token"]
    public = load_public_key(public_keys(KEY)[0]["publicKey"])
    assert public is not None
    claims = jwt.decode(token, public, algorithms=["ES384"], options={"verify_exp": False, "verify_aud": False})
    iat = 1767323045  # when the task was scheduled
    assert claims == {
        "iss": "alice.example",
        "iat": iat,
        "t": "IMG",
        "c": {"text": "Grüße"},
        "p": parent,
        "a": [second, first],
        "exp": iat + 3600,
        "aud": ["bob.example"],
    }
    assert jwt.get_unverified_header(token)["alg"] == "ES384"
    digest = hashlib.sha256(token.encode()).digest()
    assert made["action_id"] == "a1~" + base64.urlsafe_b64encode(digest).decode().rstrip("=")
    assert made["attachments"] == [second, first]
    assert alice.actions.get(7, made["action_id"]) == {
        "action_id": made["action_id"],
        "token": token,
        "origin": "own",
        **claims,
    }
    assert alice.actions.get(8, made["action_id"]) is None


def test_another_attempt_makes_the_same_action(alice: Side) -> None:
    ctx = FakeContext()
    first = alice.make(ctx=ctx)
    alice.actions.path(7, first["action_id"]).unlink()
    assert alice.make(ctx=ctx) == first
    assert alice.actions.get(7, first["action_id"]) is not None
    assert alice.make() != first, "a signature is never the same twice"
    assert read(alice.make(content="other", ctx=ctx)["token"]).claims.c == "other", "as a replay with another payload"


def test_actions_that_cannot_be_made(alice: Side, tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match="tenant 7 has no file f1~"):
        alice.make(attachments=["f1~" + "x" * 43])
    with pytest.raises(PermanentError, match="tenant 7 has no file nonsense"):
        alice.make(results={1: {"file_id": "nonsense"}})
    for key, says in (
        (new_key(ec.SECP256R1()), "not on the curve P-384"),
        (b"hunter2", "not a private key in PEM"),
    ):
        (tmp_path / "alice" / "key.pem").write_bytes(key)
        with pytest.raises(PermanentError, match=says) as failed:
            alice.make()
        assert "hunter2" not in str(failed.value)
    (tmp_path / "alice" / "key.pem").unlink()
    with pytest.raises(PermanentError, match="cannot be read: No such file"):
        alice.make()
    for missing in ("name", "key_file", "directory"):
        broken = Side(tmp_path / "alice", **{missing: None})
        with pytest.raises(PermanentError, match=rf"needs the setting {missing} of \[actions\]"):
            broken.make()


@pytest.mark.parametrize("missing", ["jwt", "cryptography"])
def test_without_what_it_needs(alice: Side, bob: Side, missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    token = alice.make()["token"]
    monkeypatch.setitem(sys.modules, missing, None)
    for what in (alice.make, lambda: bob.take(token)):
        with pytest.raises(PermanentError, match=r"pip install 'schedd\[actions\]'"):
            what()


@pytest.mark.parametrize(
    "fields",
    [
        {"parent": "a1~x"},
        {"attachments": ["f1~x"]},
        {"audience": ["https://bob.example"]},
        {"audience": ["Bob.example"]},
        {"audience": [f"{n}.example" for n in range(101)]},
    ],
)
def test_what_is_refused_when_built(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ActionCreatorTask(7, "POST", **fields)


# Whom it is for


@pytest.mark.case(90, pure=True)
def test_an_action_names_whom_it_is_for(alice: Side) -> None:
    token = alice.make(audience=["carol.example", "dora.example", "carol.example"])["token"]
    assert read(token).claims.aud == ("carol.example", "dora.example")
    assert read(alice.make()["token"]).claims.aud == ("bob.example",), "as [actions] audience says"
    alice.settings["actions"]["audience"] = []
    with pytest.raises(PermanentError, match=r"the action has no audience: name whom it is for \(audience="):
        alice.make()
    alice.settings["actions"]["audience"] = ["Bob"]
    with pytest.raises(PermanentError, match=r"\[actions\] audience must be domains in lower case, not 'Bob'"):
        alice.make()
    alice.settings["actions"] |= {"audience": [], "require_audience": False}
    assert read(alice.make()["token"]).claims.aud == ()


@pytest.mark.case(90, pure=True)
def test_who_is_not_in_the_audience_refuses_it(bob: Side, published: Published) -> None:
    for aud, message in (
        ("carol.example", r"is for carol\.example, and not for bob\.example"),
        (["carol.example", "dora.example"], r"is for carol\.example, dora\.example, and not"),
        ([f"{n}.example" for n in range(9)], r"is for 0\.example, 1\.example, 2\.example and 6 more, and not"),
        (..., r"has no audience \(aud\), so it is not taken for bob\.example: .*require_audience = false"),
    ):
        with pytest.raises(PermanentError, match=message) as refused:
            bob.take(forge(aud=aud))
        assert refused.value.status == 403
    assert published.server.asked == [], "nothing is asked for an action of others"
    for aud in ("bob.example", ["carol.example", "bob.example"]):
        bob.take(forge(aud=aud))
    bob.settings["actions"]["require_audience"] = False
    bob.take(forge(aud=...))
    with pytest.raises(PermanentError, match="and not for bob"):
        bob.take(forge(aud="carol.example"))


def test_taking_needs_a_name(bob: Side) -> None:
    bob.settings["actions"]["name"] = None
    with pytest.raises(PermanentError, match=r"needs the setting name of \[actions\]"):
        bob.take(forge())


# One id


@pytest.mark.case(90, pure=True)
def test_what_is_signed_here_has_the_low_s(alice: Side) -> None:
    """Half of all signatures would have the high one."""
    assert all(s_of(alice.make(content=number)["token"]) <= ORDER // 2 for number in range(40))


@pytest.mark.case(90, pure=True)
def test_the_other_signature_of_an_action_is_refused(alice: Side, bob: Side) -> None:
    token = alice.make()["token"]
    other = twin(token)
    public = load_public_key(public_keys(KEY)[0]["publicKey"])
    assert public is not None
    payload = jwt.decode(other, public, algorithms=["ES384"], options={"verify_aud": False})
    assert payload["iss"] == "alice.example", "the twin's signature is valid by itself"
    assert action_id_of(other) != action_id_of(token)
    with pytest.raises(PermanentError, match=r"its signature has a second form .*sign with the lower s"):
        bob.take(other)
    assert is_signed_by(token, public)
    assert not is_signed_by(other, public)
    bob.take(token)
    assert twin(other) == token


@pytest.mark.case(90, pure=True)
@pytest.mark.parametrize("spoilt", ["{}=", "{}====", "{}!", "!{}", "{}A", "{} ", "{}\n"])
def test_a_signature_is_written_in_one_way(alice: Side, bob: Side, spoilt: str) -> None:
    """A lenient reader of base64 passes over what is not of its alphabet, so the text, and the id, would be another."""
    head, _, signature = alice.make()["token"].rpartition(".")
    with pytest.raises(PermanentError, match="not a signed action: its signature"):
        bob.take(f"{head}.{spoilt.format(signature)}")


@pytest.mark.case(90, pure=True)
@pytest.mark.parametrize(
    ("algorithm", "curve"), [("ES256", ec.SECP256R1()), ("ES256K", ec.SECP256K1()), ("ES512", ec.SECP521R1())]
)
def test_no_other_curve_is_taken(bob: Side, published: Published, algorithm: str, curve: ec.EllipticCurve) -> None:
    """So P-384 is the only one whose signatures have a twin."""
    pem = new_key(curve)
    claims = {"iss": "alice.example", "iat": int(time.time()), "t": "POST", "aud": "bob.example"}
    with pytest.raises(PermanentError, match=f"signed by '{algorithm}' and not by ES384"):
        bob.take(jwt.encode(claims, pem, algorithm))
    key = serialization.load_pem_private_key(pem, None).public_key()
    spki = serialization.PublicFormat.SubjectPublicKeyInfo
    assert load_public_key(key.public_bytes(serialization.Encoding.PEM, spki).decode()) is None


# Taking


def test_an_action_that_is_right(alice: Side, bob: Side, published: Published) -> None:
    file_id = alice.file()
    published.files[file_id] = PHOTO
    made = alice.make(content="hello", attachments=[file_id])
    assert bob.take(made["token"]) == {
        "action_id": made["action_id"],
        "iss": "alice.example",
        "t": "POST",
        "fetched": [file_id],
    }
    stored = bob.actions.get(7, made["action_id"])
    assert stored is not None
    assert (stored["token"], stored["origin"], stored["c"]) == (made["token"], "received", "hello")
    assert bob.blobs.path(file_id).read_bytes() == PHOTO
    known = bob.blobs.metadata(7, file_id)
    assert known is not None
    assert (known["size"], known["content_type"], known["origin"]) == (len(PHOTO), "image/jpeg", "alice.example")
    assert bob.take(made["token"])["fetched"] == [], "what is there is not fetched again"
    assert published.count("files") == 1


def test_keys_are_fetched_once(alice: Side, bob: Side, published: Published) -> None:
    for number in range(5):
        bob.take(alice.make(content=number)["token"])
    assert published.count("keys") == 1


def test_several_at_once_fetch_them_once(alice: Side, bob: Side, published: Published) -> None:
    tokens = [alice.make(content=number)["token"] for number in range(5)]

    async def all_at_once() -> None:
        tasks = [ActionVerifierTask(7, token).run(AsyncFakeContext(bob.settings)) for token in tokens]  # type: ignore[arg-type]
        await asyncio.gather(*tasks)

    asyncio.run(all_at_once())
    assert published.count("keys") == 1


def test_a_new_key_is_asked_for(bob: Side, published: Published, monkeypatch: pytest.MonkeyPatch) -> None:
    bob.take(forge())
    other = new_key()
    published.keys = public_keys(other)
    with pytest.raises(PermanentError, match="not by a key of alice"):
        bob.take(forge(other))
    assert published.count("keys") == 1, "not at once: a stranger with a wrong key would cause a request each time"
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + MISSING_KEY_TTL + 1)
    bob.take(forge(other))
    with pytest.raises(PermanentError, match="not by a key of alice"):
        bob.take(forge())
    assert published.count("keys") == 2


def test_signatures_that_are_wrong(bob: Side, published: Published) -> None:
    good = forge()
    head, body, signature = good.split(".")
    other_claims = forge(c=2).split(".")[1]
    swapped = base64.urlsafe_b64encode(b"\1" * 96).decode()  # the low s that a valid one has
    wrong = [forge(new_key()), f"{head}.{other_claims}.{signature}", f"{head}.{body}.{swapped}"]
    wrong.append(forge(headers={"kid": "another"}))
    for token in wrong:
        with pytest.raises(PermanentError, match=r"signature of a1~.* is not by a key of alice"):
            bob.take(token)
    with pytest.raises(PermanentError, match="signature is not 96 bytes in base64url"):
        bob.take(f"{head}.{body}.")
    published.keys = [{"keyId": "old", "expiresAt": int(time.time()) - 10, **public_keys(KEY)[0]}]
    RING.clear()
    with pytest.raises(PermanentError, match="not by a key"):
        bob.take(good)
    assert bob.take(forge(iat=int(time.time()) - 20))["t"] == "POST", "signed while the key was good"
    assert bob.actions.get(7, action_id_of(good)) is None


def test_times(bob: Side) -> None:
    now = int(time.time())
    bob.take(forge(exp=now + 100, iat=now + 60))
    with pytest.raises(PermanentError, match="has expired"):
        bob.take(forge(exp=now - 1))
    with pytest.raises(PermanentError, match="from the future"):
        bob.take(forge(iat=now + 3600))


def test_who_is_permitted(tmp_path: Path, published: Published) -> None:
    url = published.server.url
    token = forge()
    for setting in ({"following": []}, {"following": ["bob.example"], "relation": f"{__name__}:stranger"}):
        with pytest.raises(PermanentError, match=r"alice\.example is neither followed by tenant 7") as failed:
            Side(tmp_path / "a", url, **setting).take(token)
        assert failed.value.status == 403
    assert published.server.asked == [], "a stranger causes no request"
    Side(tmp_path / "b", url, following=[], connected=["alice.example"]).take(token)
    Side(tmp_path / "c", url, following=[], relation=f"{__name__}:friend").take(token)


def stranger(tn_id: int, issuer: str) -> str | None:
    return "blocked"


def friend(tn_id: int, issuer: str) -> str | None:
    return "connected" if (tn_id, issuer) == (7, "alice.example") else None


def test_files_that_are_wrong(alice: Side, bob: Side, published: Published) -> None:
    file_id = alice.file()
    token = alice.make(attachments=[file_id])["token"]
    with pytest.raises(PermanentError, match="404"):
        bob.take(token)
    published.files[file_id] = b"another photo"
    with pytest.raises(PermanentError, match=rf"what alice\.example sent for {file_id} is another file"):
        bob.take(token)
    bob.settings["actions"]["max_file"] = 3
    with pytest.raises(PermanentError, match="larger than 3 bytes"):
        bob.take(token)
    assert bob.actions.get(7, action_id_of(token)) is None
    assert not bob.blobs.exists(file_id)
    assert list((bob.blobs.root / "tmp").iterdir()) == []


def test_a_file_is_never_in_memory_as_a_whole(
    alice: Side, bob: Side, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = bytes(range(256)) * (12 * 4096)
    token = alice.make(attachments=[alice.file(photo)])["token"]
    (file_id,) = read(token).claims.a
    published.files[file_id] = photo
    pieces: list[int] = []
    write = Incoming.write

    def watched(coming: Incoming, data: bytes) -> None:
        pieces.append(len(data))
        write(coming, data)

    monkeypatch.setattr(Incoming, "write", watched)
    assert bob.take(token)["fetched"] == [file_id]
    assert sum(pieces) == len(photo)
    assert max(pieces) < 1024 * 1024
    assert bob.blobs.path(file_id).read_bytes() == photo
    assert bob.blobs.path(file_id).stat().st_mode & 0o222 == 0
    assert list((bob.blobs.root / "tmp").iterdir()) == []


def test_a_fetch_that_is_cancelled_leaves_nothing(
    alice: Side, bob: Side, published: Published, monkeypatch: pytest.MonkeyPatch
) -> None:
    file_id = alice.file()
    token = alice.make(attachments=[file_id])["token"]
    written, go_on = threading.Event(), threading.Event()
    write = Incoming.write

    def watched(coming: Incoming, data: bytes) -> None:
        write(coming, data)
        written.set()

    monkeypatch.setattr(Incoming, "write", watched)

    def stalls(connection: Any, asked: Asked) -> None:
        if "files" not in asked.path:
            published(connection, asked)
            return
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 10000000\r\n\r\n" + bytes(1_000_000))
        go_on.wait(30)

    published.server._answers = [stalls]

    async def cancelled() -> None:
        task = asyncio.ensure_future(ActionVerifierTask(7, token).run(AsyncFakeContext(bob.settings)))  # type: ignore[arg-type]
        assert await asyncio.to_thread(written.wait, 30)
        assert any((bob.blobs.root / "tmp").iterdir())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancelled())
    go_on.set()
    assert list((bob.blobs.root / "tmp").iterdir()) == []
    assert not bob.blobs.exists(file_id)


def test_what_is_sent_instead_of_a_file_is_not_taken(bob: Side, published: Published) -> None:
    """Neither into memory nor into the store."""
    published.server._answers = [answer(404, bytes(2_000_000))]
    taken: list[bytes] = []
    call = client.HttpCall("GET", published.server.url, max_body=10_000_000)
    reply = asyncio.run(client.send(call, bob.settings, Secrets({}), taken.append))
    assert (reply.status, reply.truncated, len(reply.body)) == (404, True, client.SINK_CHUNK)
    assert taken == []


def test_a_file_dropped_while_a_thread_writes_it(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    coming = store.incoming()
    coming.drop()
    assert not (tmp_path / "tmp").exists()
    coming = store.incoming()
    coming.write(b"some")
    with coming.open() as (fd, staged):
        coming.drop()
        os.write(fd, b"more")
        assert staged.exists()
    assert not staged.exists()
    with pytest.raises(OSError, match="any more"):
        coming.write(b"and more")
    coming.drop()


def test_files_are_fetched_a_few_at_a_time(alice: Side, bob: Side, published: Published) -> None:
    file_id = alice.file()
    published.files[file_id] = PHOTO
    token = alice.make(attachments=[file_id])["token"]

    async def while_others_fetch() -> None:
        turns = asyncio.Semaphore(0)
        verifier._turns[asyncio.get_running_loop()] = turns
        task = asyncio.ensure_future(ActionVerifierTask(7, token).run(AsyncFakeContext(bob.settings)))  # type: ignore[arg-type]
        await asyncio.wait([task], timeout=0.3)
        assert not task.done()
        assert published.count("files") == 0
        turns.release()
        assert (await task)["fetched"] == [file_id]

    asyncio.run(while_others_fetch())


def test_a_server_that_is_away(alice: Side, bob: Side, published: Published) -> None:
    token = alice.make()["token"]
    published.status = 503
    with pytest.raises(Refused, match=r"the keys of alice\.example: 503"):
        bob.take(token)
    published.status = 404
    with pytest.raises(PermanentError, match="404"):
        bob.take(token)
    bob.settings["actions"]["keys"] = f"{UNREACHABLE}/{{issuer}}"
    with pytest.raises(Unreachable):
        bob.take(token)
    bob.settings["http"] = {}
    with pytest.raises(PermanentError, match="not public"):
        bob.take(token)


def encoded(*parts: Any) -> str:
    return ".".join(
        base64.urlsafe_b64encode(part if isinstance(part, bytes) else json.dumps(part).encode()).decode().rstrip("=")
        for part in parts
    )


HEAD = {"alg": "ES384", "typ": "JWT"}
CLAIMS: dict[str, Any] = {"iss": "alice.example", "iat": 1, "t": "POST"}


@pytest.mark.parametrize(
    "token",
    [
        "",
        "a.b",
        "a.b.c.d",
        "ä.b.c",
        "%.%.%",
        encoded(b"[" * 100_000, {}, b""),
        encoded([], CLAIMS, b""),
        encoded(HEAD, [], b""),
        encoded({"alg": "none"}, CLAIMS, b""),
        encoded({"alg": "HS256"}, CLAIMS, b""),
        encoded({"alg": ["ES384"]}, CLAIMS, b""),
        *(
            encoded(HEAD, CLAIMS | wrong, b"")
            for wrong in (
                {"iss": "alice.example/../.."},
                {"iss": "alice.example:80"},
                {"iss": 5},
                {"t": ""},
                {"iat": "1"},
                {"iat": True},
                {"iat": None},
                {"exp": "never"},
                {"p": "a1~../../x"},
                {"a": "f1~"},
                {"a": ["../../etc/passwd"]},
                {"a": [f"f1~{n:043}" for n in range(101)]},
                {"aud": None},
                {"aud": []},
                {"aud": 5},
                {"aud": ["bob.example", 5]},
                {"aud": "https://bob.example"},
                {"aud": [f"{n}.example" for n in range(101)]},
            )
        ),
    ],
)
def test_what_is_no_action(token: str) -> None:
    with pytest.raises(PermanentError, match="not a signed action"):
        read(token)


def test_an_audience_is_a_list_of_domains_or_none_at_all() -> None:
    assert ActionCreatorTask(1, "POST", audience=None) == ActionCreatorTask(1, "POST")
    for wrong in ("bob.example", {"bob.example"}, 5):
        with pytest.raises(ValueError, match="audience must be a list of domains"):
            ActionCreatorTask(1, "POST", audience=wrong)  # type: ignore[arg-type]
