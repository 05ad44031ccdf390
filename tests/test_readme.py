"""The README is true: its Start commands run, and every name in its Reference is the code's."""

import ast
import inspect
import re
import shlex
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import typer
from starlette.routing import Route

from proxy import turn
from proxy.assembly import create_app
from proxy.cli import app
from proxy.core.compaction import Reason
from proxy.metrics import TABLE
from proxy.practice import create_practice_app
from proxy.settings import Settings
from proxy.settings_reference import markdown_table, variable_of
from tests.commands import ROOT, environment, running
from tests.serving import serve

README = (ROOT / "README.md").read_text(encoding="utf-8")
DEMO_SECONDS = 60


def section(title: str) -> str:
    """The text under a heading, up to the next one of the same level or above."""
    level = title.partition(" ")[0]
    found = re.search(
        rf"^{re.escape(title)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)", README, re.MULTILINE | re.DOTALL
    )
    assert found, f"the README has no section {title!r}"
    return found[1]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def first_column(text: str) -> list[str]:
    """The names in backticks in the first cell of each row."""
    cells = re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


START = [block.strip() for block in blocks(section("## Start"), "sh")]
DEMOS = [block for block in START if block.startswith("tidegate demo")]


def test_the_first_block_holds_the_two_commands_for_a_fresh_machine() -> None:
    assert blocks(README, "sh")[0].splitlines() == [
        "pip install . && tidegate demo",
        "pip install '.[test]' && pytest",
    ]


def test_every_block_of_start_is_run_below() -> None:
    others = [block for block in START if block not in DEMOS]
    assert [block.split()[0].partition("=")[0] for block in others] == [
        "tidegate",
        "curl",
        "TIDEGATE_UPSTREAM",
    ]


@pytest.mark.parametrize("command", DEMOS)
def test_a_demo_command_succeeds(command: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=DEMO_SECONDS,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "turns answered" in ran.stdout
    assert ran.stderr == ""


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _curl(command: str, port: int) -> httpx.Response:
    """What the curl line asks, from a machine that may have no curl."""
    words = shlex.split(command.replace("\\\n", " ").replace(":8080", f":{port}"))
    url, header, body = words[2], words[words.index("-H") + 1], words[words.index("-d") + 1]
    name, _, value = header.partition(": ")
    return httpx.post(url, headers={name: value}, content=body, timeout=30)


def test_serve_and_the_curl_line_answer(tmp_path: Path) -> None:
    serving, curl, with_upstream = (block for block in START if block not in DEMOS)
    port = _free_port()
    with running(tmp_path, serving, TIDEGATE_SERVER__PORT=str(port)) as command:
        assert _curl(curl, port).status_code == 200
        assert command.stop() == 0
    with serve(create_practice_app()) as provider:
        line = with_upstream.replace("https://api.openai.com", provider.url)
        assert line != with_upstream
        with running(tmp_path, line, TIDEGATE_SERVER__PORT=str(port)) as command:
            assert _curl(curl, port).status_code == 200
            assert provider.url in command.said()
            assert command.stop() == 0


def test_the_settings_are_those_of_the_code() -> None:
    assert markdown_table() in README, "put the output of settings_reference.markdown_table() there"


def test_the_variables_that_are_named_exist() -> None:
    named = set(re.findall(r"\bTIDEGATE_[A-Z_]*[A-Z]\b", README))
    known = {variable_of(path, "default") for path in first_column(section("### Settings"))}
    short = {"TIDEGATE_UPSTREAM", "TIDEGATE_API_KEY", "TIDEGATE_CONFIG"}
    assert named - known == short | {"TIDEGATE_FAULTS"}  # a switch of the tests


@pytest.mark.parametrize("block", blocks(README, "toml"))
def test_settings_that_are_shown_can_be_used(block: str) -> None:
    upstreams = {"default": {"base_url": "http://127.0.0.1:9/v1"}}
    Settings.model_validate({"upstreams": upstreams, **tomllib.loads(block)})


def test_the_metrics_are_those_of_the_code() -> None:
    rows = [
        f"| `{name}` | {kind} | {', '.join(f'`{label}`' for label in labels)} | {text} |"
        for name, (kind, text, labels) in TABLE.items()
    ]
    assert [r for r in section("### Metrics").splitlines() if r.startswith("| `")] == rows


def test_the_reasons_are_those_of_the_code() -> None:
    documented = first_column(section("### Reasons"))
    assert documented[1:] == [reason.value for reason in Reason]


def test_the_response_headers_are_those_of_the_code() -> None:
    written = re.findall(r'^ +"([a-z-]+)": ', inspect.getsource(turn.facts), re.MULTILINE)
    documented = first_column(section("### Response headers"))
    assert documented == [*written, "x-tidegate-request-id"]


def test_the_actions_are_those_of_the_code() -> None:
    done = {
        action
        for path in ROOT.glob("proxy/*.py")
        for action in re.findall(r'\bdid\("([a-z]+)"\)', path.read_text(encoding="utf-8"))
    }
    row = next(r for r in section("### Response headers").splitlines() if "-action`" in r)
    documented = set(re.findall(r"`([a-z]+)`", row))
    assert done <= documented


def _serving_modules() -> list[Path]:
    """What the application is made of, beside `core` and `store`."""
    code = "import sys, proxy.assembly; print(*sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    names = [name for name in ran.stdout.split() if re.fullmatch(r"proxy\.\w+", name)]
    paths = [ROOT / f"{name.replace('.', '/')}.py" for name in [*names, "proxy.core.errors"]]
    return [path for path in paths if path.exists()]


def _codes() -> Iterator[str]:
    """Every code of an error that Tidegate answers itself."""
    for path in _serving_modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not _sets_code(node):
                continue
            for constant in ast.walk(node):
                if isinstance(constant, ast.Constant) and isinstance(constant.value, str):
                    yield constant.value


def _sets_code(node: ast.AST) -> bool:
    """Whether it is `code=...` of a call, or `code = ...` of a class."""
    if isinstance(node, ast.keyword):
        return node.arg == "code"
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "code"


def test_the_error_codes_are_those_of_the_code() -> None:
    rows = re.findall(r"^\| [\d, ]+ \| `(\w+)` \|", section("### Errors"), re.MULTILINE)
    assert set(rows) == set(_codes())


def test_the_commands_and_their_options_are_those_of_the_code() -> None:
    group = typer.main.get_command(app)
    text = section("### Commands")
    rows = dict(re.findall(r"^\| `tidegate (\w+)([^`]*)` \|", text, re.MULTILINE))
    commands = getattr(group, "commands", {})
    assert set(rows) == set(commands)
    for name, command in commands.items():
        options = {
            option for parameter in command.params for option in parameter.opts if "--" in option
        }
        assert set(re.findall(r"--[a-z-]+", rows[name])) == options


def test_the_endpoints_are_those_of_the_code(tmp_path: Path) -> None:
    written = re.findall(r"^\| `([A-Z]+) (/\S+)` \|", section("### Endpoints"), re.MULTILINE)
    settings = Settings.model_validate(
        {
            "store": {"url": f"sqlite:///{tmp_path}/t.db"},
            "upstreams": {"default": {"base_url": "http://127.0.0.1:9/v1"}},
        }
    )
    application = create_app(settings)
    with serve(application) as served:
        routes = {
            (method, re.sub(r":path}", "}", route.path))
            for route in application._own.routes
            if isinstance(route, Route)
            for method in (route.methods or {"GET"}) - {"HEAD"}
        }
        for method, path in written:
            # A stream of events has no end to wait for.
            if method == "GET" and "{" not in path and path != "/tidegate/events":
                answer = httpx.get(f"{served.url}{path}", follow_redirects=True)
                assert answer.status_code == 200
    assert set(written) == routes


def test_every_file_that_is_linked_is_there() -> None:
    links = [link for link in re.findall(r"\]\(([^)]+)\)", README) if "://" not in link]
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", h.lower()).replace(" ", "-")
        for h in re.findall(r"^#+ (.+)$", README, re.MULTILINE)
    }
    for link in links:
        assert link[1:] in anchors if link.startswith("#") else (ROOT / link).exists(), link


def test_every_example_is_mentioned() -> None:
    for example in (ROOT / "config" / "examples").glob("*.toml"):
        assert f"config/examples/{example.name}" in README
