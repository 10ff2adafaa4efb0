"""BackupTask: copies a directory, or the store itself, and removes old copies."""

from __future__ import annotations

import errno
import os
import re
import stat
import tarfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec

from scheduler import PermanentError, Priority, RetryPolicy, Task, backup_sqlite
from scheduler.system import files
from scheduler.tasks.files.paths import open_directory
from scheduler.tasks.settings import required, section

if TYPE_CHECKING:
    from scheduler import Context

STORE = "@store"
MAX_PASSES = 3  # passes over a directory that changes meanwhile
HEARTBEAT_EVERY = 2.0  # seconds between two signs of life
MAX_DEPTH = 100  # directories inside each other; each is open meanwhile
DRAFT_MAX_AGE = 24 * 3600.0  # seconds after which a draft of a crashed attempt is removed
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\Z")
_DRAFT = re.compile(r"\.?.+-\d{8}T\d{6}Z\.(?:sqlite|tar\.gz)\.(\d+)\.draft(?:\.[0-9a-f]+)?(?:-journal)?\Z")


class BackupTask(Task, priority=Priority.LOW, timeout=6 * 3600, retry=RetryPolicy(60, 3600, 4)):
    """Copies a directory into an archive, or the SQLite store of this daemon into a file.

    source_dir: an absolute path inside ``[backup] sources``, or ``@store``. dest_dir: an absolute path inside
    ``[backup] destinations``, not inside the source. keep: how many backups of this name stay, the newest. name: how
    they begin; by default the last part of the source, or ``store``.

    The backup is ``<name>-<time>.tar.gz`` or ``<name>-<time>.sqlite``, the time being when the task was scheduled (its
    slot, for a schedule), in UTC: another attempt makes the same one. It is there whole or not at all, and on disk
    before an older one is removed. An archive in which a file changed while it was read is thrown away and made again,
    three times at most; the store is copied with SQLite's own backup, and checked.

    The result is ``{"path", "size", "files", "removed": […]}``.

    Permanent failures: paths that are missing or not allowed; ``@store`` on PostgreSQL. Transient failures: I/O errors,
    a full disk, a source that never holds still.
    """

    source_dir: Annotated[str, msgspec.Meta(min_length=1)]
    dest_dir: Annotated[str, msgspec.Meta(min_length=1)]
    keep: Annotated[int, msgspec.Meta(ge=1, le=10_000)] = 7
    name: str = ""

    def __post_init__(self) -> None:
        for path in (self.source_dir, self.dest_dir):
            if path != STORE and (not os.path.isabs(path) or "\0" in path):
                raise ValueError(f"{path!r} is not an absolute path")
        if self.dest_dir == STORE:
            raise ValueError("dest_dir must be a directory")
        if self.name and not _NAME.match(self.name):
            raise ValueError(f"name must be letters, digits, '_', '.' and '-', not {self.name!r}")

    def run(self, ctx: Context) -> dict[str, Any]:
        name = self.name or (
            "store" if self.source_dir == STORE else _plain(os.path.basename(self.source_dir.rstrip("/")))
        )
        stamp = (ctx.slot or ctx.created_at).strftime("%Y%m%dT%H%M%SZ")
        destinations = required(ctx.settings, "backup", "destinations", '["/srv/backups"]')
        target_dir = open_directory(self.dest_dir, destinations, "[backup] destinations")
        try:
            place = Path(files.place_of(target_dir))  # the one that was looked at, whatever becomes of its name
            _remove_drafts(place, ctx.id)
            if self.source_dir == STORE:
                made, count = self._store(ctx, place, f"{name}-{stamp}.sqlite"), 1
            else:
                made, count = self._archive(ctx, place, target_dir, f"{name}-{stamp}.tar.gz")
            files.sync_directory(place)
            removed = _rotate(place, name, made.suffix, self.keep, made.name)
            return {
                "path": os.path.join(self.dest_dir, made.name),
                "size": made.stat().st_size,
                "files": count,
                "removed": removed,
            }
        finally:
            os.close(target_dir)

    def _store(self, ctx: Context, place: Path, name: str) -> Path:
        path = section(ctx.settings, "store").get("sqlite")
        if not path:
            raise PermanentError("this daemon's store is not a SQLite file: back it up with pg_dump")
        draft = place / _draft(name, ctx.id)
        pulse = Heartbeat(ctx)
        backup_sqlite(Path(path), draft, lambda done, pages: pulse.beat(100 * done / max(1, pages)))
        os.replace(draft, place / name)
        return place / name

    def _archive(self, ctx: Context, place: Path, target_dir: int, name: str) -> tuple[Path, int]:
        sources = required(ctx.settings, "backup", "sources", '["/srv/data"]')
        source = open_directory(self.source_dir, sources, "[backup] sources")
        try:
            if _inside(target_dir, source):
                raise PermanentError(
                    f"{self.dest_dir!r} lies inside {self.source_dir!r}, which would back up its backups"
                )
            draft = place / _draft(name, ctx.id)
            for _ in range(MAX_PASSES):
                draft.unlink(missing_ok=True)
                # Never through a link that was put there; for its owner alone, as what is in it may be.
                flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | files.CLOEXEC
                with open(os.open(draft, flags, 0o600), "wb") as file:
                    pass_ = ArchivePass(ctx, file, source)
                    whole = pass_.run()
                    file.flush()
                    files.sync(file.fileno())
                if whole:
                    os.replace(draft, place / name)
                    return place / name, pass_.files
            draft.unlink()
            raise OSError(f"{self.source_dir} changes all the time, for example {pass_.changed}")
        finally:
            os.close(source)


class FileState(NamedTuple):
    """The identity, size and time of a file, which show whether it changed."""

    device: int
    inode: int
    size: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileState:
        return cls(found.st_dev, found.st_ino, found.st_size if stat.S_ISREG(found.st_mode) else 0, found.st_ctime_ns)


class Heartbeat:
    """Checks for a cancel at each call, and sends a heartbeat now and then."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._next = time.monotonic() + HEARTBEAT_EVERY

    def beat(self, percent: float | None = None) -> None:
        self._ctx.check_cancelled()
        if time.monotonic() < self._next:
            return
        if percent is None:
            self._ctx.heartbeat()
        else:
            self._ctx.report_progress(percent)
        self._next = time.monotonic() + HEARTBEAT_EVERY


class ArchivePass:
    """One archive of a directory, and whether everything in it is as it was at its end."""

    def __init__(self, ctx: Context, file: IO[bytes], source: int) -> None:
        self._pulse = Heartbeat(ctx)
        self._file = file
        self._source = source
        self.files = 0
        self.changed = ""

    def run(self) -> bool:
        seen: dict[str, FileState] = {}
        with tarfile.open(fileobj=self._file, mode="w:gz", compresslevel=6, dereference=False) as archive:
            for path, directory, name, found in walk(self._source):
                self._pulse.beat()
                seen[path] = FileState.of(found)
                if not self._add(archive, path, directory, name, found):
                    self.changed = path
                    return False
        now = {path: FileState.of(found) for path, _, _, found in walk(self._source)}
        odd = next((path for path in {**seen, **now} if seen.get(path) != now.get(path)), None)
        self.changed = odd or ""
        return odd is None

    def _add(self, archive: tarfile.TarFile, path: str, directory: int, name: str, found: os.stat_result) -> bool:
        """Add one entry. False: it changed while it was read."""
        info = tarfile.TarInfo(path)
        info.mode, info.uid, info.gid = stat.S_IMODE(found.st_mode), found.st_uid, found.st_gid
        info.mtime = found.st_mtime
        if stat.S_ISDIR(found.st_mode):
            info.type = tarfile.DIRTYPE
            archive.addfile(info)
        elif stat.S_ISLNK(found.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, os.readlink(name, dir_fd=directory)
            archive.addfile(info)
        elif stat.S_ISREG(found.st_mode):
            info.size = found.st_size
            try:
                fd = os.open(name, os.O_RDONLY | files.NOFOLLOW | files.NONBLOCK | files.CLOEXEC, dir_fd=directory)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):  # gone, or exchanged for a link
                    return False
                raise
            with open(fd, "rb") as data:
                if FileState.of(os.fstat(fd)) != FileState.of(found):
                    return False
                try:
                    archive.addfile(info, CancellableReader(data, self._pulse))
                except OSError:
                    if FileState.of(os.fstat(fd)) != FileState.of(found):
                        return False  # it was shortened meanwhile
                    raise
            self.files += 1
        return True


class CancellableReader:
    """A file that is read in chunks, with a check for a cancel before each."""

    def __init__(self, file: IO[bytes], pulse: Heartbeat) -> None:
        self._file = file
        self._pulse = pulse

    def read(self, size: int = -1) -> bytes:
        self._pulse.beat()
        return self._file.read(size)


def walk(fd: int, shown: str = "") -> Iterator[tuple[str, int, str, os.stat_result]]:
    """Every entry below an open directory, in order: path, directory it is in, name, what it is. Follows no link."""
    with os.scandir(fd) as entries:
        names = sorted(entry.name for entry in entries)
    for name in names:
        try:
            found = os.stat(name, dir_fd=fd, follow_symlinks=False)
        except FileNotFoundError:
            continue
        path = f"{shown}{name}"
        yield path, fd, name, found
        if stat.S_ISDIR(found.st_mode):
            if path.count("/") >= MAX_DEPTH:
                raise PermanentError(f"{path[:80]}… lies more than {MAX_DEPTH} directories deep")
            try:
                inner = os.open(name, os.O_RDONLY | files.DIRECTORY | files.NOFOLLOW | files.CLOEXEC, dir_fd=fd)
            except (FileNotFoundError, NotADirectoryError):
                continue
            try:
                yield from walk(inner, f"{path}/")
            finally:
                os.close(inner)


def _plain(name: str) -> str:
    """A name for files."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", name).strip("._-")[:80] or "backup"


def _inside(inner: int, outer: int) -> bool:
    path, root = (os.path.realpath(files.place_of(fd)) for fd in (inner, outer))
    return path == root or path.startswith(root.rstrip("/") + "/")


def _backups(place: Path, name: str, suffix: str) -> list[str]:
    pattern = re.compile(
        re.escape(name) + r"-\d{8}T\d{6}Z" + (r"\.sqlite" if suffix == ".sqlite" else r"\.tar\.gz") + r"\Z"
    )
    return sorted(entry for entry in os.listdir(place) if pattern.match(entry))


def _rotate(place: Path, name: str, suffix: str, keep: int, newest: str) -> list[str]:
    """Remove all but the newest of this name; the one just made stays in any case."""
    found = [entry for entry in _backups(place, name, suffix) if entry != newest]
    removed = found[: max(0, len(found) - (keep - 1))]
    for entry in removed:
        with suppress(FileNotFoundError):
            (place / entry).unlink()
    if removed:
        files.sync_directory(place)
    return removed


def _draft(name: str, task_id: int) -> str:
    """What a backup is called until it is whole. Another task may be making one of the same name."""
    return f"{name}.{task_id}.draft"


def _remove_drafts(place: Path, task_id: int) -> None:
    """Remove the drafts of killed attempts: of this task at once, of others after DRAFT_MAX_AGE."""
    for entry in os.listdir(place):
        found = _DRAFT.match(entry)
        with suppress(FileNotFoundError):
            path = place / entry
            if found and (int(found[1]) == task_id or path.lstat().st_mtime < time.time() - DRAFT_MAX_AGE):
                path.unlink()
