"""Conversations that the client and the provider, in two processes, both know by name and turn."""

from typing import Any

from tests.proxied import result, text_of_tokens

WINDOW = 4000
MESSAGE_TOKENS = 180
JsonObject = dict[str, Any]


def history(conversation: int, turn: int) -> list[JsonObject]:
    """What the client sends in a turn, counted from 0: all of it, the newest question last.

    Every third turn is one of an agent: a call and its result.
    """
    messages: list[JsonObject] = [{"role": "system", "content": "You are careful."}]
    for n in range(turn):
        messages.append(_question(conversation, n))
        if n % 3 == 2:
            messages += _call(conversation, n)
        answer = text_of_tokens(MESSAGE_TOKENS, f"chat {conversation} turn {n} answered:")
        messages.append({"role": "assistant", "content": answer})
    return [*messages, _question(conversation, turn)]


def _question(conversation: int, n: int) -> JsonObject:
    text = text_of_tokens(MESSAGE_TOKENS, f"chat {conversation} turn {n} asked:")
    return {"role": "user", "content": text}


def _call(conversation: int, n: int) -> list[JsonObject]:
    function = {"name": "read", "arguments": f'{{"path":"{conversation}/{n}"}}'}
    call = {"id": f"c{n}", "type": "function", "function": function}
    text = text_of_tokens(MESSAGE_TOKENS, f"chat {conversation} file {n}:")
    return [{"role": "assistant", "content": None, "tool_calls": [call]}, result(f"c{n}", text)]


def play_name(conversation: int, turn: int) -> str:
    """How the client tells the provider what it is sent, in the header `x-play`."""
    return f"{conversation}/{turn}"


def played(name: str) -> list[JsonObject]:
    """The history that this name stands for."""
    conversation, turn = name.split("/")
    return history(int(conversation), int(turn))
