"""A turn is frozen; its body is the client's own bytes until something is replaced."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from proxy.core.compaction import Reason
from proxy.model_rules import ModelRules
from proxy.turn import Counted, Turn, facts
from proxy.wire import read_chat
from tests.proxied import assistant, system, talk, user
from tests.turns import BUDGET, bench, caller, summary_until


async def test_the_body_is_the_clients_until_something_is_replaced(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        turn = await made.turn([system(), *talk(3, 50)])
        assert turn.body() is turn.request.body
        assert turn.body_bytes == len(turn.body())
        await made.stored(turn, summary_until(turn, 4))
        folded = await made.surfaces.refresh(turn)
    messages = json.loads(folded.body())["messages"]
    assert messages[0] == system()
    assert messages[2:] == talk(3, 50)[4:]
    assert folded.generation == turn.generation + 1 == 1


async def test_the_size_of_a_body_is_known_before_it_is_made(tmp_path: Path) -> None:
    """But for the white space between the client's messages."""
    async with bench(tmp_path) as made:
        turn = await made.turn([system(), *talk(3, 50)])
        await made.stored(turn, summary_until(turn, 4))
        folded = await made.surfaces.refresh(turn)
    assert 0 <= folded.body_bytes - len(folded.body()) < 40


async def test_a_body_that_is_written_again_is_as_long_as_its_escapes_make_it(
    tmp_path: Path,
) -> None:
    """A lone surrogate makes all of it be written in ASCII, at six characters for three bytes."""
    history = [user("讨论" * 500), assistant("好" * 500), user("cut \ud83d"), *talk(3, 50)]
    body = json.dumps({"model": "gpt-4o", "messages": history}, ensure_ascii=False)
    request = read_chat(body.replace("\ud83d", "\\ud83d").encode())
    assert request is not None
    async with bench(tmp_path) as made:
        turn = await made.surfaces.open(request, caller(), ModelRules(budget=BUDGET))
        await made.stored(turn, summary_until(turn, 1))
        folded = await made.surfaces.price(await made.surfaces.refresh(turn))
    assert folded.request.rewritten
    assert folded.body_bytes == len(folded.body())
    assert made.surfaces.bound(folded) >= folded.priced.total_tokens


async def test_an_action_is_named_once_and_the_last_reason_is_shown(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        turn = await made.turn(talk(1, 20))
    assert turn.did("prune").did("summary").did("prune").actions == ("prune", "summary")
    assert turn.because(None) is turn
    reasons = turn.because(Reason.NOT_ENOUGH_NEW).because(Reason.SUMMARY_FAILED)
    assert reasons.reason is Reason.SUMMARY_FAILED


async def test_pricing_comes_before_the_price(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        turn = await made.turn(talk(1, 20))
        with pytest.raises(AssertionError, match="not priced"):
            _ = turn.priced
        assert (await made.surfaces.price(turn)).priced.total_tokens > 0


async def test_an_empty_history_has_no_root(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        assert (await made.turn([system()])).root == b""
        assert (await made.turn(talk(1, 20))).root != b""


def counted(turn: Turn) -> Counted:
    assert turn.counted is not None
    return turn.counted


class TestHeaders:
    async def test_a_bound_is_shown_as_one(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as made:
            turn = (await made.turn(talk(1, 20))).having(bound_tokens=77, conversation="c1")
        assert facts(turn) == {
            "x-tidegate-conversation": "c1",
            "x-tidegate-generation": "0",
            "x-tidegate-tokens": "<=77",
            "x-tidegate-tokens-before": "<=77",
            "x-tidegate-window": "6000",
            "x-tidegate-trigger": "4800",
            "x-tidegate-action": "none",
        }

    async def test_before_and_after_are_told_apart_once_something_is_replaced(
        self, tmp_path: Path
    ) -> None:
        async with bench(tmp_path) as made:
            plain = await made.surfaces.price(await made.turn(talk(3, 50)))
            await made.stored(plain, summary_until(plain, 4))
            folded = (await made.surfaces.refresh(plain)).did("summary").did("replay")
        before = facts(plain)["x-tidegate-tokens"]
        assert facts(plain)["x-tidegate-tokens-before"] == before
        shown = facts(folded.having(summary_tokens=9, degraded="store"))
        assert shown["x-tidegate-tokens-before"] == before
        assert int(shown["x-tidegate-tokens"]) < int(before)
        assert shown["x-tidegate-action"] == "summary,replay"
        assert shown["x-tidegate-summary-tokens"] == "9"
        assert shown["x-tidegate-degraded"] == "store"

    async def test_before_and_after_are_the_providers_tokens_alike(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as made:
            plain = await made.surfaces.price(await made.turn(talk(12, 100)))
            sent = made.surfaces.sent(plain, counted(plain))
            reported = {"prompt_tokens": 2 * plain.priced.total_tokens}
            assert made.anchors.learn_from_usage(sent, reported) == 2
            await made.stored(plain, summary_until(plain, 20))
            shown = facts(await made.surfaces.price(await made.surfaces.refresh(plain)))
        assert int(shown["x-tidegate-tokens-before"]) == 2 * counted(plain).client_tokens
        assert int(shown["x-tidegate-tokens"]) < counted(plain).client_tokens

    async def test_each_bound_is_of_its_own_bytes(self, tmp_path: Path) -> None:
        async with bench(tmp_path) as made:
            turn = await made.turn(talk(1, 20))
        shown = facts(turn.having(bound_tokens=77, bound_as_sent_tokens=900))
        assert shown["x-tidegate-tokens"] == "<=77"
        assert shown["x-tidegate-tokens-before"] == "<=900"

    async def test_an_unknown_window_is_said_to_be(self, tmp_path: Path) -> None:
        unknown = replace(BUDGET, window_tokens=None, trigger_tokens=None)
        async with bench(tmp_path) as made:
            turn = (await made.turn(talk(1, 20))).having(rules=ModelRules(budget=unknown))
        shown = facts(turn.because(Reason.UNKNOWN_WINDOW))
        assert shown["x-tidegate-window"] == "unknown"
        assert shown["x-tidegate-reason"] == "unknown-window"
        assert "x-tidegate-trigger" not in shown


async def test_a_turn_shows_no_message_in_its_repr(tmp_path: Path) -> None:
    async with bench(tmp_path) as made:
        assert "SECRET" not in repr(await made.turn(talk(1, 20, "SECRET")))
