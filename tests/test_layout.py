"""The guards: what keeps the code base as it was meant, checked on every run."""

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.cli import app
from proxy.settings_reference import all_settings, markdown_table

ROOT = Path(__file__).parent.parent
PROXY, TESTS, README = ROOT / "proxy", ROOT / "tests", ROOT / "README.md"
MODULES = sorted(path for path in PROXY.rglob("*.py") if path.name != "__init__.py")
MAX_MODULE_LINES, MAX_FUNCTION_LINES, MAX_PIPELINE_LINES = 400, 60, 249
BANNED_IN_CORE = {"httpx", "aiohttp", "sqlalchemy", "asyncio", "time", "random", "logging"}
# Tests of the whole, which mirror no module.
WHOLE = {"test_deploy", "test_layout", "test_packaging", "test_readme"}
# Top to bottom: nothing reaches what stands above it, by whatever way.
LAYERS = (
    ("cli",),
    ("assembly",),
    ("app",),
    ("routes", "management"),
    ("pipeline",),
    ("compactor",),
    ("provider", "summarizer", "meter", "windows", "store"),
    ("core",),
)
with_readme = pytest.mark.skipif(not README.exists(), reason="there is no README yet")


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imports_of(path: Path) -> Iterator[str]:
    """What a module imports when it is imported, and when its functions run."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


GRAPH = {
    name_of(path): {name for name in imports_of(path) if name.startswith("proxy")}
    for path in (*MODULES, *PROXY.rglob("__init__.py"))
}


def reached_from(name: str) -> set[str]:
    """Every module that is imported, directly or not."""
    seen: set[str] = set()
    ahead = [name]
    while ahead:
        for other in GRAPH.get(ahead.pop(), set()):
            if other in GRAPH and other not in seen:
                seen.add(other)
                ahead.append(other)
    return seen


def layer_of(name: str) -> int | None:
    part = name.split(".")[1] if "." in name else ""
    for level, parts in enumerate(LAYERS):
        if part in parts or (parts == ("cli",) and part.startswith("cli_")):
            return level
    return None


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_every_module_has_its_test_file(path: Path) -> None:
    """Stores share one suite."""
    if path.parent != PROXY / "store":
        mirrored = TESTS / path.relative_to(PROXY).with_name(f"test_{path.name}")
        assert mirrored.exists(), f"{mirrored.relative_to(ROOT)} is missing"


def test_every_test_file_has_its_module() -> None:
    for path in TESTS.rglob("test_*.py"):
        folder = path.relative_to(TESTS).parent
        named = path.name.removeprefix("test_")
        known = (PROXY / folder / named).exists() or (path.parent / named).exists()
        if not known and folder.parts[:1] not in (
            ("store",),
            ("benchmarks",),
            ("journeys",),
            ("faults",),
        ):
            assert path.stem in WHOLE, f"{path.relative_to(ROOT)} tests no module"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    limit = MAX_PIPELINE_LINES if path == PROXY / "pipeline.py" else MAX_MODULE_LINES
    assert len(text.splitlines()) <= limit
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= MAX_FUNCTION_LINES, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_module_opens_with_its_law(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", sorted(GRAPH))
def test_imports_point_down(name: str) -> None:
    reached = reached_from(name)
    assert name not in reached, "it imports itself by a detour"
    own = layer_of(name)
    for other in reached:
        level = layer_of(other)
        assert own is None or level is None or level >= own, f"{name} reaches {other} above it"


def test_settings_are_read_at_the_top_alone() -> None:
    for name, imported in GRAPH.items():
        part = name.removeprefix("proxy.")
        # The demo composes a proxy of its own, as a command does.
        at_the_top = part.startswith(("cli", "settings")) or part in ("assembly", "app", "demo")
        if not at_the_top and part != "proxy":
            assert not [i for i in imported if i.startswith("proxy.settings")], name


def test_the_assembly_alone_knows_which_database_was_chosen() -> None:
    users = {name for name, imported in GRAPH.items() if "proxy.store.sql" in imported}
    assert {u for u in users if not u.startswith("proxy.store")} <= {"proxy.assembly", "proxy.app"}


@pytest.mark.parametrize("path", sorted((PROXY / "core").rglob("*.py")), ids=name_of)
def test_core_imports_the_standard_library_and_itself(path: Path) -> None:
    for imported in imports_of(path):
        top = imported.split(".")[0]
        assert imported.startswith("proxy.core") or top in sys.stdlib_module_names, imported
        assert top not in BANNED_IN_CORE, imported


def run_ruff(directory: Path, file: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID251", file]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


@pytest.mark.parametrize("module", ["httpx", "asyncio", "time", "random", "logging", "sqlalchemy"])
def test_the_fence_around_core_fences(tmp_path: Path, module: str) -> None:
    """Ruff's negated glob: a wrong one would disarm it without a word."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "proxy/core").mkdir(parents=True)
    code = (PROXY / "core/budget.py").read_text(encoding="utf-8")
    for file in ("proxy/core/budget.py", "proxy/budget.py"):
        (tmp_path / file).write_text(f"{code}\nimport {module}\n", encoding="utf-8")
    inside = run_ruff(tmp_path, "proxy/core/budget.py")
    assert inside.returncode == 1
    assert "TID251" in inside.stdout
    assert run_ruff(tmp_path, "proxy/budget.py").returncode == 0
    (tmp_path / "proxy/core/budget.py").write_text(code, encoding="utf-8")
    assert run_ruff(tmp_path, "proxy/core/budget.py").returncode == 0


def strings_of(path: Path, call: str | None = None) -> Iterator[str]:
    """String literals of a module; with `call`, only those that open such a call."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if call is None and isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == call:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield first.value


@with_readme
def test_every_setting_stands_in_the_readme_with_its_default() -> None:
    text = README.read_text(encoding="utf-8")
    missing = [row for row in markdown_table().splitlines() if row not in text]
    assert not missing, "put proxy.settings_reference.markdown_table() into the README"
    assert all(f"`{setting.path}`" in text for setting in all_settings())


@with_readme
def test_every_command_stands_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    for command in app.registered_commands:
        name = command.name or (command.callback.__name__ if command.callback else "")
        assert f"tidegate {name}" in text


@with_readme
def test_every_route_stands_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    for path in MODULES:
        if not path.name.startswith("practice"):
            for route in strings_of(path, "Route"):
                shown = re.sub(r":\w+}", "}", route)
                assert shown in text, f"{shown} of {name_of(path)}"


@with_readme
def test_every_metric_stands_in_the_readme() -> None:
    text = README.read_text(encoding="utf-8")
    for name in strings_of(PROXY / "metrics.py"):
        if re.fullmatch(r"tidegate_[a-z_]+", name):
            assert f"`{name}`" in text, name
