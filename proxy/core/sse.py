"""Server-sent events, parsed on bytes as they come: any chunking gives the same events.

Lines end at CR, LF or CRLF and nowhere else (U+2028 and U+0085 are text inside JSON, which is why
no `splitlines` is used). The parser only reads: what passes to the client is never rebuilt.
"""

import re
from typing import NamedTuple

# The largest event kept; the longest honest ones are base64 audio deltas of a few hundred KB.
MAX_EVENT_BYTES = 1 << 20

DONE = b"[DONE]"

_LINE_END = re.compile(rb"\r\n|\r|\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_LINE_FEED, _CARRIAGE_RETURN = 0x0A, 0x0D


class Event(NamedTuple):
    """One dispatched event. An `oversized` one kept no data: it was over the parser's bound.

    A named tuple, because it is made three times as fast as a frozen dataclass.
    """

    data: bytes
    event: bytes = b""
    id: bytes | None = None
    oversized: bool = False

    @property
    def done(self) -> bool:
        """Whether this is the `[DONE]` that ends a chat stream."""
        return self.data.strip() == DONE


class EventParser:
    """Bytes in, events out; holds at most one unfinished event of at most `max_event_bytes`."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        """`max_event_bytes` bounds the data kept of one event."""
        self._max_event_bytes = max_event_bytes
        self._partial = bytearray()
        self._partial_cut = False
        self._after_cr = False
        self._first_line = True
        self._reset()

    def _reset(self) -> None:
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._event = b""
        self._id: bytes | None = None
        self._oversized = False

    @property
    def between_events(self) -> bool:
        """Nothing of an event is pending: the next byte starts a line of a new one."""
        return not (self._partial or self._partial_cut or self._data or self._event) and not (
            self._after_cr or self._oversized or self._first_line
        )

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that this chunk completes."""
        if not chunk:
            return []
        if self._after_cr and chunk[0] == _LINE_FEED:
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r") if chunk else False
        *lines, rest = _LINE_END.split(chunk) if _CARRIAGE_RETURN in chunk else chunk.split(b"\n")
        events: list[Event] = []
        for line in lines:
            if self._partial or self._partial_cut or len(line) > self._max_event_bytes:
                line = self._finish_partial(line)
            self._take_line(line, events)
        self._extend_partial(rest)
        return events

    def end(self) -> Event | None:
        """The event that was still open when the stream ended."""
        events: list[Event] = []
        if self._partial or self._partial_cut:
            self._take_line(self._finish_partial(b""), events)
        self._dispatch(events)
        return events[0] if events else None

    def _extend_partial(self, rest: bytes) -> None:
        if not rest:
            return
        if self._partial_cut or len(self._partial) + len(rest) > self._max_event_bytes:
            self._partial_cut = True
            del self._partial[16:]  # enough to tell a comment from a field
            if not self._partial:
                self._partial += rest[:16]
            return
        self._partial += rest

    def _finish_partial(self, line: bytes) -> bytes:
        self._extend_partial(line)
        whole = bytes(self._partial)
        if self._partial_cut and not whole.startswith(b":"):
            self._oversized = True
        self._partial.clear()
        self._partial_cut = False
        return whole

    def _take_line(self, line: bytes, events: list[Event]) -> None:
        if self._first_line:
            self._first_line = False
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            self._dispatch(events)
            return
        name, _, value = line.partition(b":")
        if value.startswith(b" "):
            value = value[1:]
        if name == b"data":
            self._data_bytes += len(value)
            if self._data_bytes > self._max_event_bytes:
                self._oversized = True
            self._data.append(b"" if self._oversized else value)
        elif name == b"event":
            self._event = value
        elif name == b"id":
            self._id = value

    def _dispatch(self, events: list[Event]) -> None:
        if self._oversized:
            events.append(Event(b"", self._event, self._id, oversized=True))
        elif self._data:
            events.append(Event(b"\n".join(self._data), self._event, self._id))
        self._reset()
