"""A reply is read once, ends once, and is closed on every way out."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.codings import PIECE_BYTES, make_decoder
from proxy.core.errors import ProviderBroke
from proxy.reply import Reply, ReplyEnd, local_reply
from proxy.tap import BodyTap, EventTap
from tests.fake_provider import gzipped, stream_events


class Source:
    """Chunks; an exception among them is raised there."""

    def __init__(self, chunks: Sequence[bytes | Exception]) -> None:
        self.chunks = deque(chunks)
        self.closed = 0

    @property
    def arrived(self) -> bool:
        return False

    async def read(self) -> bytes:
        if not self.chunks:
            return b""
        chunk = self.chunks.popleft()
        if isinstance(chunk, Exception):
            raise chunk
        return chunk

    async def aclose(self) -> None:
        self.closed += 1


def made(*chunks: bytes | Exception, **options: Any) -> tuple[Reply, Source, list[ReplyEnd]]:
    source = Source(chunks)
    reply = Reply(200, [(b"Content-Type", b"a/b"), (b"X", b"1")], source, **options)
    ends: list[ReplyEnd] = []
    reply.on_end = ends.append
    return reply, source, ends


async def test_a_whole_reply_ends_once_completed() -> None:
    reply, source, ends = made(b"ab", b"c")
    assert [chunk async for chunk in reply.chunks()] == [b"ab", b"c"]
    assert source.closed
    await reply.aclose()
    assert await reply.read() is None
    assert ends == [ReplyEnd(200, None, None, completed=True, broke=None, passed_bytes=3)]
    assert reply.finished
    assert reply.ended == ends[0]


async def test_one_that_breaks_says_so_once() -> None:
    reply, source, ends = made(b"ab", ProviderBroke("reset"))
    assert await reply.read() == b"ab"
    with pytest.raises(ProviderBroke):
        await reply.read()
    await reply.aclose()
    assert source.closed
    assert ends == [ReplyEnd(200, None, None, completed=False, broke="reset", passed_bytes=2)]
    assert not reply.finished


async def test_one_that_is_left_is_closed_also_before_its_first_byte() -> None:
    for reads in (0, 1):
        reply, source, ends = made(b"ab", b"c")
        for _ in range(reads):
            await reply.read()
        await reply.aclose()
        await reply.aclose()
        assert source.closed == 1
        assert [(end.completed, end.broke) for end in ends] == [(False, None)]


async def test_held_bytes_come_first_and_as_they_were() -> None:
    reply, _, _ = made(b"ab", b"c", b"d")
    assert await reply.hold()
    assert await reply.hold()
    assert reply.held_bytes == 3
    assert [chunk async for chunk in reply.chunks()] == [b"ab", b"c", b"d"]
    assert not await reply.hold()


async def test_a_break_while_holding_is_raised_again_after_the_held_bytes() -> None:
    reply, _, ends = made(b"ab", ProviderBroke("reset"))
    assert await reply.hold()
    with pytest.raises(ProviderBroke):
        await reply.hold()
    assert ends == []
    assert await reply.read() == b"ab"
    with pytest.raises(ProviderBroke):
        await reply.read()
    assert ends[0].broke == "reset"


async def test_usage_is_known_at_the_end() -> None:
    usage = {"prompt_tokens": 1}
    reply, _, ends = made(*stream_events("a", usage=usage), tap=EventTap())
    seen = [reply.usage, *[reply.usage async for _ in reply.chunks()]]
    assert set(map(str, seen)) == {"None"}
    assert reply.usage == usage
    assert ends[0].usage == usage
    assert ends[0].finish_reason == "stop"


async def test_usage_that_came_before_the_client_left_is_kept() -> None:
    usage = {"prompt_tokens": 1}
    *events, done = stream_events("a", usage=usage)
    reply, _, ends = made(b"".join(events), done, tap=EventTap())
    await reply.read()
    await reply.aclose()
    assert ends[0].usage == usage
    assert not ends[0].completed


async def test_a_stream_that_is_not_whole_breaks_at_its_end() -> None:
    reply, source, _ = made(stream_events("a")[1], tap=EventTap())
    assert await reply.read() is not None
    with pytest.raises(ProviderBroke):
        await reply.read()
    assert source.closed


def compressed(*chunks: bytes, **options: Any) -> tuple[Reply, list[ReplyEnd]]:
    reply = Reply(200, [(b"Content-Encoding", b"gzip")], Source(chunks), **options)
    ends: list[ReplyEnd] = []
    reply.on_end = ends.append
    return reply, ends


@pytest.mark.parametrize("decoded", [True, False])
async def test_the_tap_sees_plain_bytes_and_the_client_what_it_accepts(decoded: bool) -> None:
    plain = b'{"usage": {"prompt_tokens": 1}}'
    packed = gzipped(plain)
    pieces = [packed[i : i + 1] for i in range(len(packed))]
    reply, _ = compressed(*pieces, decoder=make_decoder(("gzip",)), tap=BodyTap(), decoded=decoded)
    got = b"".join([chunk async for chunk in reply.chunks()])
    assert got == (plain if decoded else packed)
    assert reply.usage == {"prompt_tokens": 1}


async def test_what_was_held_compressed_can_still_be_decoded_for_the_client() -> None:
    packed = gzipped(b"a" * 100)
    reply, _ = compressed(packed[:30], packed[30:], decoder=make_decoder(("gzip",)), tap=BodyTap())
    assert await reply.hold()
    reply.decode_for_client()
    assert reply.decoded
    assert b"".join([chunk async for chunk in reply.chunks()]) == b"a" * 100


async def test_a_bomb_reaches_a_client_that_cannot_decode_in_small_pieces() -> None:
    size = 30 << 20
    reply, ends = compressed(gzipped(bytes(size)), decoded=True)
    largest = total = 0
    async for piece in reply.chunks():
        largest = max(largest, len(piece))
        total += len(piece)
    assert (total, ends[0].passed_bytes) == (size, size)
    assert largest <= 2 * PIECE_BYTES


async def test_a_bomb_is_read_up_to_a_bound_and_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.reply.MAX_TAPPED_BYTES", 1 << 20)
    bomb = gzipped(bytes(30 << 20))
    tap = BodyTap()
    reply, ends = compressed(bomb, decoder=make_decoder(("gzip",)), tap=tap)
    assert b"".join([chunk async for chunk in reply.chunks()]) == bomb
    assert tap.kept_bytes <= (1 << 20) + PIECE_BYTES
    assert ends[0].completed


async def test_bytes_in_another_coding_break_a_reply_that_must_be_decoded() -> None:
    reply, ends = compressed(b"not gzip", decoded=True)
    with pytest.raises(ProviderBroke):
        await reply.read()
    assert ends[0].broke is not None


async def test_whole_is_bounded() -> None:
    reply, _, _ = made(b"ab", b"c")
    assert await reply.whole(max_bytes=3) == b"abc"
    reply, _, _ = made(b"ab", b"c")
    with pytest.raises(ProviderBroke):
        await reply.whole(max_bytes=2)


async def test_headers_are_looked_up_by_lower_case_names() -> None:
    reply, _, _ = made()
    assert reply.header(b"content-type") == b"a/b"
    assert reply.header(b"nothing") is None


async def test_a_local_reply_is_one_like_any_other() -> None:
    reply = local_reply(200, [(b"a", b"1")], b"x", b"y")
    assert reply.local
    assert [chunk async for chunk in reply.chunks()] == [b"x", b"y"]
    assert reply.finished
    left = local_reply(200, [], b"x")
    await left.aclose()
    assert not left.finished
