"""The requests that are measured: English-like text of 4.3 bytes a token, the same for everyone.

Every request differs from every other where a real one would: `small` ones begin conversations,
`never_seen` ones share not one message, `conversation` grows by an exchange with a tool call.
"""

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

Message = dict[str, Any]

_TEXT = (
    "the of and to in is that for it as was with be by on not he his but at are this have from "
    "which one had or all they what when there can more if some other time into only could new "
    "them than first been its who now people my made over did down way find use may water long "
    "little very after words called just where most know function return error request response "
    "server connection timeout message context window token stream buffer parser value key index "
    "test result file directory branch commit review change build release"
)
WORDS = _TEXT.split()
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name.replace('_', ' ')} in the work tree and give back its text",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}, "lines": {"type": "integer"}},
                "required": ["path"],
            },
        },
    }
    for name in ("read_file", "search_text", "run_tests")
]
EXCHANGE_BYTES = 8_600
LONG_EXCHANGES = 50  # 200 messages, about 430 KB and 100,000 tokens


class Writer:
    """Text from one seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def text(self, size_bytes: int) -> str:
        words: list[str] = []
        while size_bytes > 0:
            words.append(self._random.choice(WORDS))
            size_bytes -= len(words[-1]) + 1
        return " ".join(words)

    def exchange(self, number: int) -> list[Message]:
        """A question, a tool call, its result, an answer: four messages."""
        call_id = f"call_{number:06d}"
        arguments = json.dumps({"path": f"src/{self.text(20).replace(' ', '/')}.py", "lines": 200})
        call = {"name": "read_file", "arguments": arguments}
        return [
            {"role": "user", "content": self.text(400)},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": call_id, "type": "function", "function": call}],
            },
            {
                "role": "tool",
                "tool_call_id": call_id,
                "content": self.text(EXCHANGE_BYTES - 1_600),
            },
            {"role": "assistant", "content": self.text(900)},
        ]


def encoded(messages: list[Message], *, model: str = "bench", **fields: Any) -> bytes:
    """The request body, compact, as most clients send it."""
    body = {"model": model, **fields, "messages": messages}
    return json.dumps(body, separators=(",", ":")).encode()


_SYSTEM: Message = {"role": "system", "content": "You are a careful assistant. " * 6}


def small(seed: int, *, stream: bool = False, model: str = "bench") -> Iterator[bytes]:
    """4 messages, 1.5 KB; each begins a conversation."""
    fields = {"stream": True} if stream else {}
    text = Writer(seed).text(380)
    for number in itertools.count():
        messages: list[Message] = [
            _SYSTEM,
            {"role": "user", "content": f"Question {seed}-{number}: {text}"},
            {"role": "assistant", "content": text},
            {"role": "user", "content": f"And then? {text[:300]}"},
        ]
        yield encoded(messages, model=model, **fields)


def never_seen(seed: int) -> Iterator[bytes]:
    """The long request, with no message that was ever sent before."""
    for number in itertools.count():
        writer = Writer(hash((seed, number)))
        history = [m for turn in range(LONG_EXCHANGES) for m in writer.exchange(turn)]
        yield encoded([_SYSTEM, *history], tools=TOOLS)


def conversation(seed: int, *, from_turn: int, to_turn: int, turns: int) -> Iterator[bytes]:
    """One conversation's requests `from_turn` to `to_turn`; at turn `turns` it has 430 KB."""
    writer = Writer(seed)
    share = max(EXCHANGE_BYTES * LONG_EXCHANGES // turns, 400)
    messages: list[Message] = [_SYSTEM]
    for turn in range(1, to_turn + 1):
        messages.append({"role": "user", "content": writer.text(share // 5)})
        if turn >= from_turn:
            yield encoded(messages, tools=TOOLS)
        call = {"name": "run_tests", "arguments": json.dumps({"path": f"tests/{turn}"})}
        messages += [
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": call}],
            },
            {
                "role": "tool",
                "tool_call_id": f"call_{turn}",
                "content": writer.text(share * 3 // 5),
            },
            {"role": "assistant", "content": writer.text(share // 5)},
        ]
