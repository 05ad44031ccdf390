"""For every test: a clean environment, a machine that nothing leaves, hypothesis profiles."""

import os
import socket
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from proxy.guard import is_loopback_host

settings.register_profile(
    "fast", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "deep", max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the settings or the proxies of the machine it runs on."""
    for name in list(os.environ):
        if name.startswith("TIDEGATE_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True, scope="session")
def nothing_leaves_the_machine() -> Any:
    """Any connection but to loopback fails, and so does resolving any name but its own."""
    patch = pytest.MonkeyPatch()
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and not is_loopback_host(str(address[0])):
            raise OSError(f"a test tried to connect to {address[0]}")
        connect(self, address)

    def guarded_resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name and not is_loopback_host(name) and name != "0.0.0.0":
            raise socket.gaierror(socket.EAI_NONAME, f"a test tried to resolve {name}")
        return resolve(host, *args, **kwargs)

    patch.setattr(socket.socket, "connect", guarded_connect)
    patch.setattr(socket, "getaddrinfo", guarded_resolve)
    yield
    patch.undo()
