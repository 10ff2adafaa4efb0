"""ImageResizerTask: makes a smaller variant of a stored image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from scheduler import PermanentError, Priority, RetryPolicy, Task
from scheduler.tasks.files.blob_store import FILE_ID, BlobStore, now_text
from scheduler.tasks.settings import positive

if TYPE_CHECKING:
    from scheduler import Context

VARIANTS = ("tn", "sd", "md", "hd", "xd")
FORMATS = ("avif", "webp", "jpeg")
MAX_SIDE = 16383  # pixels of a side: what WebP can hold
MAX_PIXELS = 80_000_000  # of a source; below the 89 million where Pillow itself begins to warn

Side = Annotated[int, msgspec.Meta(ge=1, le=MAX_SIDE)]


class ImageResizerTask(
    Task,
    priority=Priority.LOW,
    timeout=600,
    isolation="process",  # decoders are C code that reads what strangers send
    retry=RetryPolicy(min_wait=5, max_wait=600, max_attempts=4),
):
    """Makes a variant of an image, stores it by its own id, and lists it with its source.

    tn_id: the tenant that the source belongs to. source_file_id: ``f1~...``; empty takes the ``file_id`` from
    the result of the task that this one depends on. variant: tn, sd, md, hd or xd. target_width,
    target_height: the box to fit into, in pixels. format: avif, webp or jpeg. quality: 1 to 100.

    The image keeps its proportions and is never enlarged: a source smaller than the box keeps its size. It is
    turned upright as its EXIF orientation says, scaled with Lanczos, and stored without EXIF (which tells
    where a photo was taken); a colour profile stays if it fits. Of an animation it takes the first picture;
    JPEG, which has no transparency, gets a white ground.

    The result is ``{"file_id", "source_file_id", "variant", "format", "width", "height", "size",
    "content_type", "created", ...}``, and the same is listed under ``variants`` of the source's metadata. It
    may run again at any time: done already, it returns what is there.

    Permanent failures: no such file of this tenant; not an image, or a damaged one; more pixels than
    ``[files] max_pixels``; Pillow missing; a missing setting.
    Transient failures: I/O errors, a full disk, no memory, a crash of its process.

    Settings: ``[files] blobs``; ``[files] max_pixels`` (80 million, about 240 MB when decoded).
    """

    tn_id: Annotated[int, msgspec.Meta(ge=0)]
    source_file_id: str
    variant: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(VARIANTS)})$")]
    target_width: Side
    target_height: Side
    format: Annotated[str, msgspec.Meta(pattern=f"^({'|'.join(FORMATS)})$")]
    quality: Annotated[int, msgspec.Meta(ge=1, le=100)]

    def __post_init__(self) -> None:
        if self.tn_id < 0:
            raise ValueError("tn_id must be 0 or more")
        if self.source_file_id and not FILE_ID.match(self.source_file_id):
            raise ValueError(f"source_file_id must be a file id (f1~ and 43 characters), not {self.source_file_id!r}")
        if self.variant not in VARIANTS:
            raise ValueError(f"variant must be one of {', '.join(VARIANTS)}, not {self.variant!r}")
        if self.format not in FORMATS:
            raise ValueError(f"format must be one of {', '.join(FORMATS)}, not {self.format!r}")
        if not (1 <= self.target_width <= MAX_SIDE and 1 <= self.target_height <= MAX_SIDE):
            raise ValueError(f"target_width and target_height must be from 1 to {MAX_SIDE}")
        if not 1 <= self.quality <= 100:
            raise ValueError(f"quality must be from 1 to 100, not {self.quality}")

    def run(self, ctx: Context) -> dict[str, Any]:
        store = BlobStore.from_settings(ctx.settings)
        limit = positive(ctx.settings, "files", "max_pixels", MAX_PIXELS)
        source_id = self.source_file_id or _from_parents(ctx.results())
        source = store.metadata(self.tn_id, source_id)
        if source is None:
            raise PermanentError(f"tenant {self.tn_id} has no file {source_id}")
        wanted = {
            "source_file_id": source_id,
            "variant": self.variant,
            "format": self.format,
            "target_width": self.target_width,
            "target_height": self.target_height,
            "quality": self.quality,
        }
        done: dict[str, Any] | None = store.variant(self.tn_id, source_id, self.variant, self.format)
        if done is not None and done.items() >= wanted.items() and store.exists(done["file_id"]):
            return done

        from scheduler.tasks.files.image_scaling import make_variant  # here, since it needs Pillow

        ctx.check_cancelled()
        with store.open(source_id) as file:
            picture = make_variant(
                file,
                box=(self.target_width, self.target_height),
                format=self.format,
                quality=self.quality,
                max_pixels=limit,
                check=ctx.check_cancelled,
            )
        blob = store.put(picture.data)
        record = {
            **wanted,
            "file_id": blob.file_id,
            "width": picture.width,
            "height": picture.height,
            "size": blob.size,
            "content_type": f"image/{self.format}",
            "created": now_text(),
        }
        # A file of its own, too, so that it can be asked about (and resized) like any other.
        own = {key: record[key] for key in ("size", "content_type", "created", "source_file_id", "variant")}
        store.add_metadata(self.tn_id, blob.file_id, {**own, "original_filename": source.get("original_filename")})
        store.put_variant(self.tn_id, source_id, self.variant, self.format, record)
        return record


def _from_parents(results: dict[int, Any]) -> str:
    ids = {
        str(result["file_id"])
        for result in results.values()
        if isinstance(result, dict) and isinstance(result.get("file_id"), str)
    }
    if len(ids) != 1:
        raise PermanentError(
            "source_file_id is empty, so the results of the tasks that this one depends on must name "
            f"exactly one file_id; they name {len(ids) or 'none'}"
        )
    file_id = ids.pop()
    if not FILE_ID.match(file_id):
        raise PermanentError(f"{file_id!r}, from the result of a dependency, is not a file id")
    return file_id
