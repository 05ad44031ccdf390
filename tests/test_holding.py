"""Replies are held until known good, released unjudged after a while, and pass byte for byte."""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import Any

import pytest

from proxy.core.errors import ProviderBroke
from proxy.holding import MAX_ERROR_BYTES, MAX_HELD_BYTES, Evidence, Opening, hold
from proxy.reply import Reply
from proxy.tap import BodyTap, EventTap, Tap
from tests.fake_provider import completion, stream_event, stream_events

ERROR = {"error": {"message": "too long", "code": "context_length_exceeded"}}


class Source:
    """Chunks; an exception among them is raised there; `...` waits for ever."""

    def __init__(self, chunks: Sequence[Any]) -> None:
        self.chunks = deque(chunks)
        self.closed = 0

    @property
    def arrived(self) -> bool:
        return False

    async def read(self) -> bytes:
        if not self.chunks:
            return b""
        if self.chunks[0] is ...:
            await asyncio.Event().wait()
        chunk = self.chunks.popleft()
        if isinstance(chunk, Exception):
            raise chunk
        assert isinstance(chunk, bytes)
        return chunk

    async def aclose(self) -> None:
        self.closed += 1


def reply(status: int, chunks: Sequence[Any], tap: Tap | None) -> tuple[Reply, Source]:
    source = Source(chunks)
    return Reply(status, [], source, tap=tap), source


async def opened(
    chunks: Sequence[Any], *, status: int = 200, tap: Tap | None = None, hold_seconds: float = 5
) -> tuple[Opening, Source]:
    made, source = reply(status, chunks, tap if tap is not None else EventTap())
    return await hold(made, hold_seconds=hold_seconds), source


async def rest(opening: Opening) -> bytes:
    return b"".join([chunk async for chunk in opening.reply.chunks()])


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


class TestStreams:
    async def test_held_until_the_first_event_that_is_known_good(self) -> None:
        events = stream_events("one two three")
        opening, source = await opened(events)
        assert opening.evidence is None
        assert len(source.chunks) == len(events) - 2
        assert await rest(opening) == b"".join(events)
        assert opening.reply.finished

    async def test_a_first_event_that_is_an_error_is_evidence(self) -> None:
        stream = [b": hi\n\n", stream_event({"role": "assistant"}), event(ERROR)]
        opening, _ = await opened([*stream, b"data: [DONE]\n\n"])
        assert opening.evidence == Evidence(200, json.dumps(ERROR).encode(), in_stream=True)
        assert await rest(opening) == b"".join(stream) + b"data: [DONE]\n\n"

    async def test_an_error_that_ends_the_stream_without_done_is_whole(self) -> None:
        opening, _ = await opened([event(ERROR)])
        assert opening.evidence is not None
        assert await rest(opening) == event(ERROR)
        assert opening.reply.finished

    async def test_an_event_cut_byte_by_byte_is_judged_all_the_same(self) -> None:
        stream = event(ERROR)
        opening, _ = await opened([stream[i : i + 1] for i in range(len(stream))])
        assert opening.evidence is not None
        assert await rest(opening) == stream

    async def test_a_length_finish_without_output_waits_for_usage(self) -> None:
        usage = {"prompt_tokens": 9, "completion_tokens": 0}
        stream = [stream_event({}, finish="length"), event({"choices": [], "usage": usage})]
        opening, _ = await opened([*stream, b"data: [DONE]\n\n"])
        assert opening.evidence is not None
        assert json.loads(opening.evidence.body)["usage"] == usage

    async def test_a_length_finish_that_the_end_decides(self) -> None:
        opening, _ = await opened([stream_event({}, finish="length")])
        assert opening.evidence is not None
        assert await rest(opening) == stream_event({}, finish="length")

    async def test_after_the_time_it_is_let_go_unjudged_and_loses_nothing(self) -> None:
        opening, source = await opened([b": wait\n\n", ...], hold_seconds=0.05)
        assert opening.evidence is None
        source.chunks[0] = event(ERROR)
        assert await rest(opening) == b": wait\n\n" + event(ERROR)

    async def test_no_limit_in_time_when_it_is_0(self) -> None:
        made, _ = reply(200, [b": wait\n\n", ...], EventTap())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hold(made, hold_seconds=0), 0.05)

    async def test_too_much_that_says_nothing_is_let_go(self) -> None:
        comment = b": " + b"x" * 1000 + b"\n\n"
        count = MAX_HELD_BYTES // len(comment) + 10
        opening, source = await opened([comment] * count)
        assert opening.evidence is None
        assert 0 < len(source.chunks) < 10

    @pytest.mark.parametrize(
        "chunks", [[], [stream_event({"role": "assistant"})], [ProviderBroke("reset")]]
    )
    async def test_one_that_ends_or_breaks_before_anything_is_judged_raises(
        self, chunks: list[Any]
    ) -> None:
        with pytest.raises(ProviderBroke) as broke:
            await opened(chunks)
        assert broke.value.status == 502

    async def test_one_that_breaks_later_breaks_after_its_bytes(self) -> None:
        stream = stream_event({"content": "a"})
        opening, source = await opened([stream, stream, ProviderBroke("reset")])
        assert [await opening.reply.read(), await opening.reply.read()] == [stream, stream]
        with pytest.raises(ProviderBroke):
            await opening.reply.read()
        await opening.reply.aclose()
        assert source.closed


class TestBodies:
    async def test_an_answer_is_no_evidence_and_passes(self) -> None:
        body = json.dumps(completion("hello")).encode()
        opening, _ = await opened([body[:10], body[10:]], tap=BodyTap())
        assert opening.evidence is None
        assert await rest(opening) == body

    async def test_an_error_of_status_200_is_evidence(self) -> None:
        body = json.dumps({"base_resp": {"status_code": 2013}}).encode()
        opening, _ = await opened([body], tap=BodyTap())
        assert opening.evidence == Evidence(200, body, in_stream=False)

    async def test_a_large_one_is_let_go_before_its_end(self) -> None:
        piece = b" " * 65536
        opening, source = await opened([piece] * 10, tap=BodyTap())
        assert opening.evidence is None
        assert len(source.chunks) == 5
        assert await rest(opening) == piece * 10

    async def test_one_that_breaks_while_held_raises(self) -> None:
        with pytest.raises(ProviderBroke):
            await opened([b"{", ProviderBroke("reset")], tap=BodyTap())


class TestErrors:
    async def test_the_whole_body_is_the_evidence_and_passes(self) -> None:
        body = json.dumps(ERROR).encode()
        opening, source = await opened([body[:5], body[5:]], status=400, tap=BodyTap())
        assert opening.evidence == Evidence(400, body, in_stream=False)
        assert source.closed
        assert await rest(opening) == body

    async def test_an_empty_body_is_evidence_of_its_status(self) -> None:
        opening, _ = await opened([], status=413, tap=BodyTap())
        assert opening.evidence == Evidence(413, b"", in_stream=False)

    async def test_one_too_large_passes_unjudged(self) -> None:
        piece = b"x" * 65536
        count = MAX_ERROR_BYTES // len(piece) + 3
        tap = BodyTap(max_bytes=MAX_ERROR_BYTES)
        opening, _ = await opened([piece] * count, status=400, tap=tap)
        assert opening.evidence is None
        assert await rest(opening) == piece * count

    async def test_one_that_breaks_keeps_its_status_and_breaks_after_its_bytes(self) -> None:
        opening, _ = await opened([b"{", ProviderBroke("reset")], status=400, tap=BodyTap())
        assert opening.evidence == Evidence(400, b"{", in_stream=False)
        assert await opening.reply.read() == b"{"
        with pytest.raises(ProviderBroke):
            await opening.reply.read()


async def test_without_a_tap_nothing_is_held() -> None:
    source = Source([b"a"])
    opening = await hold(Reply(200, [], source), hold_seconds=5)
    assert opening.evidence is None
    assert list(source.chunks) == [b"a"]


def test_evidence_shows_no_text_in_its_repr() -> None:
    assert "secret" not in repr(Evidence(400, b"secret", in_stream=False))
