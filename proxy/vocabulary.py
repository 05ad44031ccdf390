"""The token tables behind every count, read from the package and never from the network.

tiktoken's own loaders download; here its `Encoding` is built directly from the vendored ranks, so
neither its registry nor its cache directory is touched. Reading one takes about half a second,
hence once per process, and outside the event loop: see `Meter.prepare`.
"""

import gzip
import re
from binascii import a2b_base64
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from io import BytesIO
from threading import Lock

import tiktoken

_BYTES_PER_STEP = 128 * 1024
"""Read between two moments at which another thread may run: a few milliseconds. What a step makes
is gone before the next one, so that the process is left with fewer holes."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What makes an encoding besides its ranks: tiktoken's published constants, copied."""

    name: str
    pattern: str
    special_tokens: dict[str, int]


# Source of patterns and special tokens: tiktoken 0.14, tiktoken_ext/openai_public.py.
O200K_BASE = Vocabulary(
    name="o200k_base",
    pattern="|".join(
        (
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
    special_tokens={"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
)
CL100K_BASE = Vocabulary(
    name="cl100k_base",
    pattern=(
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
        r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
    ),
    special_tokens={
        "<|endoftext|>": 100257,
        "<|fim_prefix|>": 100258,
        "<|fim_middle|>": 100259,
        "<|fim_suffix|>": 100260,
        "<|endofprompt|>": 100276,
    },
)

# Names stand after a vendor (`openai/gpt-4`), a fine-tuning mark (`ft:gpt-4`) or alone. What
# follows `gpt-4` tells it from gpt-4o, gpt-4.1 and gpt-4.5, which have the newer table.
_CL100K_MODEL = re.compile(
    r"(?:^|[/:@])"
    r"(?:gpt-4(?![.\w])|gpt-4-|gpt-3\.?5|text-embedding-|davinci-002|babbage-002|cl100k_base)",
    re.IGNORECASE,
)
_LONGEST_MODEL_NAME = 256

_loaded: dict[str, tiktoken.Encoding] = {}
_loading = Lock()


@lru_cache(maxsize=512)
def _vocabulary_of(name: str) -> Vocabulary:
    return CL100K_BASE if _CL100K_MODEL.search(name) else O200K_BASE


def vocabulary_for(model: str) -> Vocabulary:
    """The vocabulary of a model's family; `o200k_base` for a model that is not known."""
    return _vocabulary_of(model[-_LONGEST_MODEL_NAME:])


def encoding_for(model: str) -> tiktoken.Encoding:
    """The encoding of a model's family, read from the package when first asked for."""
    return load(vocabulary_for(model))


def is_loaded(model: str) -> bool:
    """Whether `encoding_for` answers at once."""
    return vocabulary_for(model).name in _loaded


def load(vocabulary: Vocabulary) -> tiktoken.Encoding:
    """The encoding of a vocabulary; the first call takes about half a second."""
    encoding = _loaded.get(vocabulary.name)
    if encoding is not None:
        return encoding
    with _loading:
        if vocabulary.name not in _loaded:
            ranks = _parse_ranks(read_table(vocabulary))
            _loaded[vocabulary.name] = tiktoken.Encoding(
                vocabulary.name,
                pat_str=vocabulary.pattern,
                mergeable_ranks=ranks,
                special_tokens=vocabulary.special_tokens,
            )
            # It has copied them, and would keep ours (25 MB) only to be pickled.
            ranks.clear()
        return _loaded[vocabulary.name]


def read_table(vocabulary: Vocabulary) -> bytes:
    """The vendored table: lines of a token in base64 and its rank."""
    packed = files("proxy").joinpath("vocabularies", f"{vocabulary.name}.tiktoken.gz").read_bytes()
    return gzip.decompress(packed)


def _parse_ranks(table: bytes) -> dict[bytes, int]:
    lines = BytesIO(table)
    ranks: dict[bytes, int] = {}
    while step := lines.readlines(_BYTES_PER_STEP):
        fields = b"".join(step).split()
        ranks.update(zip(map(a2b_base64, fields[::2]), map(int, fields[1::2]), strict=True))
    return ranks
