"""SQLAlchemy's asynchronous engine without its ORM: `sqlalchemy.ext.asyncio` imports its sessions
too, and with them all of the ORM, which nothing here uses (6 MB, and a twelfth of the start). Where
the engine cannot be had alone, it comes with the rest, as for everyone."""

import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import ModuleType

    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

__all__ = ["AsyncConnection", "AsyncEngine", "create_async_engine"]

_PACKAGE = "sqlalchemy.ext.asyncio"


def _engine_alone() -> "ModuleType | None":
    """The module that the package takes its engine from, None where that fails; whoever imports the
    package later gets all of it, with the same engine."""
    spec = find_spec(_PACKAGE)
    if spec is None or _PACKAGE in sys.modules:
        return None
    # A package that was found but not run: its modules import each other through it.
    sys.modules[_PACKAGE] = module_from_spec(spec)
    try:
        engine = import_module(f"{_PACKAGE}.engine")
        if all(hasattr(engine, name) for name in __all__):
            return engine
    except ImportError:
        pass  # one that needs more of its package
    finally:
        del sys.modules[_PACKAGE]
    for name in [name for name in sys.modules if name.startswith(f"{_PACKAGE}.")]:
        del sys.modules[name]
    return None


if not TYPE_CHECKING:
    _engine = _engine_alone() or import_module(_PACKAGE)
    AsyncConnection = _engine.AsyncConnection
    AsyncEngine = _engine.AsyncEngine
    create_async_engine = _engine.create_async_engine
