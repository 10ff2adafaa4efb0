"""FileIdGeneratorTask: gives an uploaded file its id and its place in the blob store."""

from __future__ import annotations

import mimetypes
import os
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from scheduler import PermanentError, Priority, RetryPolicy, Task
from scheduler.system import files
from scheduler.tasks.files.blob_store import Blob, BlobStore, now_text
from scheduler.tasks.files.paths import FileEntry, open_parent, open_regular
from scheduler.tasks.settings import required

if TYPE_CHECKING:
    from scheduler import Context

PROGRESS_FROM = 8 * 1024 * 1024  # bytes from which progress is reported
PROGRESS_STEP = 5  # percent between reports

_TYPES = mimetypes.MimeTypes()  # Python's own table; mimetypes.guess_type would read the machine's files as well
_SIGNATURES = (
    (0, b"\xff\xd8\xff", "image/jpeg"),
    (0, b"\x89PNG\r\n\x1a\n", "image/png"),
    (0, b"GIF8", "image/gif"),
    (8, b"WEBP", "image/webp"),
    (4, b"ftypavif", "image/avif"),
    (0, b"%PDF-", "application/pdf"),
)


class FileIdGeneratorTask(
    Task, priority=Priority.MEDIUM, timeout=3600, retry=RetryPolicy(min_wait=5, max_wait=600, max_attempts=5)
):
    """Moves an uploaded file into the blob store, under an id made of its content.

    tn_id: the tenant it belongs to. temp_file_path: the absolute path of the complete file.
    original_filename: the name it had where it came from; stored, never used as a path.

    The id is ``f1~`` and the SHA-256 in base64url. The result is ``{"file_id", "tn_id", "original_filename",
    "size", "content_type", "created"}``; the same is stored as the file's metadata. When the tenant had the
    same content before, the stored metadata stays as it was.

    It may be killed at any point and run again. The temporary file goes last, after blob, metadata and a
    receipt (tenant and path -> file id) are on disk; an attempt that finds the file gone finds the receipt.

    Permanent failures: a path that is not allowed (outside ``[files] roots``, traversal, a link, not a
    regular file); a file that is not there and never was stored; a missing setting.
    Transient failures: I/O errors, a full disk, a file that changes while it is read.

    Settings: ``[files] blobs`` (the store's directory), ``[files] roots`` (where temporary files may lie).
    """

    tn_id: Annotated[int, msgspec.Meta(ge=0)]
    temp_file_path: Annotated[str, msgspec.Meta(min_length=1)]
    original_filename: Annotated[str, msgspec.Meta(min_length=1)]

    def __post_init__(self) -> None:
        if self.tn_id < 0:
            raise ValueError("tn_id must be 0 or more")
        if not os.path.isabs(self.temp_file_path) or "\0" in self.temp_file_path:
            raise ValueError(f"temp_file_path must be an absolute path, not {self.temp_file_path!r}")
        if not self.original_filename or "\0" in self.original_filename or "/" in self.original_filename:
            raise ValueError(f"original_filename must be the name of a file, not {self.original_filename!r}")

    def run(self, ctx: Context) -> dict[str, Any]:
        store = BlobStore.from_settings(ctx.settings)
        roots = required(ctx.settings, "files", "roots", '["/var/lib/schedd/incoming"]')
        try:
            entry = open_parent(self.temp_file_path, roots, "[files] roots", forbidden=[str(store.root)])
        except FileNotFoundError:
            return self._stored_before(store)
        try:
            return self._store(ctx, store, entry)
        finally:
            os.close(entry.directory)

    def _store(self, ctx: Context, store: BlobStore, entry: FileEntry) -> dict[str, Any]:
        try:
            fd = open_regular(entry, self.temp_file_path)
        except FileNotFoundError:
            return self._stored_before(store)
        try:
            blob = store.put_file(fd, _watch(ctx, os.fstat(fd).st_size))
            record = self._record(blob, _head(fd))
            known = store.add_metadata(self.tn_id, blob.file_id, record)
            record["created"] = known.get("created", record["created"])
            store.add_receipt(self.tn_id, self.temp_file_path, record)
            _remove(entry, fd)
        finally:
            os.close(fd)
        return record

    def _record(self, blob: Blob, head: bytes) -> dict[str, Any]:
        return {
            "file_id": blob.file_id,
            "tn_id": self.tn_id,
            "original_filename": self.original_filename,
            "size": blob.size,
            "content_type": content_type(head, self.original_filename),
            "created": now_text(),
        }

    def _stored_before(self, store: BlobStore) -> dict[str, Any]:
        """The file is gone: an earlier attempt removed it, when all else was done; or it never was."""
        receipt: dict[str, Any] | None = store.receipt(self.tn_id, self.temp_file_path)
        if receipt is None:
            raise PermanentError(f"there is no file {self.temp_file_path!r}, and it was not stored before")
        if not store.exists(receipt["file_id"]):
            raise PermanentError(f"{self.temp_file_path!r} was stored as {receipt['file_id']}, but that blob is gone")
        return receipt


def _head(fd: int) -> bytes:
    os.lseek(fd, 0, os.SEEK_SET)
    return os.read(fd, 16)


def content_type(head: bytes, filename: str) -> str:
    """By the first bytes, since names lie; else by the name."""
    for offset, mark, kind in _SIGNATURES:
        if head[offset : offset + len(mark)] == mark:
            return kind
    return _TYPES.guess_type(filename)[0] or "application/octet-stream"


def _watch(ctx: Context, size: int) -> Callable[[int], None]:
    shown = 0

    def progress(done: int) -> None:
        nonlocal shown
        ctx.check_cancelled()
        percent = min(100, done * 100 // size) if size else 100
        if size >= PROGRESS_FROM and percent >= shown + PROGRESS_STEP:
            shown = percent
            ctx.report_progress(percent, f"{done >> 20} of {size >> 20} MiB read")

    return progress


def _remove(entry: FileEntry, fd: int) -> None:
    """Remove the temporary file's name, if it still is that file: a new upload of the same name stays."""
    ours = os.fstat(fd)
    with suppress(FileNotFoundError):
        there = os.stat(entry.name, dir_fd=entry.directory, follow_symlinks=False)
        if (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino):
            os.unlink(entry.name, dir_fd=entry.directory)
            files.sync(entry.directory)
