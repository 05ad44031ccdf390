"""Usage in streams whose client did not ask for it: the request asks, the extra event in answer is
taken out, and every other byte passes as it came."""

import json
import re
from collections.abc import Mapping
from typing import Any

from proxy.core.sse import MAX_EVENT_BYTES

# Atomic: CR LF is one line end and never two.
_EVENT_END = re.compile(rb"(?>\r\n|\n|\r)(?>\r\n|\n|\r)")
_LINE_END = re.compile(rb"\r\n|\n|\r")
_MAY_BE_EXTRA = re.compile(rb'"choices"\s*:\s*\[\s*\]')


def stream_options_asking(given: Any) -> dict[str, Any]:
    """The client's `stream_options` with usage asked for."""
    return {**(given if isinstance(given, Mapping) else {}), "include_usage": True}


def asks_for_usage(params: Mapping[str, Any]) -> bool:
    """Whether the client itself wants usage in its stream."""
    options = params.get("stream_options")
    return isinstance(options, Mapping) and options.get("include_usage") is True


class UsageSieve:
    """Bytes of a stream in, the same bytes out less the event that carries usage alone.

    Whole events pass at once; what is held is an event that has not ended, up to a bound.
    """

    def __init__(self) -> None:
        """Nothing is held."""
        self._held = b""
        self._inside_long = False

    def feed(self, piece: bytes) -> bytes:
        """What may pass now."""
        at_rest = not self._held and not self._inside_long
        if at_rest and piece.endswith(b"\n\n") and not _MAY_BE_EXTRA.search(piece):
            return piece
        data = self._held + piece
        passing: list[bytes] = []
        start = 0
        for end in _EVENT_END.finditer(data):
            if end.end() == len(data) and data.endswith(b"\r"):
                break  # a line feed may still belong to it
            event = data[start : end.end()]
            if self._inside_long or not is_extra(event):
                passing.append(event)
            self._inside_long = False
            start = end.end()
        self._held = data[start:]
        if len(self._held) > MAX_EVENT_BYTES or self._inside_long:
            # No usage event is that long: it passes in pieces, but for what may be its end.
            self._inside_long = True
            cut = max(len(self._held) - 3, 0)
            passing.append(self._held[:cut])
            self._held = self._held[cut:]
        return b"".join(passing)

    def end(self) -> bytes:
        """What was held: an event without its end passes as it is, unless it is the extra one."""
        rest, self._held = self._held, b""
        return b"" if not self._inside_long and is_extra(rest) else rest


def is_extra(event: bytes) -> bool:
    """Whether an event carries usage and nothing else."""
    if b'"usage"' not in event or not _MAY_BE_EXTRA.search(event):
        return False
    lines = _LINE_END.split(event)
    data = b"\n".join(line[5:].strip() for line in lines if line.startswith(b"data:"))
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return False
    return (
        isinstance(value, dict)
        and value.get("choices") == []
        and isinstance(value.get("usage"), dict)
        and not value.get("error")
    )
