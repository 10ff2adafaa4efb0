"""Finds NaN and infinity in a value: the JSON encoder writes them as null, without an error. Pure."""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import msgspec

from scheduler.model.spec import plain

_Path = tuple["_Path", object] | None  # of what it is in, and its key or place there
_LOOKED_INTO = frozenset((float, dict, list, tuple))
# MessagePack keeps these numbers, and is much faster than a check of each value: a float begins with 0xcb, and these
# have all bits of the exponent set. Other values may contain the same bytes by chance.
_quick = msgspec.msgpack.Encoder(enc_hook=plain)
_PERHAPS = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")


def find_not_finite(value: object) -> str | None:
    """The first NaN or infinity in what JSON can be made of: ``nan at $.sizes[2]``; None if there is none."""
    try:
        if not _PERHAPS.search(_quick.encode(value)):
            return None
    except OverflowError:  # an integer of more than 64 bits
        pass
    left: list[tuple[Any, _Path]] = [(msgspec.to_builtins(value, enc_hook=plain), None)]
    for one, path in left:  # it grows meanwhile
        if type(one) is float:
            if not isfinite(one):
                return f"{one} at {_told(path)}"
        elif type(one) is dict:
            left += [(inner, (path, key)) for key, inner in one.items() if type(inner) in _LOOKED_INTO]
        elif type(one) is list or type(one) is tuple:
            left += [(inner, (path, place)) for place, inner in enumerate(one) if type(inner) in _LOOKED_INTO]
    return None


def _told(path: _Path) -> str:
    keys: list[str] = []
    while path is not None:
        path, key = path
        keys.append(f"[{key}]" if isinstance(key, int) else f".{key}")
    return "$" + "".join(reversed(keys))
