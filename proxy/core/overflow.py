"""What a provider's refusal means: context overflow, images, bytes, the output cap, or other.

The wordings are rows of `overflow_signs.toml`, tried in order. Rate and quota wording, 401, 402,
403 and 429 are never anything but other. A 5xx is believed only for rows that say so, or when the
text states its limit. At most 16384 characters of what the body says are read.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from importlib.resources import files
from typing import Any

from proxy.core.echoes import without_echoes
from proxy.core.envelopes import Envelope, unwrap
from proxy.core.refusal_numbers import NumberReader, Stated, readable

# The sign of an answer without output that stopped by length: how full the window was decides.
EMPTY_LENGTH_STOP = "empty-length-stop"

_NEVER_STATUSES = frozenset({401, 402, 403, 407, 429})
_WINDOW_REASONS = frozenset(
    {"model_context_window_exceeded", "context_length_exceeded", "context_window_exceeded"}
)
# Longer texts are matched piece by piece, so that words far apart do not meet in one row.
_PIECE_CHARS = 1500
_PIECE_OVERLAP_CHARS = 200


class RefusalKind(StrEnum):
    """What has to become smaller, if anything."""

    CONTEXT_OVERFLOW = "context_overflow"
    IMAGE_BUDGET = "image_budget"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    OUTPUT_LIMIT = "output_limit"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal's kind and the numbers that it states; None where it states none."""

    kind: RefusalKind
    window_tokens: int | None = None
    window_is_input_only: bool = False
    prompt_tokens: int | None = None
    prompt_is_lower_bound: bool = False
    requested_output_tokens: int | None = None
    image_limit: int | None = None
    image_count: int | None = None
    takes_no_images: bool = False
    limit_bytes: int | None = None
    actual_bytes: int | None = None
    sign: str = ""
    limit_px: int | None = None

    @property
    def about_images(self) -> bool:
        """Whether a request that holds images may pass without some of them."""
        return self.kind in (RefusalKind.IMAGE_BUDGET, RefusalKind.PAYLOAD_TOO_LARGE)


_OTHER = Refusal(RefusalKind.OTHER)


@dataclass(frozen=True, slots=True)
class _Sign:
    name: str
    provider: str
    kind: RefusalKind
    code: re.Pattern[str] | None
    all: tuple[re.Pattern[str], ...]
    none: tuple[re.Pattern[str], ...]
    unless_text: re.Pattern[str] | None
    statuses: frozenset[int] | None
    server: bool
    no_images: bool
    no_numbers: bool

    def fitting_text(self, texts: list[str], codes: list[str]) -> str | None:
        """The text that makes this row fit; any code's fit returns all texts together."""
        if self.code is not None:
            if not any(self.code.fullmatch(code) for code in codes):
                return None
            joined = "\n".join(texts)
            if self.unless_text is not None and self.unless_text.search(joined):
                return None
            return joined
        for text in texts or [""]:
            if all(p.search(text) for p in self.all) and not any(p.search(text) for p in self.none):
                return text
        return None


class SignTable:
    """The rows, compiled; `without` leaves out one provider's own, to measure what is general."""

    def __init__(self, table: Mapping[str, Any], without: Iterable[str] = ()) -> None:
        words: Mapping[str, str] = table["words"]

        def expand(value: Any) -> Any:
            if isinstance(value, str):
                return re.sub(r"\{\{(\w+)\}\}", lambda found: words[found.group(1)], value)
            if isinstance(value, list):
                return [expand(item) for item in value]
            if isinstance(value, dict):
                return {key: expand(item) for key, item in value.items()}
            return value

        left_out = frozenset(without)
        rows = [row for row in table["sign"] if row["provider"] not in left_out]
        self.signs = [_sign(expand(row)) for row in rows]
        self.numbers = NumberReader(
            expand({key: value for key, value in table.items() if key not in ("words", "sign")})
        )


def _sign(row: Mapping[str, Any]) -> _Sign:
    def compiled(pattern: str | None) -> re.Pattern[str] | None:
        return None if pattern is None else re.compile(pattern, re.IGNORECASE)

    return _Sign(
        name=row["name"],
        provider=row["provider"],
        kind=RefusalKind(row["kind"]),
        code=compiled(row.get("code")),
        all=tuple(re.compile(pattern, re.IGNORECASE) for pattern in row.get("all", ())),
        none=tuple(re.compile(pattern, re.IGNORECASE) for pattern in row.get("none", ())),
        unless_text=compiled(row.get("unless_text")),
        statuses=frozenset(row["status"]) if "status" in row else None,
        server=row.get("server", False),
        no_images=row.get("no_images", False),
        no_numbers=row.get("no_numbers", False),
    )


def load_table() -> dict[str, Any]:
    """The rows as they stand in the package."""
    return tomllib.loads((files("proxy.core") / "overflow_signs.toml").read_text("utf-8"))


@lru_cache(maxsize=1)
def _table() -> SignTable:
    return SignTable(load_table())


def classify(
    status: int,
    body: bytes,
    *,
    in_stream: bool = False,
    request_texts: Callable[[], Iterable[str]] | None = None,
    table: SignTable | None = None,
) -> Refusal:
    """What an answer's body says; `in_stream` when it is one event of a stream.

    `request_texts` is called only when something matched: what stands in the request is the
    client's, and the rest is judged again.
    """
    if status in _NEVER_STATUSES:
        return _OTHER
    envelope = unwrap(body)
    if status < 400:
        document = envelope.document
        if isinstance(document, Mapping):
            overflow = success_overflow(document, in_stream=in_stream)
            if overflow is not None:
                return overflow
            answers = "choices" in document or _stop(document)[0] is not None
            if answers and not document.get("error"):
                return _OTHER
        if not envelope.texts and not envelope.codes:
            return _OTHER
        status = envelope.http_status() or 400
        if status in _NEVER_STATUSES:
            return _OTHER
    signs = table or _table()
    refusal = _judge(status, envelope.texts, envelope, signs)
    if refusal.kind is RefusalKind.OTHER or request_texts is None or not envelope.texts:
        return refusal
    own = without_echoes(envelope.texts, request_texts())
    if own == envelope.texts:
        return refusal
    return _judge(status, own, envelope, signs)


def _pieces(texts: Iterable[str]) -> list[str]:
    pieces: list[str] = []
    for text in texts:
        plain = readable(text)
        step = _PIECE_CHARS - _PIECE_OVERLAP_CHARS
        pieces.extend(
            plain[at : at + _PIECE_CHARS]
            for at in range(0, max(1, len(plain) - _PIECE_OVERLAP_CHARS), step)
        )
    return pieces


def _judge(status: int, texts: list[str], envelope: Envelope, table: SignTable) -> Refusal:
    pieces = _pieces(texts)
    for sign in table.signs:
        if sign.statuses is not None and status not in sign.statuses:
            continue
        text = sign.fitting_text(pieces, envelope.codes)
        if text is None:
            continue
        if sign.kind is RefusalKind.OTHER:
            return _OTHER
        refusal = _with_numbers(sign, text, pieces, envelope, table.numbers)
        if status < 500 or sign.server or _states_a_limit(refusal, text):
            return refusal
    return _OTHER


_EXCEEDS = re.compile(r"exceed|however|\bbut\b|too (?:long|many|large)|longer|larger|>|only", re.I)


def _states_a_limit(refusal: Refusal, text: str) -> bool:
    """Whether a 5xx says enough to be taken for the refusal that it wraps."""
    match refusal.kind:
        case RefusalKind.CONTEXT_OVERFLOW:
            return refusal.window_tokens is not None and bool(_EXCEEDS.search(text))
        case RefusalKind.OUTPUT_LIMIT:
            return any(char.isdigit() for char in text)
        case RefusalKind.IMAGE_BUDGET:
            return refusal.image_limit is not None or refusal.limit_bytes is not None
        case _:
            return refusal.limit_bytes is not None


def _with_numbers(
    sign: _Sign, text: str, pieces: list[str], envelope: Envelope, numbers: NumberReader
) -> Refusal:
    kind = sign.kind
    if kind is RefusalKind.OUTPUT_LIMIT:
        return Refusal(kind, requested_output_tokens=numbers.output(text), sign=sign.name)
    stated = Stated()
    if kind is RefusalKind.CONTEXT_OVERFLOW and not sign.no_numbers:
        for piece in [text, *pieces]:
            stated = numbers.tokens(piece, envelope.figures)
            if stated.window_tokens is not None or stated.prompt_tokens is not None:
                break
        if _only_output_helps(stated):
            kind = RefusalKind.OUTPUT_LIMIT
    if kind is RefusalKind.IMAGE_BUDGET:
        numbers.images(text, stated)
        numbers.pixels(text, stated)
    if kind in (RefusalKind.IMAGE_BUDGET, RefusalKind.PAYLOAD_TOO_LARGE) and (
        stated.image_limit is None
    ):
        numbers.sizes(text, stated, envelope.figures)
    return Refusal(
        kind,
        stated.window_tokens,
        stated.window_is_input_only,
        stated.prompt_tokens,
        stated.prompt_is_lower_bound,
        stated.requested_output_tokens,
        stated.image_limit,
        stated.image_count,
        sign.no_images or stated.image_limit == 0,
        stated.limit_bytes,
        stated.actual_bytes,
        sign.name,
        stated.limit_px,
    )


def _only_output_helps(stated: Stated) -> bool:
    """A prompt below half of the window, or an output as large as the window, is not overflow."""
    window = stated.window_tokens
    if window is None:
        return False
    if stated.prompt_tokens is not None:
        return stated.prompt_tokens * 2 < window
    output = stated.requested_output_tokens
    return output is not None and output >= window


def finish_reason_overflow(
    finish_reason: str | None,
    *,
    has_output: bool,
    completion_tokens: int | None,
    prompt_tokens: int | None,
    window_tokens: int | None,
) -> bool:
    """Whether a successful answer's stop says that the prompt filled the window.

    A stop by `length` counts only without output, with no completion tokens where usage is given,
    and with a prompt of at least 99% of the window where both are known.
    """
    if finish_reason in _WINDOW_REASONS:
        return True
    if finish_reason != "length" or has_output or completion_tokens:
        return False
    if window_tokens is None or prompt_tokens is None:
        return True
    return prompt_tokens * 100 >= window_tokens * 99


def success_overflow(event: Mapping[str, Any], *, in_stream: bool = False) -> Refusal | None:
    """The overflow that a successful answer or stream event signals by its stop reason, if any."""
    reason, has_output = _stop(event)
    if reason in _WINDOW_REASONS:
        return Refusal(RefusalKind.CONTEXT_OVERFLOW, sign="finish-reason")
    usage = event.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    completion, prompt = (_count(usage.get(k)) for k in ("completion_tokens", "prompt_tokens"))
    if in_stream and completion is None:
        # One event does not tell what came before it; only usage does.
        return None
    if finish_reason_overflow(
        reason,
        has_output=has_output,
        completion_tokens=completion,
        prompt_tokens=prompt,
        window_tokens=None,
    ):
        return Refusal(RefusalKind.CONTEXT_OVERFLOW, prompt_tokens=prompt, sign=EMPTY_LENGTH_STOP)
    return None


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _stop(document: Mapping[str, Any]) -> tuple[str | None, bool]:
    """The stop reason of the first choice or the message, and whether there is any output."""
    choices = document.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
        choice = choices[0]
        said = choice.get("message") or choice.get("delta")
        said = said if isinstance(said, Mapping) else {}
        parts = ("content", "reasoning_content", "reasoning", "tool_calls", "function_call", "text")
        has_output = any(said.get(part) for part in parts) or bool(choice.get("text"))
        return _text(choice.get("finish_reason")), has_output
    delta = document.get("delta")
    if isinstance(delta, Mapping) and "stop_reason" in delta:
        return _text(delta.get("stop_reason")), True
    return _text(document.get("stop_reason")), bool(document.get("content"))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
