"""What every test shares: the fixtures of support/databases.py, the case markers of
support/casebook.py, the workers of support/fleet.py.
"""

import os

import pytest
from hypothesis import settings

from scheduler import system
from scheduler.store.db import deadline

# pytest's own importer would go before the one of support/elsewhere/: --assert=plain leaves it out.
assert not (system.LINUX and os.environ.get("ELSEWHERE")), "add --assert=plain"
GRACE = deadline.GRACE
# A busy machine's database is slow to answer a call with a timeout of 0, too, and has not gone for that.
deadline.GRACE = 30.0

pytest_plugins = [
    "pytester",
    "support.session",
    "support.needs",
    "support.databases",
    "support.casebook",
    "support.bench",
    "support.measurements",
    "support.fleet",
    "support.flows",
    "support.browser",
    "support.otlp",
]

settings.register_profile("schedd", deadline=None, print_blob=True)
settings.load_profile("schedd")


@pytest.fixture
def real_grace(monkeypatch: pytest.MonkeyPatch) -> float:
    """The database has as long to answer as it has outside of tests: that many seconds after the time is up."""
    monkeypatch.setattr(deadline, "GRACE", GRACE)
    return GRACE
