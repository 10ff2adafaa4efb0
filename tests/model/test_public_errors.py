"""The names of errors that users see can be imported."""

from __future__ import annotations

import traceback

from scheduler.errors import PayloadError, StoreUnavailableError
from scheduler.model.fingerprint import describe
from scheduler.operations.published import MisfitError
from scheduler.store.db.errors import StoreError


def test_what_only_schedd_tells_apart_has_the_public_name() -> None:
    for error, public in ((MisfitError("no", None), PayloadError), (StoreError("away", True), StoreUnavailableError)):
        assert traceback.format_exception_only(error) == [f"scheduler.errors.{public.__name__}: {error}\n"]
        assert describe(error).error_class == public.__name__
