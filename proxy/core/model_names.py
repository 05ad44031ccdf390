"""What else a model may be called: `vendor/model`, `model:tag`, `model@version`, dated suffixes.

Names only ever lose something on the way from the name sent to a name known, so that an exact match
always wins and nothing is guessed by likeness. Comparison ignores case.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import translate
from functools import lru_cache
from typing import TypeVar

T = TypeVar("T")

# Names come from clients: longer ones are not resolved, only taken as they stand.
MAX_NAME_CHARS = 256

# Bedrock: "us.anthropic.claude-3-5-sonnet-20240620-v1:0".
_BEDROCK = re.compile(
    r"^(?:(?:us|eu|apac|ap|global|jp|au|us-gov)\.)?"
    r"(?:anthropic|meta|amazon|mistral|cohere|deepseek|qwen|openai|ai21|moonshot|minimax)\."
)
# Bedrock's "-v1" follows a date; elsewhere "-v3" is the model's own version.
_REVISION = re.compile(r"(?<=-20\d{6})-v\d+$")
# Most telling first; four digits (MMDD, YYMM) last, because they may also be a size.
_DATES = (
    re.compile(r"-20\d\d-[01]\d-[0-3]\d$"),
    re.compile(r"-[01]\d-20\d\d$"),
    re.compile(r"-20\d\d[01]\d[0-3]\d$"),
    re.compile(r"-2\d[01]\d[0-3]\d$"),
    re.compile(r"-(?:[01]\d[0-3]\d|2\d[01]\d)$"),
)
_LATEST = re.compile(r"-latest$")


def names_of(name: str) -> tuple[str, ...]:
    """The name in lower case, then every shorter name it may stand for.

    A vendor goes before a tag and a tag before a date: the date says most about the model.
    """
    if len(name) > MAX_NAME_CHARS:
        return (name,)
    return _names_of(name)


@lru_cache(maxsize=4096)
def _names_of(name: str) -> tuple[str, ...]:
    folded = name.strip().lower()
    found: list[tuple[int, int, int, str]] = []
    for vendors, vendorless in enumerate(_without_vendors(folded)):
        for tags, untagged in enumerate(_without_tag(vendorless)):
            found += [(d, tags, vendors, bare) for d, bare in enumerate(_without_date(untagged))]
    return tuple(dict.fromkeys(bare for *_, bare in sorted(found) if bare)) or (folded,)


def _without_vendors(name: str) -> Iterator[str]:
    """The name, then without each leading path segment, then without a Bedrock vendor."""
    yield name
    rest = name
    while "/" in rest:
        rest = rest.partition("/")[2]
        yield rest
    bedrock = _BEDROCK.sub("", rest)
    if bedrock != rest:
        yield bedrock


def _without_tag(name: str) -> Iterator[str]:
    yield name
    for mark in (":", "@"):
        bare = name.partition(mark)[0]
        if bare != name:
            yield bare


def _without_date(name: str) -> Iterator[str]:
    yield name
    plain = _REVISION.sub("", name)
    if plain != name:
        yield plain
    for suffix in (*_DATES, _LATEST):
        undated = suffix.sub("", plain)
        if undated != plain:
            yield undated
            return


@lru_cache(maxsize=1024)
def _glob(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern.strip().lower()))


def first_match(patterns: Sequence[str], name: str) -> int | None:
    """The first pattern that matches the model's name or one of its shorter names, or None."""
    names = names_of(name)
    for index, pattern in enumerate(patterns):
        glob = _glob(pattern)
        if any(glob.match(candidate) for candidate in names):
            return index
    return None


def find(known: Mapping[str, T], name: str) -> T | None:
    """The value listed under the name, or under the longest shorter name of it that is listed."""
    for candidate in names_of(name):
        if candidate in known:
            return known[candidate]
    return None
