"""The bodies of summary calls. Replay sends the client's own bytes, so that the provider's prompt
cache pays for them; a transcript sends one fresh message. Of the client's other fields only those
listed here are sent: a summary call asks for no choices, formats, stops or storage of anybody.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from proxy.core.messages import Message, role_of
from proxy.core.transcript import Block, render

CAP_FIELDS = ("max_tokens", "max_completion_tokens")

# A prompt cache is only hit by the same tools and the same reasoning mode.
_REASONING_FIELDS = frozenset(
    {
        "reasoning_effort",
        "reasoning",
        "thinking",
        "thinking_config",
        "thinking_budget",
        "enable_thinking",
        "include_reasoning",
        "chat_template_kwargs",
    }
)
# OpenRouter's routing: which providers may see the data, and whose cache is warm.
_ROUTING_FIELDS = frozenset({"provider"})
_CHOICE_OF = {"tools": "tool_choice", "functions": "function_call"}
_EMPTY = frozenset({b"null", b"[]", b""})

# A rough word count for a token cap: English has 0.75 words a token, and a model that is told
# less than its cap stops in time.
_WORDS_PERCENT = 60


@dataclass(frozen=True, slots=True)
class Prompts:
    """The texts of `proxy/prompts/`."""

    instruction: str
    replay: str
    transcript: str
    merge: str


@dataclass(frozen=True, slots=True)
class Cap:
    """The output cap of one call, and the name under which it is sent."""

    tokens: int
    field: str


def cap_field(fields: Mapping[str, bytes]) -> str:
    """The name under which the client caps its output, else `max_tokens`."""
    used = [name for name in CAP_FIELDS if fields.get(name, b"null").strip() != b"null"]
    return "max_completion_tokens" if "max_completion_tokens" in used else CAP_FIELDS[0]


def other_cap_field(field: str) -> str:
    """The other of the two names."""
    return CAP_FIELDS[1 - CAP_FIELDS.index(field)]


def names_field(body: bytes, field: str) -> bool:
    """Whether a refusal's body names this very field."""
    return re.search(rb"(?<![A-Za-z_])" + field.encode() + rb"(?![A-Za-z_])", body) is not None


def instruction(prompts: Prompts, cap_tokens: int) -> str:
    """What is asked for, within a length that the cap leaves room for."""
    words = max(cap_tokens * _WORDS_PERCENT // 100, 1)
    return prompts.instruction.replace("{max_words}", str(words)).strip()


def replay_text(prompts: Prompts, cap_tokens: int) -> str:
    """The final user message of a replay."""
    return prompts.replay.replace("{instruction}", instruction(prompts, cap_tokens)).strip()


def transcript_text(
    prompts: Prompts, blocks: Sequence[Block], cap_tokens: int, *, earlier_summary: str | None
) -> str:
    """The one message of a transcript call; the instruction is the last thing in it."""
    shown = list(blocks)
    template = prompts.transcript
    if earlier_summary:
        shown.insert(0, Block("SUMMARY OF WHAT CAME BEFORE", earlier_summary))
        template = prompts.merge
    before, after = template.split("{transcript}", 1)
    asked = after.replace("{instruction}", instruction(prompts, cap_tokens))
    return f"{before}{render(shown)}{asked}".strip()


def replay_body(
    fields: Mapping[str, bytes],
    raw_messages: Sequence[bytes],
    *,
    model: str,
    final_text: str,
    cap: Cap,
) -> bytes:
    """The client's request up to the range's end, by its own bytes, with one message more.

    `raw_messages` are the head and the range as last sent; `fields` the raw top-level fields.
    """
    kept: dict[str, bytes] = {}
    for name, raw in fields.items():
        if name == "model":
            kept[name] = raw
        elif name == "messages":
            kept[name] = b"[" + b",".join([*raw_messages, _user(final_text)]) + b"]"
        elif name in _CHOICE_OF:
            if raw.strip() not in _EMPTY:
                kept[name] = raw
                kept[_CHOICE_OF[name]] = b'"none"'
        elif name in _REASONING_FIELDS or name in _ROUTING_FIELDS:
            kept[name] = raw
    kept.setdefault("model", json.dumps(model).encode())
    kept[cap.field] = str(cap.tokens).encode()
    return _object(kept)


def transcript_body(
    fields: Mapping[str, bytes], *, model: str, text: str, cap: Cap, same_upstream: bool
) -> bytes:
    """A fresh request with one user message and nothing of the client's but its routing."""
    body = {"model": json.dumps(model).encode(), "messages": b"[" + _user(text) + b"]"}
    if same_upstream:
        body.update({name: raw for name, raw in fields.items() if name in _ROUTING_FIELDS})
    return _object({**body, cap.field: str(cap.tokens).encode()})


def roles_would_repeat(messages: Sequence[Message]) -> bool:
    """Whether one user message more would follow another, which strict chat templates refuse."""
    return bool(messages) and role_of(messages[-1]) == "user"


def _user(text: str) -> bytes:
    # ASCII escapes: lone surrogates survive.
    return json.dumps({"role": "user", "content": text}).encode()


def _object(fields: Mapping[str, bytes]) -> bytes:
    return b"{" + b",".join(json.dumps(k).encode() + b":" + raw for k, raw in fields.items()) + b"}"
