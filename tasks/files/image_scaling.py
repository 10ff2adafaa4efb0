"""Scaling pictures with Pillow. The only module that imports it; import it when it is needed."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable
from typing import BinaryIO, NamedTuple

from scheduler import PermanentError

try:
    from PIL import Image, features
except ImportError as missing:
    raise PermanentError("resizing images needs Pillow: pip install 'schedd[images]'") from missing

# What may be opened. Pillow knows many more formats. Some of them start programs or are little tested.
READABLE = ("JPEG", "PNG", "WEBP", "AVIF", "GIF", "TIFF")
ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_OPTIONS: dict[str, dict[str, object]] = {
    "avif": {"speed": 8},
    "webp": {"method": 4},
    "jpeg": {"optimize": True, "progressive": True},
}
# What decoders raise for damaged files. An OSError with an errno is the disk's, and another matter.
_DAMAGED = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    EOFError,
    struct.error,
    zlib.error,
)


class Picture(NamedTuple):
    data: bytes
    width: int
    height: int


def make_variant(
    file: BinaryIO,
    *,
    box: tuple[int, int],
    format: str,
    quality: int,
    max_pixels: int,
    check: Callable[[], object] = lambda: None,
) -> Picture:
    """The picture in ``file``, upright, fitted into ``box``, encoded. ``check`` is called between steps.

    Raises PermanentError for what is no picture, is damaged, or has more than ``max_pixels`` pixels.
    """
    if not features.check(format if format != "jpeg" else "jpg"):
        raise PermanentError(f"this Pillow cannot write {format}; the wheels of `pip install 'schedd[images]'` can")
    with _opened(file, max_pixels) as source:
        check()
        small = _scaled(source, box, check)
        profile = source.info.get("icc_profile")
    check()
    if format == "jpeg" and "A" in small.mode:
        ground = Image.new("RGB", small.size, "white")
        ground.paste(small, mask=small.getchannel("A"))
        small = ground
    options = dict(_OPTIONS[format])
    if isinstance(profile, bytes) and profile[16:20] == {"L": b"GRAY"}.get(small.mode, b"RGB "):
        options["icc_profile"] = profile
    # Else it would be taken from the picture's info, whether it fits or not; and so would EXIF and comments.
    small.info.clear()
    out = io.BytesIO()
    small.save(out, format.upper(), quality=quality, **options)
    return Picture(out.getvalue(), small.width, small.height)


def fit(size: tuple[int, int], box: tuple[int, int]) -> tuple[int, int]:
    """The largest size with the proportions of ``size`` in ``box``; never larger than ``size``."""
    scale = min(box[0] / size[0], box[1] / size[1], 1.0)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _opened(file: BinaryIO, max_pixels: int) -> Image.Image:
    """The picture with its header read, and nothing decoded yet."""
    try:
        source = Image.open(file, formats=READABLE)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise PermanentError(f"refused as a decompression bomb: {error}") from None
    except _DAMAGED as error:
        raise _damaged(error) from error
    pixels = source.width * source.height
    if pixels > max_pixels:
        source.close()
        raise PermanentError(
            f"refused as a decompression bomb: {source.width} x {source.height} pixels are more than the "
            f"{max_pixels} that [files] max_pixels allows"
        )
    if pixels == 0:
        source.close()
        raise PermanentError("the image has no pixels")
    return source


def _scaled(source: Image.Image, box: tuple[int, int], check: Callable[[], object]) -> Image.Image:
    turn = _UPRIGHT.get(_orientation(source))
    lying = turn is not None and turn.name in ("TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
    if lying:
        box = (box[1], box[0])  # scale first, turn the little that is left
    size = fit(source.size, box)
    try:
        # JPEG can be decoded at a half, a quarter, an eighth, which saves most of the work of a thumbnail.
        # Twice the size wanted is left for Lanczos.
        source.draft(None, (size[0] * 2, size[1] * 2))
        source.load()
    except Image.DecompressionBombError as error:
        raise PermanentError(f"refused as a decompression bomb: {error}") from None
    except _DAMAGED as error:
        raise _damaged(error) from error
    check()
    small = _plain(source)
    if small.size != size:
        small = small.resize(size, Image.Resampling.LANCZOS, reducing_gap=3.0)
    return small.transpose(turn) if turn is not None else small


def _orientation(source: Image.Image) -> int:
    try:
        return int(source.getexif().get(ORIENTATION, 1))
    except _DAMAGED:
        return 1  # damaged EXIF is no reason to refuse the picture


def _plain(source: Image.Image) -> Image.Image:
    """In a mode that can be scaled smoothly and that every format can hold: L, RGB or RGBA."""
    if source.mode.startswith("I"):  # 16 bits of grey: converting alone would clip instead of scale
        return source.point(lambda value: value * (1 / 256)).convert("L")
    if source.has_transparency_data:
        return source.convert("RGBA")
    if source.mode in ("1", "L", "F"):
        return source.convert("L")
    return source.convert("RGB")


def _damaged(error: BaseException) -> BaseException:
    if isinstance(error, OSError) and error.errno is not None:
        return error
    return PermanentError(f"not an image that can be read, or a damaged one: {error}")
