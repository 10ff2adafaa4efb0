"""Signed actions: JSON web tokens, ES384 by keys on the curve P-384."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from scheduler import PermanentError
from scheduler.tasks.files.blob_store import FILE_ID
from scheduler.tasks.settings import section

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey


ALGORITHM = "ES384"
ACTION_ID = re.compile(r"a1~[A-Za-z0-9_-]{43}\Z")
DOMAIN = re.compile(r"(?=.{1,253}\Z)(?:[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\.)*[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?\Z")
MAX_ATTACHMENTS = 100
MAX_AUDIENCES = 100
# The order of P-384. With (r, s) a signature of (r, order - s) is valid as well: of the two only the one with the lower
# s counts (as with ES256K by BIP 62), so that a token has one text, and an action one id.
_ORDER = int("ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16)
_HALF = 48  # bytes of r, and of s
MAX_TOKEN = 100 * 1024  # characters of a token; it has to fit into a payload
_MISSING = "signed actions need PyJWT and cryptography: pip install 'schedd[actions]'"


class Claims(NamedTuple):
    """The claims of a token. ``iat``, ``exp``: seconds since 1970; ``a``: ids of files; ``p``: id of an action.

    ``aud``: the domains of the servers it is for; empty: for any server.
    """

    iss: str
    iat: float
    t: str
    c: Any = None
    p: str | None = None
    a: tuple[str, ...] = ()
    exp: float | None = None
    aud: tuple[str, ...] = ()


class Unverified(NamedTuple):
    """A token as it came: well-formed, but perhaps not the issuer's. ``key_id``: which key it says to be signed by."""

    token: str
    action_id: str
    claims: Claims
    key_id: str | None


def action_id_of(token: str) -> str:
    """``a1~`` and the SHA-256 of the token in base64url without padding."""
    return "a1~" + _base64url(hashlib.sha256(token.encode()).digest())


def sign(claims: Claims, key: EllipticCurvePrivateKey) -> str:
    """A token of these claims; what is None or empty is left out, apart from ``c``."""
    jwt = _jwt()
    stated = {name: value for name, value in claims._asdict().items() if value is not None and value != ()}
    headers = {"kid": key_id_of(key.public_key())}
    token: str = jwt.encode(stated | {"c": claims.c}, key, algorithm=ALGORITHM, headers=headers)
    head, _, signature = token.rpartition(".")
    return f"{head}.{_low(signature)}"


def read(token: str) -> Unverified:
    """Raises PermanentError for what is no such token. Whose signature it is, is not looked at; its form is."""
    head, claims = _parts(token)
    if head.get("alg") != ALGORITHM:
        raise _bad(f"it is signed by {str(head.get('alg'))[:20]!r} and not by {ALGORITHM}")
    iss, t, p, a = (claims.get(name) for name in ("iss", "t", "p", "a"))
    if not isinstance(iss, str) or not DOMAIN.match(iss):
        raise _bad("iss is not a domain")
    if not isinstance(t, str) or not 1 <= len(t) <= 100:
        raise _bad("t is not a type")
    if p is not None and not (isinstance(p, str) and ACTION_ID.match(p)):
        raise _bad("p is not the id of an action")
    files = [] if a is None else a
    if not isinstance(files, list) or not all(isinstance(one, str) and FILE_ID.match(one) for one in files):
        raise _bad("a is not a list of file ids")
    if len(files) > MAX_ATTACHMENTS:
        raise _bad(f"it has more than {MAX_ATTACHMENTS} attachments")
    iat, exp = _instant(claims, "iat"), _instant(claims, "exp")
    if iat is None:
        raise _bad("iat is missing")
    key_id = head.get("kid")
    made = Claims(iss, iat, t, claims.get("c"), p, tuple(dict.fromkeys(files)), exp, _audience(claims))
    signature = token.rpartition(".")[2]
    if _low(signature) != signature:
        raise _bad("its signature has a second form (s is above half the order of P-384): sign with the lower s")
    return Unverified(token, action_id_of(token), made, key_id if isinstance(key_id, str) else None)


def is_signed_by(token: str, key: EllipticCurvePublicKey) -> bool:
    """Whether the signature is valid and in its low-s form. Checks nothing else."""
    jwt = _jwt()
    signature = token.rpartition(".")[2]
    nothing = {f"verify_{what}": False for what in ("exp", "iat", "nbf", "aud", "iss", "sub", "jti")}
    try:
        if _low(signature) != signature:
            return False
        jwt.decode(token, key, algorithms=[ALGORITHM], options=nothing)
    except (jwt.InvalidTokenError, PermanentError):
        return False
    return True


# Keys


def load_private_key(pem: bytes) -> EllipticCurvePrivateKey:
    """Raises PermanentError for what is no private key on P-384."""
    _jwt()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise PermanentError("the signing key is not a private key in PEM without a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP384R1):
        raise PermanentError("the signing key is not on the curve P-384")
    return key


def public_keys(pem: bytes) -> list[dict[str, Any]]:
    """What ``keys`` of ``/api/me/keys`` has to say for this private key. Raises PermanentError."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    key = load_private_key(pem).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return [{"keyId": key_id_of(key), "publicKey": base64.b64encode(der).decode()}]


def load_public_key(text: str) -> EllipticCurvePublicKey | None:
    """From base64 of DER, or PEM. None for what is no key on P-384."""
    _jwt()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

    try:
        if text.lstrip().startswith("-----BEGIN"):
            key = load_pem_public_key(text.encode())
        else:
            key = load_der_public_key(base64.b64decode(text, validate=True))
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP384R1) else None


def key_id_of(key: EllipticCurvePublicKey) -> str:
    """A name for a key, made of itself."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return _base64url(hashlib.sha256(der).digest())[:16]


# Parts of a token


def _parts(token: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    if len(token) > MAX_TOKEN or token.count(".") != 2 or not token.isascii():
        raise _bad("it is not three parts of base64url")
    try:
        head, claims = (
            msgspec.json.decode(base64.b64decode(part + "=" * (-len(part) % 4), b"-_", validate=True))
            for part in token.split(".")[:2]
        )
    except (ValueError, binascii.Error, RecursionError):  # msgspec's own error is a ValueError
        raise _bad("it is not three parts of base64url with JSON in the first two") from None
    if not isinstance(head, dict) or not isinstance(claims, dict):
        raise _bad("it has no claims")
    return head, claims


def _audience(claims: Mapping[str, Any]) -> tuple[str, ...]:
    if "aud" not in claims:
        return ()
    named = [claims["aud"]] if isinstance(claims["aud"], str) else claims["aud"]
    if not isinstance(named, list) or not all(isinstance(one, str) and DOMAIN.match(one) for one in named):
        raise _bad("aud is neither a domain nor a list of domains")
    if not 1 <= len(named) <= MAX_AUDIENCES:
        raise _bad(f"aud names {len(named)} domains instead of 1 to {MAX_AUDIENCES}")
    return tuple(dict.fromkeys(named))


def _low(signature: str) -> str:
    """The one text of a signature: in base64url as it is written, with the lower s. Raises PermanentError for none."""
    try:
        raw = base64.b64decode(signature, b"-_", validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if len(raw) != 2 * _HALF:
        raise _bad(f"its signature is not {2 * _HALF} bytes in base64url")
    s = int.from_bytes(raw[_HALF:])
    return _base64url(raw[:_HALF] + min(s, _ORDER - s if s < _ORDER else s).to_bytes(_HALF))


def _instant(claims: Mapping[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise _bad(f"{name} is not a time")
    return value


def _bad(why: str) -> PermanentError:
    return PermanentError(f"not a signed action: {why}")


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _jwt() -> Any:
    try:
        import cryptography  # noqa: F401
        import jwt
    except ImportError:
        raise PermanentError(_MISSING) from None
    return jwt


_SHOWN = 3  # domains in an error


def named_audience(given: Sequence[str], settings: Mapping[str, Any]) -> tuple[str, ...]:
    """The audience of an action to be signed: what the task gives, else ``[actions] audience``.

    Raises PermanentError if there is none although ``[actions] require_audience`` is true, or one is not a domain.
    """
    named = tuple(dict.fromkeys(given or section(settings, "actions").get("audience") or ()))
    if not named and _required(settings):
        raise PermanentError(
            "the action has no audience: name whom it is for (audience=[…] of ActionCreatorTask, "
            "or [actions] audience), or set [actions] require_audience = false"
        )
    for one in named:
        if not isinstance(one, str) or not DOMAIN.match(one):
            raise PermanentError(f"[actions] audience must be domains in lower case, not {one!r}")
    if len(named) > MAX_AUDIENCES:
        raise PermanentError(f"an audience of {len(named)} domains is more than {MAX_AUDIENCES}")
    return named


def check_audience(action: Unverified, server: str, settings: Mapping[str, Any]) -> None:
    """See that an action is for this server. Raises PermanentError with status 403 if it is not."""
    named = action.claims.aud
    if not named:
        if _required(settings):
            raise PermanentError(
                f"{action.action_id} has no audience (aud), so it is not taken for {server}: "
                "its issuer has to name one, or set [actions] require_audience = false here",
                status=403,
            )
    elif server not in named:
        more = f" and {len(named) - _SHOWN} more" if len(named) > _SHOWN else ""
        audiences = ", ".join(named[:_SHOWN]) + more
        raise PermanentError(f"{action.action_id} is for {audiences}, and not for {server} (aud)", status=403)


def _required(settings: Mapping[str, Any]) -> bool:
    return section(settings, "actions").get("require_audience") is not False
