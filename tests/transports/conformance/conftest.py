"""Which part of the suite ``make programs`` runs: the reference transport on both databases, the others on SQLite.

What they do on PostgreSQL is the same code of ours over the same transport; ``make transports`` runs that, too.
"""

import pytest

REFERENCE = "spool"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = item.nodeid.rpartition("[")[2].rstrip("]")
        if "transports/conformance/" in item.nodeid and "postgresql" in name and REFERENCE not in name:
            item.add_marker(pytest.mark.transports)
