"""The type and pixel size of an image, read from the header bytes of its base64.

Only a prefix is decoded, 4 KiB at first and at most 256 KiB; the picture itself never is, and
nothing is fetched. What cannot be read, a lying, cut or absurd header included, gives None.

`imagesize` reads the headers. Pillow, the other well-kept library, opens a WebP only when the
whole file is there (a prefix fails) and leaves EXIF orientation to the caller; `imagesize` answers
from 26 to 30 bytes of PNG, GIF, BMP and WebP, from an AVIF's boxes, and turns by EXIF, in about
20 microseconds. Three slips of version 2.0.1 are made good here: signed GIF sides, WebP's scale
bits, and an error at every AVIF or HEIC that states a rotation.
"""

import binascii
import io
from dataclasses import dataclass

# Imported here, not at first use: that would be while the event loop serves requests.
import imagesize  # type: ignore[import-untyped]  # it ships no types

from proxy.core.image_prices import MAX_SIDE_PX
from proxy.core.images import LONGEST_HEADER_CHARS, ImagePart, is_data_url

STEPS_BYTES = (4 * 1024, 32 * 1024, 256 * 1024)
"""Prefixes tried in turn. A JPEG may put EXIF with a preview, a colour profile and XMP, 64 KiB
each and more, before its size; cameras and phones stay below 256 KiB."""

_FARTHEST_BYTES = {
    "image/jpeg": STEPS_BYTES[2],
    "image/avif": STEPS_BYTES[1],
    "image/heic": STEPS_BYTES[1],
}
"""How far in the size may stand; every other format states it in the first step."""

_MOST_READS = 4096
"""Reads that a header may cost: real ones take under a hundred, one made of empty segments would
hold the event loop."""

_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
)
_HEIC_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"mif1", b"msf1")

_ROTATION_BOX = b"\0\0\0\x09irot"
_MEANINGLESS_BOX = b"\0\0\0\x09free"

_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_WHITE_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class ImageSize:
    """What an image is: the type its bytes show, and its size as it is looked at."""

    media_type: str
    width_px: int
    height_px: int


def image_size(url: str) -> ImageSize | None:
    """The size of the image in a base64 data URL; None for any other URL."""
    if not is_data_url(url):
        return None
    header, comma, _ = url[:LONGEST_HEADER_CHARS].partition(",")
    if not comma or not header.lower().endswith(";base64"):
        return None
    return _size(url, len(header) + 1)


def base64_size(base64: str) -> ImageSize | None:
    """The size of the image in bare base64."""
    return _size(base64, 0)


def part_size(part: ImagePart) -> ImageSize | None:
    """The size of an image part, if its bytes are in the request."""
    if part.base64 is not None:
        return base64_size(part.base64)
    return None if part.url is None else image_size(part.url)


def _size(text: str, start: int) -> ImageSize | None:
    """Decode longer and longer prefixes until the size shows, or can no longer."""
    for step_bytes in STEPS_BYTES:
        end = start + step_bytes // 3 * 4
        prefix = _decode(text[start:end])
        media_type = _media_type(prefix)
        if media_type is None:
            return None
        sides = _sides(prefix, media_type)
        if sides is not None:
            return ImageSize(media_type, *sides)
        if end >= len(text) or step_bytes >= _FARTHEST_BYTES.get(media_type, 0):
            return None
    return None


def _decode(base64: str) -> bytes:
    """The bytes of a piece of base64, of either alphabet; empty if it is something else."""
    symbols = base64.encode("ascii", "replace").translate(_URL_SAFE, _WHITE_SPACE)
    try:
        return binascii.a2b_base64(symbols[: len(symbols) // 4 * 4])
    except binascii.Error:
        return b""


def _media_type(prefix: bytes) -> str | None:
    """The format that the first bytes show."""
    for signature, media_type in _SIGNATURES:
        if prefix.startswith(signature):
            return media_type
    if prefix[:4] == b"RIFF" and prefix[8:12] == b"WEBP":
        return "image/webp"
    if prefix[4:8] == b"ftyp":
        brands = prefix[8:64]
        if b"avif" in brands or b"avis" in brands:
            return "image/avif"
        if brands[:4] in _HEIC_BRANDS:
            return "image/heic"
    return None


def _sides(prefix: bytes, media_type: str) -> tuple[int, int] | None:
    """Width and height in pixels, if the prefix states believable ones."""
    if media_type == "image/bmp" and int.from_bytes(prefix[14:18], "little") < 40:
        # The older OS/2 header has narrower fields, which imagesize reads as one number.
        return None
    is_turned = False
    if media_type in ("image/avif", "image/heic"):
        prefix, is_turned = _take_rotation(prefix)
    # Only a JPEG is turned by EXIF: an AVIF's rotation box stands above it, and to find its EXIF
    # imagesize walks tables whose loops cost no reads.
    width_px, height_px = imagesize.get(_Header(prefix), exif_rotation=media_type == "image/jpeg")
    if (width_px, height_px) == (-1, -1):
        return None
    if media_type == "image/gif":
        width_px, height_px = width_px & 0xFFFF, height_px & 0xFFFF
    elif prefix[12:16] == b"VP8 " and media_type == "image/webp":
        width_px, height_px = width_px & 0x3FFF, height_px & 0x3FFF
    if not (0 < width_px <= MAX_SIDE_PX and 0 < height_px <= MAX_SIDE_PX):
        return None
    return (height_px, width_px) if is_turned else (width_px, height_px)


def _take_rotation(prefix: bytes) -> tuple[bytes, bool]:
    """The header with its rotation boxes made meaningless, and whether they swap the sides."""
    at = prefix.find(_ROTATION_BOX)
    is_turned = at >= 0 and prefix[at + 8 : at + 9] in (b"\1", b"\3")
    return prefix.replace(_ROTATION_BOX, _MEANINGLESS_BOX), is_turned


class _Header(io.BytesIO):
    """A header that can be read only so many times."""

    def __init__(self, prefix: bytes) -> None:
        super().__init__(prefix)
        self._reads_left = _MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        """The next bytes; `imagesize.get` answers (-1, -1) to the error."""
        self._reads_left -= 1
        if self._reads_left < 0:
            raise ValueError("too many segments")
        return super().read(size)
