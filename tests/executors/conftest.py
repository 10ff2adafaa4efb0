"""The engines that tests of executors share end with them."""

from collections.abc import Iterator

import pytest

from support.dask_rig import DaskCluster
from support.slurm_rig import SlurmCluster


@pytest.fixture(scope="session", autouse=True)
def shared_engines() -> Iterator[None]:
    yield
    SlurmCluster.close_shared()
    DaskCluster.close_shared()
