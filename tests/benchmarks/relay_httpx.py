"""The same bare relay over httpx's own connection pool, which is how most proxies are written.

BENCHMARK_UPSTREAM=http://127.0.0.1:9000 uvicorn tests.benchmarks.relay_httpx:app
"""

import httpx

from tests.benchmarks.relay_aiohttp import LIMITS, relay


def make_client() -> httpx.AsyncClient:
    return httpx.AsyncClient(limits=LIMITS, timeout=600)


app = relay(make_client)
