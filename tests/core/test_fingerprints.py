"""A history is recognised by what it means, whatever a client drops, adds or renames, and an edit
or a fork is never taken for it."""

import copy
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from proxy.core.fingerprints import FINGERPRINT_BYTES, meaning, unsigned_url
from tests.strategies import (
    KEY,
    PIXEL,
    assistant,
    calls,
    conversations,
    function_call,
    function_result,
    histories,
    history_chain,
    malformed_messages,
    result,
    single_messages,
    texts,
    user,
    vendor_fields,
)


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return meaning(KEY, one) == meaning(KEY, other)


def image(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def text(value: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **more}


# What clients drop, add or move between turns.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("hi"), user([text("hi")])),
        (user("hi"), user(["hi"])),
        (user("hi"), user([text("hi", cache_control={"type": "ephemeral"})])),
        (user("hi"), user("hi", cache_control={"type": "ephemeral"})),
        (user("hi"), user([{"type": "input_text", "text": "hi"}])),
        (user("hi"), user("hi", name=None)),
        (user("hi"), user("hi", name="")),
        (user(""), user(None)),
        (user(""), user([])),
        (user(""), {"role": "user"}),
        (user([text("a"), text("")]), user([text("a")])),
        (assistant("x"), assistant("x", tool_calls=[])),
        (assistant("x"), assistant("x", tool_calls=None, function_call=None, refusal=None)),
        (assistant("x"), assistant("x", reasoning_content="because")),
        (assistant("x"), assistant("x", reasoning="r", reasoning_details=[{"text": "r"}])),
        (assistant("x"), assistant("x", thinking="hm", annotations=[{"type": "url_citation"}])),
        (assistant("x"), assistant("x", id="msg_1", status="completed", x_unknown=1)),
        (assistant("x"), assistant([{"type": "output_text", "text": "x", "annotations": []}])),
        (assistant(None, refusal="no"), assistant([{"type": "refusal", "refusal": "no"}])),
        (calls("a"), calls("b")),
        (calls("a"), calls(None)),
        (calls("a"), {**calls("a"), "content": ""}),
        (result("a"), result("b")),
        (user([image(PIXEL)]), user([image(PIXEL, detail="low")])),
        (user([image(PIXEL)]), user([{"type": "input_image", "image_url": PIXEL}])),
        (
            user([image("https://example.com/a.png?v=1&X-Amz-Signature=1&X-Amz-Date=2")]),
            user([image("https://example.com/a.png?v=1&X-Amz-Signature=3")]),
        ),
        (
            user([{"type": "file", "file": {"file_id": "f1"}, "cache_control": {}}]),
            user([{"file": {"file_id": "f1"}, "type": "file", "status": None}]),
        ),
    ],
)
def test_what_clients_move_between_turns_is_left_out(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (user("hi"), user("hi ")),
        (user("hi"), assistant("hi")),
        (user("hi"), {"role": "developer", "content": "hi"}),
        (user("hi"), user("hi", name="ann")),
        (user("ann"), user("", name="ann")),
        (user([text("ab")]), user([text("a"), text("b")])),
        (user([text("a"), image(PIXEL)]), user([image(PIXEL), text("a")])),
        (user([image(PIXEL)]), user([image(PIXEL[:-4] + "AAAA")])),
        (user([image(PIXEL)]), user([text(PIXEL)])),
        (user([image("https://example.com/a?v=1")]), user([image("https://example.com/a?v=2")])),
        (calls("a", name="f"), calls("a", name="g")),
        (calls("a", arguments="1"), calls("a", arguments="2")),
        (calls("a"), calls("a", "b")),
        (calls("a", name="fx", arguments="y"), calls("a", name="f", arguments="xy")),
        (assistant(""), calls("a")),
        (user([{"type": "file", "file": {"id": 1}}]), user([{"type": "file", "file": {"id": 2}}])),
        (user({"text": "a"}), user({"text": "b"})),
        (user(7), user(8)),
        (user("\ud83d"), user("\ud83c")),
        (
            assistant(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]),
            assistant(tool_calls=[{"id": "a", "function": {"name": "f", "arguments": {"x": 2}}}]),
        ),
    ],
)
def test_what_means_something_else_has_another_digest(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert not same(one, other)


@given(single_messages, vendor_fields)
def test_vendor_fields_never_change_a_digest(
    message: dict[str, Any], fields: dict[str, Any]
) -> None:
    assert same(message, {**message, **fields})


@given(st.lists(st.tuples(st.sampled_from(["user", "assistant", "tool"]), texts), unique=True))
def test_different_texts_or_roles_never_share_a_digest(pairs: list[tuple[str, str]]) -> None:
    digests = [meaning(KEY, {"role": role, "content": content}) for role, content in pairs]
    assert len(set(digests)) == len(digests)
    assert {len(digest) for digest in digests} <= {FINGERPRINT_BYTES}


@given(malformed_messages)
def test_a_malformed_message_has_a_digest(message: dict[str, Any]) -> None:
    before = copy.deepcopy(message)
    assert len(meaning(KEY, message)) == FINGERPRINT_BYTES
    assert message == before


def test_the_order_of_keys_does_not_matter() -> None:
    part = {"type": "file", "file": {"file_id": "f", "filename": "x"}}
    other = {"file": {"filename": "x", "file_id": "f"}, "type": "file"}
    assert same(user([part]), user([other]))
    assert same({"role": "user", "content": "x"}, {"content": "x", "role": "user"})


def test_nothing_can_be_guessed_without_the_key() -> None:
    assert meaning(b"one key", user("yes")) != meaning(b"another key", user("yes"))
    assert meaning(b"k" * 100, user("yes")) == meaning(b"k" * 64, user("yes"))


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://h/a", "https://h/a"),
        ("https://h/a?v=2", "https://h/a?v=2"),
        ("https://h/a?v=2&X-Amz-Date=1&X-Amz-Signature=2#top", "https://h/a?v=2#top"),
        ("https://h/a?x-goog-signature=1", "https://h/a"),
        ("https://h/a?sv=1&se=2&sig=3&size=4", "https://h/a?size=4"),
        ("https://h/a?Expires=1&Key-Pair-Id=2&Signature=3", "https://h/a"),
        ("https://[broken?sig=1", "https://[broken?sig=1"),
        ("", ""),
    ],
)
def test_parameters_that_only_sign_a_url_are_left_out(url: str, kept: str) -> None:
    assert unsigned_url(url) == kept


# The chain.


@given(histories, st.data())
def test_the_chain_of_a_prefix_is_the_prefix_of_the_chain(
    history: list[dict[str, Any]], data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(history)))
    assert history_chain(history)[:length] == history_chain(history[:length])


@given(histories, st.data())
def test_an_edit_changes_every_fingerprint_from_there_on(
    history: list[dict[str, Any]], data: st.DataObject
) -> None:
    """And so a replacement made before the edit never matches after it."""
    assume(history)
    place = data.draw(st.integers(0, len(history) - 1))
    edited = [*history]
    edited[place] = {**history[place], "content": "an edit that was not there before"}
    before, after = history_chain(history), history_chain(edited)
    assert before[:place] == after[:place]
    assert not set(before[place:]) & set(after)


@given(conversations(), conversations())
def test_forks_share_fingerprints_exactly_as_far_as_they_agree(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    left, right = history_chain([user(), *one]), history_chain([user(), *other])
    agreed = next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), None)
    assert left[0] == right[0]
    if agreed is not None:
        assert not set(left[agreed:]) & set(right[agreed:])


@given(histories)
def test_no_two_places_of_a_history_share_a_fingerprint(history: list[dict[str, Any]]) -> None:
    prints = history_chain(history)
    assert len(set(prints)) == len(prints) == len(history)


@given(conversations())
def test_ids_minted_anew_keep_the_chain(history: list[dict[str, Any]]) -> None:
    """Some adapters rename every call at every request; who answers whom stays the same."""
    renamed = copy.deepcopy(history)
    for message in renamed:
        for call in message.get("tool_calls", ()):
            call["id"] = f"new-{call['id']}"
        if "tool_call_id" in message:
            message["tool_call_id"] = f"new-{message['tool_call_id']}"
    assert history_chain(renamed) == history_chain(history)


def test_ids_used_again_in_every_turn_are_as_good_as_new_ones() -> None:
    reused, fresh = (
        [user(), calls(a), result(a, "1"), calls(b), result(b, "2"), user("thanks")]
        for a, b in (("x", "x"), ("x1", "x2"))
    )
    assert history_chain(reused) == history_chain(fresh)


def test_results_that_answer_other_calls_are_another_history() -> None:
    def answered(first: str, second: str) -> tuple[bytes, ...]:
        return history_chain([calls("a", "b"), result(first, "same"), result(second, "same")])

    assert answered("a", "b") != answered("b", "a")
    split = [calls("a"), calls("b")]
    one = history_chain([*split, result("a"), result("b")])
    assert one != history_chain([*split, result("b"), result("a")])


def test_an_orphan_is_not_taken_for_an_answer() -> None:
    assert history_chain([calls("a"), result("a")]) != history_chain([calls("a"), result("b")])


def test_legacy_results_are_placed_as_others_are() -> None:
    one = history_chain([function_call("f"), function_result("f")])
    assert one != history_chain([function_call("f"), function_result("g")])


def test_the_chain_of_nothing_is_empty() -> None:
    assert history_chain([]) == ()


@pytest.mark.parametrize("kind", ["thinking", "redacted_thinking", "reasoning"])
def test_a_dropped_reasoning_part_changes_nothing(kind: str) -> None:
    """Clients that resend a history without the model's thoughts are recognised."""
    text = {"type": "text", "text": "Done."}
    thought = {"type": kind, kind: "First I look.", "signature": "abc"}
    with_thought = {"role": "assistant", "content": [thought, text]}
    without = {"role": "assistant", "content": "Done."}
    assert meaning(b"key", with_thought) == meaning(b"key", without)


def test_fingerprints_are_what_they_were() -> None:
    """They are stored: another value would lose every replacement and conversation there is."""
    parts = [
        text("a"),
        "b",
        image(PIXEL),
        image("https://e.com/a?sig=1&x=2"),
        {"type": "x", "n": 1, "id": "z"},
    ]
    thinking = {"type": "thinking", "thinking": "t"}
    recorded: list[tuple[dict[str, Any], str]] = [
        (user(), "8dee6f8454d1a11d605abe0725738c47"),
        (user(""), "147ed0a8c8372087ac3fcc1c188ceb8a"),
        (user("h\u00e9 \ud83d 继续"), "4dd8cddf72c39e6acb92867aa2701f07"),
        (user(None), "147ed0a8c8372087ac3fcc1c188ceb8a"),
        (
            {"role": "system", "content": "s", "name": "n"},
            "cecab9946bf656e554c4ff7e1942627f",
        ),
        ({}, "b5c7148b77f210c4c7ca2828b534c71b"),
        ({"role": None, "content": {"a": 1}}, "2adad00d3f1be04615c7db9dd7585120"),
        (user(parts), "ad106b9179574f459da996d0b7ccb24a"),
        (
            assistant([thinking, text("")], refusal="no", reasoning_content="r"),
            "5d3180bcc91627fad0920fee42abbdfa",
        ),
        (calls("a", None, arguments='{"x": 1}'), "a571be578a9812260fe9c1035763781b"),
        ({**calls("a"), "content": "text"}, "ec348d8f6e9b8fd16405b570b54ae61e"),
        (result("a", "ok"), "be46c17c9ca3453c8f90d98efa9edb09"),
        (result(None, ["x"]), "60f9df12cc99c54c1a587de3e0abd41f"),
        (function_call(), "1aefaa31c30541048ffb411001d0e14c"),
        (function_result(content="d"), "22f34831aa48ed3afefe8bb17174d01f"),
        (user("x" * 3_000_000), "01f2e77a82735f6bdc0f585efebfa2b5"),
    ]
    for message, value in recorded:
        assert meaning(KEY, message).hex() == value
    history = [user(), calls("a", "b"), result("b"), result("a"), assistant()]
    assert [one.hex() for one in history_chain([*history, function_call(), function_result()])] == [
        "fc866d2d284259d560259b6d17c29086",
        "0f63e9632b5cbe3a42878955cbf9d2a3",
        "b11eb3c41784557a67785e0995466a67",
        "8678c000374e75ce216643670e7feb5c",
        "ed3084c2baaa44755379735c18ac9437",
        "72ad3a2877e0b7526fb96760f8bc6ecf",
        "a59cf818be41bfbe4b3865592ad6b464",
    ]
    assert meaning(b"k" * 100, user()).hex() == "4fc37ac31d38981be1880182a1ab9bb3"
