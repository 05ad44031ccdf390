"""The vendored tables are the published ones, and nothing is fetched to read them."""

import hashlib
import subprocess
import sys

import pytest
from tiktoken_ext import openai_public  # type: ignore[import-untyped]  # it ships no types

from proxy.vocabulary import (
    CL100K_BASE,
    O200K_BASE,
    Vocabulary,
    encoding_for,
    is_loaded,
    load,
    read_table,
    vocabulary_for,
)

# What tiktoken 0.14 expects of its downloads (tiktoken_ext/openai_public.py).
PUBLISHED_SHA256 = {
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
}


@pytest.mark.parametrize("vocabulary", [O200K_BASE, CL100K_BASE], ids=lambda each: each.name)
class TestTable:
    def test_is_the_published_one(self, vocabulary: Vocabulary) -> None:
        digest = hashlib.sha256(read_table(vocabulary)).hexdigest()
        assert digest == PUBLISHED_SHA256[vocabulary.name]

    def test_pattern_and_special_tokens_are_those_of_tiktoken(
        self, vocabulary: Vocabulary, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(openai_public, "load_tiktoken_bpe", lambda *_, **__: {})
        published = openai_public.ENCODING_CONSTRUCTORS[vocabulary.name]()
        assert vocabulary.pattern == published["pat_str"]
        assert vocabulary.special_tokens == published["special_tokens"]

    def test_is_read_once(self, vocabulary: Vocabulary) -> None:
        assert load(vocabulary) is load(vocabulary)


@pytest.mark.parametrize(
    ("model", "text", "tokens"),
    [
        # From OpenAI's cookbook, "How to count tokens with tiktoken", section 5.
        ("gpt-4", "antidisestablishmentarianism", [519, 85342, 34500, 479, 8997, 2191]),
        ("gpt-4o", "antidisestablishmentarianism", [493, 129901, 376, 160388, 21203, 2367]),
        ("gpt-4", "2 + 2 = 4", [17, 489, 220, 17, 284, 220, 19]),
        (
            "gpt-4",
            "お誕生日おめでとう",
            [33334, 45918, 243, 21990, 9080, 33334, 62004, 16556, 78699],
        ),
        ("gpt-4o", "お誕生日おめでとう", [8930, 9697, 243, 128225, 8930, 17693, 4344, 48669]),
    ],
)
def test_encodes_as_published(model: str, text: str, tokens: list[int]) -> None:
    assert encoding_for(model).encode_ordinary(text) == tokens


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("gpt-4o", "o200k_base"),
        ("gpt-4o-mini-2024-07-18", "o200k_base"),
        ("chatgpt-4o-latest", "o200k_base"),
        ("gpt-4.1-nano", "o200k_base"),
        ("gpt-4.5-preview", "o200k_base"),
        ("gpt-5", "o200k_base"),
        ("o1", "o200k_base"),
        ("o3-mini", "o200k_base"),
        ("o4-mini", "o200k_base"),
        ("openai/gpt-4o:extended", "o200k_base"),
        ("ft:gpt-4o-2024-08-06:acme::abc", "o200k_base"),
        ("qwen3-32b", "o200k_base"),
        ("", "o200k_base"),
        ("my-gpt-4", "o200k_base"),
        ("gpt-4", "cl100k_base"),
        ("GPT-4-0613", "cl100k_base"),
        ("gpt-4-turbo-2024-04-09", "cl100k_base"),
        ("gpt-4-32k", "cl100k_base"),
        ("openai/gpt-4", "cl100k_base"),
        ("azure/gpt-35-turbo", "cl100k_base"),
        ("gpt-3.5-turbo-16k", "cl100k_base"),
        ("ft:gpt-3.5-turbo-0125:acme", "cl100k_base"),
        ("gpt-4:latest", "cl100k_base"),
        ("text-embedding-3-small", "cl100k_base"),
    ],
)
def test_a_model_has_the_vocabulary_of_its_family(model: str, name: str) -> None:
    assert vocabulary_for(model).name == name


def test_is_loaded_says_whether_counting_can_start_at_once() -> None:
    load(O200K_BASE)
    assert is_loaded("gpt-4o")


def test_a_fresh_process_without_a_network_or_a_cache_counts() -> None:
    """R027: a machine where nothing can be resolved, connected or found in a cache directory."""
    program = """
import socket
def refuse(*_, **__):
    raise OSError("no network")
socket.socket.connect = refuse
socket.getaddrinfo = refuse
from proxy.vocabulary import encoding_for, is_loaded
assert not is_loaded("gpt-4o")
print(len(encoding_for("gpt-4o").encode_ordinary("hello world")))
print(len(encoding_for("gpt-4").encode_ordinary("hello world")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"TIKTOKEN_CACHE_DIR": "/nowhere", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.split() == ["2", "2"]
