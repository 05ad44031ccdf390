"""Questions about the image, audio and file parts of a message, and what stands in for an image.

Content is read where it lies: parts keep references to the client's strings, and only a bounded
prefix is ever sliced. Anything that does not look like a known part is no part; nothing raises.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

LONGEST_HEADER_CHARS = 256
"""How much of a data URL is searched for the comma that ends its header."""

MAX_AUDIO_TOKENS = 60_000
"""About half an hour at the rate below; more audio than that is not priced. Chosen."""

AUDIO_BYTES_PER_TOKEN = {"wav": 1000, "pcm16": 1000}
"""Decoded bytes per token of uncompressed speech: 32 tokens a second (Google, "Understand and
count tokens") at 16 kHz and 16 bits, 32000 bytes a second."""

COMPRESSED_AUDIO_BYTES_PER_TOKEN = 250
"""The same 32 tokens a second at 64 kbit/s, 8000 bytes a second."""

FILE_TOKENS = 3000
"""A file known by id or URL alone: one dense page, the upper end of the 1500 to 3000 tokens a
page that Anthropic states ("PDF support"). Also the least for a file whose bytes are here."""

FILE_BYTES_PER_TOKEN = 32
"""Decoded bytes per token of an attached file: about 96 KB for each page of 3000 tokens. Chosen
between text documents (fewer bytes) and scans (more)."""

MAX_FILE_TOKENS = 60_000
"""Twenty dense pages; what a larger file costs is learned from the provider's usage. Chosen."""

PLACEHOLDER_TOKENS = 45
"""More than the text of a placeholder counts: 30 to 41 tokens."""

PLACEHOLDER_BYTES = 256
"""More than a placeholder part takes in the body in place of an image."""

_MEDIA_TYPE = re.compile(r"[a-z0-9]{1,20}/[a-z0-9][a-z0-9.+-]{0,30}")


@dataclass(frozen=True, slots=True)
class ImagePart:
    """One image in the content of one message.

    `path` leads to it: the index of the part, and for an image inside an Anthropic `tool_result`
    part a second index into that part's content. `url` is a data URL or a remote one; `base64` is
    set instead where the client sends the bytes without a URL around them. Both are None for an
    image known by a file id alone.
    """

    path: tuple[int, ...]
    url: str | None = None
    base64: str | None = None
    detail: str | None = None
    media_type: str | None = None

    @property
    def has_bytes(self) -> bool:
        """Whether the image itself is in the request."""
        return self.base64 is not None or (self.url is not None and is_data_url(self.url))

    @property
    def size_bytes(self) -> int:
        """How much of the request body the image takes; base64 and URLs are ASCII."""
        return len(self.base64 or self.url or "")


def image_parts(message: Mapping[str, Any]) -> tuple[ImagePart, ...]:
    """The images in a message, in order, whatever its role; which roles count, the caller knows."""
    return tuple(_walk(message.get("content"), ()))


def is_data_url(url: str) -> bool:
    """Whether the URL carries its content."""
    return url[:5].lower() == "data:"


def price_part(part: Mapping[str, Any]) -> int | None:
    """The stated price of an audio or file part; None for every other part."""
    match part.get("type"):
        case "input_audio":
            return _audio_tokens(part)
        case "file" | "input_file" | "document":
            return _file_tokens(part)
    return None


def placeholder(media_type: str | None, width_px: int | None, height_px: int | None) -> str:
    """The text that stands where an image was; the same image always gives the same text."""
    facts = [_safe_media_type(media_type or "") or "image"]
    if width_px is not None and height_px is not None and width_px > 0 and height_px > 0:
        facts.append(f"{width_px} x {height_px} pixels")
    return (
        f"[An image was attached here ({', '.join(facts)}). It was received earlier in this "
        "conversation and has been removed to save room; it is no longer visible.]"
    )


def offload_count(
    images_total: int, *, image_limit: int | None = None, image_count: int | None = None
) -> int:
    """How many of the oldest images to offload after a refusal.

    As many as a stated limit implies, against the count that the provider stated, else ours. No
    limit, or one that this request does not exceed by that count: half of them. At least one,
    never more than there are.
    """
    if images_total < 1:
        return 0
    if image_limit is not None and image_limit >= 0:
        excess = (images_total if image_count is None else image_count) - image_limit
        if excess > 0:
            return min(excess, images_total)
    return half_of(images_total)


def offload_for_bytes(
    sizes_bytes: Sequence[int],
    body_bytes: int,
    limit_bytes: int | None = None,
    actual_bytes: int | None = None,
) -> int:
    """How many of the oldest images to offload after a byte limit.

    `sizes_bytes` are the images' shares of the body, oldest first. The provider's figure for the
    body holds where it is larger than ours. Without a limit, or when the body is already below
    it: half of them. All of them where even that is not enough.
    """
    if not sizes_bytes:
        return 0
    excess_bytes = max(body_bytes, actual_bytes or 0) - (limit_bytes or 0)
    if limit_bytes is None or limit_bytes < 1 or excess_bytes <= 0:
        return half_of(len(sizes_bytes))
    for count, size_bytes in enumerate(sizes_bytes, start=1):
        excess_bytes -= max(0, size_bytes - PLACEHOLDER_BYTES)
        if excess_bytes <= 0:
            return count
    return len(sizes_bytes)


def half_of(images_total: int) -> int:
    """Half, rounded up, so that four replays empty a request of fifteen images."""
    return (images_total + 1) // 2


def _walk(content: object, path: tuple[int, ...]) -> Iterator[ImagePart]:
    """The images of a content list; a `tool_result` part is entered once."""
    if not isinstance(content, list | tuple):
        return
    for index, part in enumerate(content):
        if not isinstance(part, Mapping):
            continue
        here = (*path, index)
        if part.get("type") == "tool_result" and not path:
            yield from _walk(part.get("content"), here)
            continue
        image = _image(part, here)
        if image is not None:
            yield image


def _image(part: Mapping[str, Any], path: tuple[int, ...]) -> ImagePart | None:
    """The part as an image, if it is one."""
    match part.get("type"):
        case "image_url" | "input_image":
            inner = part.get("image_url")
            fields = inner if isinstance(inner, Mapping) else {"url": inner}
            detail = _text(fields.get("detail")) or _text(part.get("detail"))
            return ImagePart(path, url=_text(fields.get("url")), detail=detail)
        case "image":
            return _bare_image(part, path)
    return None


def _bare_image(part: Mapping[str, Any], path: tuple[int, ...]) -> ImagePart:
    """A part of type `image`: Anthropic's `source`, MCP's `data`, or a URL under `image`."""
    source = part.get("source")
    fields = source if isinstance(source, Mapping) else part
    url = _text(fields.get("url")) or _text(part.get("image"))
    stated = _text(fields.get("media_type")) or _text(fields.get("mimeType"))
    return ImagePart(
        path,
        url=url,
        base64=None if url else _text(fields.get("data")),
        detail=_text(part.get("detail")),
        media_type=_safe_media_type(stated or ""),
    )


def _audio_tokens(part: Mapping[str, Any]) -> int:
    audio = part.get("input_audio")
    fields = audio if isinstance(audio, Mapping) else part
    bytes_per_token = AUDIO_BYTES_PER_TOKEN.get(
        _text(fields.get("format")) or "", COMPRESSED_AUDIO_BYTES_PER_TOKEN
    )
    tokens = -(-_decoded_bytes(_text(fields.get("data"))) // bytes_per_token)
    return min(max(tokens, 1), MAX_AUDIO_TOKENS)


def _file_tokens(part: Mapping[str, Any]) -> int:
    inner = part.get("file") or part.get("source")
    fields = inner if isinstance(inner, Mapping) else part
    data = _text(fields.get("file_data")) or _text(fields.get("data"))
    return min(max(FILE_TOKENS, _decoded_bytes(data) // FILE_BYTES_PER_TOKEN), MAX_FILE_TOKENS)


def _decoded_bytes(base64: str | None) -> int:
    """How many bytes the base64 stands for; a data URL's header is too short to matter."""
    return len(base64 or "") * 3 // 4


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _safe_media_type(stated: str) -> str | None:
    """A media type of ordinary form; anything else could carry words to the model."""
    found = _MEDIA_TYPE.fullmatch(stated[:LONGEST_HEADER_CHARS].strip().lower())
    return found[0] if found else None
