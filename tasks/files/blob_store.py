"""A content-addressed store of files in a directory: what is in it is named by its SHA-256 and never changes.

::

    data/<ab>/f1~ab...             the blobs; <ab> are the first two characters after ``f1~``
    meta/<tn_id>/<ab>/f1~ab....json              what a tenant's file is
    meta/<tn_id>/<ab>/f1~ab....<variant>.<format>.json     one per variant, so that writers never meet
    receipts/<ab>/<hash>.json      which temporary file became which blob
    tmp/                           what is being written

Any number of processes may use it at a time. Everything is written to ``tmp`` or linked as a whole, synced,
and given its name in one step; an id stands for one content, so writers of the same blob agree.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from scheduler import PermanentError
from scheduler.system import files
from scheduler.system.files import sync_directory
from scheduler.system.processes import user_id
from scheduler.tasks.files.atomic import Staging, link_open_file, make_directory, read_json, write_all
from scheduler.tasks.settings import required

CHUNK = 1024 * 1024
FILE_ID = re.compile(r"f1~[A-Za-z0-9_-]{43}\Z")
_WRITE_BITS = 0o222

Progress = Callable[[int], object]
"""Called after every chunk with the bytes read so far; may raise to give up."""


POINTER = "blob:"  # begins the URI of a blob


class Blob(NamedTuple):
    file_id: str
    size: int


class Incoming:
    """A file that is written by pieces and hashed meanwhile, in whatever threads. Nothing is there before the first."""

    def __init__(self, staging: Staging) -> None:
        self._staging = staging
        self._digest, self._size = hashlib.sha256(), 0
        self._staged: Path | None = None
        self._fd = -1
        self._dropped = False
        self._lock = threading.Lock()

    def write(self, data: bytes) -> None:
        """Raises OSError, also when it was dropped meanwhile."""
        with self.open() as (fd, _):
            self._digest.update(data)
            self._size += len(data)
            write_all(fd, data)

    @contextmanager
    def open(self) -> Iterator[tuple[int, Path]]:
        """Its descriptor and where it is. If it is dropped meanwhile, that happens at the end."""
        try:
            with self._lock:
                if self._dropped:
                    raise OSError("no caller wants this file any more")
                if self._staged is None:
                    self._staged = self._staging.name()
                    self._fd = os.open(self._staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | files.CLOEXEC, 0o444)
                yield self._fd, self._staged
        finally:
            if self._dropped:
                self.drop()

    def blob(self) -> Blob:
        """What has come until now."""
        return Blob(file_id_of(self._digest.digest()), self._size)

    def drop(self) -> None:
        """Remove what was not kept. Never waits: if a thread is writing, that thread does it."""
        self._dropped = True
        if not self._lock.acquire(blocking=False):
            return
        try:
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)
            if self._staged is not None:
                with suppress(FileNotFoundError):
                    os.unlink(self._staged)
        finally:
            self._lock.release()


class BlobMissing(PermanentError):
    """There is no such blob."""


def file_id_of(digest: bytes) -> str:
    """``f1~`` and the digest in base64url without padding."""
    return "f1~" + base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def now_text() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class BlobStore:
    """The store in ``root``, which is made when something is first put there."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)
        self._staging = Staging(self.root / "tmp")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> BlobStore:
        """The store that ``[files] blobs`` names. Raises PermanentError when the setting is missing."""
        return cls(required(settings, "files", "blobs", '"/var/lib/schedd/blobs"'))

    # Blobs

    def path(self, file_id: str) -> Path:
        """Where a blob is, or would be. Raises ValueError for what is no file id: none leads out of here."""
        if not FILE_ID.match(file_id):
            raise ValueError(f"{file_id!r} is not a file id: f1~ and 43 characters of base64url")
        return self.root / "data" / file_id[3:5] / file_id

    def exists(self, file_id: str) -> bool:
        return self.path(file_id).is_file()

    def open(self, file_id: str) -> BinaryIO:
        """Raises BlobMissing."""
        try:
            return self.path(file_id).open("rb")
        except FileNotFoundError:
            raise BlobMissing(f"there is no blob {file_id} in {self.root}") from None

    def put(self, data: bytes) -> Blob:
        """Store bytes."""
        blob = Blob(file_id_of(hashlib.sha256(data).digest()), len(data))
        if not self._has(blob):
            self._staging.write(self.path(blob.file_id), data, mode=0o444)
        return blob

    def put_json(self, value: Any) -> str:
        """Store a JSON value. Returns its URI, ``blob:<file id>``: a message's ``payload_ref``."""
        return POINTER + self.put(msgspec.json.encode(value)).file_id

    def get_json(self, uri: str) -> Any:
        """The value that :meth:`put_json` stored. Raises PermanentError, BlobMissing among them."""
        scheme, _, file_id = uri.partition(":")
        if f"{scheme}:" != POINTER or not FILE_ID.match(file_id):
            raise PermanentError(f"{uri!r:.100} names no blob: {POINTER} and a file id")
        with self.open(file_id) as file:
            try:
                return msgspec.json.decode(file.read())
            except msgspec.DecodeError as error:
                raise PermanentError(f"blob {file_id} is no JSON: {error}") from None

    def incoming(self) -> Incoming:
        """For a blob that comes by pieces; to be dropped in the end."""
        return Incoming(self._staging)

    def keep(self, coming: Incoming, file_id: str) -> Blob | None:
        """Store what has come if this is its id; None if it is not."""
        with coming.open() as (fd, staged):
            blob = coming.blob()
            if blob.file_id != file_id:
                return None
            if not self._has(blob):
                files.sync(fd)
                self._staging.publish(staged, self.path(file_id))
        return blob

    def put_file(self, fd: int, progress: Progress = lambda done: None) -> Blob:
        """Store the regular file that ``fd`` has open for reading; it keeps its own name as well.

        On the same filesystem the file itself becomes the blob (one more link, nothing copied) if it is
        ours alone: our user's, without other links. Otherwise it is copied. Raises OSError, also for a file
        that changed meanwhile.
        """
        make_directory(self.root / "tmp")
        before = os.fstat(fd)
        adoptable = (
            before.st_dev == (self.root / "tmp").stat().st_dev and before.st_nlink == 1 and before.st_uid == user_id()
        )
        if adoptable:
            blob = _read_through(fd, before, progress, lambda data: None)
            if self._has(blob) or self._adopt(fd, before.st_mode, blob):
                return blob
        return self._copy(fd, before, progress)

    def _has(self, blob: Blob) -> bool:
        """Whether it is stored, whole. One of the wrong size was damaged from outside and is written anew."""
        path = self.path(blob.file_id)
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            return False
        sync_directory(path.parent)  # the process that stored it may have been killed before it synced
        return size == blob.size

    def _adopt(self, fd: int, mode: int, blob: Blob) -> bool:
        """Link the file in as the blob. False if this filesystem cannot, or a damaged blob is in the way."""
        target = self.path(blob.file_id)
        make_directory(target.parent)
        files.set_mode(fd, target, mode & ~_WRITE_BITS)
        files.sync(fd)
        try:
            link_open_file(fd, target)
        except OSError:  # no hard links, no /proc, not allowed, taken meanwhile: copying is always right
            return self._has(blob)
        sync_directory(target.parent)
        return True

    def _copy(self, fd: int, before: os.stat_result, progress: Progress) -> Blob:
        staged = self._staging.name()
        try:
            out = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | files.CLOEXEC, 0o444)
            try:
                blob = _read_through(fd, before, progress, lambda data: write_all(out, data))
                files.sync(out)
            finally:
                os.close(out)
            if not self._has(blob):
                self._staging.publish(staged, self.path(blob.file_id))
        finally:
            with suppress(FileNotFoundError):
                os.unlink(staged)
        return blob

    # What is known of them

    def metadata(self, tn_id: int, file_id: str) -> dict[str, Any] | None:
        """What is known of a tenant's file, with its variants as ``variants``; None if there is none."""
        path = self._meta(tn_id, file_id)
        found = read_json(path)
        if found is None:
            return None
        records = (read_json(entry) for entry in sorted(path.parent.glob(f"{file_id}.*.*.json")))
        return {**found, "variants": [record for record in records if record is not None]}

    def add_metadata(self, tn_id: int, file_id: str, record: Mapping[str, Any]) -> dict[str, Any]:
        """Store what a file is, and return it; if that is known already, what is known stays and is returned.

        The same content uploaded twice is one file, and a repeated attempt must not change when it came.
        """
        path = self._meta(tn_id, file_id)
        known: dict[str, Any] | None = read_json(path)
        if known is None:
            known = {"tn_id": tn_id, "file_id": file_id, **record}
            self._staging.write(path, msgspec.json.encode(known))
        else:
            sync_directory(path.parent)  # as in _has
        return known

    def variant(self, tn_id: int, file_id: str, variant: str, format: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self._meta(tn_id, file_id, variant, format))
        return found

    def put_variant(self, tn_id: int, file_id: str, variant: str, format: str, record: Mapping[str, Any]) -> None:
        """List a variant with its source; one of the same name and format is replaced."""
        self._staging.write(self._meta(tn_id, file_id, variant, format), msgspec.json.encode(record))

    # Receipts

    def add_receipt(self, tn_id: int, source: str, record: Mapping[str, Any]) -> None:
        """Note what became of a temporary file, before it is removed."""
        self._staging.write(self._receipt(tn_id, source), msgspec.json.encode(record))

    def receipt(self, tn_id: int, source: str) -> dict[str, Any] | None:
        found: dict[str, Any] | None = read_json(self._receipt(tn_id, source))
        return found

    def _meta(self, tn_id: int, file_id: str, *variant: str) -> Path:
        name = ".".join((self.path(file_id).name, *variant, "json"))
        return self.root / "meta" / str(int(tn_id)) / file_id[3:5] / name

    def _receipt(self, tn_id: int, source: str) -> Path:
        name = hashlib.sha256(f"{tn_id}\0{source}".encode()).hexdigest()
        return self.root / "receipts" / name[:2] / f"{name}.json"


def _read_through(fd: int, before: os.stat_result, progress: Progress, take: Callable[[bytes], object]) -> Blob:
    """Hash all of a file. Raises OSError if it changed meanwhile; one that grows for ever ends it too."""
    digest, size = hashlib.sha256(), 0
    os.lseek(fd, 0, os.SEEK_SET)
    while size <= before.st_size and (data := os.read(fd, CHUNK)):
        digest.update(data)
        take(data)
        size += len(data)
        progress(size)
    after = os.fstat(fd)
    if (size, after.st_size, after.st_mtime_ns) != (before.st_size, before.st_size, before.st_mtime_ns):
        raise OSError("the file changed while it was read; schedule the task when the upload is complete")
    return Blob(file_id_of(digest.digest()), size)
