"""Who a conversation is: a chain of keyed hashes over what its messages mean, so that the same
history is recognised however a client serialises it, and nothing stored can be guessed."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any
from urllib.parse import urlsplit

from proxy.core.messages import (
    Message,
    part_text,
    role_of,
    tool_calls_of,
)
from proxy.core.ranges import Pairing

FINGERPRINT_BYTES = 16
STEP_CHARS = 1 << 20

# Query parameters that sign a URL and change at every request: S3, GCS, Azure SAS, CloudFront.
_SIGNATURE_PARAMETERS = frozenset(
    {"signature", "sig", "se", "sp", "sv", "sr", "st", "spr", "skoid", "sktid", "skt", "ske", "sks"}
    | {"skv", "expires", "policy", "key-pair-id", "awsaccesskeyid", "googleaccessid", "token"}
)
_SIGNATURE_PREFIXES = ("x-amz-", "x-goog-")
# Anthropic's and OpenAI's block types for what a model thought; clients drop them between turns.
_REASONING_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
_VOLATILE_PART_FIELDS = frozenset({"cache_control", "annotations", "id", "status", "detail"})


@dataclass(frozen=True, slots=True)
class _Slice:
    """The end of a long ASCII text, read where it lies: images are megabytes of it."""

    text: str
    start: int

    def __len__(self) -> int:
        return len(self.text) - self.start

    def steps(self) -> Iterator[bytes]:
        for at in range(self.start, len(self.text), STEP_CHARS):
            yield self.text[at : at + STEP_CHARS].encode("ascii")


@lru_cache(8)
def _keyed(key: bytes) -> Any:
    """A hash that has taken in the key and nothing else: to be copied, never updated."""
    return blake2b(key=key[:64], digest_size=FINGERPRINT_BYTES)


def _hash(key: bytes, pieces: Iterable[bytes | _Slice]) -> bytes:
    """Of every piece and the length before it. What is short is hashed in one step."""
    state = _keyed(key).copy()
    waiting: list[bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            waiting += (len(piece).to_bytes(8, "big"), piece)
            continue
        state.update(b"".join((*waiting, len(piece).to_bytes(8, "big"))))
        waiting.clear()
        for step in piece.steps():
            state.update(step)
    state.update(b"".join(waiting))
    digest: bytes = state.digest()
    return digest


def _bytes(text: str, start: int = 0) -> bytes | _Slice:
    """The text from `start` on as UTF-8; the fingerprint is the same in whatever form."""
    if len(text) - start > STEP_CHARS and text.isascii():
        return _Slice(text, start)
    return (text[start:] if start else text).encode("utf-8", "surrogatepass")


def unsigned_url(url: str) -> str:
    """A remote URL without the query parameters that only sign it."""
    try:
        split = urlsplit(url)
    except ValueError:
        return url
    if not split.query:
        return url
    kept = [
        pair
        for pair in split.query.split("&")
        if (name := pair.split("=", 1)[0].lower()) not in _SIGNATURE_PARAMETERS
        and not name.startswith(_SIGNATURE_PREFIXES)
    ]
    return split._replace(query="&".join(kept)).geturl()


def _image_url(part: Mapping[str, Any]) -> str | None:
    image = part.get("image_url")
    if isinstance(image, Mapping):
        image = image.get("url")
    return image if isinstance(image, str) else None


def _part_pieces(part: Any) -> tuple[bytes, bytes | _Slice]:
    text = part_text(part)
    if text is not None:
        return b"text", _bytes(text)
    if isinstance(part, Mapping):
        url = _image_url(part)
        if url is not None and url[:5].lower() == "data:":
            return b"image", _bytes(url, url.find(",") + 1)
        if url is not None:
            return b"image-url", _bytes(unsigned_url(url))
        part = {k: v for k, v in part.items() if k not in _VOLATILE_PART_FIELDS and v is not None}
    return b"part", _bytes(json.dumps(part, sort_keys=True, default=str))


def meaning(key: bytes, message: Message) -> bytes:
    """Hash of what one message means by itself: role, name, content, calls.

    Null and empty fields, cache markers, reasoning, annotations, ids and status are left out,
    because clients drop, add or move them between turns.
    """
    pieces: list[bytes | _Slice] = [_bytes(role_of(message))]
    name = message.get("name")
    if isinstance(name, str) and name:
        pieces += (b"name", _bytes(name))
    content = message.get("content")
    if isinstance(content, str):
        if content:
            pieces += (b"text", _bytes(content))
    elif content is not None:
        for part in content if isinstance(content, list) else [content]:
            if isinstance(part, Mapping) and part.get("type") in _REASONING_PARTS:
                continue
            kind, value = _part_pieces(part)
            if value:
                pieces += (kind, value)
    refusal = message.get("refusal")
    if isinstance(refusal, str) and refusal:
        pieces += (b"text", _bytes(refusal))
    for index, call in enumerate(tool_calls_of(message)):
        pieces += (b"call", b"%d" % index, _bytes(call.name), _bytes(call.arguments))
    return _hash(key, pieces)


def chain(
    key: bytes, meanings: Sequence[bytes], pairing: Pairing, *, known: tuple[bytes, ...] = ()
) -> tuple[bytes, ...]:
    """The fingerprint after each message: hash(fingerprint before, digest of the message).

    A result's digest holds which call of its unit it answers, in place of the call's id. `known`
    are the fingerprints after the first messages.
    """
    new: list[bytes] = []
    before = known[-1] if known else b""
    for position in range(len(known), len(meanings)):
        value = meanings[position]
        answer = pairing.answers.get(position)
        place = b"" if answer is None else b"%d.%d" % (answer.distance, answer.call_index)
        before = _hash(key, (before, value, place))
        new.append(before)
    return known + tuple(new)
