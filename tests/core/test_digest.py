"""A digest is made of references, keeps the user's words first, and stays under its cap."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.digest import plan_digest, render_digest
from proxy.core.messages import Message, head_length

CONVERSATIONS = Path(__file__).parents[3] / "shared" / "conversations"


def words(text: str) -> int:
    return len(text.split())


def user(text: Any) -> Message:
    return {"role": "user", "content": text}


def assistant(text: Any, *calls: tuple[str, str]) -> Message:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": "x", "type": "function", "function": {"name": name, "arguments": arguments}}
            for name, arguments in calls
        ]
    return message


def test_a_small_range_is_told_whole_in_order() -> None:
    history = [
        user("Fix the bug.\nIt is in a.py"),
        assistant("Looking\nnow", ("read", '{"path":\n "a.py"}'), ("ls", "{}")),
        {"role": "tool", "tool_call_id": "x", "content": "secret"},
        assistant(None, ("edit", "x" * 400)),
        assistant("Done."),
        user([{"type": "text", "text": "Thanks"}, {"type": "image_url", "image_url": "u"}]),
    ]
    refs = plan_digest(history, 0, 6, cap_tokens=1000, count=words)
    assert render_digest(history, refs).split("\n") == [
        "User: Fix the bug.",
        "It is in a.py",
        "Assistant: Looking now",
        'Tool call: read({"path": "a.py"})',
        "Tool call: ls({})",
        f"Tool call: edit({'x' * 160} [... 240 characters left out ...])",
        "Assistant: Done.",
        "User: Thanks",
    ]
    assert json.loads(json.dumps(refs)) == refs


def test_references_hold_no_words() -> None:
    refs = plan_digest([user("secret words")], 0, 1, cap_tokens=100, count=words)
    assert refs == [{"position": 0, "head": 12, "tail": 0}]


def test_the_first_and_the_newest_user_messages_are_kept_before_others() -> None:
    history = [user(f"message {i} " + "w " * 20) for i in range(30)]
    refs = plan_digest(history, 0, 30, cap_tokens=150, count=words)
    positions = [ref["position"] for ref in refs]
    assert positions == [0, *range(30 - len(positions) + 1, 30)]
    assert len(positions) > 3


def test_a_long_user_message_is_shown_by_both_ends() -> None:
    history = [user("A" * 600 + " x" * 5000 + "Z" * 300), user("short")]
    text = render_digest(history, plan_digest(history, 0, 2, cap_tokens=100, count=words))
    assert "A" * 600 + " [... 10000 characters left out ...] " + "Z" * 300 in text
    assert text.endswith("User: short")


def test_calls_and_answers_have_their_share() -> None:
    history = [
        message
        for i in range(50)
        for message in (user("u " * 30), assistant("a " * 30, ("tool", f'{{"n": {i}}}')))
    ]
    text = render_digest(history, plan_digest(history, 0, 100, cap_tokens=300, count=words))
    assert all(label in text for label in ("User: ", "Assistant: ", "Tool call: "))
    assert words(text) <= 300


def test_a_range_without_answers_gives_all_its_room_to_the_users() -> None:
    history = [user("w " * 45), user("w " * 45)]
    assert len(plan_digest(history, 0, 2, cap_tokens=105, count=words)) == 2


def test_skipped_and_empty_messages_are_not_told() -> None:
    history = [user("one"), user(""), user(None), assistant(""), assistant(None), user("two")]
    refs = plan_digest(history, 0, 6, cap_tokens=100, count=words, skip=[0])
    assert [ref["position"] for ref in refs] == [5]


def test_a_message_far_over_the_cap_is_not_even_counted() -> None:
    counted: list[int] = []

    def count(text: str) -> int:
        counted.append(len(text))
        return len(text) // 4

    plan_digest([user("x" * 1_000_000), user("y" * 700)], 0, 2, cap_tokens=100, count=count)
    assert max(counted) < 2000


def test_a_message_too_dear_is_counted_once() -> None:
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return len(text)

    plan_digest([user("x" * 500), assistant("y")], 0, 2, cap_tokens=100, count=count)
    assert len([text for text in counted if "x" in text]) == 1


def test_no_room_is_no_digest() -> None:
    assert plan_digest([user("hello")], 0, 1, cap_tokens=0, count=words) == []


messages = st.one_of(
    st.builds(user, st.text(max_size=40) | st.none()),
    st.builds(assistant, st.text(max_size=40), st.tuples(st.text(max_size=9), st.text(max_size=9))),
    st.just({"role": "tool", "content": "r"}),
)


@given(st.lists(messages, max_size=12), st.integers(0, 200))
def test_the_cap_holds(history: list[Message], cap: int) -> None:
    refs = plan_digest(history, 0, len(history), cap_tokens=cap, count=len)
    assert len(render_digest(history, refs)) <= cap
    assert refs == sorted(refs, key=lambda ref: (ref["position"], ref.get("call", -1)))


@pytest.mark.skipif(not CONVERSATIONS.is_dir(), reason="the real conversations are not here")
def test_every_real_conversation_has_a_digest_under_its_cap() -> None:
    for path in CONVERSATIONS.glob("*.json"):
        messages = json.loads(path.read_text())["request"]["messages"]
        history = messages[head_length(messages) :]
        refs = plan_digest(history, 0, len(history), cap_tokens=800, count=words)
        text = render_digest(history, refs)
        assert text
        assert words(text) <= 800
