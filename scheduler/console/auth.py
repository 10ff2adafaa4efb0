"""Who asks: a link for one use, tokens, passwords, a proxy in front, the Unix socket, or the program around us."""

from __future__ import annotations

import base64
import hashlib
import hmac
import inspect
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import anyio
import anyio.to_thread
from starlette.requests import Request

from scheduler.config.addresses import OPEN_CONSOLE
from scheduler.console.roles import Principal, Verb, read_roles
from scheduler.console.security import Failures, Peer
from scheduler.console.sessions import Sessions, StoredSessions
from scheduler.errors import ConfigError
from scheduler.operations.desk import Desk
from scheduler.system import LINUX
from scheduler.system.processes import user_id, user_name

LINK_SECONDS = 60.0  # for which a link for one use is good
LINKS_EVERY = 10.0  # seconds between two links that a visitor may have printed
VERIFIED_SECONDS = 12 * 3600.0  # for which a password that was right is not hashed again
MAX_VERIFIED = 10_000
HASHES = 2  # passwords that are hashed at once
SLOW_SECONDS = 0.5  # after a wrong password of a client or a name that has failed too often
WAITING, SLOW_WAITING = 64, 8  # passwords of one client that wait; of one with too many failures, for one name
SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**14, 8, 1
SCRYPT_MEMORY = 64 * 1024 * 1024
PROXY_SECRET_HEADER = "x-schedd-proxy-secret"
Roles = Mapping[str, frozenset[Verb]]


class WrongCredentialsError(Exception):
    """What was presented is wrong: it counts as a failed log-in."""


class TooManyAttemptsError(Exception):
    """What was presented has not been looked at."""


class ConsoleAuth:
    """How it is found out who asks. ``form``: the field of the log-in page; ``challenge``: of a 401; ``wants``: what a
    program has to send; ``sessions``: its cookies, if it has any."""

    name = ""
    form = ""
    challenge: str | None = None
    wants = ""
    sessions: Sessions | None = None

    async def identify(self, request: Request, peer: Peer) -> Principal | None:
        """Who asks; None: unknown. Raises WrongCredentialsError."""
        raise NotImplementedError

    def log_in(self, given: str) -> Principal | None:
        """Who has this token; None: no user has."""
        return None


class LinkAuth(ConsoleAuth):
    """A link with a token for one use, printed in the terminal, and exchanged for a cookie. For loopback addresses.

    Other users of the machine, and pages of other sites, reach loopback addresses too.
    """

    name = "link"

    def __init__(self, roles: Roles) -> None:
        self._roles = roles
        self.sessions: Sessions = Sessions()  # of this process alone: a link is printed anew at each start
        self._links: dict[str, float] = {}
        self._printed = 0.0
        self.show: Callable[[str], None] = lambda token: None  # prints a link with this token

    def new_link(self) -> str:
        """The token of a new link."""
        token = secrets.token_urlsafe(24)
        self._links[hashlib.sha256(token.encode()).hexdigest()] = time.monotonic() + LINK_SECONDS
        return token

    def print_link(self) -> bool:
        """Have a new link printed where the console was started; False if one was a moment ago."""
        if time.monotonic() - self._printed < LINKS_EVERY:
            return False
        self._printed = time.monotonic()
        self.show(self.new_link())
        return True

    async def identify(self, request: Request, peer: Peer) -> Principal | None:
        user = await self.sessions.user(request)
        return None if user is None else Principal(user, "admin", self._roles["admin"], True)

    def log_in(self, given: str) -> Principal | None:
        """Use up a link."""
        now = time.monotonic()
        until = self._links.pop(hashlib.sha256(given.encode("utf-8", "replace")).hexdigest(), 0.0)
        self._links = {key: end for key, end in self._links.items() if end > now}
        return Principal(_os_name(user_id()), "admin", self._roles["admin"], True) if until > now else None


class User(NamedTuple):
    """A line of the users file."""

    name: str
    role: str
    hash: str


class Users:
    """The users file: lines of ``name role hash``. It is read again when it changes, so that a removed one is out."""

    def __init__(self, path: Path, roles: Roles, method: str) -> None:
        self._path, self._roles, self._method = path, roles, method
        self._seen: tuple[int, int] = (0, 0)
        self._users: dict[str, User] = {}
        self.users()  # a mistake is an error at the start

    def users(self) -> dict[str, User]:
        """Users by name. Raises ConfigError."""
        try:
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._seen:
                self._users = self._read(self._path.read_text(encoding="utf-8"))
                self._seen = (stat.st_mtime_ns, stat.st_size)
        except OSError as error:
            raise ConfigError(f"cannot read the users file {self._path}: {error.strerror or error}") from None
        return self._users

    def _read(self, text: str) -> dict[str, User]:
        found = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            where = f"{self._path}:{number}"
            if len(words) != 3:
                raise ConfigError(f'{where}: a user is "name role hash", as `schedctl console --new-user` prints it')
            user = User(*words)
            if user.role not in self._roles:
                raise ConfigError(f"{where}: there is no role {user.role!r}; there are {', '.join(self._roles)}")
            if not user.hash.startswith(f"{self._method}:"):
                raise ConfigError(f"{where}: the hash of {user.name} must begin with {self._method}:")
            found[user.name] = user
        return found

    def session_keys(self) -> dict[str, str]:
        """What signs the cookies of each user's sessions. A stranger does not know the hash."""
        return {_session_name(user): user.hash for user in self.users().values()}

    def principal(self, user: User, name: str, session: bool = False) -> Principal:
        """The user as one who asks."""
        return Principal(name, user.role, self._roles[user.role], session)


class TokenAuth(ConsoleAuth):
    """Tokens of the users file: ``Authorization: Bearer``, or typed into the log-in page and exchanged for a cookie."""

    name = form = "token"
    challenge = "Bearer"
    wants = "Send `Authorization: Bearer TOKEN`, with a token of [console] users."

    def __init__(self, users: Users, sessions: Sessions) -> None:
        self._users = users
        self.sessions: Sessions = sessions

    async def identify(self, request: Request, peer: Peer) -> Principal | None:
        method, _, token = request.headers.get("authorization", "").partition(" ")
        if method.lower() == "bearer":
            found = self._find(token.strip())
            if found is None:
                raise WrongCredentialsError
            return self._users.principal(found, f"token:{found.name}")
        known = await self.sessions.user(request)
        name, _, mark = (known or "").partition(" ")
        user = self._users.users().get(name)
        if user is None or not hmac.compare_digest(mark, user.hash[-16:]):  # removed, or given another token, since
            return None
        return self._users.principal(user, f"token:{user.name}", True)

    def log_in(self, given: str) -> Principal | None:
        found = self._find(given)
        return None if found is None else self._users.principal(found, _session_name(found), True)

    def _find(self, token: str) -> User | None:
        mark = f"sha256:{hashlib.sha256(token.encode('utf-8', 'replace')).hexdigest()}"
        found = None
        for user in self._users.users().values():
            if hmac.compare_digest(user.hash, mark):
                found = user
        return found


class _Lane:
    """The passwords of one client that are to be looked at. ``waiting``: how many, by name, with the one that is."""

    def __init__(self) -> None:
        self.turn = anyio.Lock()
        self.waiting: Counter[str] = Counter()


class BasicAuth(ConsoleAuth):
    """Names and passwords of the users file (scrypt)."""

    name = "basic"
    challenge = 'Basic realm="schedd", charset="UTF-8"'
    wants = "Send a name and its password of [console] users, by HTTP Basic."

    def __init__(self, users: Users) -> None:
        self._users = users
        self._key = secrets.token_bytes(32)
        self._verified: dict[bytes, float] = {}
        self._by_name = Failures()
        self._by_client = Failures(20)
        self._lanes: dict[str, _Lane] = {}
        self._decoy_hash = hash_password(secrets.token_hex())  # hashed against where there is no such user

    async def identify(self, request: Request, peer: Peer) -> Principal | None:
        method, _, given = request.headers.get("authorization", "").partition(" ")
        if method.lower() != "basic":
            return None
        try:
            name, sign, password = base64.b64decode(given.strip(), validate=True).decode().partition(":")
        except ValueError:
            raise WrongCredentialsError from None
        user = self._users.users().get(name)
        if not sign or not await self._check(user, name, password, peer.client):
            raise WrongCredentialsError
        assert user is not None
        return self._users.principal(user, f"{name} (basic)")

    @cached_property
    def _hashing(self) -> anyio.CapacityLimiter:
        return anyio.CapacityLimiter(HASHES)

    async def _check(self, user: User | None, name: str, password: str, client: str) -> bool:
        """Whether a password is right. A client's passwords are looked at one after the other, so that many guesses of
        one client delay no other; a wrong one of a client or name with too many failures holds up those behind it.

        A right one is answered when it has been looked at, and one that was right before at once.
        """
        stored = user.hash if user is not None else self._decoy_hash
        mark = hmac.digest(self._key, f"{name}\0{stored}\0{password}".encode("utf-8", "replace"), "sha256")
        if user is not None and self._verified.get(mark, 0.0) > time.monotonic():
            return True
        place = f"{client} {name}"
        lane = self._lanes.setdefault(client, _Lane())
        guessed = self._by_name.refuses(place) or self._by_client.refuses(client)
        if lane.waiting.total() >= WAITING or (guessed and lane.waiting[name] >= SLOW_WAITING):
            raise TooManyAttemptsError
        lane.waiting[name] += 1
        try:
            async with lane.turn:
                right = await self._hashed(stored, password) and user is not None
                if not right:
                    guessed = self._by_name.refuses(place) or self._by_client.refuses(client)
                    self._by_name.add(place)
                    self._by_client.add(client)
                    if guessed:
                        await anyio.sleep(SLOW_SECONDS)
        finally:
            lane.waiting -= Counter((name,))
            if not lane.waiting:
                self._lanes.pop(client, None)
        if not right:
            return False
        now = time.monotonic()
        if len(self._verified) >= MAX_VERIFIED:
            self._verified = {key: end for key, end in self._verified.items() if end > now}
        if len(self._verified) < MAX_VERIFIED:
            self._verified[mark] = now + VERIFIED_SECONDS
        return True

    async def _hashed(self, stored: str, password: str) -> bool:
        salt = bytes.fromhex(stored.split(":")[1])
        made = await anyio.to_thread.run_sync(hash_password, password, salt, limiter=self._hashing)
        return hmac.compare_digest(stored, made)

    def log_in(self, given: str) -> Principal | None:
        return None


class ProxyAuth(ConsoleAuth):
    """What a proxy says that has authenticated its users (oauth2-proxy, Authelia, Cloudflare Access, Tailscale).

    ``groups``: group -> role; the mightiest role of a user's groups holds.
    """

    name = "proxy"

    def __init__(self, roles: Roles, groups: Mapping[str, str], secret: str | None) -> None:
        self._roles, self._groups, self._secret = roles, groups, secret

    async def identify(self, request: Request, peer: Peer) -> Principal | None:
        if not peer.trusted:
            return None
        headers = request.headers
        if self._secret is not None and not hmac.compare_digest(
            headers.get(PROXY_SECRET_HEADER, "").encode("latin-1"), self._secret.encode()
        ):
            raise WrongCredentialsError
        users, groups = (_as_sent(headers.getlist(f"x-forwarded-{name}")) for name in ("user", "groups"))
        if len(users) != 1 or not users[0].strip() or len(groups) > 1:  # of two, one may be the client's own
            return None
        given = {one.strip() for one in "".join(groups).split(",") if one.strip()}
        mine = [self._groups[group] for group in ("*", *sorted(given)) if group in self._groups]
        if not mine:
            return None
        role = max(mine, key=lambda name: len(self._roles[name]))
        return Principal(f"{users[0].strip()[:200]} (proxy)", role, self._roles[role])


class LocalAuth(ConsoleAuth):
    """The Unix socket: the kernel says which user is at the other end, and the socket's mode who may come."""

    name = "local"

    def __init__(self, roles: Roles) -> None:
        self._roles = roles

    async def identify(self, request: Request, peer: Peer) -> Principal | None:
        # Behind a proxy the peer is the proxy, not the visitor.
        if peer.uid is None or any(name.startswith(("x-forwarded", "forwarded")) for name in request.headers):
            return None
        return Principal(_os_name(peer.uid), "admin", self._roles["admin"])


class CallerAuth(ConsoleAuth):
    """The program around us says who asks."""

    name = "program"

    def __init__(self, user: Callable[[Mapping[str, Any]], Any]) -> None:
        self._user = user

    async def identify(self, request: Request, peer: Peer) -> Principal | None:
        found = self._user(request.scope)
        if inspect.isawaitable(found):
            found = await found
        if found is not None and not isinstance(found, Principal):
            raise ConfigError(f"user= returns a scheduler.console.principal() or None, not {found!r:.80}")
        return found


def _as_sent(values: list[str]) -> list[str]:
    """Values of headers, which proxies send as UTF-8, and servers read as Latin-1."""
    return [value.encode("latin-1").decode("utf-8", "replace") for value in values]


def hash_password(password: str, salt: bytes | None = None) -> str:
    """The hash of a password for the users file."""
    salt = secrets.token_bytes(16) if salt is None else salt
    made = hashlib.scrypt(
        password.encode("utf-8", "replace"), salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, maxmem=SCRYPT_MEMORY
    )
    return f"scrypt:{salt.hex()}:{made.hex()}"


def hash_token(token: str) -> str:
    """The hash of a token for the users file."""
    return f"sha256:{hashlib.sha256(token.encode()).hexdigest()}"


def _session_name(user: User) -> str:
    """Whose session it is, as it is stored: with another token the user is another one."""
    return f"{user.name} {user.hash[-16:]}"


def _os_name(uid: int | None) -> str:
    return f"os:{user_name(uid) or uid}"


def make_auth(settings: Any, desk: Desk, *, loopback: bool, unix: bool, trusts_proxy: bool) -> ConsoleAuth:
    """The authentication that ``[console]`` asks for; ``desk`` keeps the sessions of those who log in with a token.

    Raises ConfigError, also where the address would be open.
    """
    roles = read_roles(settings.roles)
    method = settings.auth
    if method is None:
        if unix:
            method = "local"
        elif loopback:
            return LinkAuth(roles)
        else:
            raise ConfigError(OPEN_CONSOLE)
    if method == "local":
        if not LINUX:
            raise ConfigError('[console] auth = "local" needs Linux, whose kernel says who is there; set auth')
        if not unix:
            raise ConfigError('[console] auth = "local" needs a Unix socket: listen = "unix:/run/schedd/console.sock"')
        return LocalAuth(roles)
    if method == "proxy":
        if not trusts_proxy:
            raise ConfigError('[console] auth = "proxy" needs trusted_proxies: from where its headers are believed')
        return ProxyAuth(roles, _groups(settings.groups, roles), settings.proxy_secret)
    if method == "basic":
        return BasicAuth(Users(_users_file(settings.users), roles, "scrypt"))
    users = Users(_users_file(settings.users), roles, "sha256")
    return TokenAuth(users, StoredSessions(desk, users.session_keys))


def _groups(lines: tuple[str, ...], roles: Roles) -> dict[str, str]:
    found = {}
    for line in lines:
        group, sign, role = (part.strip() for part in line.partition("="))
        if not sign or not group or role not in roles:
            raise ConfigError(
                f'[console] groups: {line!r:.80} is not "group = role"; there are the roles {", ".join(roles)}'
            )
        found[group] = role
    if not found:
        raise ConfigError('[console] auth = "proxy" needs groups: "group = role", or "* = viewer" for every user')
    return found


def _users_file(path: str | None) -> Path:
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    if path is not None:
        return Path(path)
    if directory is not None and (Path(directory) / "console_users").exists():
        return Path(directory) / "console_users"
    raise ConfigError(
        "this [console] auth needs users: the path of a file of them, or the systemd credential console_users; "
        "`schedctl console --new-user NAME:ROLE` prints a line for it"
    )
