"""Content codings undone in bounded pieces, from any chunking."""

import gzip
import zlib
from collections.abc import Callable

import brotli  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

try:
    from compression import zstd  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    from backports import zstd

from proxy.codings import (
    PIECE_BYTES,
    CodingError,
    TooLarge,
    accepted_codings,
    accepts,
    codings_of,
    decode_bounded,
    make_decoder,
)


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", lambda data: gzip.compress(data, mtime=0)),
    "gzip in two members": ("gzip", lambda data: gzip.compress(data[:3]) + gzip.compress(data[3:])),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", raw_deflate),
    "br": ("br", brotli.compress),
    "zstd": ("zstd", zstd.compress),
    "zstd in two frames": ("zstd", lambda data: zstd.compress(data[:3]) + zstd.compress(data[3:])),
}


@pytest.mark.parametrize("name", ENCODERS)
@given(data=st.binary(min_size=1, max_size=200), step=st.integers(1, 50))
def test_any_chunking_decodes_to_the_same(name: str, data: bytes, step: int) -> None:
    coding, encode = ENCODERS[name]
    packed = encode(data)
    chunks = [packed[i : i + step] for i in range(0, len(packed), step)]
    assert decode_bounded(chunks, (coding,), max_bytes=1000) == data


@pytest.mark.parametrize("name", ENCODERS)
def test_a_bomb_comes_in_small_pieces_and_stops_at_the_bound(name: str) -> None:
    coding, encode = ENCODERS[name]
    bomb = encode(bytes(20 << 20))
    assert len(bomb) < 200_000
    decoder = make_decoder((coding,))
    assert decoder is not None
    largest = total = 0
    for piece in decoder.feed(bomb):
        largest = max(largest, len(piece))
        total += len(piece)
    assert total == 20 << 20
    assert largest <= 2 * PIECE_BYTES
    with pytest.raises(TooLarge):
        decode_bounded((bomb,), (coding,), max_bytes=1000)


def test_codings_are_undone_in_reverse_order() -> None:
    packed = gzip.compress(brotli.compress(b"hello"))
    assert decode_bounded((packed,), ("br", "gzip"), max_bytes=10) == b"hello"
    bomb = gzip.compress(gzip.compress(bytes(20 << 20)))
    with pytest.raises(TooLarge):
        decode_bounded((bomb,), ("gzip", "gzip"), max_bytes=1000)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd"])
def test_bytes_in_another_coding_are_an_error(coding: str) -> None:
    with pytest.raises(CodingError):
        decode_bounded((b"this is just plain text, not compressed",), (coding,), max_bytes=100)


def test_padding_after_a_gzip_member_is_ignored() -> None:
    assert decode_bounded((gzip.compress(b"a") + bytes(8),), ("gzip",), max_bytes=10) == b"a"


def test_an_unknown_coding_has_no_decoder() -> None:
    assert make_decoder(("compress",)) is None
    assert make_decoder(("gzip", "compress")) is None
    assert make_decoder(()) is None
    assert make_decoder(("gzip",) * 5) is None
    with pytest.raises(CodingError):
        decode_bounded((b"",), ("compress",), max_bytes=10)


@pytest.mark.parametrize(
    ("header", "codings"),
    [
        (b"", ()),
        (b"identity", ()),
        (b"GZIP", ("gzip",)),
        (b"x-gzip", ("gzip",)),
        (b"br , gzip", ("br", "gzip")),
        (b"identity, zstd", ("zstd",)),
    ],
)
def test_codings_of_a_header(header: bytes, codings: tuple[str, ...]) -> None:
    assert codings_of(header) == codings


@pytest.mark.parametrize(
    ("header", "coding", "accepted"),
    [
        (None, "gzip", False),
        (b"", "gzip", False),
        (b"gzip", "gzip", True),
        (b"x-gzip", "gzip", True),
        (b"gzip, br", "br", True),
        (b"GZIP;q=0.5", "gzip", True),
        (b"gzip;q=0", "gzip", False),
        (b"gzip; q=0.000", "gzip", False),
        (b"identity", "gzip", False),
        (b"*", "zstd", True),
        (b"*;q=0", "zstd", False),
    ],
)
def test_what_a_client_accepts(header: bytes | None, coding: str, accepted: bool) -> None:
    assert accepts(accepted_codings(header), (coding,)) is accepted
