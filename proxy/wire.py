"""Bytes to a chat request and back. What is not replaced is spliced, never re-encoded: the raw
bytes of every other field and of every message kept stand in the new body as they were sent."""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from proxy.core.commands import command_in
from proxy.core.messages import Message, has_media, head_length
from proxy.core.stream_usage import asks_for_usage, stream_options_asking

_RAW_BODY = msgspec.json.Decoder(dict[str, msgspec.Raw])
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])
_ANY = msgspec.json.Decoder()
_ENCODER = msgspec.json.Encoder()


class _Named(msgspec.Struct):
    """Any request, of which only `model` is read."""

    model: Any = None


_NAMED = msgspec.json.Decoder(_Named)

MAX_MODEL_CHARS = 1000
"""A longer name is none: much is remembered by model, and clients choose the names. Chosen."""

# What was read is walked again by recursion (hashed, encoded) from deeper in the stack than here.
SPARE_FRAMES = 150
# Counting the brackets of a larger body takes longer than the frames do.
COUNTED_BYTES = 16 * 1024


class ChatRequest(msgspec.Struct, frozen=True):
    """A chat-completions request: its bytes, and what was read of them.

    `fields` holds the raw JSON of every top-level field in the client's order, with nothing but
    the place of `messages`; `params` the decoded values of all but `messages`. `raw_messages[i]`
    are the bytes of `messages[i]`.
    """

    body: bytes
    fields: Mapping[str, bytes]
    params: Mapping[str, Any]
    messages: tuple[Message, ...]
    raw_messages: tuple[bytes, ...]
    head_length: int
    model: str
    stream: bool
    has_media: bool = True  # False: all content is text, so there is no image, audio or file
    has_commands: bool = True  # False: no message is a command to Tidegate itself
    rewritten: bool = False  # read leniently: the raw pieces are not the client's own bytes
    usage_added: bool = False  # the body asks for usage in the stream, the client did not

    def __repr__(self) -> str:
        """What it asks for; no message text."""
        return f"ChatRequest(model={self.model!r}, messages={len(self.messages)})"

    @property
    def head(self) -> tuple[Message, ...]:
        """The leading system and developer messages."""
        return self.messages[: self.head_length]

    @property
    def history(self) -> tuple[Message, ...]:
        """The messages after the head."""
        return self.messages[self.head_length :]

    @property
    def raw_history(self) -> tuple[bytes, ...]:
        """The bytes of the messages after the head."""
        return self.raw_messages[self.head_length :]


def read_chat(body: bytes, *, default_model: str = "") -> ChatRequest | None:
    """The chat request in `body`, or None when it cannot be read as one and should just be relayed.

    `default_model` is what the path names (Azure's deployments) for a body without `model`.
    """
    # A body of few brackets cannot nest deeply, whatever they enclose.
    few = len(body) <= COUNTED_BYTES and body.count(b"[") + body.count(b"{") < SPARE_FRAMES
    return _with_frames_to_spare(0 if few else SPARE_FRAMES, body, default_model)


def _with_frames_to_spare(frames: int, body: bytes, default_model: str) -> ChatRequest | None:
    """Read from deeper in the stack, so that nothing nested too deeply to be walked gets in."""
    if frames:
        return _with_frames_to_spare(frames - 1, body, default_model)
    try:
        return _read(body, default_model)
    except (msgspec.DecodeError, ValueError):
        pass
    except RecursionError:
        return None
    try:
        return _read_leniently(body, default_model)
    except (ValueError, RecursionError):
        return None


def _read(body: bytes, default_model: str) -> ChatRequest | None:
    raw_fields = _RAW_BODY.decode(body)
    listed = raw_fields.get("messages", msgspec.Raw(b"null"))
    if bytes(memoryview(listed)[:1]) != b"[":
        return None
    raw_messages = tuple(map(bytes, _RAW_LIST.decode(listed)))
    fields = {key: b"" if key == "messages" else bytes(raw) for key, raw in raw_fields.items()}
    try:
        params = _ANY.decode(body)
        messages = tuple(params.pop("messages"))
    except msgspec.DecodeError:
        messages = tuple([_value(raw) for raw in raw_messages])
        params = {key: _value(raw) for key, raw in fields.items() if key != "messages"}
    if not set(map(type, messages)) <= {dict}:
        return None
    return _request(body, fields, params, (messages, raw_messages), default_model)


def _value(raw: bytes) -> Any:
    try:
        return _ANY.decode(raw)
    except msgspec.DecodeError:
        return json.loads(raw)  # 1e400, which msgspec refuses


def decode(raw: bytes) -> Any:
    """Any JSON value, as bodies are read; ValueError where it is none."""
    return _value(raw)


def model_named(body: bytes) -> str | None:
    """The `model` of any JSON request, None where it names none, or one too long to be any."""
    try:
        model = _NAMED.decode(body).model
    except (msgspec.DecodeError, ValueError, RecursionError):
        try:
            read = json.loads(body)
        except (ValueError, RecursionError):
            return None
        model = read.get("model") if isinstance(read, dict) else None
    return model if isinstance(model, str) and 0 < len(model) <= MAX_MODEL_CHARS else None


def _read_leniently(body: bytes, default_model: str) -> ChatRequest | None:
    """Lone surrogates, which clients that cut strings send, pass only through the json module.

    Values stay the same; text that must be written again gets ASCII escapes.
    """
    decoded = json.loads(body)
    if not isinstance(decoded, dict) or not isinstance(decoded.get("messages"), list):
        return None
    messages = decoded["messages"]
    if not all(isinstance(message, dict) for message in messages):
        return None
    fields = {
        key: b"" if key == "messages" else json.dumps(value).encode()
        for key, value in decoded.items()
    }
    raw_messages = tuple(json.dumps(message).encode() for message in messages)
    params = {key: value for key, value in decoded.items() if key != "messages"}
    request = _request(body, fields, params, (tuple(messages), raw_messages), default_model)
    return request and replace(request, rewritten=True)


def _request(
    body: bytes,
    fields: Mapping[str, bytes],
    params: Mapping[str, Any],
    messages: tuple[tuple[Message, ...], tuple[bytes, ...]],
    default_model: str,
) -> ChatRequest | None:
    parsed, raw = messages
    if not parsed:
        return None
    model = params.get("model")
    model = default_model if model is None else model
    if not isinstance(model, str) or len(model := model or default_model) > MAX_MODEL_CHARS:
        return None
    return ChatRequest(
        body=body,
        fields=fields,
        params=params,
        messages=parsed,
        raw_messages=raw,
        head_length=head_length(parsed),
        model=model,
        stream=params.get("stream") is True,
        has_media=any(map(has_media, parsed)),
        has_commands=any(map(command_in, parsed)),
    )


def encode_message(message: Message) -> bytes:
    """A message of ours, or one that we edited, as JSON; the same mapping gives the same bytes."""
    return encode(message)


def encode(value: Any) -> bytes:
    """Any JSON value as bytes; lone surrogates are written as ASCII escapes."""
    try:
        return _ENCODER.encode(value)
    except (UnicodeEncodeError, msgspec.MsgspecError, OverflowError):
        return json.dumps(value, separators=(",", ":")).encode()


def join_messages(raw_messages: Sequence[bytes]) -> bytes:
    """The JSON list of messages whose bytes are given."""
    return b"".join([b"[", *_between(raw_messages), b"]"])


def _between(raw: Iterable[bytes]) -> Iterator[bytes]:
    """The items with commas between them, to be joined once: a join of `bytes` lets threads run."""
    comma = b""
    for item in raw:
        yield comma
        yield item
        comma = b","


def without_messages(request: ChatRequest, positions: Collection[int]) -> ChatRequest:
    """The request less some messages; the bytes of every other one and of every field stay."""
    kept = [n for n in range(len(request.messages)) if n not in positions]
    raw_messages = tuple(request.raw_messages[n] for n in kept)
    messages = tuple(request.messages[n] for n in kept)
    return replace(
        request,
        body=with_messages(request, raw_messages),
        messages=messages,
        raw_messages=raw_messages,
        head_length=head_length(messages),
    )


def without_field(request: ChatRequest, name: str) -> ChatRequest:
    """The request less one top-level field."""
    fields = {key: raw for key, raw in request.fields.items() if key != name}
    params = {key: value for key, value in request.params.items() if key != name}
    bare = replace(request, fields=fields, params=params)
    return replace(bare, body=with_messages(bare, request.raw_messages))


def asking_for_usage(request: ChatRequest) -> ChatRequest:
    """A streaming request that asks for usage, whether its client did or not."""
    if not request.stream or asks_for_usage(request.params):
        return request
    options = stream_options_asking(request.params.get("stream_options"))
    fields = {**request.fields, "stream_options": encode(options)}
    params = {**request.params, "stream_options": options}
    asking = replace(request, fields=fields, params=params, usage_added=True)
    return replace(asking, body=with_messages(asking, request.raw_messages))


def with_messages(request: ChatRequest, raw_messages: Sequence[bytes]) -> bytes:
    """The request's body with other messages and nothing else changed."""
    return b"".join(_spliced(request.fields, raw_messages))


def _spliced(fields: Mapping[str, bytes], raw_messages: Iterable[bytes]) -> Iterator[bytes]:
    """The pieces of the body; of the fields, `messages` is one, and holds its place."""
    opening = b"{"
    for key, raw in fields.items():
        yield opening + encode(key) + b":"
        if key == "messages":
            yield b"["
            yield from _between(raw_messages)
            yield b"]"
        else:
            yield raw
        opening = b","
    yield b"}"
