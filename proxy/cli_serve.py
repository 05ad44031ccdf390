"""`tidegate serve`: the proxy under uvicorn, one process or several.

Without any upstream the practice provider runs beside it, one for all workers.
"""

import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from proxy.cli_options import UNUSABLE, ConfigOption, settings_or_exit

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from proxy.settings import Settings
    from proxy.settings_sections import ServerSettings

_ANY_ADDRESS = ("0.0.0.0", "::")
_CERTIFICATES = "SSL_CERT_FILE"  # OpenSSL's


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes.")] = None,
) -> None:
    """Start the proxy. Point a client's base URL at it; nothing else changes for the client.

    Without any upstream it starts in front of the built-in practice provider.
    """
    given = {"host": host, "port": port, "workers": workers}
    overrides = {name: value for name, value in given.items() if value is not None}
    with _uncollected():
        loaded = settings_or_exit(config, {"server": overrides})
    server = loaded.settings.server
    configure_logging(server.log_level)
    overrides["port"] = listening_port = _free_port_or_exit(server)
    _hand_down(loaded.file, overrides)
    signal.signal(signal.SIGTERM, _end)
    import uvicorn

    with _upstream_lines(loaded.settings) as lines, _shared(server.workers):
        for line in (_address_line(server.host, listening_port), *lines):
            typer.echo(line, err=True)
        options = uvicorn_options(server) | {"port": listening_port}
        uvicorn.run("proxy.cli_serve:application", **options)


def _shared(workers: int) -> AbstractContextManager[None]:
    """What workers need to share their connections, while it is open."""
    if workers == 1 or sys.platform == "win32":
        return nullcontext()
    from proxy.shared_listening import crowds_file

    return crowds_file(workers)


def _free_port_or_exit(server: "ServerSettings") -> int:
    """The port to listen on, a free one for 0; asked before anything else is started."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((server.host, server.port))
        except OSError as error:
            typer.echo(
                f"tidegate: cannot listen on {server.host} port {server.port}: "
                f"{error.strerror or error}; set server.host and server.port",
                err=True,
            )
            raise typer.Exit(UNUSABLE) from None
        port: int = probe.getsockname()[1]
        return port


def _hand_down(file: Path | None, overrides: dict[str, Any]) -> None:
    """Workers load the settings again, each for itself: the environment tells them the same."""
    from proxy.settings_reference import variable_of

    if file is not None:
        os.environ["TIDEGATE_CONFIG"] = str(file.resolve())
    for name, value in overrides.items():
        os.environ[variable_of(f"server.{name}")] = str(value)


def _end(signal_number: int, frame: FrameType | None) -> NoReturn:
    """Uvicorn stops gracefully and then raises the signal again; the command ends as it should."""
    raise SystemExit(0)


@contextmanager
def _upstream_lines(settings: "Settings") -> Iterator[tuple[str, ...]]:
    """What the start says of upstreams and store; the practice provider runs while this is open."""
    from proxy.core.settings_text import masked_url

    store = f"store: {masked_url(settings.store.url.get_secret_value())}"
    if settings.upstreams:
        yield (
            *(
                f"upstream {name}: {masked_url(upstream.base_url)}"
                for name, upstream in settings.upstreams.items()
            ),
            store,
        )
        return
    from proxy.loopback import served
    from proxy.practice import WINDOW_TOKENS, create_practice_app

    with served(create_practice_app()) as url:
        os.environ["TIDEGATE_UPSTREAM"] = f"{url}/v1"
        yield (
            "upstream default: none is configured, so this is the built-in PRACTICE PROVIDER "
            f"({url}/v1, window {WINDOW_TOKENS} tokens)",
            "  it is no model: it answers with quotations; set TIDEGATE_UPSTREAM to use a real one",
            store,
        )


def _address_line(host: str, port: int) -> str:
    from proxy import __version__

    shown = f"[{host}]" if ":" in host else host
    note = ", on every address of this machine" if host in _ANY_ADDRESS else ""
    return f"tidegate {__version__}: base URL for clients http://{shown}:{port}/v1{note}"


def uvicorn_options(server: "ServerSettings") -> dict[str, Any]:
    """How uvicorn is to run the proxy."""
    from proxy.loopback import http_options

    shares = server.workers > 1 and sys.platform != "win32"
    return {
        **http_options(),
        "loop": "proxy.shared_listening:SharingLoop" if shares else "auto",
        "factory": True,
        "host": server.host,
        "port": server.port,
        "workers": server.workers,
        "log_level": server.log_level,
        "timeout_graceful_shutdown": server.shutdown_timeout_seconds,
    }


def configure_logging(level: str) -> None:
    """Log lines of time, severity, logger, request id and key=value fields, on standard error."""
    import logging

    from proxy.loopback import THREAD_NAME
    from proxy.request_ids import LineFormatter, RequestIdFilter, ServerLinesFilter

    handler = logging.StreamHandler()
    handler.addFilter(RequestIdFilter())
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler])
    # No line shows these, and finding them out was a fifth of what a line costs.
    logging._srcfile = None
    logging.logProcesses = logging.logMultiprocessing = False
    logging.getLogger("uvicorn.error").addFilter(ServerLinesFilter(THREAD_NAME))
    # At debug the driver writes each statement with its values, which are words of conversations.
    logging.getLogger("aiosqlite").setLevel(logging.INFO)


def application() -> "ASGIApp":
    """The proxy, from the settings that this process finds; uvicorn calls it in every worker."""
    with _uncollected(), _certificates_unread():
        from proxy.assembly import create_app
        from proxy.heap import share_one_heap

        share_one_heap()
        loaded = settings_or_exit(None)
        configure_logging(loaded.settings.server.log_level)
        app = create_app(loaded.settings)
    _search_for_cycles_less_often()
    return app


def _search_for_cycles_less_often() -> None:
    """A fifth of a small request's time went into searches that found next to nothing: what a
    request leaves behind holds no cycles, and what was imported stays. Memory is the same."""
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


@contextmanager
def _certificates_unread() -> Iterator[None]:
    """For importing aiohttp, which reads the system's certificates twice meanwhile (50 ms, 2 MB)
    for contexts that nothing here uses: `Transport` has its own. Who used them would trust nobody.
    """
    given = os.environ.get(_CERTIFICATES)
    os.environ[_CERTIFICATES] = os.devnull
    try:
        yield
    finally:
        del os.environ[_CERTIFICATES]
        if given is not None:
            os.environ[_CERTIFICATES] = given


@contextmanager
def _uncollected() -> Iterator[None]:
    """For imports: next to nothing of what they make is garbage, and collections would walk it all
    again and again, for a seventh of the start's time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
