"""Counts agree with the tokeniser and with real prompts, never raise, and stay off the loop."""

import asyncio
import base64
import json
import random
import string
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy import vocabulary
from proxy.core.counting import pieces_of
from proxy.core.messages import Message
from proxy.meter import INLINE_BYTES, INLINE_MESSAGES, Meter
from proxy.vocabulary import encoding_for

MODEL = "gpt-4o"


@pytest.fixture(scope="module")
def meter() -> Iterator[Meter]:
    meter = Meter()
    yield meter
    meter.close()


def real_tokens(text: str, model: str = MODEL) -> int:
    """The tokeniser's own count of the whole text."""
    return len(encoding_for(model).encode_ordinary(text))


def item(message: Message) -> tuple[bytes, Message]:
    return json.dumps(message).encode(), message


def count(meter: Meter, *messages: Message, model: str = MODEL) -> int:
    return meter.count_request({"messages": list(messages)}, model)


# ---- text


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-4"])
@pytest.mark.parametrize(
    "text",
    [
        pytest.param("1\n" * 30_000, id="R025: lines of one digit"),
        pytest.param("The quick brown fox, isn't it?  Yes.\n\n" * 2000, id="prose"),
        pytest.param("    if x != 'a':\n        return [1, 2]\n" * 2000, id="code"),
        pytest.param("今天天气很好，我们去公园散步吧。" * 2000, id="Chinese"),
        pytest.param('{"id":"a1","n":[1,22,333],"s":"x y"},' * 2000, id="JSON"),
        pytest.param("3.14159 2.71828 " * 3000, id="numbers"),
        pytest.param("👩‍👩‍👧‍👦 e\u0301 " * 2000, id="joined emoji and marks"),
        pytest.param("=" * 50_000, id="a rule"),
        pytest.param("\r\n" * 20_000, id="empty lines"),
    ],
)
def test_pieces_count_what_the_whole_counts(meter: Meter, text: str, model: str) -> None:
    whole = real_tokens(text, model)
    assert abs(meter.count_text(text, model) - whole) <= 2 * len(list(pieces_of(text)))
    assert abs(meter.count_text(text, model) - whole) <= max(4, whole // 500)


def test_base64_as_text_is_counted_by_the_tokeniser(meter: Meter) -> None:
    """R021: 1 to 1.5 characters per token, not 4."""
    text = base64.b64encode(random.Random(1).randbytes(300_000)).decode()
    tokens = meter.count_text(text, MODEL)
    assert abs(tokens - real_tokens(text)) <= 100
    assert 1 <= len(text) / tokens <= 1.6


def test_what_looks_like_a_special_token_is_plain_text(meter: Meter) -> None:
    assert meter.count_text("<|endoftext|><|im_start|>", MODEL) > 8


def test_a_lone_surrogate_counts_as_the_mark_that_replaces_it(meter: Meter) -> None:
    assert meter.count_text("a\ud83db", MODEL) == meter.count_text("a\ufffdb", MODEL)


@pytest.mark.parametrize("text", [" " * 1_000_000, "a" * 1_000_000, "\n" * 1_000_000])
def test_a_million_of_one_character_is_neither_slow_nor_an_error(meter: Meter, text: str) -> None:
    meter.count_text("warm", MODEL)
    started = time.perf_counter()
    assert 0 < meter.count_text(text, MODEL) <= 250_000
    assert time.perf_counter() - started < 5


def test_a_text_that_the_tokeniser_gives_up_on_counts_half_its_bytes(
    meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    class PanicException(BaseException):
        """What tiktoken raises: no `Exception`, in a module that cannot be imported."""

    class Panicking:
        def encode_ordinary(self, text: str) -> list[int]:
            raise PanicException

    monkeypatch.setattr(vocabulary, "encoding_for", lambda model: Panicking())
    assert meter.count_text(" " * 10_000, MODEL) == 5000


def test_another_error_is_not_swallowed(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        def encode_ordinary(self, text: str) -> list[int]:
            raise KeyboardInterrupt

    monkeypatch.setattr(vocabulary, "encoding_for", lambda model: Broken())
    with pytest.raises(KeyboardInterrupt):
        meter.count_text("hello", MODEL)


ordinary = st.text(
    st.sampled_from(string.ascii_letters + string.digits + " \n\t.,;:!?()[]{}'\"-_/\\éßж中文。"),
    max_size=400,
)


@given(ordinary)
def test_short_pieces_too_count_nearly_what_the_whole_counts(text: str) -> None:
    encoding = encoding_for(MODEL)
    pieces = list(pieces_of(text, 64))
    total = sum(len(encoding.encode_ordinary(piece)) for piece in pieces)
    assert abs(total - real_tokens(text)) <= 3 * len(pieces)


@given(st.text(st.characters(exclude_categories=())), st.sampled_from(["gpt-4o", "gpt-4"]))
def test_any_text_counts(text: str, model: str) -> None:
    meter = Meter()
    tokens = meter.count_text(text, model)
    assert bool(tokens) is bool(text)
    assert tokens <= len(text.encode("utf-8", "surrogatepass"))


def test_a_counter_counts_for_its_model(meter: Meter) -> None:
    text = "お誕生日おめでとう"
    assert [meter.counter(model)(text) for model in ("gpt-4o", "gpt-4")] == [8, 9]


# ---- messages


def test_the_same_text_costs_the_same_wherever_it_stands(meter: Meter) -> None:
    """R031."""
    text = "All work and no play makes Jack a dull boy. " * 50
    call = {"id": "1", "type": "function", "function": {"name": "say", "arguments": text}}
    counts = [
        count(meter, {"role": "assistant", "content": text}),
        count(meter, {"role": "assistant", "content": [{"type": "text", "text": text}]}),
        count(meter, {"role": "assistant", "content": None, "tool_calls": [call]}),
    ]
    assert max(counts) - min(counts) <= 10


def test_a_known_conversation_costs_what_openai_bills(meter: Meter) -> None:
    """The example of OpenAI's cookbook: 129 prompt tokens for gpt-4-0613, 124 for gpt-4o."""
    messages = [
        {
            "role": "system",
            "content": "You are a helpful, pattern-following assistant that translates corporate "
            "jargon into plain English.",
        },
        {
            "role": "system",
            "name": "example_user",
            "content": "New synergies will help drive top-line growth.",
        },
        {
            "role": "system",
            "name": "example_assistant",
            "content": "Things working well together will increase revenue.",
        },
        {
            "role": "system",
            "name": "example_user",
            "content": "Let's circle back when we have more bandwidth to touch base on "
            "opportunities for increased leverage.",
        },
        {
            "role": "system",
            "name": "example_assistant",
            "content": "Let's talk later when we're less busy about how to do better.",
        },
        {
            "role": "user",
            "content": "This late pivot means we don't have time to boil the ocean for the "
            "client deliverable.",
        },
    ]
    assert count(meter, *messages, model="gpt-4-0613") == 129
    assert count(meter, *messages, model="gpt-4o") == 124


@pytest.mark.parametrize("model", ["gpt-4o", "gpt-5", "claude-sonnet-4", "qwen2.5-vl", "practice"])
def test_an_image_is_priced_by_its_size_and_not_by_its_bytes(meter: Meter, model: str) -> None:
    """R019."""
    header = struct.pack(">IIBBBBB", 1600, 1400, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + header + random.Random(1).randbytes(2_200_000)
    url = "data:image/png;base64," + base64.b64encode(png).decode()
    assert len(url) > 2_900_000
    message = {
        "role": "user",
        "content": [
            {"type": "text", "text": "what is this"},
            {"type": "image_url", "image_url": {"url": url}},
        ],
    }
    assert 500 < meter.image_tokens(message, model) < 3200
    assert count(meter, message, model=model) - meter.image_tokens(message, model) < 20


def test_text_has_no_image_price(meter: Meter) -> None:
    assert meter.image_tokens({"role": "user", "content": "data:image/png;base64,AAAA"}, MODEL) == 0
    assert meter.image_tokens({}, MODEL) == 0


messages_strategy = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "role": st.sampled_from(["system", "user", "assistant", "tool", "odd", ""]),
            "name": st.text(max_size=8),
            "content": st.one_of(
                st.none(),
                st.text(max_size=60),
                st.lists(
                    st.one_of(
                        st.text(max_size=10).map(lambda text: {"type": "text", "text": text}),
                        st.text(max_size=10).map(lambda text: {"type": "odd", "x": [text]}),
                        st.just({"type": "image_url", "image_url": {"url": "https://a.b/c"}}),
                        st.just({"type": "input_audio", "input_audio": {"data": "AAAA"}}),
                        st.text(max_size=5),
                    ),
                    max_size=3,
                ),
            ),
            "reasoning_content": st.text(max_size=20),
            "tool_calls": st.lists(
                st.fixed_dictionaries(
                    {},
                    optional={
                        "id": st.text(max_size=4),
                        "function": st.fixed_dictionaries(
                            {},
                            optional={
                                "name": st.text(max_size=4),
                                "arguments": st.text(max_size=20),
                            },
                        ),
                    },
                ),
                max_size=4,
            ),
        },
    ),
    max_size=6,
)


@given(messages_strategy)
@settings(deadline=None)
def test_no_request_counts_more_than_its_bytes(messages: list[dict[str, Any]]) -> None:
    meter = Meter()
    body = json.dumps({"messages": messages}, ensure_ascii=False, separators=(",", ":"))
    bound = meter.upper_bound(
        body_bytes=len(body.encode("utf-8", "surrogatepass")),
        data_url_bytes=0,
        image_tokens=sum(meter.image_tokens(message, MODEL) for message in messages),
    )
    assert count(meter, *messages) <= bound


def test_tools_count_no_more_than_their_bytes(meter: Meter) -> None:
    tools = [{"name": "f", "parameters": {"enum": [1] * 5000}}]
    size_bytes = len(json.dumps(tools, separators=(",", ":")))
    assert meter.count_extras({"tools": tools}, "qwen3") <= size_bytes + 20


@given(messages_strategy, messages_strategy)
@settings(deadline=None)
def test_adding_a_message_never_lowers_the_count(
    messages: list[dict[str, Any]], more: list[dict[str, Any]]
) -> None:
    meter = Meter()
    counts = [count(meter, *messages, *more[:added]) for added in range(len(more) + 1)]
    assert counts == sorted(counts)
    assert len(set(counts)) == len(counts)


def test_the_bound_prices_an_image_instead_of_its_bytes(meter: Meter) -> None:
    assert meter.upper_bound(body_bytes=5000, data_url_bytes=4000, image_tokens=85) == 1085
    assert meter.upper_bound(body_bytes=10, data_url_bytes=20, image_tokens=85) == 85


def test_parts_add_up_to_the_message(meter: Meter) -> None:
    message = {
        "role": "assistant",
        "content": "Looking it up.",
        "reasoning_content": "They want the weather.",
        "tool_calls": [{"id": "1", "function": {"name": "weather", "arguments": '{"at":"here"}'}}],
    }
    parts = meter.count_parts(message, MODEL)
    assert min(parts.content, parts.calls, parts.reasoning, parts.marks) > 0
    assert parts.total == meter.count_message(*item(message), MODEL)
    assert parts.total == count(meter, message) - meter.count_extras({}, MODEL)


# ---- tools


def nested_tools() -> list[dict[str, Any]]:
    """Ten tools with nested schemas."""
    return [
        {
            "type": "function",
            "function": {
                "name": f"search_catalogue_{index}",
                "description": "Search the catalogue and return the best matches in order.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "query": {"type": "string", "description": "What to look for"},
                        "sort": {"type": "string", "enum": ["price", "name", "date"]},
                        "filter": {
                            "type": "object",
                            "description": "Only entries that match",
                            "properties": {
                                "price": {
                                    "type": "object",
                                    "properties": {
                                        "low": {"type": "number"},
                                        "high": {"type": "number"},
                                    },
                                    "required": ["low"],
                                },
                                "labels": {"type": "array", "items": {"type": "string"}},
                            },
                        },
                        "count": {"type": "integer", "description": "How many, at most 50"},
                    },
                    "required": ["query"],
                },
            },
        }
        for index in range(10)
    ]


SEARCH_AS_OPENAI_SHOWS_IT = """\
// Search the catalogue and return the best matches in order.
type search_catalogue_{index} = (_: {{
// What to look for
query: string,
sort?: "price" | "name" | "date",
// Only entries that match
filter?: {{
  price?: {{
    low: number,
    high?: number,
  }},
  labels?: string[],
}},
// How many, at most 50
count?: number,
}}) => any;

"""


def prompt_of_openai(tools: list[dict[str, Any]]) -> str:
    """The tools as OpenAI's models repeat them when asked for their prompt."""
    shown = (SEARCH_AS_OPENAI_SHOWS_IT.format(index=index) for index in range(len(tools)))
    return (
        "# Tools\n\n## functions\n\nnamespace functions {\n\n"
        + "".join(shown)
        + "} // namespace functions"
    )


def prompt_of_a_chat_template(tools: list[dict[str, Any]]) -> str:
    """The tools as Qwen's published chat template renders them."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return f"# Tools\n\nYou may call one or more functions.\n<tools>\n{listed}\n</tools>\n"


@pytest.mark.parametrize(
    ("model", "prompt"),
    [
        ("gpt-4o", prompt_of_openai),
        ("gpt-4", prompt_of_openai),
        ("qwen3", prompt_of_a_chat_template),
    ],
)
def test_tools_count_within_a_tenth_of_the_real_prompt(
    meter: Meter, model: str, prompt: Any
) -> None:
    """R023."""
    tools = nested_tools()
    real = real_tokens(prompt(tools), model)
    counted = meter.count_extras({"tools": tools}, model) - meter.count_extras({}, model)
    assert real * 0.9 <= counted <= real * 1.1


def test_everything_beside_the_messages_is_in_the_count(meter: Meter) -> None:
    """R022."""
    schema = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(99)}}
    extras = {
        "tools": nested_tools(),
        "tool_choice": {"type": "function", "function": {"name": "search_catalogue_1"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
    }
    base = meter.count_extras({}, MODEL)
    each = {
        field: meter.count_extras({field: value}, MODEL) - base for field, value in extras.items()
    }
    assert each["tools"] > 900
    assert each["tool_choice"] > 5
    assert each["response_format"] > 900
    assert meter.count_extras(extras, MODEL) == base + sum(each.values())


def written(params: dict[str, Any]) -> dict[str, bytes]:
    """The fields as a client writes them."""
    return {name: json.dumps(value).encode() for name, value in params.items()}


async def test_extras_are_counted_once(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the request holds; other extras, and other models, count by themselves."""
    one = {"tools": nested_tools(), "temperature": 1}
    two = {"temperature": 0, "tools": nested_tools()}
    first = await meter.measure_extras(one, "o3", fields=written(one))
    assert first == meter.count_extras(one, "o3")
    with monkeypatch.context() as patch:
        patch.setattr(meter, "count_text", lambda *_: pytest.fail("counted again"))
        assert await meter.measure_extras(two, "o3", fields=written(two)) == first
    more = {**two, "tool_choice": {"type": "function", "function": {"name": "a longer name"}}}
    for params, model in ((more, "o3"), (one, "gpt-4"), ({"n": 1}, "o3"), ({"tools": None}, "o3")):
        measured = await meter.measure_extras(params, model, fields=written(params))
        assert measured == meter.count_extras(params, model)


@pytest.mark.parametrize("times", [1, 20])
async def test_extras_cost_the_same_on_and_off_the_event_loop(meter: Meter, times: int) -> None:
    extras = {"tools": nested_tools() * times}
    measured = await Meter().measure_extras(extras, MODEL, fields=written(extras))
    assert measured == meter.count_extras(extras, MODEL)


# ---- the cache and the event loop


def tokenising(meter: Meter, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the meter tokenises from now on."""
    texts: list[str] = []
    real = meter.count_text

    def watch(text: str, model: str) -> int:
        texts.append(text)
        return real(text, model)

    monkeypatch.setattr(meter, "count_text", watch)
    return texts


class TestCountMessages:
    async def test_counts_each_message_in_order(self, meter: Meter) -> None:
        messages = [{"role": "user", "content": "word " * length} for length in (1, 5000, 20, 1)]
        counts = await meter.count_messages([item(message) for message in messages], MODEL)
        assert counts == tuple(meter.count_parts(message, MODEL).total for message in messages)

    async def test_a_known_message_is_not_tokenised_again(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        meter = Meter()
        old = item({"role": "user", "content": "old"})
        new = item({"role": "user", "content": "new"})
        await meter.count_messages([old], MODEL)
        tokenised = tokenising(meter, monkeypatch)
        await meter.count_messages([old, new, old], MODEL)
        assert tokenised == ["new"]
        meter.close()

    @pytest.mark.parametrize("size", [1, INLINE_BYTES])
    async def test_a_message_that_stands_twice_is_tokenised_once(
        self, monkeypatch: pytest.MonkeyPatch, size: int
    ) -> None:
        meter = Meter()
        twice = item({"role": "user", "content": "a" + " a" * size})
        tokenised = tokenising(meter, monkeypatch)
        first, second = await meter.count_messages([twice, twice], MODEL)
        assert first == second == size + 1 + 4
        assert len(tokenised) == 1
        meter.close()

    async def test_the_cache_forgets_what_was_used_longest_ago(self) -> None:
        meter = Meter(cache_entries=2)
        items = [item({"role": "user", "content": str(number)}) for number in range(5)]
        assert len(await meter.count_messages(items, MODEL)) == 5
        assert len(meter._messages) == 2
        meter.close()

    async def test_a_model_with_other_image_prices_is_counted_for_itself(
        self, meter: Meter
    ) -> None:
        part = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
        one = item({"role": "user", "content": [part]})
        assert await meter.count_messages([one], "gpt-4o") != await meter.count_messages(
            [one], "gpt-4o-mini"
        )

    async def test_no_messages_cost_nothing(self, meter: Meter) -> None:
        assert await meter.count_messages([], MODEL) == ()

    async def test_long_text_leaves_the_event_loop_free(self, meter: Meter) -> None:
        """R027, the meter's share of it: the loop turns while a megabyte is counted."""
        await meter.prepare()
        long = item({"role": "user", "content": "lorem ipsum dolor " * (40 * INLINE_BYTES // 18)})
        counting = asyncio.ensure_future(meter.count_messages([long], MODEL))
        longest_seconds, turns = 0.0, 0
        while not counting.done():
            before = time.perf_counter()
            await asyncio.sleep(0)
            longest_seconds = max(longest_seconds, time.perf_counter() - before)
            turns += 1
        assert (await counting)[0] > 100_000
        assert turns > 3
        assert longest_seconds < 0.5

    async def test_a_body_too_large_to_hash_at_once_is_looked_up_in_a_thread(
        self, meter: Meter
    ) -> None:
        items = [item({"role": "user", "content": "ab " * 500_000}) for _ in range(2)]
        first, second = await meter.count_messages(items, MODEL)
        assert first == second > 500_000


async def test_a_request_of_very_many_messages_is_counted_in_a_thread(meter: Meter) -> None:
    items = [item({"role": "user", "content": "hi"})] * (INLINE_MESSAGES + 1)
    assert await meter.count_messages(items, MODEL) == (5,) * len(items)


async def test_prepare_reads_the_usual_vocabulary_alone(
    meter: Meter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "_loaded", {})
    await meter.prepare()
    assert vocabulary.is_loaded("gpt-4o")
    assert not vocabulary.is_loaded("gpt-4")
    assert await meter.count_messages([item({"role": "user", "content": "hello"})], "gpt-4") == (5,)
    assert vocabulary.is_loaded("gpt-4")
