"""What a conversation is called in a list: the beginning of its first message, on one line."""

from typing import Any

TITLE_CHARS = 100
_READ_CHARS = 2000  # of text that may be megabytes long


def title_of(message: Any) -> str:
    """The first words of the message; empty when it has none."""
    content = message.get("content") if isinstance(message, dict) else None
    parts = content if isinstance(content, list) else [{"text": content}]
    words: list[str] = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            words += text[:_READ_CHARS].split()
        if sum(map(len, words)) > TITLE_CHARS:
            break
    line = " ".join(words)
    return line if len(line) <= TITLE_CHARS else line[: TITLE_CHARS - 1].rstrip() + "…"
