"""What the practice provider refuses, as OpenAI refuses it: in the same words, with the same codes.

Roles and tool pairing are checked as strictly as by OpenAI, so that whoever passes here does not
fail there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from proxy.core.errors import TidegateError
from proxy.core.messages import Message, role_of, tool_calls_of

ROLES = ("system", "assistant", "user", "function", "tool", "developer")


class PracticeRefusal(TidegateError):
    """A refusal of the practice provider. OpenAI sends many of them without a code."""

    status = 400
    type = "invalid_request_error"


def check_request(request: Any) -> None:
    """Raises: PracticeRefusal, when the request is not one that OpenAI would answer."""
    if not isinstance(request, Mapping):
        raise PracticeRefusal(
            "We could not parse the JSON body of your request: expected an object."
        )
    if not isinstance(request.get("model"), str) or not request["model"]:
        raise PracticeRefusal("you must provide a model parameter")
    messages = request.get("messages")
    if not isinstance(messages, list):
        raise PracticeRefusal("Missing required parameter: 'messages'.", param="messages")
    if not messages:
        raise PracticeRefusal(
            "Invalid 'messages': empty array. Expected an array with minimum length 1, but got an "
            "empty array instead.",
            param="messages",
            code="empty_array",
        )
    for index, message in enumerate(messages):
        _check_message(index, message)
    check_pairing(messages)
    if request.get("n") not in (None, 1):
        raise PracticeRefusal("This practice provider gives one answer: 'n' must be 1.", param="n")
    output_limit(request)


def _check_message(index: int, message: Any) -> None:
    where = f"messages[{index}]"
    if not isinstance(message, Mapping):
        raise PracticeRefusal(f"Invalid type for '{where}': expected an object.", param=where)
    role = message.get("role")
    if role not in ROLES:
        supported = ", ".join(f"'{known}'" for known in ROLES[:-1])
        raise PracticeRefusal(
            f"Invalid value: '{role}'. Supported values are: {supported}, and '{ROLES[-1]}'.",
            param=f"{where}.role",
            code="invalid_value",
        )
    content = message.get("content")
    calls = message.get("tool_calls") or message.get("function_call")
    empty_allowed = role == "assistant" and (calls or message.get("refusal"))
    if not isinstance(content, str | list) and not (content is None and empty_allowed):
        kind = "null" if content is None else "an object of another type"
        raise PracticeRefusal(
            f"Invalid value for 'content': expected a string, got {kind}.",
            param=f"{where}.content",
        )


def check_pairing(messages: Sequence[Message]) -> None:
    """Every call is answered before anything else is said, and every answer has its call."""
    waiting: list[str] = []
    called_at = 0
    for index, message in enumerate(messages):
        if role_of(message) == "tool":
            answered = message.get("tool_call_id")
            if answered not in waiting:
                raise PracticeRefusal(
                    "Invalid parameter: messages with role 'tool' must be a response to a "
                    "preceeding message with 'tool_calls'.",
                    param=f"messages.[{index}].role",
                )
            waiting.remove(answered)
            continue
        if waiting:
            break
        called_at = index
        calls = (call for call in tool_calls_of(message) if not call.legacy)
        waiting = [call.id or "" for call in calls]
    if waiting:
        raise PracticeRefusal(
            "An assistant message with 'tool_calls' must be followed by tool messages responding "
            "to each 'tool_call_id'. The following tool_call_ids did not have response messages: "
            + ", ".join(waiting),
            param=f"messages.[{called_at}].role",
        )


def output_limit(request: Mapping[str, Any]) -> int | None:
    """The tokens that the client allows for the answer."""
    for name in ("max_completion_tokens", "max_tokens"):
        limit = request.get(name)
        if limit is None:
            continue
        if isinstance(limit, bool) or not isinstance(limit, int):
            raise PracticeRefusal(
                f"Invalid type for '{name}': expected an integer.", param=name, code="invalid_type"
            )
        if limit < 1:
            raise PracticeRefusal(
                f"Invalid '{name}': integer below minimum value. Expected a value >= 1, but got "
                f"{limit} instead.",
                param=name,
                code="integer_below_min_value",
            )
        return limit
    return None


def check_window(prompt_tokens: int, limit: int | None, window_tokens: int) -> None:
    """Prompt and answer must fit together; without a limit there must be room for one token."""
    if prompt_tokens + (limit or 1) <= window_tokens:
        return
    if limit is None:
        came_to = f"your messages resulted in {prompt_tokens} tokens"
        reduce = "messages"
    else:
        came_to = (
            f"you requested {prompt_tokens + limit} tokens ({prompt_tokens} in the messages, "
            f"{limit} in the completion)"
        )
        reduce = "messages or completion"
    raise PracticeRefusal(
        f"This model's maximum context length is {window_tokens} tokens. However, {came_to}. "
        f"Please reduce the length of the {reduce}.",
        param="messages",
        code="context_length_exceeded",
    )
