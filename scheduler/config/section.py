"""Section: the base of the configuration's sections."""

from __future__ import annotations

import msgspec


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the sections."""
