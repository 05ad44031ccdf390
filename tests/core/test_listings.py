"""Listings: every known server's wording, and garbage that means nothing."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.core.listings import (
    Listed,
    entries_of,
    models_url,
    read_entry,
    read_listing,
    root_url,
)

# Server, entry, then W, I, output cap, vision.
ENTRIES: list[tuple[str, dict[str, Any], tuple[Any, Any, Any, Any]]] = [
    ("openai", {"id": "m", "object": "model", "created": 1677610602}, (None, None, None, None)),
    ("azure", {"id": "m", "capabilities": {"inference": True}}, (None, None, None, None)),
    (
        "anthropic",
        {
            "id": "m",
            "max_input_tokens": 1_000_000,
            "max_tokens": 128_000,
            "capabilities": {"image_input": {"supported": True}},
        },
        (1_000_000, None, 128_000, True),
    ),
    ("anthropic, old", {"id": "m", "max_input_tokens": 0, "max_tokens": 0}, (None,) * 4),
    (
        "gemini",
        {"name": "models/m", "inputTokenLimit": 1_048_576, "outputTokenLimit": 65_536},
        (1_048_576, None, 65_536, None),
    ),
    (
        "openrouter",
        {
            "id": "v/m",
            "context_length": 8_192,
            "architecture": {"input_modalities": ["text"]},
            "top_provider": {"context_length": 4_096, "max_completion_tokens": 2_048},
            "default_parameters": {"max_tokens": 17},
            "per_request_limits": None,
        },
        (4_096, None, 2_048, False),
    ),
    (
        "openrouter, nulls",
        {"id": "v/m", "context_length": 8_192, "top_provider": {"context_length": None}},
        (8_192, None, None, None),
    ),
    (
        "openrouter endpoint",
        {"context_length": 200_000, "max_completion_tokens": 8_192, "max_prompt_tokens": None},
        (200_000, None, 8_192, None),
    ),
    (
        "groq",
        {"context_window": 131_072, "max_completion_tokens": 8_192},
        (131_072, None, 8_192, None),
    ),
    ("together", {"id": "m", "type": "chat", "context_length": 2_048}, (2_048, None, None, None)),
    (
        "mistral",
        {"max_context_length": 131_072, "capabilities": {"vision": False}},
        (131_072, None, None, False),
    ),
    (
        "moonshot",
        {"context_length": 262_144, "supports_image_in": True, "supports_video_in": True},
        (262_144, None, None, True),
    ),
    (
        "xai",
        {
            "context_length": 1_000_000,
            "long_context_threshold": 200_000,
            "prompt_image_token_price": 12_500,
        },
        (1_000_000, None, None, True),
    ),
    (
        "fireworks control plane",
        {"name": "accounts/f/models/m", "contextLength": 9_000, "trainingContextLength": 8_000},
        (9_000, None, None, None),
    ),
    (
        "fireworks",
        {"supports_image_input": False, "context_length": 131_072},
        (131_072, None, None, False),
    ),
    (
        "deepinfra",
        {"metadata": {"context_length": 1_000_000, "max_tokens": 384_000, "tags": ["chat"]}},
        (1_000_000, None, 384_000, None),
    ),
    ("deepinfra, native", {"max_tokens": 384_000}, (None, None, None, None)),
    (
        "copilot",
        {
            "capabilities": {
                "limits": {
                    "max_context_window_tokens": 264_000,
                    "max_prompt_tokens": 128_000,
                    "max_output_tokens": 64_000,
                },
                "supports": {"vision": True},
            }
        },
        (264_000, 128_000, 64_000, True),
    ),
    (
        "github models",
        {
            "limits": {"max_input_tokens": 1_048_576, "max_output_tokens": 32_768},
            "supported_input_modalities": ["text", "image"],
            "rate_limit_tier": "high",
        },
        (1_048_576, None, 32_768, True),
    ),
    ("vllm", {"id": "m", "root": "r", "max_model_len": 16_384}, (16_384, None, None, None)),
    ("vllm, LoRA", {"id": "m", "parent": "p", "max_model_len": None}, (None,) * 4),
    (
        "llama.cpp",
        {"meta": {"vocab_type": 2, "n_vocab": 248_320, "n_ctx": 32_768, "n_ctx_train": 262_144}},
        (32_768, None, None, None),
    ),
    ("llama.cpp, old", {"meta": {"n_ctx_train": 262_144}}, (262_144, None, None, None)),
    ("llama.cpp, no meta", {"id": "m", "meta": None}, (None,) * 4),
    ("nobody's", {"vision": "yes", "tags": [{"a": 1}], "aliases": [1, ""]}, (None,) * 4),
    (
        "llama.cpp props",
        {
            "default_generation_settings": {
                "params": {"max_tokens": -1, "n_ctx": 7},
                "n_ctx": 32_768,
            },
            "total_slots": 4,
        },
        (32_768, None, None, None),
    ),
    (
        "llama.cpp router",
        {"status": {"value": "unloaded", "args": ["-m", "q.gguf", "-c", "65536"]}},
        (65_536, None, None, None),
    ),
    (
        "ollama show",
        {
            "details": {"family": "llama"},
            "model_info": {"llama.context_length": 131_072, "llama.embedding_length": 4_096},
            "capabilities": ["completion", "vision"],
        },
        (131_072, None, None, True),
    ),
    (
        "ollama show, num_ctx",
        {
            "parameters": 'stop    "x"\nnum_ctx    8192\n',
            "model_info": {"llama.context_length": 131_072},
        },
        (8_192, None, None, None),
    ),
    (
        "ollama ps",
        {"name": "h:8b", "size_vram": 8_372_905_984, "context_length": 16_384},
        (16_384, None, None, None),
    ),
    (
        "lm studio v0",
        {"type": "vlm", "max_context_length": 131_072, "loaded_context_length": 12_918},
        (12_918, None, None, True),
    ),
    (
        "lm studio v1",
        {
            "key": "q",
            "max_context_length": 32_768,
            "loaded_instances": [
                {"id": "q", "config": {"context_length": 8_192}},
                {"id": "q:2", "config": {"context_length": 4_096}},
            ],
            "capabilities": {"vision": False},
        },
        (4_096, None, None, False),
    ),
    (
        "litellm",
        {
            "model_name": "m",
            "model_info": {"max_input_tokens": 128_000, "max_output_tokens": 16_384},
        },
        (128_000, None, 16_384, None),
    ),
    (
        "vercel",
        {"type": "language", "context_window": 200_000, "max_tokens": 64_000},
        (200_000, None, 64_000, None),
    ),
    (
        "requesty",
        {"context_window": 200_000, "max_output_tokens": 64_000, "supports_vision": True},
        (200_000, None, 64_000, True),
    ),
    (
        "poolside",
        {"context_length": 131_072, "max_completion_tokens": 16_384, "input_modalities": ["text"]},
        (131_072, None, 16_384, False),
    ),
    ("omlx", {"max_context_window": 32_768, "max_tokens": 8_192}, (32_768, None, 8_192, None)),
    (
        "tgi",
        {"model_id": "m", "max_input_tokens": 1_024, "max_total_tokens": 2_048},
        (2_048, 1_024, None, None),
    ),
    (
        "cloudflare",
        {
            "name": "@cf/v/m",
            "properties": [
                {"property_id": "price", "value": [{"unit": "x", "price": 1}]},
                {"property_id": "context_window", "value": "262144"},
            ],
        },
        (262_144, None, None, None),
    ),
    (
        "ark",
        {
            "modalities": {"input_modalities": ["text", "image"]},
            "token_limits": {
                "context_window": 256_000,
                "max_output_token_length": 32_000,
                "max_reasoning_token_length": 16_000,
            },
        },
        (256_000, None, 32_000, True),
    ),
    (
        "bedrock",
        {"modelId": "a.m-v1:0", "inputModalities": ["TEXT", "IMAGE"]},
        (None, None, None, True),
    ),
]


@pytest.mark.parametrize(("server", "entry", "expected"), ENTRIES, ids=[e[0] for e in ENTRIES])
def test_each_server_s_wording(
    server: str, entry: dict[str, Any], expected: tuple[Any, Any, Any, Any]
) -> None:
    said = read_entry(entry)
    assert (
        said.window_tokens,
        said.input_limit_tokens,
        said.max_output_tokens,
        said.vision,
    ) == expected


@pytest.mark.parametrize(
    "value", [0, -1, None, True, "", "many", "1e5", 10**30, 1.5, float("nan"), [4096], {}, "9" * 30]
)
def test_what_is_no_number_of_tokens_is_unknown(value: object) -> None:
    assert read_entry({"context_length": value}) == Listed()


@pytest.mark.parametrize("value", [131_072, 131_072.0, "131072"])
def test_a_number_may_be_written_in_three_ways(value: object) -> None:
    assert read_entry({"context_length": value}).window_tokens == 131_072


@pytest.mark.parametrize(
    ("entry", "served"),
    [
        ({"meta": {"n_ctx_train": 9_000}}, False),
        ({"model_info": {"qwen3.context_length": 9_000}}, False),
        ({"state": "not-loaded", "max_context_length": 9_000}, False),
        ({"state": "loaded", "max_context_length": 9_000, "loaded_context_length": 900}, True),
        ({"state": "READY", "context_length": 9_000}, True),
        ({}, True),
    ],
)
def test_a_length_that_was_only_trained_is_told_apart(entry: dict[str, Any], served: bool) -> None:
    assert read_entry(entry).served is served


class TestListing:
    """Where the entries stand, and how a model is found among them."""

    @pytest.mark.parametrize(
        "document",
        [
            {"object": "list", "data": [{"id": "m"}]},
            {"models": [{"name": "m"}]},
            {"result": [{"name": "m"}]},
            {"modelSummaries": [{"modelId": "m"}]},
            {"data": {"id": "v", "endpoints": [{"name": "m"}]}},
            [{"id": "m"}],
            {"id": "m"},
        ],
    )
    def test_every_envelope_is_opened(self, document: object) -> None:
        assert len(entries_of(document)) == 1

    def test_an_entry_may_be_anything(self) -> None:
        assert read_entry(5) == read_entry(None) == Listed()
        assert read_listing([{"id": "m", "aliases": [1, "", "n"]}]).find("n") == Listed()

    @pytest.mark.parametrize("document", [None, 5, "x", [], {"data": []}, [1, None]])
    def test_nothing_is_found_in_nothing(self, document: object) -> None:
        assert list(entries_of(document)) == []
        assert read_listing(document).find("m") is None

    def test_a_model_is_found_by_any_of_its_names(self) -> None:
        listing = read_listing(
            {
                "data": [
                    {"id": "openai/gpt-4", "context_length": 8_192},
                    {"id": "llama3.2:latest", "context_length": 4_096},
                    {"id": "grok-4.3", "aliases": ["grok-latest"], "context_length": 7},
                    {"name": "models/gemini-x", "inputTokenLimit": 9},
                    {"key": "loaded", "max_context_length": 5},
                ]
            }
        )
        windows = {
            name: found.window_tokens
            for name in (
                "gpt-4",
                "GPT-4",
                "gpt-4:free",
                "llama3.2",
                "grok-latest",
                "gemini-x",
                "loaded",
            )
            if (found := listing.find(name)) is not None
        }
        assert list(windows.values()) == [8_192, 8_192, 8_192, 4_096, 7, 9, 5]

    def test_an_exact_name_wins_and_of_several_the_smallest(self) -> None:
        listing = read_listing(
            [
                {"id": "a/m", "context_length": 300},
                {"id": "b/m", "context_length": 200},
                {"id": "b/m", "context_length": 250},
                {"id": "c/m"},
            ]
        )
        found = [listing.find(name) for name in ("a/m", "b/m", "m")]
        assert [f.window_tokens if f else None for f in found] == [300, 200, 200]

    def test_a_lora_row_follows_its_parent(self) -> None:
        rows = [
            {"id": "base", "max_model_len": 16_384, "parent": None},
            {"id": "tuned", "max_model_len": None, "parent": "base"},
            {"id": "lost", "max_model_len": None, "parent": "gone"},
        ]
        listing = read_listing({"data": rows})
        tuned, lost = listing.find("tuned"), listing.find("lost")
        assert tuned is not None
        assert tuned.window_tokens == 16_384
        assert lost == Listed()

    def test_the_only_entry_is_known_whatever_its_name(self) -> None:
        assert read_listing({"n_ctx": 5}).sole == Listed(window_tokens=5)
        assert read_listing([{"id": "a"}, {"id": "b"}]).sole is None

    def test_owners_are_told(self) -> None:
        rows = [{"id": "a", "owned_by": "library"}, {"id": "b", "owned_by": None}]
        assert read_listing({"data": rows}).owners == {"library"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                [
                    "data",
                    "models",
                    "id",
                    "parent",
                    "args",
                    "capabilities",
                    "context_length",
                    "config",
                ]
            )
            | st.text(max_size=8),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_no_answer_of_an_upstream_raises(document: object) -> None:
    listing = read_listing(document)
    for listed in listing.exact.values():
        assert listed.window_tokens is None or listed.window_tokens > 0


@pytest.mark.parametrize(
    ("base_url", "models", "show"),
    [
        ("http://h:11434/v1", "http://h:11434/v1/models", "http://h:11434/api/show"),
        ("http://h:11434", "http://h:11434/v1/models", "http://h:11434/api/show"),
        ("http://h/v1/?key=a", "http://h/v1/models?key=a", "http://h/api/show?key=a"),
        ("https://h/api/v1", "https://h/api/v1/models", "https://h/api/api/show"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai/models", "https://h/api/show"),
        ("https://h/openai/v1", "https://h/openai/v1/models", "https://h/api/show"),
    ],
)
def test_where_to_ask(base_url: str, models: str, show: str) -> None:
    assert (models_url(base_url), root_url(base_url, "/api/show")) == (models, show)
