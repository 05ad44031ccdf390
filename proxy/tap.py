"""What is read from a reply while its bytes pass: usage, the finish reason, whether it is whole.

Taps see decoded bytes and change nothing. Reading costs next to nothing: a chunk of whole events
that names none of the few interesting keys is not parsed, and JSON is read once, at the end.
"""

import re
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from proxy.core.sse import Event, EventParser
from proxy.core.verdicts import (
    FirstEvents,
    decode_json,
    finish_reason_of,
    looks_like_error,
    usage_of,
)

# Quotes inside JSON strings are escaped, so these match keys and never text. Each begins with a
# literal, which is what makes searching for them fast; one pattern with alternatives is ten times
# slower than the searches one by one.
_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_FINISH = re.compile(rb'"finish_reason"\s*:\s*"')
_ERROR = re.compile(rb'"error')

_JSON = msgspec.json.Decoder()

_CARRIAGE_RETURN, _LETTER_D = 0x0D, 0x44

# A JSON reply is kept to be read at its end; beyond this its usage stays unread.
MAX_KEPT_BODY_BYTES = 4 << 20


def _plain_bytes(piece: bytes) -> int:
    """How many bytes at the beginning are whole events that name nothing that is read.

    A false alarm costs a parse, no more. The order and the letters asked for first are for speed.
    """
    end = len(piece)
    if _LETTER_D in piece and (at := piece.find(b"[DONE]")) >= 0:
        end = at
    if piece.startswith(b"event:"):
        return 0
    if (at := piece.find(b"\nevent:")) >= 0:
        end = min(end, at + 1)
    if piece.find(b"rror") >= 0 and (at := piece.find(b'"error')) >= 0:
        end = min(end, at)
    for named in (_FINISH.search(piece), _USAGE.search(piece)):
        if named is not None:
            end = min(end, named.start())
    if end == len(piece) and piece.endswith(b"\n\n"):
        return end
    last = piece.rfind(b"\n\n", 0, end)
    return last + 2 if last >= 0 else 0


def decoded(data: bytes) -> Any:
    """The JSON value, as `decode_json` reads it."""
    try:
        return _JSON.decode(data)
    except (ValueError, RecursionError):
        return decode_json(data)  # what msgspec refuses may be read all the same: NaN, UTF-16


class Tap(Protocol):
    """Reads a reply as it passes."""

    def feed(self, piece: bytes) -> None:
        """Takes decoded bytes."""

    def end(self) -> None:
        """No more bytes come."""

    @property
    def broken(self) -> str | None:
        """After `end`: why the reply is not whole, although its transport ended well."""

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The usage reported, as the provider wrote it."""

    @property
    def finish_reason(self) -> str | None:
        """The finish reason of the first choice that names one."""


class EventTap:
    """Reads a chat's event stream. `first` judges the beginning, until it has decided."""

    def __init__(self) -> None:
        """Reads from the stream's first byte."""
        self.first = FirstEvents()
        self._parser = EventParser()
        # The beginning is judged and the next byte starts an event: plain events need no parsing.
        self._may_skip = False
        self._usage_data = b""
        self._finish_reason: str | None = None
        self._ended_well = False
        self._broken: str | None = None

    def feed(self, piece: bytes) -> None:
        """Takes decoded bytes."""
        if not self._may_skip and not self.first.decided:
            piece = self._until_decided(piece)
        if self._may_skip and _CARRIAGE_RETURN not in piece:
            plain = _plain_bytes(piece)
            if plain == len(piece):
                return
            piece = piece[plain:]
        self._parse(piece)

    def _until_decided(self, piece: bytes) -> bytes:
        """What is left of the piece once the first events are judged, or no more of them end."""
        start = 0
        while not self.first.decided and (end := piece.find(b"\n\n", start)) >= 0:
            self._parse(piece[start : end + 2])
            start = end + 2
        return piece[start:]

    def _parse(self, piece: bytes) -> None:
        for event in self._parser.feed(piece):
            self._read(event)
        self._may_skip = self.first.decided and self._parser.between_events

    def _read(self, event: Event) -> None:
        data = event.data
        judging = not self.first.decided
        value = decoded(data) if judging else None
        if judging:
            self.first.feed(event, value)
        if event.done:
            self._ended_well = True
            return
        if _USAGE.search(data):
            self._usage_data = data
        if self._ended_well:
            return
        if _FINISH.search(data):
            value = value if judging else decoded(data)
            self._finish_reason = finish_reason_of(value)
            self._ended_well = self._finish_reason is not None
        if not self._ended_well and (event.event == b"error" or _ERROR.search(data)):
            self._ended_well = event.event == b"error" or looks_like_error(decoded(data))

    def end(self) -> None:
        """Judges whether the stream is whole: a finish, `[DONE]` or an error, and no cut event."""
        last = self._parser.end()
        if last is not None:
            self._read(last)
            if not (last.done or last.oversized) and decoded(last.data) is None:
                self._broken = "the stream ended inside an event"
        self.first.end()
        if self._broken is None and not self._ended_well:
            self._broken = "the stream ended without a finish reason or [DONE]"

    @property
    def broken(self) -> str | None:
        """Why the stream is not whole."""
        return self._broken

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The last usage that any event carried."""
        return usage_of(decoded(self._usage_data)) if self._usage_data else None

    @property
    def finish_reason(self) -> str | None:
        """The first finish reason."""
        return self._finish_reason


class BodyTap:
    """Keeps a whole body, up to a bound, to be read at its end."""

    def __init__(self, *, max_bytes: int = MAX_KEPT_BODY_BYTES) -> None:
        """Beyond `max_bytes` nothing is kept."""
        self.overflowed = False
        self._kept = bytearray()
        self._max_bytes = max_bytes
        self._ended = False
        self._is_read = False
        self._value: Any = None

    def feed(self, piece: bytes) -> None:
        """Takes decoded bytes."""
        if self.overflowed:
            return
        self._kept += piece
        if len(self._kept) > self._max_bytes:
            self.overflowed = True
            self._kept.clear()

    def body(self) -> bytes:
        """What was kept."""
        return bytes(self._kept)

    @property
    def kept_bytes(self) -> int:
        """How much was kept."""
        return len(self._kept)

    @property
    def value(self) -> Any:
        """What was kept, as JSON; None where it is none. Read once, when nothing more comes."""
        if not self._is_read:
            self._is_read = True
            self._value = decoded(self.body())
        return self._value

    def end(self) -> None:
        """What is kept is the whole body, unless it overflowed."""
        self._ended = True

    @property
    def broken(self) -> str | None:
        """A body is as whole as its transport says."""
        return None

    @property
    def usage(self) -> Mapping[str, Any] | None:
        """The usage of the body, once it has ended."""
        return usage_of(self.value) if self._ended else None

    @property
    def finish_reason(self) -> str | None:
        """The finish reason of the body, once it has ended."""
        return finish_reason_of(self.value) if self._ended else None
