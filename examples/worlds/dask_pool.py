"""The pool that ``[executors.cluster]`` names in the world of Dask."""

import os
from typing import Any

ADDRESS = "ANYWHERE_DASK"  # in the daemon's environment: of Dask's scheduler


def client() -> Any:
    from distributed import Client

    return Client(os.environ[ADDRESS], timeout=60, name="schedd")
