"""One summary of one range, however many ask, whoever leaves; over real sockets. Names hold the
rows of cases.jsonl that they prove."""

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.range_runs import Allowance
from proxy.store.sql import SqlStore
from tests.proxied import CHAT, assistant, system, talk, text_of_tokens, user, walking
from tests.strict_provider import StrictProvider, is_summary

WINDOW = 6000
TRIGGER = 4800


async def until(holds: Callable[[], bool], seconds: float = 5) -> None:
    """Waits for a condition, with a deadline."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "the deadline passed"
        await asyncio.sleep(0.01)


def async_client(url: Any) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=200)
    return httpx.AsyncClient(base_url=str(url), timeout=60, trust_env=False, limits=limits)


def asked(messages: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": messages, **fields}


class TestManyAtOnce:
    async def test_64_identical_requests_at_once_need_one_summary_and_forward_the_same(
        self,
    ) -> None:
        with walking(WINDOW) as walk:
            walk.provider.next_summary(delay=0.5)
            async with async_client(walk.client.base_url) as client:
                body = asked(talk(9, 300))
                replies = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(64)))
        assert {reply.status_code for reply in replies} == {200}
        assert len(walk.provider.summary_calls) == 1
        assert len({call.seen.body for call in walk.provider.main_calls}) == 1
        assert len(walk.provider.main_calls) == 64

    async def test_a_failure_is_shared_and_none_starts_its_own(self) -> None:
        provider = StrictProvider(WINDOW, summary=lambda body: "")
        with walking(WINDOW, provider=provider) as walk:
            async with async_client(walk.client.base_url) as client:
                body = asked(talk(8, 310))
                replies = await asyncio.gather(*(client.post(CHAT, json=body) for _ in range(20)))
                late = await client.post(CHAT, json=body)
        assert {reply.status_code for reply in (*replies, late)} == {200}
        assert len(provider.summary_calls) <= 2
        reasons = {reply.headers["x-tidegate-reason"] for reply in replies}
        assert reasons <= {"summary-failed", "backing-off"}

    async def test_requests_below_the_trigger_do_not_wait_for_a_summary_of_their_history(
        self,
    ) -> None:
        messages = talk(9, 300)
        with walking(WINDOW) as walk:
            walk.provider.next_summary(delay=1.5)
            async with async_client(walk.client.base_url) as client:
                large = asyncio.create_task(client.post(CHAT, json=asked(messages)))
                await until(lambda: bool(walk.provider.summaries))
                started = time.monotonic()
                small = await client.post(CHAT, json=asked(messages[:5]))
                took = time.monotonic() - started
                assert not large.done()
                await large
        assert small.headers["x-tidegate-action"] == "none"
        assert took < 1.0

    async def test_r136_a_hundred_conversations_of_ten_keys_never_mix(self) -> None:
        """Every tenth client leaves meanwhile; no body holds another conversation's marker."""
        provider = StrictProvider(3000, summary=markers_of)
        with walking(3000, provider=provider) as walk:
            async with async_client(walk.client.base_url) as client:

                async def converse(n: int) -> None:
                    marker = f"MARKER-{n:03}-"
                    headers = {"authorization": f"Bearer key-{n % 10}"}
                    messages = talk(6, 230, marker)
                    for _ in range(2):
                        post = client.post(CHAT, json=asked(messages), headers=headers)
                        if n % 10 == 3:
                            with contextlib.suppress(TimeoutError):
                                await asyncio.wait_for(post, 0.02)
                        else:
                            assert (await post).status_code == 200
                        messages = [*messages, assistant(marker), user(f"{marker} more")]

                await asyncio.gather(*(converse(n) for n in range(100)))
        for call in provider.calls:
            assert len(set(marks_in(call.seen.body))) == 1
        assert len(provider.summary_calls) >= 90


def marks_in(body: bytes) -> list[str]:
    pieces = body.decode().split("MARKER-")[1:]
    return [piece.split("-")[0] for piece in pieces]


def markers_of(body: Any) -> str:
    marks = sorted(set(marks_in(json.dumps(body).encode())))
    return "Summary of " + ", ".join(f"MARKER-{mark}-" for mark in marks)


class TestLeaving:
    async def test_the_call_is_cancelled_within_a_second_and_the_next_one_is_kept(self) -> None:
        messages = talk(9, 300)
        with walking(WINDOW) as walk:
            provider = walk.provider
            provider.next_summary(never=True)
            async with async_client(walk.client.base_url) as client:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.post(CHAT, json=asked(messages)), 0.5)
                await until(lambda: provider.cancelled == 1, seconds=1)
                # The second time it runs to its own end, though nobody waits for it.
                provider.next_summary(delay=1.0)
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.post(CHAT, json=asked(messages)), 0.5)
                await until(lambda: len(provider.summary_calls) == 1)
                third = await client.post(CHAT, json=asked(messages))
        assert provider.cancelled == 1
        assert len(provider.summaries) == 2
        assert third.status_code == 200
        assert len(provider.main_calls) == 1
        assert provider.main_calls[0].tokens < TRIGGER

    async def test_it_goes_on_while_somebody_else_waits(self) -> None:
        messages = talk(9, 300)
        with walking(WINDOW) as walk:
            provider = walk.provider
            provider.next_summary(delay=1.0)
            async with async_client(walk.client.base_url) as client:
                stays = asyncio.create_task(client.post(CHAT, json=asked(messages)))
                await until(lambda: bool(provider.summaries))
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.post(CHAT, json=asked(messages)), 0.3)
                assert (await stays).status_code == 200
        assert provider.cancelled == 0
        assert len(provider.summaries) == 1

    async def test_a_lease_is_given_back_when_the_client_leaves(self, tmp_path: Path) -> None:
        """So that another worker need not wait thirty seconds for it."""
        messages = talk(9, 300)
        with walking(WINDOW, folder=tmp_path) as first:
            first.provider.next_summary(never=True)
            async with async_client(first.client.base_url) as client:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(client.post(CHAT, json=asked(messages)), 0.5)
                await until(lambda: first.provider.cancelled == 1)
            with walking(WINDOW, folder=tmp_path) as second:
                started = time.monotonic()
                assert second.ask(messages).actions == {"summary"}
                assert time.monotonic() - started < 10


class TestSlowSummaries:
    async def test_r139_a_late_summary_never_displaces_a_longer_one(self) -> None:
        """The client goes on, its last message edited, while the first summary is still coming."""
        messages = [system(), *talk(9, 300)]
        with walking(WINDOW) as walk:
            provider = walk.provider
            provider.next_summary(delay=1.5)
            async with async_client(walk.client.base_url) as client:
                first = asyncio.create_task(client.post(CHAT, json=asked(messages)))
                await until(lambda: bool(provider.summaries))
                edited = [
                    *messages[:-1],
                    user("Something else."),
                    assistant(text_of_tokens(400)),
                    user(text_of_tokens(400)),
                ]
                second = await client.post(CHAT, json=asked(edited))
                await first
                again = await client.post(CHAT, json=asked(edited))
        assert {first.result().status_code, second.status_code, again.status_code} == {200}
        to_second = [c for c in provider.main_calls if c.body["messages"][-1] == edited[-1]]
        assert len(to_second) == 2
        assert to_second[0].seen.body == to_second[1].seen.body

    def test_r066_a_summary_that_takes_too_long_is_marked_and_replaced_by_the_digest(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with walking(WINDOW, compaction={"summary_timeout_seconds": 0.3}) as walk:
            walk.provider.next_summary(delay=30)
            answer = walk.ask(talk(11, 300))
        assert answer.reply.status_code == 200
        assert answer.actions == {"digest"}
        assert answer.facts["reason"] == "summary-timeout"
        assert any("failure=timeout" in record.getMessage() for record in caplog.records)

    async def test_r067_a_summary_that_never_comes_holds_up_nobody_else(self) -> None:
        with walking(WINDOW, compaction={"summary_timeout_seconds": 1.0}) as walk:
            walk.provider.next_summary(never=True)
            async with async_client(walk.client.base_url) as client:
                stuck = asyncio.create_task(client.post(CHAT, json=asked(talk(9, 300))))
                await until(lambda: bool(walk.provider.summaries))
                started = time.monotonic()
                other = await client.post(CHAT, json=asked([user("hi")]))
                took = time.monotonic() - started
                assert not stuck.done()
                answered = await stuck
        assert other.status_code == 200
        assert took < 0.5
        assert answered.status_code == 200

    @pytest.mark.parametrize("over", [False, True])
    def test_r068_a_dropped_connection_sends_the_body_or_a_digest(self, over: bool) -> None:
        provider = StrictProvider(WINDOW)
        messages = talk(11, 300) if over else talk(8, 310)
        with walking(WINDOW, provider=provider) as walk:
            for _ in range(4):
                provider.next_summary(chunks=[b"x", b"y"], break_after=1)
            answer = walk.ask(messages)
        assert answer.reply.status_code == 200
        assert answer.facts["reason"] == "summary-failed"
        assert "broke" not in json.dumps(answer.forwarded)
        if over:
            assert answer.actions == {"digest"}
        else:
            assert answer.forwarded == messages
        assert len(provider.summaries) <= 2


class TestRaces:
    async def test_two_workers_on_one_store_need_one_summary(self, tmp_path: Path) -> None:
        """The second waits for the first one's lease and takes its surface."""
        messages = talk(9, 300)
        with (
            walking(WINDOW, folder=tmp_path, server={"workers": 2}) as one,
            walking(WINDOW, folder=tmp_path, server={"workers": 2}) as two,
        ):
            one.provider.next_summary(delay=1.0)
            async with async_client(one.client.base_url) as client:
                first = asyncio.create_task(client.post(CHAT, json=asked(messages)))
                await until(lambda: bool(one.provider.summaries))
                second = await asyncio.to_thread(two.client.post, CHAT, json=asked(messages))
                await first
        assert second.headers["x-tidegate-generation"] == "1"
        assert two.provider.summary_calls == []
        assert two.provider.main_calls[0].seen.body == one.provider.main_calls[0].seen.body

    async def test_who_gets_the_lease_after_another_landed_asks_for_no_summary(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The surface was read before the other worker's commit, the lease came after it."""
        messages = talk(9, 300)
        waiting, go_on = threading.Event(), threading.Event()
        acquire = SqlStore.acquire

        async def late(store: SqlStore, *arguments: Any, **options: Any) -> Any:
            if arguments[0].tenant and not waiting.is_set():
                waiting.set()
                await asyncio.to_thread(go_on.wait, 20)
            return await acquire(store, *arguments, **options)

        with (
            walking(WINDOW, folder=tmp_path, server={"workers": 2}) as one,
            walking(WINDOW, folder=tmp_path, server={"workers": 2}) as two,
        ):
            monkeypatch.setattr(SqlStore, "acquire", late)
            asking = asyncio.create_task(
                asyncio.to_thread(one.client.post, CHAT, json=asked(messages))
            )
            await until(waiting.is_set)
            await asyncio.to_thread(two.client.post, CHAT, json=asked(messages))
            go_on.set()
            answered = await asking
        assert answered.headers["x-tidegate-generation"] == "1"
        assert len(two.provider.summary_calls) == 1
        assert one.provider.summary_calls == []

    async def test_a_failure_is_shared_between_workers(self, tmp_path: Path) -> None:
        provider = StrictProvider(WINDOW, summary=lambda body: "")
        other = StrictProvider(WINDOW)
        messages = talk(8, 310)
        with (
            walking(WINDOW, provider=provider, folder=tmp_path, server={"workers": 2}) as one,
            walking(WINDOW, provider=other, folder=tmp_path, server={"workers": 2}) as two,
        ):
            first = await asyncio.to_thread(one.client.post, CHAT, json=asked(messages))
            second = await asyncio.to_thread(two.client.post, CHAT, json=asked(messages))
        assert first.headers["x-tidegate-reason"] == "summary-failed"
        assert second.headers["x-tidegate-reason"] in ("summary-failed", "backing-off")
        assert provider.summary_calls
        assert other.summary_calls == []

    async def test_a_lost_lease_writes_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def lost(*arguments: Any, **options: Any) -> bool:
            return False

        monkeypatch.setattr("proxy.range_runs.RENEW_SECONDS", 0.05)
        monkeypatch.setattr(SqlStore, "renew", lost)
        messages = talk(8, 310)
        with walking(WINDOW) as walk:
            walk.provider.next_summary(delay=30)
            answer = walk.ask(messages)
        assert answer.facts["generation"] == "0"
        assert answer.facts["reason"] == "summary-failed"
        assert answer.reply.status_code == 200
        assert len(walk.provider.summaries) == walk.provider.cancelled == 1


class TestAllowance:
    def test_failed_calls_are_counted_over_all_causes(self) -> None:
        allowance = Allowance()
        allowance.spend(1)
        assert allowance.left == 1
        allowance.spend(5)
        assert allowance.left == 0


def test_summary_calls_are_told_apart_by_their_instruction() -> None:
    assert not is_summary({"messages": [user("hi")]})
