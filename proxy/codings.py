"""Content codings: gzip, deflate, br and zstd, undone piece by piece with every piece bounded.

A few compressed bytes can stand for gigabytes, so nothing here returns output in one go: decoders
yield pieces of about `PIECE_BYTES` at most, and whoever collects them stops at its own limit.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Protocol

import brotli  # type: ignore[import-untyped]  # ships no stubs

try:  # the standard library has it from 3.14 on; before, its backport
    from compression import zstd  # type: ignore[import-not-found,unused-ignore]
except ImportError:
    from backports import zstd

PIECE_BYTES = 1 << 16

_ALIASES = {"x-gzip": "gzip"}
_GZIP_WINDOW = 31
_ZLIB_WINDOW = 15
_RAW_WINDOW = -15


class CodingError(Exception):
    """The bytes are not what their content coding says."""


class TooLarge(Exception):
    """Decoded, the body is larger than its reader takes."""


class Decoder(Protocol):
    """Undoes one coding, incrementally."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Pieces of decoded bytes. The iterator must be read to its end or the decoder dropped."""


class _ZlibDecoder:
    """gzip (any number of members) and deflate (zlib-wrapped as the RFC says, raw as many send)."""

    def __init__(self, coding: str) -> None:
        self._gzip = coding == "gzip"
        self._start = b""
        self._inflate = zlib.decompressobj(_GZIP_WINDOW) if self._gzip else None

    def feed(self, data: bytes) -> Iterator[bytes]:
        if self._inflate is None:
            self._start += data
            if len(self._start) < 2:
                return
            data, self._start = self._start, b""
            wrapped = data[0] & 0x0F == 8 and (data[0] * 256 + data[1]) % 31 == 0
            self._inflate = zlib.decompressobj(_ZLIB_WINDOW if wrapped else _RAW_WINDOW)
        while True:
            try:
                piece = self._inflate.decompress(data, PIECE_BYTES)
            except zlib.error as exc:
                raise CodingError(str(exc)) from exc
            if piece:
                yield piece
            if self._inflate.eof:
                data = self._inflate.unused_data
                if not (self._gzip and data.strip(b"\0")):
                    return
                self._inflate = zlib.decompressobj(_GZIP_WINDOW)
                continue
            data = self._inflate.unconsumed_tail
            if not data and len(piece) < PIECE_BYTES:
                return


class _BrotliDecoder:
    def __init__(self) -> None:
        self._brotli = brotli.Decompressor()

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            try:
                piece = self._brotli.process(data, output_buffer_limit=PIECE_BYTES)
            except brotli.error as exc:
                raise CodingError(str(exc)) from exc
            if piece:
                yield piece
            full = len(piece) >= PIECE_BYTES  # more may be waiting, whatever it says of input
            if self._brotli.is_finished() or (self._brotli.can_accept_more_data() and not full):
                return
            data = b""


class _ZstdDecoder:
    def __init__(self) -> None:
        self._zstd = zstd.ZstdDecompressor()

    def feed(self, data: bytes) -> Iterator[bytes]:
        while True:
            if self._zstd.eof:  # another frame follows
                self._zstd = zstd.ZstdDecompressor()
            try:
                piece = self._zstd.decompress(data, PIECE_BYTES)
            except zstd.ZstdError as exc:
                raise CodingError(str(exc)) from exc
            if piece:
                yield piece
            if self._zstd.eof:
                data = self._zstd.unused_data
                if not data:
                    return
            elif self._zstd.needs_input:
                return
            else:
                data = b""


class _Chain:
    """Several codings, applied in the order listed and undone in the reverse."""

    def __init__(self, decoders: list[Decoder]) -> None:
        self._decoders = decoders

    def feed(self, data: bytes) -> Iterator[bytes]:
        return self._undo(data, len(self._decoders) - 1)

    def _undo(self, data: bytes, index: int) -> Iterator[bytes]:
        for piece in self._decoders[index].feed(data):
            if index == 0:
                yield piece
            else:
                yield from self._undo(piece, index - 1)


_DECODERS: dict[str, Callable[[], Decoder]] = {
    "gzip": lambda: _ZlibDecoder("gzip"),
    "deflate": lambda: _ZlibDecoder("deflate"),
    "br": _BrotliDecoder,
    "zstd": _ZstdDecoder,
}


@lru_cache(maxsize=32)
def codings_of(header: bytes) -> tuple[str, ...]:
    """The codings a Content-Encoding header lists, in order, without `identity`."""
    names = (name.strip().lower() for name in header.decode("latin-1").split(","))
    return tuple(_ALIASES.get(name, name) for name in names if name and name != "identity")


def make_decoder(codings: tuple[str, ...]) -> Decoder | None:
    """What undoes these codings; None where one is not known (or none is there to undo)."""
    if not codings or len(codings) > 4 or any(coding not in _DECODERS for coding in codings):
        return None
    decoders = [_DECODERS[coding]() for coding in codings]
    return decoders[0] if len(decoders) == 1 else _Chain(decoders)


def decode_bounded(chunks: Iterable[bytes], codings: tuple[str, ...], *, max_bytes: int) -> bytes:
    """The decoded whole.

    Raises:
        CodingError: not that coding, or a coding not known.
        TooLarge: more than `max_bytes` when decoded; decoding stops there.
    """
    decoder = make_decoder(codings)
    if decoder is None:
        raise CodingError(f"unknown content coding {', '.join(codings)}")
    whole = bytearray()
    for chunk in chunks:
        for piece in decoder.feed(chunk):
            whole += piece
            if len(whole) > max_bytes:
                raise TooLarge
    return bytes(whole)


@lru_cache(maxsize=32)
def accepted_codings(accept_encoding: bytes | None) -> frozenset[str]:
    """The codings an Accept-Encoding header allows, `*` among them when it stands there.

    No header means none: clients that send none seldom decode, whatever the RFC allows them.
    """
    accepted: set[str] = set()
    for item in (accept_encoding or b"").decode("latin-1").lower().split(","):
        name, *parameters = (part.strip() for part in item.split(";"))
        weights = (p.removeprefix("q=").strip() for p in parameters if p.startswith("q="))
        refused = any(weight.strip("0.") == "" for weight in weights)
        if name and not refused:
            accepted.add(_ALIASES.get(name, name))
    return frozenset(accepted)


def accepts(accepted: frozenset[str], codings: tuple[str, ...]) -> bool:
    """Whether a client that accepts these can read a body in those codings."""
    return all(coding in accepted or "*" in accepted for coding in codings)
