"""Builds the running parts from the settings: which store, which upstreams, and how they fit. Only
`app` and `cli` call this; everyone below receives values."""

import asyncio
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache, partial

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from proxy.access import AccessRules
from proxy.anchor_book import AnchorBook
from proxy.app import EdgeOptions, Parts, Tidegate
from proxy.beginnings import Beginnings
from proxy.breaker import Breaker
from proxy.chat_commands import ChatCommands
from proxy.compact_routes import CompactRoutes, CompactRules
from proxy.compactor import Compactor
from proxy.conversation_routes import ConversationRoutes
from proxy.conversations import Conversations, Keeping
from proxy.core.errors import StoreUnavailable
from proxy.dashboard_routes import DashboardRoutes
from proxy.event_routes import EventRoutes
from proxy.events import EventLog
from proxy.heap import give_back, give_back_now_and_then
from proxy.housekeeping import Housekeeping
from proxy.in_flight import InFlight
from proxy.journal import Journal
from proxy.known_models import KnownModels, ModelRule
from proxy.late_store import parts_with
from proxy.live_events import LiveEvents
from proxy.logged import Logged
from proxy.management import Management
from proxy.manual import Manual
from proxy.meter import Meter
from proxy.metrics import Metrics
from proxy.pipeline import Pipeline
from proxy.provider import Provider
from proxy.range_runs import RangeRuns
from proxy.records import Records
from proxy.relay import RelayRules, Upstream
from proxy.rulebook import Rulebook
from proxy.scheduled import Scheduled
from proxy.settings import Settings
from proxy.settings_values import (
    compaction_policy,
    is_sole,
    retention_of,
    timeouts_of,
    upstream_chooser,
    upstreams_of,
)
from proxy.store.sql import SqlStore
from proxy.store.store import Event
from proxy.summarizer import Summarizer
from proxy.summary_jobs import SummaryJobs
from proxy.surfaces import Surfaces
from proxy.tenants import Tenancy
from proxy.windows import UpstreamPlace, Windows

TABLES_AFTER_SECONDS = 0.5


def create_app(settings: Settings) -> Tidegate:
    """The application for these settings. Nothing is opened before its lifespan starts."""
    upstreams = upstreams_of(settings)

    def open_parts(provider: Provider) -> AbstractAsyncContextManager[Parts]:
        return opened(settings, upstreams, provider)

    server = settings.server

    options = EdgeOptions(
        upstreams=tuple(upstreams.values()),
        upstream_for=upstream_chooser(settings, upstreams),
        client_keys=tuple(key.get_secret_value() for key in server.client_keys),
        tenant_header=server.tenant_header,
        forward_client_headers=server.forward_client_headers,
        bound_to_loopback=server.on_loopback,
        max_body_bytes=server.body_limit_bytes,
        heartbeat_seconds=server.heartbeat_seconds,
        drain_seconds=server.drain_seconds,
        timeouts=timeouts_of(server),
    )
    return Tidegate(options, open_parts)


@dataclass(frozen=True, slots=True)
class Engine:
    """The running parts that the walk and the management calls share."""

    store: SqlStore
    journal: Journal
    meter: Meter
    metrics: Metrics
    windows: Windows
    surfaces: Surfaces
    runs: RangeRuns
    records: Records
    compactor: Compactor
    events: EventLog
    live: LiveEvents
    in_flight: InFlight
    conversations: Conversations
    manual: Manual
    commands: ChatCommands
    housekeeping: Housekeeping


@dataclass(frozen=True, slots=True)
class _Ground:
    """What everything else stands on."""

    settings: Settings
    provider: Provider
    store: SqlStore
    journal: Journal
    live: LiveEvents
    metrics: Metrics
    meter: Meter
    anchors: AnchorBook
    windows: Windows
    surfaces: Surfaces
    events: EventLog
    worker: str


def assemble(
    settings: Settings,
    upstreams: dict[str, Upstream],
    provider: Provider,
    store: SqlStore,
    secret: bytes,
) -> Engine:
    """How the parts fit. `secret` keys the digests; the store keeps it."""
    metrics, meter, anchors = Metrics(), Meter(), AnchorBook()
    journal = Journal(store, messages=settings.log.messages, images=settings.log.images)
    live = LiveEvents(store, journal, shared=not is_sole(settings))

    def record(event: Event) -> None:
        journal.event(event)
        live.happened(event)

    ground = _Ground(
        settings=settings,
        provider=provider,
        store=store,
        journal=journal,
        live=live,
        metrics=metrics,
        meter=meter,
        anchors=anchors,
        windows=_windows(settings, upstreams, store),
        surfaces=Surfaces(store, meter, anchors, secret),
        events=EventLog(record, metrics),
        worker=f"{os.getpid()}-{uuid.uuid4().hex[:12]}",
    )
    jobs = SummaryJobs(
        summarizer=Summarizer(breaker=Breaker(time.monotonic)),
        provider=provider,
        meter=meter,
        anchors=anchors,
        windows=ground.windows,
        upstreams=upstreams,
    )
    runs = RangeRuns(
        store=store,
        surfaces=ground.surfaces,
        jobs=jobs,
        events=ground.events,
        worker=ground.worker,
    )
    return _engine(ground, runs)


def _engine(ground: _Ground, runs: RangeRuns) -> Engine:
    settings, store, surfaces = ground.settings, ground.store, ground.surfaces
    compactor = Compactor(
        store=store, surfaces=surfaces, runs=runs, meter=ground.meter, events=ground.events
    )
    conversations = Conversations(
        store, ground.journal.turn, keeping=Keeping(messages=settings.log.messages)
    )
    records = Records(
        conversations=conversations,
        surfaces=surfaces,
        anchors=ground.anchors,
        windows=ground.windows,
        events=ground.events,
        metrics=ground.metrics,
    )
    rulebook = _rulebook(ground)
    in_flight = InFlight(store, ground.metrics, worker=ground.worker, shared=not is_sole(settings))
    pipeline = Pipeline(
        rulebook=rulebook,
        surfaces=surfaces,
        compactor=compactor,
        provider=ground.provider,
        conversations=conversations,
        records=records,
        in_flight=in_flight,
        scheduled=Scheduled(store=store, surfaces=surfaces, compactor=compactor),
    )
    manual = Manual(
        rulebook=rulebook,
        surfaces=surfaces,
        compactor=compactor,
        conversations=conversations,
        in_flight=in_flight,
        listed=ground.windows.settled,
    )
    return Engine(
        store=store,
        journal=ground.journal,
        meter=ground.meter,
        metrics=ground.metrics,
        windows=ground.windows,
        surfaces=surfaces,
        runs=runs,
        records=records,
        compactor=compactor,
        events=ground.events,
        live=ground.live,
        in_flight=in_flight,
        conversations=conversations,
        manual=manual,
        commands=ChatCommands(pipeline, manual=manual, surfaces=surfaces, store=store),
        housekeeping=Housekeeping(store, retention_of(settings), worker=ground.worker),
    )


def _rulebook(ground: _Ground) -> Rulebook:
    settings = ground.settings
    return Rulebook(
        windows=ground.windows,
        policy_for=lru_cache(4096)(lambda model: compaction_policy(settings, model)),
        store=ground.store,
        provider=ground.provider,
        anchors=ground.anchors,
        hold_seconds=settings.server.heartbeat_seconds,
        inject_stream_usage=settings.server.inject_stream_usage,
    )


def _windows(settings: Settings, upstreams: dict[str, Upstream], store: SqlStore) -> Windows:
    places = {
        upstream.name: UpstreamPlace(upstream.base_url, keyed=upstream.api_key is not None)
        for upstream in upstreams.values()
    }
    return Windows(lru_cache(4096)(settings.configured_for), places, store=store)


@asynccontextmanager
async def opened(
    settings: Settings, upstreams: dict[str, Upstream], provider: Provider
) -> AsyncIterator[Parts]:
    """The parts, opened in order and closed in the reverse order."""
    store = SqlStore(settings.store.url.get_secret_value(), sole_process=is_sole(settings))
    make = partial(_parts_on, settings, upstreams, provider)
    async with parts_with(store, lambda: SqlStore("sqlite://"), make) as parts:
        yield parts


@asynccontextmanager
async def _parts_on(
    settings: Settings,
    upstreams: dict[str, Upstream],
    provider: Provider,
    store: SqlStore,
    secret: bytes,
) -> AsyncIterator[Parts]:
    engine = assemble(settings, upstreams, provider, store, secret)
    ahead = asyncio.create_task(_read_ahead(engine), name="tables")

    async def not_ready() -> str | None:
        try:
            await store.last_event()
        except StoreUnavailable:
            return "the store does not answer"
        return None

    async def exposition(request: Request) -> Response:
        return Response(engine.metrics.exposition(), media_type="text/plain; version=0.0.4")

    own = _own_routes(settings, upstreams, engine, secret)
    routes = (Route("/metrics", exposition), *own)
    try:
        async with _running(engine):
            yield Parts(secret, engine.commands, routes, not_ready, read=Beginnings().read)
    finally:
        ahead.cancel()
        await asyncio.gather(ahead, return_exceptions=True)
        await engine.windows.aclose()
        engine.meter.close()
        await store.close()


async def _read_ahead(engine: Engine) -> None:
    """Not awaited by any chat but one that is counted, or whose window nobody wrote or listed."""
    # The chats that waited for the start are answered first: hardly one so early needs a table, and
    # reading both takes half a second, for half of which tiktoken lets no Python code run.
    await asyncio.sleep(TABLES_AFTER_SECONDS)
    await engine.windows.load_catalogue()
    await engine.meter.prepare()
    give_back()


def _own_routes(
    settings: Settings, upstreams: dict[str, Upstream], engine: Engine, secret: bytes
) -> tuple[BaseRoute, ...]:
    """Everything below `/tidegate/`."""
    server = settings.server
    keys = tuple(key.get_secret_value() for key in server.client_keys)
    tenancy = Tenancy(secret, keys, server.tenant_header)
    access = AccessRules(
        tenancy,
        admin_key=server.admin_key.get_secret_value() if server.admin_key else None,
        bound_to_loopback=server.on_loopback,
    )
    rules = [ModelRule(rule.match, rule.upstream) for rule in settings.models]
    models = KnownModels(engine.windows, engine.store, rules)
    logged = Logged(engine.store, engine.journal)
    compacting = CompactRoutes(
        CompactRules(
            access=access,
            relay=RelayRules(tenancy),
            upstream_for=upstream_chooser(settings, upstreams),
            upstreams=upstreams,
            max_body_bytes=server.body_limit_bytes,
        ),
        manual=engine.manual,
        commands=engine.commands,
        logged=logged,
        store=engine.store,
    )
    conversations = ConversationRoutes(
        access,
        logged=logged,
        store=engine.store,
        events=engine.events,
        meter=engine.meter,
        conversations=engine.conversations,
        in_flight=engine.in_flight,
    )
    return (
        *Management(access, models=models).routes(),
        *compacting.routes(),
        *EventRoutes(access, engine.live).routes(),
        *conversations.routes(),
        *DashboardRoutes().routes(),
    )


@asynccontextmanager
async def _running(engine: Engine) -> AsyncIterator[None]:
    """The journal's writer beside the application; what is left is written at the end.

    Runs end before the journal does: the log tells the end of each.
    """
    beside = [
        asyncio.create_task(work, name=name)
        for name, work in (
            ("journal", engine.journal.run()),
            ("live", engine.live.run()),
            ("in_flight", engine.in_flight.publish()),
            ("housekeeping", engine.housekeeping.run()),
            ("heap", give_back_now_and_then()),
        )
    ]
    try:
        yield
    finally:
        await engine.runs.close()
        await engine.records.close()
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)
        await engine.journal.close()
