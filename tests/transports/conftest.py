"""The servers that tests of transports share end with them."""

from collections.abc import Iterator

import pytest

from support.rabbitmq_rig import RabbitRig


@pytest.fixture(scope="session", autouse=True)
def shared_servers() -> Iterator[None]:
    yield
    RabbitRig.close_server()
