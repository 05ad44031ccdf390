"""Long chat bodies are read from where they differ from an earlier one of the same tenant.

A body that begins with the bytes of an earlier one, up to the end of a message of it, has a JSON
reader in the same state there. So a mark stands in for what is known, the rest is read as always,
and when the mark comes out as the first message, the known messages take its place. Whatever does
not come out like that is read whole.
"""

import json
import re
import secrets
from array import array
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from operator import attrgetter

from msgspec.structs import replace

from proxy.core.commands import command_in
from proxy.core.messages import Message, has_media, head_length
from proxy.off_loop import INLINE_BYTES, off_loop
from proxy.wire import ChatRequest, read_chat

LEAST_BYTES = 8 * 1024
"""Shorter bodies are read as quickly as they are compared."""

REMEMBERED_BYTES = 7 * 512 * 1024
"""Of bodies: 7 conversations of 100,000 tokens, or hundreds of the usual ones. Their messages take
about twice as much again: 9 MB in all. What is not remembered costs a turn of that length 7 ms of
the processor. Chosen."""

MESSAGE_BYTES = 300
"""What a message takes however short it is, which counts as well: a client chooses how many."""

COMPARED_BYTES = 64 * 1024
"""Compared at a time, so that what is cut out for it stays in the processor's cache."""

# No client can guess it. As the lenient reader would write it, there is a space in it.
_MARK = json.dumps({secrets.token_hex(16): 0}, separators=(",", ":")).encode()

_BETWEEN = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_WHITE_SPACE = b" \t\r\n"


@dataclass(frozen=True, slots=True, eq=False)
class Earlier:
    """A body that was read: what its messages are, where their list opens, where each one ends."""

    body: bytes = field(repr=False)
    messages: tuple[Message, ...] = field(repr=False)
    raw_messages: tuple[bytes, ...] = field(repr=False)
    has_media: bool
    has_commands: bool
    opening: int
    ends: "array[int]" = field(repr=False)

    @property
    def size_bytes(self) -> int:
        """About the room it takes."""
        return len(self.body) + MESSAGE_BYTES * len(self.ends)


def located(request: ChatRequest, before: Earlier | None = None, alike: int = 0) -> Earlier | None:
    """Where the messages stand in the body; None where they do not stand there as they were read.

    The first `alike` messages stand where those of the body `before` stand.
    """
    if request.rewritten:
        return None
    body, raw = request.body, request.raw_messages
    if before is not None and alike:
        opening, ends = before.opening, before.ends[:alike]
    else:
        at = body.find(raw[0])
        opening, ends = body.rfind(b"[", 0, max(at, 0)), array("q", [at + len(raw[0])])
        if opening < 0 or body[opening + 1 : at].strip(_WHITE_SPACE):
            return None
    end, between = ends[-1], b","
    for item in raw[len(ends) :]:
        at = end + len(between)
        # Most clients write the same between all messages.
        if not (body.startswith(between, end) and body.startswith(item, at)):
            comma = _BETWEEN.match(body, end)
            if comma is None or not body.startswith(item, at := comma.end()):
                return None
            between = comma.group()
        end = at + len(item)
        ends.append(end)
    return Earlier(
        body=body,
        messages=request.messages,
        raw_messages=raw,
        has_media=request.has_media,
        has_commands=request.has_commands,
        opening=opening,
        ends=ends,
    )


def known_messages(body: bytes, earlier: Earlier) -> int:
    """How many whole messages of the earlier body this one begins with."""
    return bisect_right(earlier.ends, _bytes_alike(body, earlier.body, earlier.ends[-1]))


def _bytes_alike(body: bytes, other: bytes, end: int) -> int:
    """How many of the first `end` bytes of `other` the body begins with."""
    at, step = 0, COMPARED_BYTES
    while at < end:
        piece = other[at : min(at + step, end)]
        if body.startswith(piece, at):
            at += len(piece)
        elif len(piece) == 1:
            break
        else:
            step = len(piece) // 2
    return at


def read_on(
    body: bytes, earlier: Earlier, alike: int, *, default_model: str = ""
) -> ChatRequest | None:
    """The request in a body that begins with `alike` messages of an earlier one; None where it
    must be read whole."""
    marked = body[: earlier.opening + 1] + _MARK + body[earlier.ends[alike - 1] :]
    read = read_chat(marked, default_model=default_model)
    if read is None or read.raw_messages[0] != _MARK:
        return None
    known = earlier.messages[:alike]
    all_known = alike == len(earlier.messages)
    messages = known + read.messages[1:]
    return replace(
        read,
        body=body,
        messages=messages,
        raw_messages=earlier.raw_messages[:alike] + read.raw_messages[1:],
        head_length=head_length(messages),
        has_media=read.has_media
        or (earlier.has_media and (all_known or any(map(has_media, known)))),
        has_commands=read.has_commands
        or (earlier.has_commands and (all_known or any(map(command_in, known)))),
    )


class Beginnings:
    """Reads chats, and remembers the last long bodies of each tenant, bounded in bytes."""

    def __init__(
        self, max_bytes: int = REMEMBERED_BYTES, *, least_bytes: int = LEAST_BYTES
    ) -> None:
        """Empty."""
        self._max_bytes = max_bytes
        self._least_bytes = least_bytes
        self._size_bytes = 0
        self._sorted: dict[str, list[Earlier]] = {}
        self._by_age: OrderedDict[Earlier, str] = OrderedDict()

    def __len__(self) -> int:
        """How many bodies are remembered."""
        return len(self._by_age)

    async def read(self, tenant: str, body: bytes, default_model: str) -> ChatRequest | None:
        """What `read_chat` says; what the body begins with may be known."""
        if len(body) < self._least_bytes:
            return read_chat(body, default_model=default_model)
        earlier, alike = self._find(tenant, body)
        if earlier is not None and len(body) - earlier.ends[alike - 1] <= INLINE_BYTES:
            request = read_on(body, earlier, alike, default_model=default_model)
            if request is not None:
                found = located(request, earlier, alike)
                self._keep(tenant, found, earlier, alike)
                return request
        request, found = await off_loop(len(body), _read_whole, body, default_model)
        self._keep(tenant, found, earlier, 0)
        return request

    def _find(self, tenant: str, body: bytes) -> tuple[Earlier | None, int]:
        """The body that this one has most messages in common with, and how many.

        In a sorted list, what begins most like a new item stands right before or behind its place.
        """
        listed = self._sorted.get(tenant, [])
        place = bisect_right(listed, body, key=_body_of)
        best: tuple[Earlier | None, int] = (None, 0)
        for earlier in listed[max(place - 1, 0) : place + 1]:
            alike = known_messages(body, earlier)
            if alike > best[1]:
                best = earlier, alike
        return best

    def _keep(
        self, tenant: str, found: Earlier | None, earlier: Earlier | None, alike: int
    ) -> None:
        """In place of an earlier body that shares most of its messages; those kept longest ago go,
        too, when there is no room."""
        if found is None or found.size_bytes > self._max_bytes * 2 // 3:
            return
        if earlier is not None and alike * 2 > len(earlier.ends):
            self._forget(earlier)
        insort(self._sorted.setdefault(tenant, []), found, key=_body_of)
        self._by_age[found] = tenant
        self._size_bytes += found.size_bytes
        while self._size_bytes > self._max_bytes:
            self._forget(next(iter(self._by_age)))

    def _forget(self, earlier: Earlier) -> None:
        tenant = self._by_age.pop(earlier, None)
        if tenant is None:
            return
        listed = self._sorted[tenant]
        place = bisect_left(listed, earlier.body, key=_body_of)
        while listed[place] is not earlier:
            place += 1
        del listed[place]
        if not listed:
            del self._sorted[tenant]
        self._size_bytes -= earlier.size_bytes


_body_of = attrgetter("body")


def _read_whole(body: bytes, default_model: str) -> tuple[ChatRequest | None, Earlier | None]:
    request = read_chat(body, default_model=default_model)
    return request, None if request is None else located(request)
