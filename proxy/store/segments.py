"""Runs of messages as the log keeps them, and what a turn adds to the runs that are there.

A segment ends where a request ended, so that whatever goes on from a request begins behind one. A
history that parts from another in mid-segment is written again from the end before that. Bodies
come out as they went in, to the byte: they stand one after the other. A long one that was written
lately stands as the key of a content, so that the log keeps what a client sends in ever new
histories twice, and not as often as it is sent.
"""

import hashlib
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from proxy.store.store import Turn

FINGERPRINT_BYTES = KEY_BYTES = 16
INLINE_BYTES = 1024  # a longer body may be a content of its own
# A long run is a history that the log did not know, or one that its client rewrites every time.
LONG_RUN = 32
LONG_RUN_INLINE_BYTES = 64
STAMP_SECONDS = 3600.0  # how often `seen` is renewed; retention counts in days


@dataclass(frozen=True, slots=True)
class Packed:
    """The bodies of a segment. `sizes` has 0 where the next of `content_keys` stands."""

    sizes: bytes
    content_keys: bytes
    bodies: bytes
    contents: Mapping[bytes, bytes]


def text_bytes(turn: Turn) -> int:
    """How much text a turn brings: messages, head and tools."""
    return sum(map(len, turn.bodies or ())) + len(turn.head or b"") + len(turn.tools or b"")


def content_key(body: bytes, secret: bytes) -> bytes:
    """A content's name: keyed, because short texts can be guessed from a plain hash."""
    return hashlib.blake2b(body, key=secret, digest_size=KEY_BYTES).digest()


def pack(bodies: Sequence[bytes], secret: bytes, is_repeated: Callable[[bytes], bool]) -> Packed:
    """What a segment and the contents hold of these bodies; only long ones are asked about."""
    most = INLINE_BYTES if len(bodies) <= LONG_RUN else LONG_RUN_INLINE_BYTES
    sizes = list(map(len, bodies))
    if max(sizes, default=0) <= most:
        return Packed(pack_sizes(sizes), b"", b"".join(bodies), {})
    inline: list[bytes] = []
    keys: list[bytes] = []
    contents: dict[bytes, bytes] = {}
    for place, body in enumerate(bodies):
        if sizes[place] <= most or not is_repeated(body):
            inline.append(body)
            continue
        key = content_key(body, secret)
        contents[key] = body
        keys.append(key)
        sizes[place] = 0
    return Packed(pack_sizes(sizes), b"".join(keys), b"".join(inline), contents)


def pack_sizes(sizes: Sequence[int]) -> bytes:
    """32 bits each."""
    return struct.pack(f"<{len(sizes)}I", *sizes)


def first_size(sizes: bytes) -> int:
    """That of the first body; 0 where it is a content."""
    return int.from_bytes(sizes[:4], "little")


def unpacked(
    sizes: bytes, content_keys: bytes, bodies: bytes, contents: Mapping[bytes, bytes]
) -> Iterator[bytes | None]:
    """The bodies of a segment; None for one whose content is gone."""
    keys, at = iter(in_sixteens(content_keys)), 0
    for (size,) in struct.iter_unpack("<I", sizes):
        yield bodies[at : at + size] if size else contents.get(next(keys))
        at += size


def in_sixteens(joined: bytes) -> list[bytes]:
    """Fingerprints or keys that were joined."""
    return [joined[at : at + KEY_BYTES] for at in range(0, len(joined), KEY_BYTES)]


@dataclass(slots=True)
class End:
    """A segment, as what follows it needs to know it."""

    start: int
    parent: bytes
    seen: float
    has_text: bool


@dataclass(frozen=True, slots=True)
class NewSegment:
    """The messages of a turn from its `first` newest one on."""

    end: End
    turn: Turn
    first: int


class Plan:
    """What a batch adds to one tenant's segments. Turns are added in the order they happened.

    No segment is ever older than one that follows it: a new one is as old as what it follows, and
    a path is renewed as a whole. So what is deleted by age is deleted from the end.
    """

    def __init__(self, stored: Mapping[bytes, End]) -> None:
        """`stored` has those segments that end at a fingerprint of the turns to come."""
        self._ends = dict(stored)
        self._stored = stored
        self.new: dict[bytes, NewSegment] = {}
        self.renewed: set[bytes] = set()

    @property
    def replaced(self) -> list[bytes]:
        """Ends that are stored and must go, since what is new has the same: see `_path`."""
        return [last for last in self.new if last in self._stored]

    def seen(self, last: bytes) -> float:
        """When that segment was last sent."""
        return self._ends[last].seen

    def add(self, turn: Turn) -> bool:
        """Whether its history is then there from the first message on; if not, nothing is added."""
        ends, fingerprints = self._ends, turn.fingerprints
        if turn.start and turn.parent not in ends:
            return False
        first, path = self._path(turn)
        if path and not turn.start:
            self._renew(path, turn.time)
        if first == len(fingerprints):
            return True
        start = turn.start + first
        parent = fingerprints[first - 1] if first else turn.parent
        above = ends.get(parent) if start else None
        seen = turn.time if above is None else min(turn.time, above.seen)
        end = End(start, parent or fingerprints[0], seen, turn.bodies is not None)
        ends[turn.last_fingerprint] = end
        self.new[turn.last_fingerprint] = NewSegment(end, turn, first)
        return True

    def _path(self, turn: Turn) -> tuple[int, list[bytes]]:
        """How many of the turn's messages are there, and the ends of the segments with them.

        One that the text is missing from, or what it follows, counts as not there: it is written
        again, together with the text or with what it lacks.
        """
        broken: set[bytes] = set()
        ends, fingerprints = self._ends, turn.fingerprints
        for place in range(len(fingerprints) - 1, -1, -1):
            if fingerprints[place] in ends:
                path = self._walk(fingerprints[place], turn, broken)
                if path:
                    return place + 1, path
        return 0, []

    def _walk(self, last: bytes, turn: Turn, broken: set[bytes]) -> list[bytes]:
        """Up to what the turn brings no more; empty when something is missing on the way."""
        path: list[bytes] = []
        while True:
            end = self._ends.get(last)
            path.append(last)
            if end is None or last in broken or (turn.bodies is not None and not end.has_text):
                broken.update(path)
                return []
            if end.start <= turn.start:
                return path
            last = end.parent

    def _renew(self, path: Sequence[bytes], now: float) -> None:
        if min(self._ends[last].seen for last in path) >= now - STAMP_SECONDS:
            return
        for last in path:
            self._ends[last].seen = max(self._ends[last].seen, now)
        self.renewed.update(last for last in path if last in self._stored)
