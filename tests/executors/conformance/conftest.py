"""Which part of the suite ``make programs`` runs: on SQLite; ``make executors`` runs it on PostgreSQL, too."""

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("kube"):  # what make kube runs, on both
            continue
        if "executors/conformance/" in item.nodeid and "postgresql" in item.nodeid.rpartition("[")[2]:
            item.add_marker(pytest.mark.executors)
