"""Plays recorded conversations turn by turn through the real application, against a provider with a
hard window, and writes down what it cost and every rule that was broken on the way.

    python -m tests.play [NAME ...]      a markdown table of the conversations in ../shared
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from proxy.core.messages import head_length
from proxy.core.pruning import PRUNE_OVER
from proxy.core.ranges import pair
from tests.proxied import raw_messages, walking
from tests.strict_provider import (
    Call,
    StrictProvider,
    is_replay,
    messages_tokens,
    request_tokens,
)
from tests.validator import Message, keeps_newest_user

CONVERSATIONS = Path(__file__).parents[2] / "shared" / "conversations"
SMALLEST_WINDOW = 3000
SHRUNK_CHARS = 1100  # what the last resort leaves of an oversized tool result, marker included
FRAME_TOKENS = 150
MIN_SUMMARY_TOKENS = 16


@dataclass
class Play:
    """What became of one conversation."""

    name: str
    window: int
    turns: int = 0
    main_calls: int = 0
    summary_calls: int = 0
    client_tokens: int = 0
    forwarded_tokens: int = 0
    summary_tokens: int = 0
    common_bytes: int = 0
    previous_bytes: int = 0
    compactions: int = 0
    seconds: float = 0.0
    unanswered: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    @property
    def prefix_share(self) -> float:
        """How much of what was forwarded last time the next request began with, by bytes."""
        return self.common_bytes / self.previous_bytes if self.previous_bytes else 1.0


def recorded(name: str) -> Mapping[str, Any]:
    """A conversation of ../shared."""
    value: Mapping[str, Any] = json.loads((CONVERSATIONS / f"{name}.json").read_text("utf-8"))
    return value


def recorded_names() -> list[str]:
    """Every conversation of ../shared, the smallest first; none where that folder is absent."""
    files = sorted(CONVERSATIONS.glob("*.json"), key=lambda path: path.stat().st_size)
    return [path.stem for path in files]


def window_for(tokens: int) -> int:
    """A third of the conversation, so that it must be compacted again and again."""
    return max(SMALLEST_WINDOW, tokens // 3)


def turn_ends(messages: Sequence[Message]) -> list[int]:
    """Where the client asks: before every assistant message that follows something, and at the
    end."""
    first = head_length(messages)
    ends = [
        index
        for index, message in enumerate(messages)
        if index > first and message.get("role") == "assistant"
    ]
    return [*ends, len(messages)]


def play(name: str, request: Mapping[str, Any], window: int) -> Play:
    """Ask every turn of a recorded request in its order; nothing is raised for what goes wrong."""
    provider = StrictProvider(window, summary=a_summary)
    done = Play(name, window)
    started = time.monotonic()
    with walking(window, provider=provider) as walk:
        _Player(done, provider, walk.client, request).all_turns()
    done.seconds = time.monotonic() - started
    return done


def a_summary(body: Any) -> str:
    """A summary of about 200 tokens, another one for every range."""
    count = len(body["messages"])
    lines = [f"{n}. Point {n} of a history of {count} messages was settled." for n in range(1, 14)]
    return "\n".join(["# Request", *lines])


class _Player:
    def __init__(
        self, done: Play, provider: StrictProvider, client: httpx.Client, request: Mapping[str, Any]
    ) -> None:
        self.done = done
        self.provider = provider
        self.client = client
        self.messages: list[Any] = request["messages"]
        self.fields = {key: value for key, value in request.items() if key != "messages"}
        self.raw = [json.dumps(message, ensure_ascii=False) for message in self.messages]
        self.previous = b""

    def all_turns(self) -> None:
        for end in turn_ends(self.messages):
            self._turn(end)

    def _turn(self, end: int) -> None:
        done, provider = self.done, self.provider
        client_messages = self.messages[:end]
        asked = {**self.fields, "messages": client_messages}
        provider.client = client_messages
        first = len(provider.calls)
        rest = json.dumps(self.fields, ensure_ascii=False)[1:-1]
        body = f'{{{rest}, "messages": [{", ".join(self.raw[:end])}]}}'
        reply = self.client.post("/v1/chat/completions", content=body.encode())
        calls = provider.calls[first:]
        main = [call for call in calls if not call.summary]
        done.turns += 1
        done.client_tokens += request_tokens(asked)
        for call in calls:
            self._checked_call(end, call)
        for call in main:
            self._measured(call)
        if not main:
            done.faults.append(f"turn {end}: status {reply.status_code} without a main call")
            return
        actions = reply.headers.get("x-tidegate-action", "")
        done.compactions += any(kind in actions for kind in ("summary", "digest"))
        if reply.status_code == 200:
            self._checked_answer(end, asked, main[-1], reply)
        else:
            self._checked_refusal(end, asked, main, reply)

    def _measured(self, call: Call) -> None:
        done = self.done
        done.main_calls += 1
        done.forwarded_tokens += call.tokens
        messages = raw_messages(call)
        if self.previous:
            done.common_bytes += common_length(self.previous, messages)
            done.previous_bytes += len(self.previous)
        self.previous = messages

    def _checked_call(self, end: int, call: Call) -> None:
        done = self.done
        done.faults += [f"turn {end}: {fault}" for fault in call.faults]
        if call.summary:
            done.summary_calls += 1
            done.summary_tokens += call.tokens
            if call.tokens + call.output_cap > done.window:
                kind = "replay" if is_replay(call.body) else "transcript"
                done.faults.append(
                    f"turn {end}: {kind} summary call of {call.tokens} + {call.output_cap}"
                )
        elif not keeps_newest_user(self.messages[:end], call.body["messages"]):
            done.faults.append(f"turn {end}: the newest user message is gone")

    def _checked_answer(
        self, end: int, asked: Mapping[str, Any], call: Call, reply: httpx.Response
    ) -> None:
        trigger = int(reply.headers.get("x-tidegate-trigger", "0"))
        actions = reply.headers["x-tidegate-action"]
        after_compaction = "summary" in actions or "digest" in actions
        room = trigger - floor_tokens(asked, trigger)
        if after_compaction and call.tokens >= trigger and room > (trigger // 6) + 64:
            reason = reply.headers.get("x-tidegate-reason")
            self.done.faults.append(
                f"turn {end}: {call.tokens} forwarded, T is {trigger}, room {room},"
                f" {actions}, {reason}"
            )

    def _checked_refusal(
        self, end: int, asked: Mapping[str, Any], main: Sequence[Call], reply: httpx.Response
    ) -> None:
        done = self.done
        floor = floor_tokens(asked, done.window)
        reason = reply.headers.get("x-tidegate-reason")
        what = f"turn {end}: {reply.status_code}, floor {floor}, reason {reason}"
        done.unanswered.append(what)
        if reply.content != main[0].refusal:
            done.faults.append(f"{what}: not the provider's own answer: {reply.text[:200]}")
        if floor + MIN_SUMMARY_TOKENS <= done.window:
            actions = reply.headers.get("x-tidegate-action")
            sizes = [call.tokens for call in main]
            done.faults.append(f"{what}: its floor fits {done.window}; {actions}, sent {sizes}")


def common_length(a: bytes, b: bytes) -> int:
    """How many bytes two texts begin with in common."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def floor_tokens(asked: Mapping[str, Any], trigger: int) -> int:
    """What no compaction can remove, counted like the provider and not like Tidegate: head, tools,
    late instructions, newest user message and newest unit, its oversized results shrunk."""
    messages = asked["messages"]
    head = head_length(messages)
    history = messages[head:]
    units = pair(history).units
    start = next((unit.start for unit in units if unit.open), units[-1].start)
    tail = [_shrunk(message) for message in history[start:]]
    users = [m for m in history if m.get("role") == "user" and m.get("content")]
    newest = users[-1:] if users and not any(m is users[-1] for m in history[start:]) else []
    late = _late_instructions(history[:start], trigger // 8)
    fixed = request_tokens({**asked, "messages": messages[:head]})
    kept = fixed + messages_tokens([*late, *newest, *tail])
    if start == 0:
        return kept
    quoted = min(messages_tokens(users[:1]), trigger // 16, 2000) if users[:1] != newest else 0
    return kept + quoted + FRAME_TOKENS


def _late_instructions(history: Sequence[Message], cap_tokens: int) -> list[Message]:
    late: dict[str, Message] = {}
    for message in history:
        if message.get("role") in ("system", "developer"):
            late[str(message.get("content"))] = message
    return list(late.values()) if messages_tokens(list(late.values())) <= cap_tokens else []


def _shrunk(message: Message) -> Message:
    content = message.get("content")
    if message.get("role") not in ("tool", "function"):
        return message
    if isinstance(content, list):
        texts = "".join(str(part.get("text", "")) for part in content)
        if len(texts) <= PRUNE_OVER or any(part.get("type") != "text" for part in content):
            return message
        content = texts
    if isinstance(content, str) and len(content) > PRUNE_OVER:
        half = SHRUNK_CHARS // 2
        return {**message, "content": content[:half] + content[-half:]}
    return message


HEADINGS = (
    "conversation",
    "window",
    "turns",
    "main calls",
    "summary calls",
    "client tokens",
    "forwarded tokens",
    "summary tokens",
    "same prefix",
    "unanswered",
    "faults",
)


def table_row(done: Play) -> str:
    """One line of the table."""
    cells = [
        done.name,
        f"{done.window:,}",
        done.turns,
        done.main_calls,
        done.summary_calls,
        f"{done.client_tokens:,}",
        f"{done.forwarded_tokens:,}",
        f"{done.summary_tokens:,}",
        f"{done.prefix_share:.1%}",
        len(done.unanswered),
        len(done.faults),
    ]
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def main(names: Sequence[str]) -> None:
    """Print the table; below it what was not answered and what was wrong."""
    print("| " + " | ".join(HEADINGS) + " |")
    print("|" + " --- |" * len(HEADINGS))
    plays = []
    for name in names or recorded_names():
        conversation = recorded(name)
        done = play(name, conversation["request"], window_for(conversation["tokens"]))
        plays.append(done)
        print(table_row(done), flush=True)
    for done in plays:
        for what, lines in (("unanswered", done.unanswered), ("FAULT", done.faults)):
            for line in lines:
                print(f"{done.name}: {what}: {line}")
    print(f"{sum(done.seconds for done in plays):.1f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
