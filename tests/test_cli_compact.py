"""`tidegate compact` on a saved chat, through a running proxy."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from proxy.cli import app
from tests.proxied import system, talk, walking

MESSAGES = [system(), *talk(6, 200)]


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["compact", *arguments], env={"OPENAI_API_KEY": ""})


def saved(folder: Path, value: Any) -> str:
    file = folder / "chat.json"
    file.write_text(json.dumps(value), encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("bare", [True, False])
def test_it_prints_the_surface_and_says_what_was_done(tmp_path: Path, bare: bool) -> None:
    file = saved(tmp_path, MESSAGES if bare else {"messages": MESSAGES, "model": "another"})
    with walking() as walk:
        ran = run(file, "--model", "gpt-4o", "--url", str(walk.client.base_url))
        forwarded = walk.ask(MESSAGES).forwarded
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout) == forwarded
    assert "12 messages became a summary, 1 stayed" in ran.stderr


def test_options_are_those_of_the_call(tmp_path: Path) -> None:
    file = saved(tmp_path, {"messages": MESSAGES, "model": "gpt-4o"})
    with walking() as walk:
        url = f"{walk.client.base_url}/v1"
        ran = run(file, "--url", url, "--keep", "messages:5", "--summarizer", "small", "--key", "k")
        call = walk.provider.summaries[-1]
    assert "5 stayed" in ran.stderr
    assert call.json["model"] == "small"
    assert call.header("authorization") == "Bearer k"


def test_nothing_to_compact_is_no_failure(tmp_path: Path) -> None:
    short = [system(), *talk(1, 20)]
    with walking() as walk:
        url = str(walk.client.base_url)
        ran = run(saved(tmp_path, short), "--model", "gpt-4o", "--url", url)
    assert ran.exit_code == 0
    assert json.loads(ran.stdout) == short
    assert "not_enough_messages" in ran.stderr


def test_who_sends_no_key_where_one_is_wanted_is_told_how(tmp_path: Path) -> None:
    file = saved(tmp_path, {"messages": MESSAGES, "model": "gpt-4o"})
    with walking(server={"client_keys": ["secret"]}) as walk:
        url = str(walk.client.base_url)
        keyless, wrong = run(file, "--url", url), run(file, "--url", url, "--key", "other")
    assert (keyless.exit_code, wrong.exit_code) == (1, 1)
    assert "--key or OPENAI_API_KEY" in keyless.stderr
    assert "--key or OPENAI_API_KEY" not in wrong.stderr


def test_a_refusal_is_said_in_its_own_words(tmp_path: Path) -> None:
    with walking(None) as walk:
        url = str(walk.client.base_url)
        ran = run(saved(tmp_path, MESSAGES), "--model", "nobody-knows", "--url", url)
    assert ran.exit_code == 1
    assert "context_window" in ran.stderr
    assert ran.stdout == ""


@pytest.mark.parametrize(
    ("value", "arguments", "said"),
    [
        ({"messages": MESSAGES}, (), "names no model"),
        ({"no": "messages"}, ("--model", "m"), "no list of messages"),
        (MESSAGES, ("--model", "m", "--keep", "some"), "--keep some"),
    ],
)
def test_what_cannot_be_used_is_said(
    tmp_path: Path, value: Any, arguments: tuple[str, ...], said: str
) -> None:
    ran = run(saved(tmp_path, value), *arguments)
    assert (ran.exit_code, said in ran.stderr) == (2, True)


def test_a_file_or_a_proxy_that_is_not_there(tmp_path: Path) -> None:
    assert run(str(tmp_path / "none.json"), "--model", "m").exit_code == 2
    ran = run(saved(tmp_path, MESSAGES), "--model", "m", "--url", "http://127.0.0.1:9")
    assert ran.exit_code == 1
    assert "tidegate serve" in ran.stderr
