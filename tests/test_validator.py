"""The validator finds what providers refuse, and forgives exactly what the client sent broken."""

from typing import Any

import pytest
from hypothesis import given

from tests.strategies import (
    PIXEL,
    any_histories,
    assistant,
    calls,
    conversations,
    function_call,
    function_result,
    result,
    user,
)
from tests.validator import broken_pairs, keeps_newest_user, violations

SYSTEM = {"role": "system", "content": "be brief"}
FRAME = user("a summary of what came before")
REGULAR = [SYSTEM, user("do it"), calls("a", "b"), result("b"), result("a"), assistant(), user("q")]
IMAGE = {"type": "image_url", "image_url": {"url": PIXEL}}
LONG = "line\n" * 4000


@given(conversations() | any_histories)
def test_what_is_forwarded_unchanged_is_never_a_violation(history: list[dict[str, Any]]) -> None:
    assert violations(history, history) == []


@pytest.mark.parametrize(
    "forwarded",
    [
        [SYSTEM, FRAME, *REGULAR[2:]],
        [SYSTEM, FRAME, *REGULAR[5:]],
        [SYSTEM, FRAME, REGULAR[6]],
        [SYSTEM, FRAME],
        [SYSTEM, user("a summary\n\nq")],
    ],
)
def test_a_frame_in_place_of_whole_groups_is_valid(forwarded: list[dict[str, Any]]) -> None:
    assert violations(REGULAR, forwarded) == []


@pytest.mark.parametrize(
    ("forwarded", "what"),
    [
        ([SYSTEM, FRAME, *REGULAR[3:]], "answers no call"),
        ([SYSTEM, FRAME, *REGULAR[4:]], "answers no call"),
        ([*REGULAR[:4], FRAME, *REGULAR[5:]], "not answered in its group"),
        ([*REGULAR[:3], FRAME, *REGULAR[3:]], "not answered in its group"),
        ([SYSTEM, *REGULAR[3:]], "first message after the head is a result"),
        ([SYSTEM, *REGULAR[2:]], "nothing stands in their place"),
        ([FRAME, *REGULAR[5:]], "head"),
        ([{**SYSTEM, "content": "be"}, *REGULAR[1:]], "head"),
        ([SYSTEM, {"role": "system", "content": "summary"}, REGULAR[6]], "added with role"),
        ([SYSTEM, FRAME, SYSTEM, REGULAR[6]], "twice or out of order"),
        ([SYSTEM, assistant("a summary"), REGULAR[6]], "added with role"),
        ([*REGULAR, REGULAR[6]], "twice or out of order"),
        ([SYSTEM, REGULAR[6], *REGULAR[1:6]], "twice or out of order"),
        ([SYSTEM, FRAME, {**REGULAR[5], "content": "another answer"}, REGULAR[6]], "added"),
        ([*REGULAR[:3], result("b", "made up"), *REGULAR[4:]], "added with role"),
    ],
)
def test_what_providers_refuse_is_found(forwarded: list[dict[str, Any]], what: str) -> None:
    assert any(what in line for line in violations(REGULAR, forwarded))


def test_what_the_client_sent_broken_is_forgiven_and_nothing_more() -> None:
    client = [user("x"), calls("a", "b"), result("a"), result("lost"), user("y"), user("z")]
    assert broken_pairs(client) == ({3}, {(1, 1)})
    assert violations(client, [FRAME, *client[1:]]) == []
    assert violations(client, [FRAME, *client[2:]]) != []
    assert violations(client, [*client[:2], *client[3:]]) != []


def test_halves_of_an_interrupted_call_go_together() -> None:
    """To a strict reader both halves were broken before; to a lenient one they were a pair."""
    client = [user("x"), calls("a"), user("wait"), result("a"), user("y")]
    assert violations(client, [FRAME, client[4]]) == []
    assert violations(client, [FRAME, *client[1:]]) == []
    assert violations(client, [FRAME, *client[3:]]) == [
        "client 3 answers client 1, but only one of them was forwarded"
    ]


def test_one_id_in_every_turn_is_told_apart_by_place() -> None:
    turn = [calls("x"), result("x")]
    client = [user(), *turn, *turn, *turn]
    assert violations(client, [FRAME, *turn]) == []
    assert violations(client, [FRAME, *turn[1:], *turn]) != []


def test_of_equal_messages_either_may_be_the_one_that_was_kept() -> None:
    client = [calls("x"), user(), calls("x"), result("x"), user("q")]
    assert violations(client, [client[0], FRAME, client[4]]) == []
    client[2] = calls("x", arguments="[]")
    assert violations(client, [FRAME, client[2], client[4]]) != []


def test_legacy_calls_are_held_to_the_same_rules() -> None:
    client = [user("x"), function_call("f"), function_result("f"), user("y")]
    assert violations(client, [FRAME, *client[1:]]) == []
    assert violations(client, [FRAME, *client[2:]]) != []


def test_long_results_may_be_cut_and_images_removed() -> None:
    client = [
        user([IMAGE, {"type": "text", "text": "see"}]),
        calls("a"),
        result("a", LONG),
        calls("b"),
        result("b", [{"type": "text", "text": LONG}, IMAGE]),
    ]
    gone = {"type": "text", "text": "[An image was here]"}
    cut = LONG[:4096] + "[... cut ...]" + LONG[-1024:]
    forwarded = [
        user([gone, {"type": "text", "text": "see"}]),
        calls("a"),
        result("a", cut),
        calls("b"),
        result("b", [{"type": "text", "text": cut}, gone]),
    ]
    assert violations(client, forwarded) == []
    assert violations(client, [*forwarded[:2], result("a", "something else"), *forwarded[3:]]) != []
    assert not keeps_newest_user([user(LONG)], [user(cut)])
    assert violations(client, [*forwarded[:2], {**forwarded[2], "x": 1}, *forwarded[3:]]) != []


def test_the_newest_user_message_is_looked_for() -> None:
    assert keeps_newest_user(REGULAR, [SYSTEM, FRAME, REGULAR[6]])
    assert keeps_newest_user(REGULAR, [SYSTEM, user("a summary\n\nq")])
    assert not keeps_newest_user(REGULAR, [SYSTEM, FRAME])
    assert keeps_newest_user([SYSTEM], [SYSTEM])
