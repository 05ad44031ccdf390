"""Who may be named as a summariser, and that nothing is asked of a turn that may not be compacted.

The calls themselves are tested over sockets, in test_compact_routes."""

from dataclasses import replace
from pathlib import Path

import pytest

from proxy.core.errors import InvalidRequest
from proxy.manual import with_summarizer
from proxy.model_rules import CompactionPolicy, ModelRules, SummaryModel
from proxy.relay import Upstream
from proxy.turn import Turn
from tests.proxied import talk
from tests.turns import BUDGET, bench, caller

KEYED = Upstream("default", "http://127.0.0.1:9/v1", "sk-ours")
LISTED = (SummaryModel("default", "small"), SummaryModel("second", "other"))
OWN = ((b"authorization", b"Bearer sk-mine"),)


async def turn_of(folder: Path, *, own_credential: bool, keyed: bool = True) -> Turn:
    async with bench(folder) as made:
        who = caller(headers=OWN if own_credential else ())
        turn = await made.turn(talk(2, 50), of=replace(who, upstream=KEYED) if keyed else who)
    rules = ModelRules(BUDGET, CompactionPolicy(summarizers=LISTED))
    return turn.having(rules=rules)


def chain_of(turn: Turn) -> tuple[SummaryModel, ...]:
    return turn.rules.compaction.summarizers


async def test_without_a_name_the_operators_chain_holds(tmp_path: Path) -> None:
    turn = await turn_of(tmp_path, own_credential=False)
    assert with_summarizer(turn, None) is turn


async def test_a_listed_one_is_asked_where_it_is_listed(tmp_path: Path) -> None:
    turn = await turn_of(tmp_path, own_credential=False)
    assert chain_of(with_summarizer(turn, "other")) == (SummaryModel("second", "other"),)


async def test_the_conversations_own_model_is_always_allowed(tmp_path: Path) -> None:
    turn = await turn_of(tmp_path, own_credential=False)
    assert chain_of(with_summarizer(turn, "gpt-4o")) == (SummaryModel("default", "gpt-4o"),)


@pytest.mark.parametrize(("own_credential", "keyed"), [(True, True), (True, False), (False, False)])
async def test_another_is_asked_on_the_clients_own_account(
    tmp_path: Path, own_credential: bool, keyed: bool
) -> None:
    turn = await turn_of(tmp_path, own_credential=own_credential, keyed=keyed)
    assert chain_of(with_summarizer(turn, "big")) == (SummaryModel("default", "big"),)


async def test_another_is_never_paid_with_the_operators_key(tmp_path: Path) -> None:
    turn = await turn_of(tmp_path, own_credential=False)
    with pytest.raises(InvalidRequest) as refused:
        with_summarizer(turn, "big")
    assert (refused.value.status, refused.value.param) == (422, "summarizer")
    assert "sk-ours" not in str(refused.value)
