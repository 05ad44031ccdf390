"""The text in which a model sees what a request holds besides its messages: tools, formats.

OpenAI's models see functions as TypeScript declarations; the chat templates of open models show
JSON with spaces, which takes about twice as many tokens. Neither form is ever sent: it only has to
cost what the provider's own form costs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from proxy.core.counting import json_text

TOOLS_TOKENS = 12
"""What stands around all tools together: the namespace and its comment in OpenAI's form, 9 to 12
as measured by users against billed prompts (github.com/hmarr/openai-chat-tokens)."""

EXTRA_FIELDS = (
    "tools",
    "functions",
    "response_format",
    "tool_choice",
    "function_call",
    "documents",
)
"""The fields of a request that reach the prompt. `documents` is vLLM's and Cohere's."""

_OPENAI_MODEL = re.compile(
    r"(?:^|[/:@.])(?:chatgpt-|gpt-|o[1-9](?:$|[-:])|codex-|computer-use)", re.IGNORECASE
)
_LONGEST_MODEL_NAME = 256
_DEEPEST_SCHEMA = 16

# What TypeScript cannot say is shown as JSON.
_UNTRANSLATED = ("anyOf", "oneOf", "allOf", "$ref", "$defs", "definitions", "not", "if")


def sees_typescript(model: str) -> bool:
    """Whether the model is one of OpenAI's, the open ones included (their format does the same)."""
    return _OPENAI_MODEL.search(model[-_LONGEST_MODEL_NAME:]) is not None


def extra_texts(params: Mapping[str, Any], model: str) -> tuple[list[str], int]:
    """The texts of all extra fields, and the tokens of the marks around them."""
    texts: list[str] = []
    mark_tokens = 0
    as_typescript = sees_typescript(model)
    for field in ("tools", "functions"):
        listed = params.get(field)
        if isinstance(listed, list) and listed:
            mark_tokens += TOOLS_TOKENS
            texts += (_tool_text(tool, as_typescript=as_typescript) for tool in listed)
    for field in ("response_format", "tool_choice", "function_call", "documents"):
        value = params.get(field)
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, Mapping | list):
            texts.append(json_text(value))
    return texts, mark_tokens


def _tool_text(tool: Any, *, as_typescript: bool) -> str:
    function = tool.get("function", tool) if isinstance(tool, Mapping) else None
    if as_typescript and isinstance(function, Mapping) and isinstance(function.get("name"), str):
        return "\n".join(_declaration(function))
    return json_text(tool, spaced=True)


def _declaration(function: Mapping[str, Any]) -> Iterator[str]:
    """The function as OpenAI declares it, as far as that is known; over it where it is not."""
    yield from _comment(function.get("description"), "")
    parameters = function.get("parameters")
    name = function["name"]
    if not isinstance(parameters, Mapping) or not parameters:
        yield f"type {name} = () => any;\n"
        return
    if _is_untranslated(parameters):
        yield f"type {name} = (_: {json_text(parameters)}) => any;\n"
        return
    yield f"type {name} = (_: {{"
    yield from _properties(parameters, depth=0)
    yield "}) => any;\n"


def _properties(schema: Mapping[str, Any], *, depth: int) -> Iterator[str]:
    properties = schema.get("properties")
    required = schema.get("required")
    needed = {key for key in required if isinstance(key, str)} if isinstance(required, list) else ()
    for name, property_schema in properties.items() if isinstance(properties, Mapping) else ():
        indent = "  " * depth
        mark = "" if name in needed else "?"
        if isinstance(property_schema, Mapping):
            yield from _comment(property_schema.get("description"), indent)
        yield f"{indent}{name}{mark}: {_type(property_schema, depth=depth)},"


def _type(schema: Any, *, depth: int) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if _is_untranslated(schema) or depth > _DEEPEST_SCHEMA:
        return json_text({key: item for key, item in schema.items() if key != "description"})
    choices = schema.get("enum")
    if isinstance(choices, list):
        return " | ".join(json_text(choice) for choice in choices)
    stated = schema.get("type")
    if isinstance(stated, list):
        return " | ".join(item for item in stated if isinstance(item, str))
    if stated == "array":
        return f"{_type(schema.get('items'), depth=depth + 1)}[]"
    if stated == "object" and schema.get("properties"):
        inner = "\n".join(_properties(schema, depth=depth + 1))
        return f"{{\n{inner}\n{'  ' * depth}}}"
    default = f" // default: {json.dumps(schema['default'])}" if _has_default(schema) else ""
    return f"{'number' if stated == 'integer' else stated or 'any'}{default}"


def _has_default(schema: Mapping[str, Any]) -> bool:
    return isinstance(schema.get("default"), str | int | float | bool)


def _is_untranslated(schema: Mapping[str, Any]) -> bool:
    return any(key in schema for key in _UNTRANSLATED)


def _comment(description: Any, indent: str) -> Iterator[str]:
    if isinstance(description, str) and description:
        yield f"{indent}// {description}"
