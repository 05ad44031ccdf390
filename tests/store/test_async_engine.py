"""The engine is SQLAlchemy's own, and comes without the ORM."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_store_is_imported_without_the_orm() -> None:
    code = "import sys, proxy.store.sql; print('sqlalchemy.orm' in sys.modules)"
    assert run(code) == "False"


@pytest.mark.parametrize("first", ["proxy.store.async_engine", "sqlalchemy.ext.asyncio"])
def test_whoever_imports_the_whole_package_gets_the_same_engine(first: str) -> None:
    code = (
        f"import {first}\n"
        "from proxy.store import async_engine as ours\n"
        "from sqlalchemy.ext import asyncio as whole\n"
        "print(all(getattr(whole, name) is getattr(ours, name) for name in ours.__all__),"
        " hasattr(whole, 'AsyncSession'))"
    )
    assert run(code) == "True True"


@pytest.mark.parametrize(
    "other_version",
    [
        "if not seen: seen.append(name); raise ImportError('it needs more')",
        "if not seen: seen.append(name); return ModuleSpec(name, Empty())",
    ],
    ids=["it needs more", "it stands elsewhere"],
)
def test_an_engine_that_cannot_be_had_alone_comes_with_the_rest(other_version: str) -> None:
    code = f"""
import sys
from importlib.machinery import ModuleSpec

seen = []

class Empty:
    def create_module(self, spec): return None
    def exec_module(self, module): pass

class Other:
    def find_spec(self, name, path=None, target=None):
        if name == "sqlalchemy.ext.asyncio.engine":
            {other_version}

sys.meta_path.insert(0, Other())
from proxy.store import async_engine as ours
from sqlalchemy.ext import asyncio as whole
print(seen, all(getattr(whole, name) is getattr(ours, name) for name in ours.__all__))
"""
    assert run(code) == "['sqlalchemy.ext.asyncio.engine'] True"
