"""What is not replaced is spliced: byte for byte what the client sent."""

import json
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.fingerprints import meaning
from proxy.wire import (
    MAX_MODEL_CHARS,
    ChatRequest,
    asking_for_usage,
    encode,
    encode_message,
    join_messages,
    model_named,
    read_chat,
    with_messages,
    without_field,
    without_messages,
)
from tests.strategies import KEY, json_values, single_messages


def read(body: bytes) -> ChatRequest:
    request = read_chat(body)
    assert request is not None
    return request


def resplice(body: bytes) -> bytes:
    """The body written anew from its raw pieces."""
    request = read(body)
    return with_messages(request, request.raw_messages)


ODD = (
    b'\n { "model" :\t"m","temperature":1.0 , "seed":123456789012345678901234567890,\r\n'
    b'"messages":[ {"role" : "system","content":"\\u0041"},\n'
    b'{"role":"user","content":"h\xc3\xa9","x_id": 98765432109876543210987654321 ,"p":1e0}\t] ,'
    b'"extra":{"b":1E+2,"a":[ 1 , 2.50 ]},"stream":true}\n'
)


def test_a_request_is_read_and_its_bytes_are_kept() -> None:
    request = read(ODD)
    assert request.body == ODD
    assert (request.model, request.stream, request.head_length) == ("m", True, 1)
    assert [message["role"] for message in request.messages] == ["system", "user"]
    assert request.head == request.messages[:1]
    assert request.history == request.messages[1:]
    assert request.raw_messages == (
        b'{"role" : "system","content":"\\u0041"}',
        b'{"role":"user","content":"h\xc3\xa9","x_id": 98765432109876543210987654321 ,"p":1e0}',
    )
    assert request.raw_history == request.raw_messages[1:]
    assert request.params["seed"] == 123456789012345678901234567890
    assert "messages" not in request.params


def test_only_messages_change_in_a_spliced_body() -> None:
    request = read(ODD)
    body = with_messages(request, [b'{"role":"user","content":"new"}', request.raw_messages[1]])
    assert body == (
        b'{"model":"m","temperature":1.0,"seed":123456789012345678901234567890,'
        b'"messages":[{"role":"user","content":"new"},'
        b'{"role":"user","content":"h\xc3\xa9","x_id": 98765432109876543210987654321 ,"p":1e0}],'
        b'"extra":{"b":1E+2,"a":[ 1 , 2.50 ]},"stream":true}'
    )


@given(
    st.dictionaries(st.text(max_size=8).filter(lambda key: key != "messages"), json_values),
    st.lists(single_messages, min_size=1, max_size=5),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_unknown_fields_survive_byte_for_byte(
    fields: dict[str, Any], messages: list[dict[str, Any]], indent: int | None, ascii_only: bool
) -> None:
    """With any white space and any escapes, wherever `messages` stands in the object."""

    def dump(value: Any) -> str:
        return json.dumps(value, indent=indent, ensure_ascii=ascii_only)

    body_fields = {**fields, "model": "m", "messages": messages}
    body = dump(body_fields).encode("utf-8", "surrogatepass")
    request = read(body)
    written = with_messages(request, request.raw_messages)
    assert json.loads(written) == json.loads(body)
    assert list(json.loads(written)) == list(json.loads(body))
    if "\ud83d" not in json.dumps(body_fields, ensure_ascii=False):
        for raw in (*request.raw_messages, *(v for k, v in request.fields.items() if v)):
            assert raw in body


@given(st.sampled_from(["1.0", "1e5", "-0", "0.10", "1E+2", "9" * 30, "-" + "8" * 40, "1e400"]))
def test_numbers_keep_their_spelling(number: str) -> None:
    body = f'{{"model":"m","messages":[{{"role":"user","n":{number}}}],"n":{number}}}'.encode()
    assert resplice(body) == body


def test_null_empty_and_absent_content_keep_their_form() -> None:
    """R124."""
    body = (
        b'{"model":"m","messages":[{"role":"assistant","content":null},'
        b'{"role":"assistant","content":""},{"role":"assistant"},{"role":"user","content":[]}]}'
    )
    assert resplice(body) == body


def test_only_pieces_written_anew_are_said_to_be_rewritten() -> None:
    plain = b'{"messages":[{"role":"user","content":"a"}],"n":%s}'
    assert not read(plain % b"1").rewritten
    assert read(plain % b"NaN").rewritten


def test_what_a_request_cannot_hold_is_known_when_it_is_read() -> None:
    text = read(b'{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}]}')
    assert not text.has_media
    assert not text.has_commands
    both = read(
        b'{"messages":[{"role":"user","content":[{"type":"image_url"}]},'
        b'{"role":"user","content":"/compact"}]}'
    )
    assert both.has_media
    assert both.has_commands
    assert "compact" not in repr(both)


def test_lone_surrogates_pass_with_the_same_values_as_ascii_escapes() -> None:
    """R126."""
    body = (
        b'{"model":"m","messages":[{"role":"user","content":"cut \\ud83d"},'
        b'{"role":"user","content":"\xc3\xa9","n":1.0}],"big":123456789012345678901234567890}'
    )
    request = read(body)
    assert request.body == body
    assert request.messages[0]["content"] == "cut \ud83d"
    written = with_messages(request, request.raw_messages)
    assert written.isascii()
    assert json.loads(written) == json.loads(body)
    assert b'"big":123456789012345678901234567890' in written.replace(b" ", b"")


def test_a_whole_surrogate_pair_is_no_trouble() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert resplice(body) == body
    assert read(body).messages[0]["content"] == "\U0001f600"


def test_of_duplicate_keys_the_last_holds() -> None:
    body = (
        b'{"model":"a","messages":[{"role":"user","content":"1"}],"model":"b",'
        b'"messages":[{"role":"user","content":"2","content":"3"}]}'
    )
    request = read(body)
    assert request.model == "b"
    assert request.messages == ({"role": "user", "content": "3"},)
    assert json.loads(with_messages(request, request.raw_messages)) == json.loads(body)


def test_a_byte_order_mark_is_passed_over() -> None:
    body = b'\xef\xbb\xbf{"model":"m","messages":[{"role":"user"}]}'
    assert read(body).messages == ({"role": "user"},)
    assert read(body).body == body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"7",
        b'"text"',
        b"{}",
        b"{",
        b'{"model":"m"}',
        b'{"model":"m","messages":null}',
        b'{"model":"m","messages":{}}',
        b'{"model":"m","messages":"hi"}',
        b'{"model":"m","messages":[]}',
        b'{"model":"m","messages":[ ]}',
        b'{"model":"m","messages":[1]}',
        b'{"model":"m","messages":["hi"]}',
        b'{"model":"m","messages":[null]}',
        b'{"model":"m","messages":[[]]}',
        b'{"model":"m","messages":[{"role":"user"},"hi"]}',
        b'{"model":"m","messages":["\\ud83d"]}',
        b'{"model":7,"messages":[{"role":"user"}]}',
        b'{"model":["m"],"messages":[{"role":"user"}]}',
        b'{"model":"m","messages":[{"role":"user"}]} x',
        b'{"model":"m","messages":[{"role":"user",}]}',
        b'{"model":"m","messages":[{"role":"user"}]',
        b'{"model":"m","messages":[{"role":"\xff"}]}',
        b'{"model":"m","messages":[{"role":"user"}],"x":"\xff"}',
        b'{"model":"m","messages":[{"role":"a\x01b"}]}',
        b'{"model":"m","messages":[{"role":"user","n":' + b"1" * 5000 + b"}]}",
        b"\xff\xfe\x00",
        b"\x00" * 16,
    ],
)
def test_what_is_no_chat_request_is_not_read(body: bytes) -> None:
    assert read_chat(body) is None


@given(st.binary(max_size=60))
def test_no_bytes_make_reading_raise(data: bytes) -> None:
    read_chat(data)
    read_chat(b'{"model":"m","messages":[{"role":"user","content":"' + data + b'"}]}')
    read_chat(b'{"model":"m","messages":[{"role":' + data + b"}]}")


def test_unknown_roles_and_odd_content_are_read() -> None:
    body = b'{"model":"m","messages":[{},{"role":"critic"},{"role":null,"content":7}]}'
    assert len(read(body).messages) == 3
    assert read(body).head_length == 0


def test_the_model_may_come_from_the_path() -> None:
    for body in (
        b'{"messages":[{}]}',
        b'{"model":null,"messages":[{}]}',
        b'{"model":"","messages":[{}]}',
    ):
        request = read_chat(body, default_model="deployment")
        assert request is not None
        assert request.model == "deployment"
        assert request.body == body
    assert read(b'{"messages":[{}]}').model == ""


@pytest.mark.parametrize("chars", [MAX_MODEL_CHARS, MAX_MODEL_CHARS + 1])
def test_a_name_that_is_too_long_is_no_models(chars: int) -> None:
    """Whatever is remembered by model stays small."""
    name, fits = "m" * chars, chars <= MAX_MODEL_CHARS
    body = b'{"model":"%s","messages":[{}]}' % name.encode()
    lenient = body.replace(b"{}", b'{"x":"\\ud83d"}')
    assert (read_chat(body) is not None) is fits
    assert (read_chat(lenient) is not None) is fits
    assert (read_chat(b'{"messages":[{}]}', default_model=name) is not None) is fits
    assert model_named(body) == model_named(lenient) == (name if fits else None)


def test_only_true_asks_for_a_stream() -> None:
    for value, stream in ((b"true", True), (b"false", False), (b"null", False), (b"1", False)):
        assert read(b'{"messages":[{}],"stream":' + value + b"}").stream is stream


def deeper(frames: int, call: Callable[[], Any]) -> Any:
    return call() if frames == 0 else deeper(frames - 1, call)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'{"model":"m","messages":[{"role":"user","content":[{"y":', b"}]}]}"),
        (b'{"model":"m","messages":[{"role":"user","y":', b"}]}"),
        (b'{"model":"m","messages":[{"role":"user"}],"y":', b"}"),
        (b'{"model":"m","messages":[{"role":"user","content":"\\ud83d","y":', b"}]}"),
        (b'{"model":"m","messages":[{"role":"assistant","function_call":{"arguments":', b"}}]}"),
        (b'{"model":"m","messages":', b"}"),
        (b"", b""),
    ],
    ids=["part", "message", "field", "surrogate", "arguments", "messages", "body"],
)
@pytest.mark.parametrize("pair", [(b"[", b"]"), (b'{"a":', b"}")], ids=["list", "object"])
def test_what_is_read_can_be_walked_from_deeper_in_the_stack(
    before: bytes, after: bytes, pair: tuple[bytes, bytes]
) -> None:
    """Deep nesting is either refused at once or no trouble later."""
    opening, closing = pair
    for depth in (*range(10, 1100, 7), 5_000, 100_000):
        request = read_chat(before + opening * depth + b"1" + closing * depth + after)
        if request is not None:
            assert depth < 1000
            deeper(100, partial(meaning, KEY, request.messages[0]))
            deeper(100, partial(encode, {**request.messages[0]}))
            deeper(100, partial(encode, request.params))


def test_a_hundred_thousand_messages_are_read_in_seconds() -> None:
    raw = b'{"role":"user","content":"hello there"}'
    body = b'{"model":"m","messages":[' + b",".join([raw] * 100_000) + b"]}"
    started = perf_counter()
    assert resplice(body) == body
    assert perf_counter() - started < 5


# Writing.


@given(json_values | single_messages)
def test_what_is_written_reads_back_the_same(value: Any) -> None:
    assert json.loads(encode(value)) == value
    assert encode(value) == encode(json.loads(json.dumps(value)))


def test_written_text_is_utf8_unless_it_cannot_be() -> None:
    assert (
        encode_message({"role": "user", "content": "é"}) == '{"role":"user","content":"é"}'.encode()
    )
    assert encode("\ud83d") == b'"\\ud83d"'
    assert encode({"n": 10**40, "f": 1.0}) == b'{"n":1' + b"0" * 40 + b',"f":1.0}'


def test_other_messages_stand_in_the_place_of_the_ones_before() -> None:
    request = read(b'{"model":"m","n":1.0,"messages":[{"role":"user"}],"\\ud83d":1}')
    assert with_messages(request, [b'{"a":1}', b"{}"]) == (
        b'{"model":"m","n":1.0,"messages":[{"a":1},{}],"\\ud83d":1}'
    )


def test_messages_are_joined_as_a_list() -> None:
    assert join_messages([]) == b"[]"
    assert join_messages([b"{}", b'{"a":1}']) == b'[{},{"a":1}]'


def test_messages_and_fields_are_taken_out_and_every_other_byte_stays() -> None:
    body = b'{"model":"m", "x": 1.0, "messages":[ {"role":"system"},{"a": 2e0},{"b":3} ]}'
    request = read_chat(body)
    assert request is not None
    shorter = without_messages(request, {0, 2})
    assert shorter.body == b'{"model":"m","x":1.0,"messages":[{"a": 2e0}]}'
    assert (shorter.head_length, shorter.messages) == (0, ({"a": 2.0},))
    assert b'"x"' not in without_field(request, "x").body
    assert without_field(request, "x").raw_messages == request.raw_messages
    assert without_messages(request, {0, 1, 2}).messages == ()


def test_usage_is_asked_for_in_streams_alone() -> None:
    streaming = read_chat(
        b'{"model":"m","stream":true,"stream_options":{"z":1},"messages":[{"role":"user"}]}'
    )
    whole = read_chat(b'{"model":"m","messages":[{"role":"user"}]}')
    assert streaming is not None
    assert whole is not None
    asking = asking_for_usage(streaming)
    assert json.loads(asking.body)["stream_options"] == {"z": 1, "include_usage": True}
    assert asking.usage_added
    assert asking_for_usage(whole) is whole
    assert asking_for_usage(asking) is asking


def test_a_model_is_read_from_any_request() -> None:
    assert model_named(b'{"input":"x\\ud83d","model":"m","big":1e400}') == "m"
    for nothing in (b"", b"{", b"[]", b"null", b'{"model":5}', b'{"model":""}', b"[" * 10**6):
        assert model_named(nothing) is None
