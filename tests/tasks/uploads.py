"""Uploads, and the store they go to, in tests."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

from scheduler.tasks import FileIdGeneratorTask
from scheduler.tasks.files.blob_store import BlobStore

from .fake import FakeContext

DATA = b"the quick brown fox" * 100


def id_of(data: bytes) -> str:
    return "f1~" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def store_of(settings: dict[str, Any]) -> BlobStore:
    return BlobStore.from_settings(settings)


def run(path: Path | str, settings: dict[str, Any], tn_id: int = 7, name: str = "fox.txt") -> dict[str, Any]:
    ctx: Any = FakeContext(settings)
    return FileIdGeneratorTask(tn_id, str(path), name).run(ctx)


def tree(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


def without_created(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "created"}
