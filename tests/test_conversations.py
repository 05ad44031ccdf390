"""Conversations are named for people; the name decides nothing about replacements."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proxy.conversations import Conversations, Keeping
from proxy.core.errors import StoreUnavailable
from proxy.store.sql import SqlStore
from proxy.store.store import Batch
from proxy.store.store import Turn as LoggedTurn
from tests.proxied import assistant, system, talk, user
from tests.turns import Bench, bench, caller


class Named:
    """Names turns, and keeps what the log was told."""

    def __init__(self, made: Bench, *, messages: bool = True) -> None:
        self.made = made
        self.logged: list[LoggedTurn] = []
        self.conversations = Conversations(
            made.store, self.logged.append, keeping=Keeping(messages), clock=lambda: 1000.0
        )

    async def ask(self, messages: Any, **options: Any) -> str:
        """The name that a request gets; it is recorded as its conversation's last."""
        turn = await self.conversations.named(await self.made.turn(messages, **options))
        self.conversations.record(turn)
        return turn.conversation


GROWN = [*talk(2, 20), assistant("ok"), user("more")]


async def test_a_request_that_goes_on_keeps_the_name(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        named = Named(made)
        first = await named.ask(talk(2, 20))
        assert first
        assert await named.ask(talk(2, 20)) == first
        assert await named.ask(GROWN) == first
        assert await named.ask([*GROWN, assistant("x"), user("y")]) == first


async def test_a_fork_gets_a_new_name(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        named = Named(made)
        first = await named.ask(GROWN)
        assert await named.ask([*talk(2, 20), assistant("ok"), user("something else")]) != first


async def test_a_fork_gets_a_new_name_before_the_log_knows_where_it_parts(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        named = Named(made)
        first = await named.ask(talk(2, 20))
        await made.store.write(Batch(turns=named.logged))
        assert await named.ask(GROWN) == first
        assert await named.ask([*talk(2, 20), assistant("ok"), user("something else")]) != first


async def test_the_header_names_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        named = Named(made)
        asking = caller(conversation="my-own")
        assert await named.ask(talk(2, 20), of=asking) == "my-own"
        assert await named.ask(GROWN) == "my-own"


async def test_another_tenant_gets_another_name(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        named = Named(made)
        assert await named.ask(GROWN) != await named.ask(GROWN, of=caller("b"))


async def test_after_a_restart_the_name_comes_from_the_store(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        before = Named(made)
        first = await before.ask(talk(2, 20))
        await made.store.write(Batch(turns=before.logged))
        assert await Named(made).ask(GROWN) == first


async def test_what_no_conversation_began_like_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def asked(*arguments: Any) -> Any:
        raise AssertionError("asked")

    monkeypatch.setattr(SqlStore, "find_conversation", asked)
    async with bench(tmp_path) as made:
        turn = await made.turn(GROWN)
        assert turn.unrecorded
        assert (await Named(made).conversations.named(turn)).conversation


async def test_without_a_store_there_is_a_new_name_and_a_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def gone(*arguments: Any) -> Any:
        raise StoreUnavailable("gone")

    monkeypatch.setattr(SqlStore, "find_conversation", gone)
    async with bench(tmp_path) as made:
        turn = (await made.turn(GROWN)).having(unrecorded=False)
        turn = await Named(made).conversations.named(turn)
    assert turn.conversation
    assert turn.degraded == "store"


async def test_a_request_without_a_history_is_named_and_not_recorded(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        named = Named(made)
        assert await named.ask([system()])
        assert named.logged == []


class TestWhatTheLogIsTold:
    async def test_the_messages_the_head_and_the_tools(self, tmp_path: Path) -> None:
        tools = [{"type": "function", "function": {"name": "f"}}]
        async with bench(tmp_path) as made:
            named = Named(made)
            await named.ask([system(), *talk(1, 20)], tools=tools)
        (turn,) = named.logged
        assert (turn.start, turn.parent) == (0, b"")
        assert (turn.fingerprints[0], turn.fingerprints[-1]) == (turn.root, turn.last_fingerprint)
        assert turn.bodies is not None
        assert len(turn.fingerprints) == len(turn.bodies) == 3
        assert b"go on" in turn.bodies[-1]
        assert turn.head is not None
        assert turn.head.startswith(b"[")
        assert turn.tools is not None
        assert b'"f"' in turn.tools
        assert (turn.message_count, turn.time) == (3, 1000.0)
        assert turn.gauge["window_tokens"] == 6000

    async def test_no_text_at_all_when_messages_are_not_kept(self, tmp_path: Path) -> None:
        tools = [{"type": "function", "function": {"name": "SECRET"}}]
        async with bench(tmp_path) as made:
            named = Named(made, messages=False)
            await named.ask([system("SECRET"), user("SECRET")], tools=tools)
        assert "SECRET" not in repr(named.logged)
        assert named.logged[0].bodies is None
        assert (named.logged[0].head, named.logged[0].tools) == (None, None)

    async def test_only_what_is_new_once_the_store_has_the_rest(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as made:
            named = Named(made)
            await named.ask(talk(2, 20))
            await made.store.write(Batch(turns=named.logged))
            await named.ask(GROWN)
        first, second = named.logged
        assert (second.start, second.parent) == (5, first.last_fingerprint)
        assert len(second.fingerprints) == len(second.bodies or ()) == 2

    async def test_only_what_is_new_behind_what_was_told_or_is_stored(self, tmp_path: Path) -> None:
        """Whichever reaches further: the log may not have written what it was told."""
        async with bench(tmp_path) as made:
            named = Named(made)
            await named.ask(talk(2, 20))
            await named.ask(GROWN)
            assert [(t.start, len(t.bodies or ())) for t in named.logged] == [(0, 5), (5, 2)]
            longer = [*GROWN, assistant("x"), user("y")]
            other = Named(made)
            await other.ask(longer)
            await made.store.write(Batch(turns=other.logged))
            await named.ask([*longer, assistant("z"), user("end")])
        assert (named.logged[-1].start, len(named.logged[-1].bodies or ())) == (9, 2)

    async def test_labels_are_kept_for_people(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as made:
            named = Named(made)
            labelled = replace(caller(), labels={"x-session-id": "s1"})
            await named.ask(talk(1, 20), of=labelled)
        assert named.logged[0].labels == {"x-session-id": "s1"}
