"""From the settings to the application: which values each part receives.

Parts know nothing of settings. What needs an event loop is opened in `open_parts`, inside the
application's lifespan.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proxy.app import EdgeOptions, Parts, Tidegate, create_app
from proxy.provider import Provider, Timeouts
from proxy.relay import Upstream
from proxy.settings import Settings
from proxy.settings_sections import DEFAULT_UPSTREAM
from proxy.windows import UpstreamPlace


def assemble(settings: Settings) -> Tidegate:
    """The application for these settings."""
    return create_app(edge_options(settings), open_parts)


@asynccontextmanager
async def open_parts(provider: Provider) -> AsyncIterator[Parts]:
    """What lives as long as the application; without a pipeline every request is relayed."""
    yield Parts(secret=secrets.token_bytes(32))


def edge_options(settings: Settings) -> EdgeOptions:
    """The values of the HTTP edge."""
    server = settings.server
    upstreams = {
        name: Upstream(
            name, each.base_url, each.api_key.get_secret_value() if each.api_key else None
        )
        for name, each in settings.upstreams.items()
    }

    def upstream_for(model: str | None) -> Upstream:
        return upstreams[DEFAULT_UPSTREAM if model is None else settings.upstream_for(model)]

    return EdgeOptions(
        upstreams=tuple(upstreams.values()),
        upstream_for=upstream_for,
        client_keys=tuple(key.get_secret_value() for key in server.client_keys),
        tenant_header=server.tenant_header,
        forward_client_headers=server.forward_client_headers,
        bound_to_loopback=server.on_loopback,
        max_body_bytes=server.body_limit_bytes,
        heartbeat_seconds=server.heartbeat_seconds,
        timeouts=Timeouts(
            connect_seconds=server.connect_timeout_seconds,
            first_byte_seconds=server.first_byte_timeout_seconds,
            between_bytes_seconds=server.between_bytes_timeout_seconds,
            write_seconds=server.write_timeout_seconds,
        ),
    )


def upstream_places(settings: Settings) -> dict[str, UpstreamPlace]:
    """Where `Windows` may ask for listings."""
    return {
        name: UpstreamPlace(upstream.base_url, keyed=upstream.api_key is not None)
        for name, upstream in settings.upstreams.items()
    }
