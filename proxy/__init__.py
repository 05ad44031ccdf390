"""Tidegate: an OpenAI-compatible proxy that keeps long conversations inside the context window.

A request's way, outside in. Imports point down; every module opens with its law.

cli*, settings*          commands and settings; the only ones that read files and the environment
header_limit, shared_*   what Tidegate adds to uvicorn: a bound on heads, workers that share
app, assembly            the ASGI application, and which parts it is built from
routes, incoming, relay  the HTTP edge: bytes to a chat or to the relay, a reply's bytes back
callers, beginnings      what heads and bodies say, known ones from memory; `wire` reads JSON
own_work, relay_response heartbeats while Tidegate itself works; the answer to the client
chat_commands            `/compact` in a chat, answered here
pipeline                 * a chat request's walk, top to bottom; `turn` is the request on its way
surfaces, recent         fingerprint, fold, weigh; what the last turn hashed is used again
compactor, range_runs    make room, cheapest first; one summary of one range, under a lease
by_hand, manual          the same, asked for by somebody
summary_jobs, summarizer who is asked for a summary, and how; `breaker` leaves the failing alone
provider, transport      out to the provider; `holding`, `reply`, `tap`: held until known good
rulebook, windows        which budget holds; `listing_book`, `catalogue`: who says so
meter, anchor_book       token counts, ours and the provider's; `vocabulary` works offline
records, journal, events what is kept of it; `conversations` names them for people
management, *_routes     /tidegate/..., the page in dashboard/
store/                   SQLite or PostgreSQL
core/                    every decision: pure functions over frozen values
practice, demo           a small honest provider, and a play to see it all work
"""

__version__ = "0.1.0"
