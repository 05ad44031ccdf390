"""How much of a request begins like the one before it, as the metric says it."""

from pathlib import Path
from typing import Any

import pytest

from proxy import prefix_shares
from proxy.metrics import Metrics
from proxy.prefix_shares import PrefixShares
from proxy.turn import Turn
from tests.turns import Bench, bench


def said(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


async def priced(parts: Bench, *texts: str) -> Turn:
    turn = await parts.surfaces.price(await parts.turn(said(*texts)))
    return turn.having(conversation="c")


async def test_a_history_that_only_grows_keeps_all_of_it(tmp_path: Path) -> None:
    shares = PrefixShares(Metrics())
    async with bench(tmp_path) as parts:
        assert shares.observe(await priced(parts, "one", "two")) is None
        assert shares.observe(await priced(parts, "one", "two", "three")) == 1.0


async def test_a_grown_history_is_compared_with_all_of_the_one_before(tmp_path: Path) -> None:
    """A long one that grows is not compared again, and remembered as if it had been; a head that
    changed is."""
    one = [f"message {n}" for n in range(10)]
    shares, alone = PrefixShares(Metrics()), PrefixShares(Metrics())
    head = {"role": "system", "content": "Monday."}
    async with bench(tmp_path) as parts:
        for texts in (one, [*one, "x"], [*one, "x", "y", "z"]):
            turn = await priced(parts, *texts)
            shares.observe(turn)
        alone.observe(turn)
        assert shares._before == alone._before
        turn = await parts.surfaces.price(await parts.turn([head, *said(*one, "x", "y", "z", "0")]))
        assert shares.observe(turn.having(conversation="c")) == 0.0
        forked = await priced(parts, *one)
        assert shares.observe(forked) == 0.0


async def test_what_follows_the_first_difference_is_lost(tmp_path: Path) -> None:
    """By bytes: half of the two equally long messages."""
    metrics = Metrics()
    shares = PrefixShares(metrics)
    async with bench(tmp_path) as parts:
        shares.observe(await priced(parts, "one", "two"))
        assert shares.observe(await priced(parts, "one", "six")) == 0.5
    assert b"tidegate_prefix_share_count 1.0" in metrics.exposition()


async def test_what_is_remembered_is_bounded_in_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_shares, "MESSAGES_REMEMBERED", 12)
    monkeypatch.setattr(prefix_shares, "CONVERSATION_MESSAGES", 1)
    shares = PrefixShares(Metrics())
    async with bench(tmp_path) as parts:
        turn = await priced(parts, "one", "two", "three")
        names = [str(n) for n in range(6)]
        for name in names:
            shares.observe(turn.having(conversation=name))
        again = [turn.having(conversation=name) for name in reversed(names)]
        assert [shares.observe(turn) for turn in again] == [1.0] * 3 + [None] * 3
        larger = (await priced(parts, "one", "two", "three", "four")).having(conversation="0")
        assert shares.observe(larger) == 1.0
        assert shares.observe(larger) is None


async def test_a_request_that_was_not_counted_is_not_compared(tmp_path: Path) -> None:
    shares = PrefixShares(Metrics())
    async with bench(tmp_path) as parts:
        assert shares.observe(await parts.turn(said("one"))) is None
        assert shares.observe(await priced(parts, "one")) is None
