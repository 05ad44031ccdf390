"""Sizes come from the first bytes, and no header, however cut or made up, raises."""

import base64
import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.images import ImagePart
from proxy.image_sizes import ImageSize, base64_size, image_size, part_size


def data_url(content: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(content).decode()}"


def png(width: int, height: int) -> bytes:
    header = struct.pack(">LL5B", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">L4s", 13, b"IHDR") + header + b"\0" * 64


def gif(width: int, height: int) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + b"\x80\0\0" + b"\0" * 64


def bmp(width: int, height: int) -> bytes:
    info = struct.pack("<LllHH", 40, width, height, 1, 24)
    return b"BM" + struct.pack("<LHHL", 0, 0, 0, 54) + info + b"\0" * 64


def webp(kind: bytes, content: bytes) -> bytes:
    chunk = kind + struct.pack("<L", len(content)) + content
    return b"RIFF" + struct.pack("<L", 4 + len(chunk)) + b"WEBP" + chunk


def webp_lossy(width: int, height: int, scale: int = 0) -> bytes:
    sides = struct.pack("<HH", width | scale << 14, height | scale << 14)
    return webp(b"VP8 ", b"\x10\0\0\x9d\x01\x2a" + sides + b"\0" * 64)


def webp_lossless(width: int, height: int) -> bytes:
    return webp(b"VP8L", b"\x2f" + struct.pack("<L", (width - 1) | (height - 1) << 14) + b"\0" * 64)


def webp_extended(width: int, height: int) -> bytes:
    sides = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return webp(b"VP8X", b"\x10\0\0\0" + sides + b"\0" * 64)


def box(kind: bytes, *content: bytes) -> bytes:
    joined = b"".join(content)
    return struct.pack(">L4s", 8 + len(joined), kind) + joined


def avif(width: int, height: int, brand: bytes = b"avif", quarter_turns: int = 0) -> bytes:
    turn = box(b"irot", bytes([quarter_turns])) if quarter_turns else b""
    sides = box(b"ispe", b"\0" * 4, struct.pack(">LL", width, height))
    places = box(b"ipma", b"\0" * 4, struct.pack(">LHBB", 1, 1, 1, 1))
    primary = box(b"pitm", b"\0" * 4, struct.pack(">H", 1))
    meta = box(b"meta", b"\0" * 4, primary, box(b"iprp", box(b"ipco", sides, turn), places))
    return box(b"ftyp", brand, b"\0" * 4, b"mif1", brand) + meta + box(b"mdat", b"\0" * 64)


def segment(marker: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(content)) + content


def exif(orientation: int) -> bytes:
    entry = struct.pack(">HHLHH", 0x0112, 3, 1, orientation, 0)
    return segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", 1) + entry + b"\0" * 4)


def jpeg(width: int, height: int, *before: bytes) -> bytes:
    frame = segment(0xC0, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\0")
    return (
        b"\xff\xd8" + b"".join(before) + frame + segment(0xDA, b"\x01\x01\0\0\x3f\0") + b"\0" * 64
    )


IMAGES = {
    "png": (png(1280, 800), ImageSize("image/png", 1280, 800)),
    "gif": (gif(40_000, 3), ImageSize("image/gif", 40_000, 3)),
    "bmp": (bmp(640, 480), ImageSize("image/bmp", 640, 480)),
    "bmp, top row first": (bmp(640, -480), ImageSize("image/bmp", 640, 480)),
    "webp, lossy": (webp_lossy(550, 368), ImageSize("image/webp", 550, 368)),
    "webp, lossy and scaled": (webp_lossy(550, 368, 2), ImageSize("image/webp", 550, 368)),
    "webp, lossless": (webp_lossless(386, 395), ImageSize("image/webp", 386, 395)),
    "webp, extended": (webp_extended(4000, 30), ImageSize("image/webp", 4000, 30)),
    "avif": (avif(1204, 800), ImageSize("image/avif", 1204, 800)),
    "avif, turned": (avif(1204, 800, quarter_turns=3), ImageSize("image/avif", 800, 1204)),
    "avif, upside down": (avif(1204, 800, quarter_turns=2), ImageSize("image/avif", 1204, 800)),
    "heic": (avif(4032, 3024, b"heic"), ImageSize("image/heic", 4032, 3024)),
    "jpeg": (jpeg(4032, 3024), ImageSize("image/jpeg", 4032, 3024)),
    "jpeg, upside down": (jpeg(4032, 3024, exif(3)), ImageSize("image/jpeg", 4032, 3024)),
    "jpeg, turned": (jpeg(4032, 3024, exif(6)), ImageSize("image/jpeg", 3024, 4032)),
    "jpeg, turned and mirrored": (jpeg(4032, 3024, exif(5)), ImageSize("image/jpeg", 3024, 4032)),
}


@pytest.mark.parametrize("name", IMAGES)
def test_type_and_size_are_read_whatever_type_is_declared(name: str) -> None:
    content, size = IMAGES[name]
    assert image_size(data_url(content, "image/tiff")) == size
    assert base64_size(base64.b64encode(content).decode()) == size


@pytest.mark.parametrize("name", IMAGES)
def test_a_header_cut_anywhere_gives_the_size_or_none(name: str) -> None:
    content, size = IMAGES[name]
    found = [image_size(data_url(content[:end])) for end in range(len(content) + 1)]
    assert found[0] is None
    assert found[-1] == size
    assert {answer for answer in found if answer} == {size}


@pytest.mark.parametrize("name", IMAGES)
def test_a_header_with_any_byte_changed_never_raises(name: str) -> None:
    content, _ = IMAGES[name]
    for place in range(len(content)):
        for value in (0x00, 0xFF, content[place] ^ 0x80):
            found = image_size(data_url(content[:place] + bytes([value]) + content[place + 1 :]))
            assert found is None or (0 < found.width_px < 65_536 and 0 < found.height_px < 65_536)


@pytest.mark.parametrize(
    "content",
    [
        png(2**31 - 1, 2**31 - 1),
        png(0, 10),
        gif(0, 0),
        bmp(-5, 10),
        avif(2**32 - 1, 1),
        jpeg(100, 0),
        b"BM" + struct.pack("<LHHLLHHHH", 0, 0, 0, 26, 12, 640, 480, 1, 24) + b"\0" * 64,
        b"<svg width='10' height='10'/>",
        b"II*\0" + b"\0" * 64,
        b"",
    ],
)
def test_absurd_empty_and_foreign_headers_give_none(content: bytes) -> None:
    assert image_size(data_url(content)) is None


@pytest.mark.parametrize("kilobytes", [3, 30, 60, 180])
def test_a_jpeg_size_is_found_behind_large_metadata(kilobytes: int) -> None:
    profile = [segment(0xE2, b"\0" * 30_000)] * (kilobytes // 30) + [segment(0xE2, b"\0" * 3000)]
    content = jpeg(4032, 3024, exif(8), *profile) + b"\0" * 500_000
    assert image_size(data_url(content)) == ImageSize("image/jpeg", 3024, 4032)


def test_a_jpeg_size_behind_more_than_the_bound_is_not_looked_for() -> None:
    content = jpeg(4032, 3024, *[segment(0xE2, b"\0" * 60_000)] * 6)
    assert image_size(data_url(content)) is None


@pytest.mark.parametrize(
    "content",
    [
        b"\xff\xd8" + segment(0xE2, b"") * 100_000,
        b"\xff\xd8" + segment(0xE1, b"") * 100_000,
        b"\xff\xd8" + b"\xff" * 400_000,
        b"\xff\xd8\xff\xe0\0\x02" + b"\0" * 400_000,
        box(b"ftyp", b"avif" * 4) + box(b"free") * 50_000,
        box(b"ftyp", b"avif" * 4) + box(b"meta", b"\0" * 4, box(b"free") * 50_000),
        box(b"ftyp", b"avif" * 4)
        + box(b"meta", b"\0" * 4, box(b"iloc", b"\0" * 6 + b"\x40\0" + b"\xff" * 30_000)),
    ],
)
def test_a_header_made_to_be_slow_is_given_up_soon(content: bytes) -> None:
    """Fifty milliseconds is what the event loop may stand still; the least of three runs counts."""
    url = data_url(content)
    elapsed = []
    for _ in range(3):
        started = time.perf_counter()
        assert image_size(url) is None
        elapsed.append(time.perf_counter() - started)
    assert min(elapsed) < 0.05


def test_a_long_url_is_not_copied() -> None:
    url = data_url(png(1280, 800) + b"\0" * 3_000_000)
    tracemalloc.start()
    try:
        assert image_size(url) is not None
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 100_000


def test_other_urls_have_no_size() -> None:
    for url in (
        "https://example.com/a.png",
        "/etc/passwd",
        "data:image/png;base64",
        "data:image/png,iVBORw0KGgo",
        "data:image/png;base64,",
        "data:image/png;base64,%%%%",
        "data:" + "x" * 1000 + ";base64,AAAA",
        "",
    ):
        assert image_size(url) is None


def test_white_space_lost_padding_and_the_url_alphabet_are_understood() -> None:
    text = base64.b64encode(png(1280, 800)).decode()
    size = ImageSize("image/png", 1280, 800)
    broken = "\r\n".join(text[at : at + 76] for at in range(0, len(text), 76))
    assert image_size("data:image/png;base64," + broken) == size
    assert base64_size(text.rstrip("=")) == size
    content, jpeg_size = IMAGES["jpeg, turned"]
    assert base64_size(base64.urlsafe_b64encode(content).decode()) == jpeg_size


def test_a_part_has_the_size_of_its_bytes() -> None:
    content, size = IMAGES["png"]
    assert part_size(ImagePart((0,), url=data_url(content))) == size
    assert part_size(ImagePart((0,), base64=base64.b64encode(content).decode())) == size
    assert part_size(ImagePart((0,), url="https://example.com/a.png")) is None
    assert part_size(ImagePart((0,))) is None


@given(st.binary(), st.sampled_from([content[:16] for content, _ in IMAGES.values()]))
def test_no_bytes_raise(content: bytes, start: bytes) -> None:
    for candidate in (content, start + content):
        found = image_size(data_url(candidate))
        assert found is None or (0 < found.width_px < 65_536 and 0 < found.height_px < 65_536)


@given(st.text())
def test_no_string_raises(text: str) -> None:
    assert image_size(text) is None
    assert image_size(f"data:image/png;base64,{text}") is None or text
    assert base64_size(text) is None or text
