"""`tidegate serve`: the proxy under uvicorn, one process or several."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.cli_options import UNUSABLE, ConfigOption, settings_or_exit

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from proxy.settings_sections import ServerSettings


def serve(
    config: ConfigOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes.")] = None,
) -> None:
    """Start the proxy. Point a client's base URL at it; nothing else changes for the client."""
    given = {"host": host, "port": port, "workers": workers}
    overrides = {name: value for name, value in given.items() if value is not None}
    loaded = settings_or_exit(config, {"server": overrides})
    if not loaded.settings.upstreams:
        typer.echo("tidegate: no upstream is configured: set TIDEGATE_UPSTREAM", err=True)
        raise typer.Exit(UNUSABLE)
    _hand_down(loaded.file, overrides)
    import uvicorn

    configure_logging(loaded.settings.server.log_level)
    uvicorn.run("proxy.cli_serve:application", **uvicorn_options(loaded.settings.server))


def _hand_down(file: Path | None, overrides: dict[str, Any]) -> None:
    """Workers load the settings again, each for itself: the environment tells them the same."""
    from proxy.settings_reference import variable_of

    if file is not None:
        os.environ["TIDEGATE_CONFIG"] = str(file.resolve())
    for name, value in overrides.items():
        os.environ[variable_of(f"server.{name}")] = str(value)


def uvicorn_options(server: "ServerSettings") -> dict[str, Any]:
    """How uvicorn is to run the proxy."""
    return {
        "factory": True,
        "host": server.host,
        "port": server.port,
        "workers": server.workers,
        "http": "httptools",
        "ws": "none",
        "lifespan": "on",
        # `Server` and `Date` are the upstream's alone.
        "server_header": False,
        "date_header": False,
        # Forwarded headers of strangers must not decide who is on loopback.
        "proxy_headers": False,
        # One line per chat is written by the proxy itself.
        "access_log": False,
        "log_config": None,
        "log_level": server.log_level,
        "timeout_graceful_shutdown": server.shutdown_timeout_seconds,
    }


def configure_logging(level: str) -> None:
    """Log lines of time, severity, logger and key=value fields, on standard error."""
    import logging

    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )


def application() -> "ASGIApp":
    """The proxy, from the settings that this process finds; uvicorn calls it in every worker."""
    from proxy.assembly import create_app

    loaded = settings_or_exit(None)
    configure_logging(loaded.settings.server.log_level)
    return create_app(loaded.settings)
