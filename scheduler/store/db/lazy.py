"""SQLAlchemy as ``sa``, imported at its first use: a command that only reads a file never comes to one.

For modules that such a command imports. Those of the store's connections import SQLAlchemy itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__all__ = ["sa"]

if TYPE_CHECKING:
    import sqlalchemy as sa
else:

    class _SQLAlchemy:
        def __getattr__(self, name: str) -> Any:
            found = getattr(import_module("sqlalchemy"), name)
            setattr(self, name, found)  # from then on it costs what an attribute of the module costs
            return found

    sa = _SQLAlchemy()
