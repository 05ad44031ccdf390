"""The form in which tools are counted. How well that agrees with real prompts: `test_meter`."""

from typing import Any

import pytest

from proxy.core.tool_text import TOOLS_TOKENS, extra_texts, sees_typescript

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "City, or coordinates"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "default": 3},
                "tags": {"type": "array", "items": {"type": "string"}},
                "area": {
                    "type": "object",
                    "properties": {"km": {"type": "number"}},
                    "required": ["km"],
                },
                "odd": {"anyOf": [{"type": "string"}, {"type": "null"}], "description": "d"},
                "many": {"type": ["string", "null"]},
                "any": True,
            },
            "required": ["place"],
        },
    },
}

DECLARATION = """\
// The weather of a place
type get_weather = (_: {
// City, or coordinates
place: string,
unit?: "celsius" | "fahrenheit",
days?: number // default: 3,
tags?: string[],
area?: {
  km: number,
},
// d
odd?: {"anyOf":[{"type":"string"},{"type":"null"}]},
many?: string | null,
any?: any,
}) => any;
"""


@pytest.mark.parametrize(
    ("model", "seen"),
    [
        ("gpt-4o", True),
        ("openai/gpt-5-mini", True),
        ("gpt-oss:20b", True),
        ("o3", True),
        ("o4-mini", True),
        ("ft:gpt-4o:acme", True),
        ("us.openai.gpt-oss-120b", True),
        ("olmo-2", False),
        ("qwen3-32b", False),
        ("claude-sonnet-4", False),
        ("", False),
    ],
)
def test_only_openais_models_see_typescript(model: str, seen: bool) -> None:
    assert sees_typescript(model) is seen


def test_openais_models_see_declarations() -> None:
    assert extra_texts({"tools": [WEATHER]}, "gpt-4o") == ([DECLARATION], TOOLS_TOKENS)


def test_other_models_see_json_as_templates_write_it() -> None:
    texts, _ = extra_texts({"tools": [{"type": "function", "function": {"name": "f"}}]}, "qwen3")
    assert texts == ['{"type": "function", "function": {"name": "f"}}']


def test_a_function_without_parameters_is_declared_too() -> None:
    texts, _ = extra_texts({"functions": [{"name": "now", "parameters": {}}]}, "gpt-4")
    assert texts == ["type now = () => any;\n"]


def test_parameters_that_typescript_cannot_say_are_shown_as_json() -> None:
    tool = {"name": "f", "parameters": {"type": "object", "$defs": {"a": {"type": "string"}}}}
    texts, _ = extra_texts({"functions": [tool]}, "gpt-4")
    assert texts == [
        'type f = (_: {"type":"object","$defs":{"a":{"type":"string"}}}) => any;\n',
    ]


def test_a_schema_that_never_ends_is_cut_over_to_json() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(200):
        schema = {"type": "object", "properties": {"x": schema}}
    texts, _ = extra_texts({"functions": [{"name": "f", "parameters": schema}]}, "gpt-4")
    assert '"properties"' in texts[0]


def test_arrays_in_arrays_without_end_are_cut_over_to_json() -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(10_000):
        schema = {"type": "array", "items": schema}
    parameters = {"type": "object", "properties": {"x": schema}}
    texts, _ = extra_texts({"functions": [{"name": "f", "parameters": parameters}]}, "gpt-4")
    assert texts[0].startswith("type f = (_: {")


def test_format_choice_and_documents_count() -> None:
    texts, mark_tokens = extra_texts(
        {
            "response_format": {"type": "json_schema"},
            "tool_choice": "auto",
            "function_call": {"name": "f"},
            "documents": [{"text": "a"}],
            "temperature": 1,
        },
        "gpt-4o",
    )
    assert texts == ['{"type":"json_schema"}', "auto", '{"name":"f"}', '[{"text":"a"}]']
    assert mark_tokens == 0


@pytest.mark.parametrize(
    "tools",
    [
        None,
        [],
        {},
        "x",
        [None, 3, "x"],
        [{"type": "function", "function": None}],
        [{"function": {}}],
    ],
)
@pytest.mark.parametrize("model", ["gpt-4o", "qwen3"])
def test_malformed_tools_are_counted_as_what_they_are(tools: Any, model: str) -> None:
    texts, _ = extra_texts({"tools": tools}, model)
    assert all(isinstance(text, str) for text in texts)


@pytest.mark.parametrize(
    "parameters",
    [
        {"properties": 3, "required": 4},
        {"properties": {"a": {"type": 5, "enum": 6, "items": 7}}},
        {"properties": {"a": {"type": "array"}, "b": {"type": ["string", 3]}}},
    ],
)
def test_malformed_schemas_are_declared_as_far_as_they_go(parameters: Any) -> None:
    texts, _ = extra_texts({"functions": [{"name": "f", "parameters": parameters}]}, "gpt-4o")
    assert texts[0].startswith("type f = (_: {")
