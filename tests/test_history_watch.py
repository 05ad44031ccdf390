"""A client that slides its history is known after two summaries that nobody found again."""

from pathlib import Path
from typing import Any

import pytest

from proxy.history_watch import HistoryWatch
from tests.turns import Bench, bench, caller

HEAD = {"role": "system", "content": "You help."}


def sliding(first: int, last: int) -> list[dict[str, Any]]:
    """The messages `first` to `last` of an endless chat: what a client that slides sends."""
    return [HEAD] + [{"role": "user", "content": f"message {n}"} for n in range(first, last)]


async def summarised(watch: HistoryWatch, parts: Bench, first: int) -> None:
    turn = await parts.turn(sliding(first, first + 10))
    assert not watch.unstable(turn)
    watch.landed(turn, 4)


async def test_two_summaries_in_a_row_that_nobody_found_make_a_history_unstable(
    tmp_path: Path,
) -> None:
    """Each next request holds most of the tail, but its beginning has gone."""
    watch = HistoryWatch()
    async with bench(tmp_path) as parts:
        await summarised(watch, parts, 0)
        await summarised(watch, parts, 2)
        assert watch.unstable(await parts.turn(sliding(4, 14)))


async def test_a_summary_that_is_found_again_forgives(tmp_path: Path) -> None:
    watch = HistoryWatch()
    async with bench(tmp_path) as parts:
        await summarised(watch, parts, 0)
        await summarised(watch, parts, 2)
        assert not watch.unstable(await parts.turn(sliding(2, 14)))


@pytest.mark.parametrize("other", ["head", "tenant"])
async def test_another_head_or_tenant_is_another_story(tmp_path: Path, other: str) -> None:
    watch = HistoryWatch()
    async with bench(tmp_path) as parts:
        await summarised(watch, parts, 0)
        await summarised(watch, parts, 2)
        messages = sliding(4, 14)
        who = caller()
        if other == "head":
            messages[0] = {"role": "system", "content": "You hinder."}
        else:
            who = caller("tenant-b")
        assert not watch.unstable(await parts.turn(messages, of=who))
