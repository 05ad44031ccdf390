"""`tidegate meter` shows the same counts as the proxy makes, and says what it cannot read."""

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from proxy.cli_meter import NotAChat, measure, meter, read_chat, table
from proxy.meter import Meter

IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/a.png", "detail": "low"}}
REQUEST: dict[str, Any] = {
    "model": "gpt-4",
    "tools": [{"type": "function", "function": {"name": "find", "description": "Finds it"}}],
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Find the cat"}, IMAGE]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "It is a cat.",
            "tool_calls": [{"id": "1", "function": {"name": "find", "arguments": '{"q":"cat"}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": "On the mat."},
        {"role": "system", "content": "A late one."},
        {"content": "no role at all"},
    ],
}


def run(*arguments: str, columns: int = 120) -> Any:
    app = typer.Typer()
    app.command()(meter)
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": str(columns)})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    file = tmp_path / "chat.json"
    file.write_text(json.dumps(REQUEST))
    return file


class TestMeasure:
    def test_adds_up_to_the_count_of_the_request(self) -> None:
        counts = Meter()
        assert measure(REQUEST, "gpt-4o", counts).total == counts.count_request(REQUEST, "gpt-4o")

    def test_tells_head_tools_and_roles_apart(self) -> None:
        rows = measure(REQUEST, "gpt-4o", Meter()).rows
        names = ["head", "tools and formats", "user", "assistant", "tool", "system", "(no role)"]
        assert [row.name for row in rows] == [*names, "opening of the reply"]
        by_name = {row.name: row for row in rows}
        assert by_name["head"].messages == by_name["system"].messages == 1
        assert by_name["tools and formats"].content > 10
        assert by_name["user"].images == 85
        assert by_name["assistant"].reasoning == 5
        assert by_name["assistant"].calls > 3

    def test_of_no_messages_is_the_opening_alone(self) -> None:
        assert measure({"messages": []}, "gpt-4o", Meter()).total == 3


class TestReadChat:
    @pytest.mark.parametrize(
        "value", [REQUEST, {"id": "x", "request": REQUEST}, REQUEST["messages"]]
    )
    def test_takes_each_of_its_forms(self, tmp_path: Path, value: Any) -> None:
        file = tmp_path / "chat.json"
        file.write_text(json.dumps(value))
        assert read_chat(file)["messages"] == REQUEST["messages"]

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"{", "not JSON"),
            (b"\xff\xfe\xff", "not JSON"),
            (b"[" * 100_000, "nested too deeply"),
            (b"3", "expected a chat request or a list of messages"),
            (b"{}", "no list under 'messages'"),
            (b'{"request": {"messages": 3}}', "no list under 'messages'"),
            (b'[{"role": "user"}, "x"]', r"messages\[1\] is not an object"),
        ],
    )
    def test_says_what_is_wrong(self, tmp_path: Path, content: bytes, words: str) -> None:
        file = tmp_path / "chat.json"
        file.write_bytes(content)
        with pytest.raises(NotAChat, match=words):
            read_chat(file)


class TestCommand:
    def test_prints_a_table_for_the_files_own_model(self, saved: Path) -> None:
        done = run(str(saved))
        assert done.exit_code == 0
        assert "Tokens for gpt-4 (cl100k_base)" in done.output
        total = measure(REQUEST, "gpt-4", Meter()).total
        assert done.output.split()[-1] == f"{total:,}"

    @pytest.mark.parametrize("columns", [20, 80])
    def test_cuts_no_number_short_on_a_narrow_terminal(self, saved: Path, columns: int) -> None:
        assert run(str(saved), columns=columns).output == run(str(saved)).output

    def test_fits_a_plain_chat_into_80_characters(self, tmp_path: Path) -> None:
        file = tmp_path / "chat.json"
        file.write_text(json.dumps([{"role": "user", "content": "tide " * 123_456}]))
        output = run(str(file)).output
        assert "123,4" in output
        assert "images" not in output
        assert max(len(line.rstrip()) for line in output.splitlines()) <= 80

    def test_counts_for_the_model_it_is_told(self, saved: Path) -> None:
        assert "Tokens for gpt-4o (o200k_base)" in run(str(saved), "--model", "gpt-4o").output

    def test_counts_a_bare_list_for_a_stated_default(self, tmp_path: Path) -> None:
        file = tmp_path / "chat.json"
        file.write_text(json.dumps(REQUEST["messages"]))
        assert "Tokens for gpt-4o (o200k_base)" in run(str(file)).output

    def test_fails_in_one_line(self, tmp_path: Path) -> None:
        done = run(str(tmp_path / "none.json"))
        assert done.exit_code == 2
        assert done.stderr.startswith("tidegate meter: ")
        assert "No such file" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_a_table_has_a_row_for_each_part() -> None:
    measured = measure(REQUEST, "gpt-4o", Meter())
    assert table(measured).row_count == len(measured.rows)
