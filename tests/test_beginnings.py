"""A body read with the help of an earlier one is read as it is alone."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from proxy import beginnings
from proxy.beginnings import MESSAGE_BYTES, Beginnings, known_messages, located, read_on
from proxy.wire import ChatRequest, read_chat
from tests.proxied import system, talk
from tests.strategies import JsonObject, any_histories, assistant, user

MODEL = "named-by-the-path"


def plain(messages: Sequence[Any], **more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages), **more}).encode()


def every_field(request: ChatRequest | None) -> object:
    """Equal only where types, and orders of keys, are the same as well."""
    return request and [repr(getattr(request, each.name)) for each in fields(request)]


def read(remembered: Beginnings, body: bytes, tenant: str = "t") -> ChatRequest | None:
    return asyncio.run(remembered.read(tenant, body, MODEL))


def fresh(max_bytes: int = 1 << 20) -> Beginnings:
    return Beginnings(max_bytes, least_bytes=0)


def shared(one: ChatRequest | None, other: ChatRequest | None) -> int:
    """How many of the first messages are the same objects in both."""
    assert one is not None
    assert other is not None
    pairs = zip(one.messages, other.messages, strict=False)
    same = [a is b for a, b in pairs]
    return same.index(False) if False in same else len(same)


_KEYS = st.sampled_from(
    ["messages", r"\u006dessages", r"mess\u0061ges", "model", "stream", "tools", "x", "x"]
)
_SPACE = st.sampled_from(["", "", "", " ", "\n", "\t \r\n"])
_ODD_VALUES = st.sampled_from(
    [
        *("null", "1e400", "NaN", '"\\ud83d"', '"[{}]"', "123456789012345678901234567890", "1.50"),
        *("true", '"gpt-4o"', "[]", "[{}]", "{}", '{"messages":[{}],"messages":[{"role":"x"}]}'),
        *("[[", "]", '"', "\ufeff", "[1, 2]", '[{"role":"user"},7]', "[{}, {} , {}]"),
    ]
)


@st.composite
def _lists(draw: st.DrawFn, messages: Sequence[Any]) -> str:
    """The list of messages, as any client may write it."""
    between, around = draw(_SPACE), draw(_SPACE)
    ascii_only = draw(st.booleans())
    written = [json.dumps(m, ensure_ascii=ascii_only) for m in messages]
    return "[" + around + f"{between},{around}".join(written) + between + "]"


@st.composite
def _pairs(draw: st.DrawFn, messages: Sequence[Any]) -> str:
    values = st.one_of(_ODD_VALUES, _lists(messages))
    listed = [
        f'{draw(_SPACE)}"{draw(_KEYS)}"{draw(_SPACE)}:{draw(values)}{draw(_SPACE)}'
        for _ in range(draw(st.integers(0, 2)))
    ]
    return "".join(f"{pair}," for pair in listed)


@given(any_histories, any_histories, st.data())
def test_any_body_is_read_through_an_earlier_one_as_alone(
    history: list[JsonObject], other: list[JsonObject], data: st.DataObject
) -> None:
    """Grown, cut, forked, edited in any byte; duplicate, escaped and nested keys before and after
    the list; fields that only the lenient reader takes."""
    before, behind = data.draw(_pairs(history)), data.draw(_pairs(history))
    listed = data.draw(_lists([user("opening"), *history]))
    earlier = f'{{{before}"messages":{listed},{behind}"seed":1}}'.encode("utf-8", "replace")
    cut = data.draw(st.integers(0, len(listed) - 1))
    ends = [
        listed[:cut] + data.draw(_lists(other))[1:],
        listed[:-1] + "," + data.draw(_lists(other or [user()]))[1:],
        listed,
    ]
    after = data.draw(st.one_of(st.just(behind), _pairs(other)))
    bodies = [
        f'{{{before}"messages":{end},{after}"seed":1}}'.encode("utf-8", "replace") for end in ends
    ]
    place = data.draw(st.integers(0, len(earlier)))
    inserted = data.draw(st.sampled_from([b"", b" ", b",", b"}", b"]", b'"', b"\\", b"0", b"\xff"]))
    bodies.append(earlier[:place] + inserted + earlier[place + data.draw(st.integers(0, 2)) :])
    remembered = fresh()
    for body in (earlier, *bodies, earlier):
        alone = every_field(read_chat(body, default_model=MODEL))
        assert every_field(read(remembered, body)) == alone


def test_what_is_known_of_a_growing_conversation_is_not_read_again() -> None:
    history = [system(), *talk(6, 20)]
    remembered = fresh()
    first = read(remembered, plain(history))
    grown = [*history, assistant("more"), user("and more")]
    second = read(remembered, plain(grown, temperature=1.0))
    assert shared(first, second) == len(history)
    third = read(remembered, plain([*grown[:-1], user("edited"), assistant("new")], n=2))
    assert shared(second, third) == len(grown) - 1
    assert shared(third, read(remembered, plain(history[:5]))) == 5
    assert read(remembered, plain([system("Another head."), *history[1:]])) is not None


def test_of_many_conversations_that_begin_alike_the_right_one_is_found() -> None:
    opening = [system("Be careful. " * 100), user("The same first words. " * 20)]
    made = [[*opening, assistant(f"{n:02d}"), user(f"x{n}")] for n in range(40)]
    remembered = fresh()
    first = [read(remembered, plain(messages)) for messages in made]
    for messages, known in zip(reversed(made), reversed(first), strict=True):
        again = read(remembered, plain([*messages, assistant(), user()]))
        assert shared(known, again) == len(messages)


def test_nothing_is_shared_between_tenants() -> None:
    remembered = fresh()
    body = plain(talk(6, 20))
    first = read(remembered, body)
    assert shared(first, read(remembered, body, tenant="other")) == 0
    assert shared(first, read(remembered, body)) == len(talk(6, 20))


def test_short_bodies_are_read_alone() -> None:
    remembered = Beginnings(least_bytes=10_000)
    body = plain(talk(6, 20))
    assert shared(read(remembered, body), read(remembered, body)) == 0


def test_it_is_bounded_in_bytes_and_forgets_what_was_used_least_lately() -> None:
    bodies = [plain([user(f"{n} " + "x" * 900), assistant()]) for n in range(6)]
    remembered = fresh(max_bytes=5 * (1000 + 2 * MESSAGE_BYTES))
    first = [read(remembered, body) for body in bodies[:4]]
    assert shared(first[0], read(remembered, bodies[0])) == 2
    for body in bodies[4:]:
        read(remembered, body)
    assert shared(first[0], read(remembered, bodies[0])) == 2
    assert shared(first[1], read(remembered, bodies[1])) == 0
    for large in (plain([user("y" * 6000)]), plain([user("y")] * 20)):
        assert shared(read(remembered, large), read(remembered, large)) == 0


def test_a_conversation_that_grows_takes_the_place_of_what_it_grew_from() -> None:
    """An edited last message, too; a fork from its first half stands beside it."""
    history = talk(8, 20)
    remembered = fresh()
    for end in range(6, len(history)):
        read(remembered, plain(history[:end]))
        read(remembered, plain([*history[:end], user("only now")]))
    assert len(remembered) == 1
    read(remembered, plain([*history[:3], user("a fork")]))
    assert len(remembered) == 2


def test_a_mark_that_a_client_sends_itself_is_a_message_like_any_other() -> None:
    mark = json.loads(beginnings._MARK)
    remembered = fresh()
    for messages in ([mark, user()], [mark, user(), assistant()], [mark]):
        body = json.dumps({"messages": messages}, separators=(",", ":")).encode()
        assert every_field(read(remembered, body)) == every_field(
            read_chat(body, default_model=MODEL)
        )


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":"[{}]","messages":[{}]}',
        b'{"x":{"messages":[{}]},"messages":[{}]}',
        b'{"messages":[{}],"messages":[{},{"role":"user"}]}',
    ],
)
def test_a_list_found_at_the_wrong_place_is_not_believed(body: bytes) -> None:
    request = read_chat(body)
    assert request is not None
    place = located(request)
    if place is not None:
        alike = known_messages(body, place)
        known = read_on(body, place, alike) if alike else None
        assert known is None or every_field(known) == every_field(request)


async def test_a_body_of_megabytes_is_read_off_the_loop() -> None:
    history = [user("x" * 400_000), assistant(), user("y" * 400_000)]
    remembered = Beginnings(max_bytes=8_000_000)
    first = await remembered.read("t", plain(history), "")
    second = await remembered.read("t", plain([*history, assistant(), user("z" * 600_000)]), "")
    third = await remembered.read("t", plain([*history, assistant()]), "")
    assert shared(first, second) == 0
    assert shared(second, third) == len(history) + 1
