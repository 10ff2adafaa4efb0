"""What the tests of the built-in types share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.certificates import Certificates

from .commands import carriers
from .fake import file_settings
from .uploads import DATA


@pytest.fixture
def mark(tmp_path: Path) -> Iterator[str]:
    """A text for the arguments of a test's processes; at the end none that carries it may be left."""
    name = f"schedd-test-{tmp_path.name}-{os.getpid()}"
    yield name
    left = carriers(name)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return file_settings(tmp_path)


@pytest.fixture
def upload(tmp_path: Path, settings: dict[str, Any]) -> Path:
    path = tmp_path / "incoming" / "upload-1"
    path.write_bytes(DATA)
    return path


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))
