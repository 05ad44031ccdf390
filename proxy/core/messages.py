"""Questions asked of wire messages. A message stays the mapping the client sent; nothing here
copies, completes or re-models it, and every question has an answer for malformed input too."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Message = Mapping[str, Any]

HEAD_ROLES = frozenset({"system", "developer"})
RESULT_ROLES = frozenset({"tool", "function"})
# A tuple: a client's type may be anything, and not hashable.
TEXT_PARTS = ("text", "input_text", "output_text", "refusal", "thinking", "redacted_thinking")
REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_details", "thinking")


class ToolCall(NamedTuple):
    """One call of an assistant message; legacy `function_call` has the id `None`."""

    id: str | None
    name: str
    arguments: str
    legacy: bool = False


def role_of(message: Message) -> str:
    """The role, or "" where it is missing or not a string."""
    role = message.get("role")
    return role if isinstance(role, str) else ""


def head_length(messages: Sequence[Message]) -> int:
    """How many leading messages are `system` or `developer`."""
    for index, message in enumerate(messages):
        if role_of(message) not in HEAD_ROLES:
            return index
    return len(messages)


def has_media(message: Message) -> bool:
    """Whether any part of the content is more than text: an image, audio, a file, or unknown."""
    content = message.get("content")
    return isinstance(content, list) and any(
        isinstance(part, Mapping) and part.get("type") not in TEXT_PARTS for part in content
    )


def parts_of(message: Message) -> Sequence[Any]:
    """The content parts, of any type; a string is one text part, null and absent none."""
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content if isinstance(content, list) else []


def part_text(part: Any) -> str | None:
    """The text of a text-like part (`text`, `input_text`, `output_text`, `refusal`), else None."""
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return None
    for key in ("text", "refusal"):
        value = part.get(key)
        if isinstance(value, str) and not isinstance(part.get("image_url"), (str, Mapping)):
            return value
    return None


def texts_of(message: Message) -> Iterator[str]:
    """The texts of the content in order; images and other parts are passed over."""
    content = message.get("content")
    if isinstance(content, str):
        if content:
            yield content
        return
    for part in parts_of(message):
        text = part_text(part)
        if text:
            yield text


def text_of(message: Message) -> str:
    """All text of the content, parts joined by a line feed."""
    return "\n".join(texts_of(message))


def reasoning_of(message: Message) -> str:
    """Reasoning text sent along in vendor fields, "" where there is none."""
    found: list[str] = []
    for field in REASONING_FIELDS:
        value = message.get(field)
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            for item in value:
                text = item.get("text") if isinstance(item, Mapping) else None
                if isinstance(text, str):
                    found.append(text)
    return "\n".join(found)


def _text_or_empty(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _arguments(value: Any) -> str:
    # Ollama and others take an object in place of its JSON; what it holds still counts.
    if value is None or isinstance(value, str):
        return value or ""
    return json.dumps(value, sort_keys=True)


def tool_calls_of(message: Message) -> tuple[ToolCall, ...]:
    """The calls an assistant message makes, legacy `function_call` included, in order."""
    if role_of(message) != "assistant":
        return ()
    if "tool_calls" not in message and "function_call" not in message:
        return ()
    calls: list[ToolCall] = []
    listed = message.get("tool_calls")
    for call in listed if isinstance(listed, list) else ():
        if not isinstance(call, Mapping):
            continue
        function = call.get("function")
        if not isinstance(function, Mapping):
            function = call.get("custom")
        if not isinstance(function, Mapping):
            function = {}
        arguments = function.get("arguments", function.get("input"))
        calls.append(
            ToolCall(
                id=call["id"] if isinstance(call.get("id"), str) else None,
                name=_text_or_empty(function.get("name")),
                arguments=_arguments(arguments),
            )
        )
    legacy = message.get("function_call")
    if isinstance(legacy, Mapping):
        calls.append(
            ToolCall(
                id=None,
                name=_text_or_empty(legacy.get("name")),
                arguments=_arguments(legacy.get("arguments")),
                legacy=True,
            )
        )
    return tuple(calls)


def is_result(message: Message) -> bool:
    """Whether the message is a tool's answer (`tool`, or the legacy `function`)."""
    return role_of(message) in RESULT_ROLES


def is_real_user(message: Message) -> bool:
    """A user message with something in it: text that is not blank, or any other part."""
    if role_of(message) != "user":
        return False
    content = message.get("content")
    if isinstance(content, str):
        return bool(content.strip())
    return any((text := part_text(part)) is None or text.strip() for part in parts_of(message))
