"""What a provider's own listing says of a model: window, prompt limit, output cap, vision.

Every server words it in its own way. Known words are looked for wherever they stand in an entry;
a served length (loaded, per slot) is believed before a listed one, that before the trained one.
Zero, null, negative and nonsense are "unknown"; nothing here raises.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from proxy.core.model_names import find, names_of

# No model has more; some servers write the largest integer for "no limit".
MAX_LISTED_TOKENS = 1_000_000_000
MAX_ENTRIES = 20_000
_MAX_DEPTH = 4

# Words without case, "_" and "-": `max_model_len` and `maxModelLen` are one.
_SERVED = frozenset({"loadedcontextlength", "maxmodellen", "nctx", "numctx"})
_LISTED = frozenset(
    {
        "contextlength",
        "contextsize",
        "contextwindow",
        "contextwindowtokens",
        "maxcontextlength",
        "maxcontexttokens",
        "maxcontextwindow",
        "maxcontextwindowtokens",
        "maxtotaltokens",
        "availablecontexttokens",
    }
)
_TRAINED = frozenset({"nctxtrain", "trainingcontextlength"})
_INPUT = frozenset({"maxinputtokens", "maxinputlength", "maxprompttokens", "inputtokenlimit"})
_OUTPUT = frozenset(
    {"maxcompletiontokens", "maxoutputtokens", "maxoutputtokenlength", "outputtokenlimit"}
)
# The output cap beside a window; alone it may be either.
_BARE_OUTPUT = frozenset({"max_tokens", "maxtokens"})
_VISION = frozenset(
    {"vision", "supportsvision", "supportsimagein", "supportsimageinput", "imageinput"}
)
_INPUT_MODALITIES = frozenset({"inputmodalities", "supportedinputmodalities"})
# Sections that hold figures of another kind: sampling defaults, prices, quotas.
_OTHER_SECTIONS = frozenset(
    {"params", "parameters", "defaultparameters", "pricing", "ratelimit", "ratelimits", "cost"}
)
_NUM_CTX = re.compile(r"^\s*num_ctx\s+(\d{1,10})\s*$", re.MULTILINE)
_CONTEXT_ARGUMENTS = frozenset({"-c", "--ctx-size"})
_LIST_KEYS = ("data", "models", "result", "modelSummaries", "endpoints")
_NAME_KEYS = ("id", "key", "model", "name", "model_name", "model_id", "modelId", "model_alias")
_VERSIONS = re.compile(r"(/v\d+\w*)?(/openai)?(/v\d+\w*)?$")


@dataclass(frozen=True, slots=True)
class Listed:
    """What was said of one model; None is "not said"."""

    window_tokens: int | None = None
    # A limit of the prompt alone, where it is below the window.
    input_limit_tokens: int | None = None
    max_output_tokens: int | None = None
    vision: bool | None = None
    # False: the length a model was trained for; what is served may be less.
    served: bool = True


@dataclass(slots=True)
class _Found:
    served: list[int] = field(default_factory=list)
    listed: list[int] = field(default_factory=list)
    trained: list[int] = field(default_factory=list)
    input: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    vision: list[bool] = field(default_factory=list)


def read_entry(entry: object) -> Listed:
    """What one entry of a listing says, of any shape."""
    found = _Found()
    if isinstance(entry, Mapping):
        _look(entry, found, 0)
    # LM Studio names a state: what is not loaded has only a largest length.
    unloaded = (
        isinstance(entry, Mapping)
        and {"state", "max_context_length"} <= entry.keys()
        and not found.served
    )
    windows = found.served or found.listed or found.trained
    window, prompt = min(windows, default=None), min(found.input, default=None)
    if window is None:
        window, prompt = prompt, None
    return Listed(
        window_tokens=window,
        input_limit_tokens=prompt if prompt is not None and window and prompt < window else None,
        max_output_tokens=min(found.output, default=None),
        vision=any(found.vision) if found.vision else None,
        served=not (unloaded or (windows is found.trained and bool(windows))),
    )


def _look(section: Mapping[Any, Any], found: _Found, depth: int) -> None:
    beside_window = False
    for key, value in section.items():
        word = str(key).lower().replace("_", "").replace("-", "")
        tokens = _tokens(value)
        if tokens is not None:
            beside_window |= _take_number(word, tokens, found)
        _take_vision(word, value, found)
        _take_text(word, value, found)
        if depth < _MAX_DEPTH and word not in _OTHER_SECTIONS:
            _look_inside(value, found, depth + 1)
    bare = next((v for k, v in section.items() if str(k).lower() in _BARE_OUTPUT), 0)
    tokens = _tokens(bare)
    if tokens is not None and beside_window:
        found.output.append(tokens)


def _look_inside(value: object, found: _Found, depth: int) -> None:
    if isinstance(value, Mapping):
        _look(value, found, depth)
    elif isinstance(value, list):
        for item in value[:64]:
            if not isinstance(item, Mapping):
                continue
            named = item.get("property_id")
            if isinstance(named, str):  # Cloudflare: a list of properties
                _look({named: item.get("value")}, found, depth)
            elif "config" in item:  # LM Studio: loaded instances can differ
                inner = _Found()
                _look(item, inner, depth)
                found.served += inner.listed + inner.served


def _take_number(word: str, tokens: int, found: _Found) -> bool:
    """Whether it was a window."""
    if word in _SERVED:
        found.served.append(tokens)
    elif word in _LISTED:
        found.listed.append(tokens)
    elif word in _TRAINED or word.endswith(".contextlength"):  # "llama.context_length"
        found.trained.append(tokens)
    elif word in _INPUT:
        found.input.append(tokens)
    else:
        if word in _OUTPUT:
            found.output.append(tokens)
        return False
    return True


def _take_vision(word: str, value: object, found: _Found) -> None:
    if word in _VISION:
        inner = value.get("supported") if isinstance(value, Mapping) else value
        if isinstance(inner, bool):
            found.vision.append(inner)
    elif word in _INPUT_MODALITIES and isinstance(value, list):
        found.vision.append(any(str(item).lower() == "image" for item in value))
    elif word == "capabilities" and isinstance(value, list):  # Ollama
        found.vision.append("vision" in value)
    elif word == "type" and value == "vlm":  # LM Studio
        found.vision.append(True)
    elif word == "promptimagetokenprice" and isinstance(value, (int, float)):  # xAI
        found.vision.append(value > 0)


def _take_text(word: str, value: object, found: _Found) -> None:
    if word == "parameters" and isinstance(value, str):  # Ollama's modelfile
        found.served += [int(n) for n in _NUM_CTX.findall(value) if int(n) > 0][:1]
    elif word == "args" and isinstance(value, list):  # llama.cpp's router
        for flag, given in pairwise(value):
            tokens = _tokens(given)
            if flag in _CONTEXT_ARGUMENTS and tokens is not None:
                found.served.append(tokens)


def _tokens(value: object) -> int | None:
    if isinstance(value, str):  # Cloudflare writes "262144"
        value = int(value) if value.isascii() and value.isdecimal() and len(value) < 12 else None
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 < value <= MAX_LISTED_TOKENS else None


def entries_of(document: object) -> Sequence[Mapping[str, Any]]:
    """The entries of a listing: a list, a list under one of the usual keys, or the one object."""
    if isinstance(document, list):
        return [item for item in document[:MAX_ENTRIES] if isinstance(item, Mapping)]
    if not isinstance(document, Mapping):
        return []
    for key in _LIST_KEYS:
        inner = document.get(key)
        if isinstance(inner, list) or (key == "data" and isinstance(inner, Mapping)):
            return entries_of(inner)
    return [document]


def names_listed(entry: Mapping[str, Any]) -> Iterator[str]:
    """Every name under which an entry may be asked for."""
    for key in _NAME_KEYS:
        name = entry.get(key)
        if isinstance(name, str) and name:
            yield name
    aliases = entry.get("aliases")
    for name in aliases if isinstance(aliases, list) else ():
        if isinstance(name, str) and name:
            yield name


@dataclass(frozen=True, slots=True)
class Listing:
    """A listing, to be asked for a model by any of its names."""

    exact: Mapping[str, Listed] = field(default_factory=dict)
    # "llama3.2" for "llama3.2:latest"; the smallest where several are meant.
    shorter: Mapping[str, Listed] = field(default_factory=dict)
    # The one entry of a server that serves one model and may call it anything (`/props`, `/info`).
    sole: Listed | None = None
    owners: frozenset[str] = frozenset()

    def find(self, model: str) -> Listed | None:
        """What is listed for the model, None when it is not."""
        found = find(self.exact, model)
        return found if found is not None else find(self.shorter, model)


def read_listing(document: object) -> Listing:
    """The listing in a server's answer, of any shape; an empty one when there is none in it."""
    entries = entries_of(document)
    exact: dict[str, Listed] = {}
    parents: dict[str, str] = {}
    for entry in entries:
        listed = read_entry(entry)
        parent = entry.get("parent")
        for name in names_listed(entry):
            folded = names_of(name)[0]
            exact[folded] = _smaller(exact.get(folded), listed)
            if isinstance(parent, str) and parent:
                parents[folded] = names_of(parent)[0]
    for name, parent in parents.items():  # vLLM: a LoRA row has no window of its own
        above = exact.get(parent)
        if exact[name].window_tokens is None and above is not None:
            exact[name] = replace(above, vision=exact[name].vision)
    shorter: dict[str, Listed] = {}
    for name, listed in exact.items():
        for other in names_of(name)[1:]:
            shorter[other] = _smaller(shorter.get(other), listed)
    return Listing(
        exact=exact,
        shorter=shorter,
        sole=read_entry(entries[0]) if len(entries) == 1 else None,
        owners=frozenset(o for e in entries if isinstance(o := e.get("owned_by"), str)),
    )


def _smaller(one: Listed | None, other: Listed) -> Listed:
    if one is None or one.window_tokens is None:
        return other
    if other.window_tokens is None or one.window_tokens <= other.window_tokens:
        return one
    return other


def models_url(base_url: str) -> str:
    """Where an upstream lists its models: `/models` on its base, `/v1` where it has no path."""
    url = urlsplit(base_url)
    path = url.path.rstrip("/") or "/v1"
    return urlunsplit((url.scheme, url.netloc, f"{path}/models", url.query, ""))


def root_url(base_url: str, route: str) -> str:
    """A route beside the OpenAI-compatible ones: on the base less its `/v1`."""
    url = urlsplit(base_url)
    path = _VERSIONS.sub("", url.path.rstrip("/"))
    return urlunsplit((url.scheme, url.netloc, path + route, url.query, ""))
