"""The whole application before a strict provider, both on sockets, and small conversations to send
through it."""

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from proxy.assembly import create_app
from proxy.settings import Settings
from tests.fake_provider import running
from tests.serving import serve
from tests.strict_provider import Call, StrictProvider

CHAT = "/v1/chat/completions"
FACT = "x-tidegate-"

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """The reply to one request, what Tidegate says about it, and the calls that it caused."""

    reply: httpx.Response
    main: tuple[Call, ...]
    summaries: tuple[Call, ...]

    @property
    def facts(self) -> dict[str, str]:
        """The response headers of Tidegate, without their common beginning."""
        headers = self.reply.headers.items()
        return {name[len(FACT) :]: value for name, value in headers if name.startswith(FACT)}

    @property
    def forwarded(self) -> list[JsonObject]:
        """The messages of the last main call."""
        messages: list[JsonObject] = self.main[-1].body["messages"]
        return messages

    @property
    def actions(self) -> set[str]:
        """What was done; empty for nothing."""
        return set(self.facts["action"].split(",")) - {"none"}

    @property
    def trigger(self) -> int:
        """T as Tidegate states it."""
        return int(self.facts["trigger"])


@dataclass(frozen=True)
class Walk:
    """Tidegate before a provider. `ask` sends one request and collects what came of it."""

    provider: StrictProvider
    client: httpx.Client

    def ask(
        self, messages: Sequence[Mapping[str, Any]], *, headers: Any = None, **fields: Any
    ) -> Answer:
        """One chat; every forwarded request must be valid beside what the client sent."""
        body = {"model": "gpt-4o", **fields, "messages": list(messages)}
        return self.send(json.dumps(body).encode(), messages, headers=headers)

    def send(
        self,
        body: bytes,
        messages: Sequence[Mapping[str, Any]] | None = None,
        *,
        headers: Any = None,
    ) -> Answer:
        """The same for a body made by the test; compared only when `messages` are given."""
        self.provider.client = messages
        first = len(self.provider.calls)
        reply = self.client.post(CHAT, content=body, headers=headers)
        calls = self.provider.calls[first:]
        assert not [call.faults for call in calls if call.faults]
        return Answer(
            reply,
            tuple(call for call in calls if not call.summary),
            tuple(call for call in calls if call.summary),
        )


def settings_for(folder: Path, upstream: str, window: int | None, **sections: Any) -> Settings:
    """Settings with a known window, the headroom `auto`, and a store in `folder`."""
    values: JsonObject = {
        "store": {"url": f"sqlite:///{folder / 'tidegate.db'}"},
        "upstreams": {"default": {"base_url": f"{upstream}/v1"}},
    }
    if window is not None:
        values["models"] = [{"match": "*", "context_window": window, "headroom_tokens": "auto"}]
    return Settings(**(values | sections))


@contextlib.contextmanager
def walking(
    window: int | None = 6000,
    *,
    provider: StrictProvider | None = None,
    folder: Path | None = None,
    **sections: Any,
) -> Iterator[Walk]:
    """Tidegate that believes in `window`, before a provider that has the same one."""
    provider = provider or StrictProvider(window)
    with contextlib.ExitStack() as stack:
        place = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(running(provider))
        settings = settings_for(place, provider.url, window, **sections)
        proxy = stack.enter_context(serve(create_app(settings)))
        client = httpx.Client(base_url=proxy.url, timeout=60, trust_env=False)
        yield Walk(provider, stack.enter_context(client))


def text_of_tokens(count: int, label: str = "") -> str:
    """A text of about `count` tokens, told apart from others by its label."""
    return f"{label} " + "the tide turns " * max(count // 3 - 2, 1)


def system(text: str = "You are careful.") -> JsonObject:
    """A system message."""
    return {"role": "system", "content": text}


def user(text: Any) -> JsonObject:
    """A user message."""
    return {"role": "user", "content": text}


def assistant(text: Any, **more: Any) -> JsonObject:
    """An assistant message without calls."""
    return {"role": "assistant", "content": text, **more}


def calling(*ids: str, **more: Any) -> JsonObject:
    """An assistant message with a call for each id."""
    calls = [
        {"id": i, "type": "function", "function": {"name": "read", "arguments": '{"path":"a"}'}}
        for i in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls, **more}


def result(call_id: str, text: Any) -> JsonObject:
    """The answer of a tool."""
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def talk(rounds: int, tokens: int, label: str = "round") -> list[JsonObject]:
    """User and assistant in turn, each message of about `tokens`; the user speaks last."""
    messages: list[JsonObject] = []
    for n in range(rounds):
        messages.append(user(text_of_tokens(tokens, f"{label} {n} asked:")))
        messages.append(assistant(text_of_tokens(tokens, f"{label} {n} answered:")))
    return [*messages, user(f"{label}: go on, please.")]


def agent_run(rounds: int, tokens: int, first: str = "Read every file.") -> list[JsonObject]:
    """One user message, then rounds of a call and its result of about `tokens`."""
    messages = [user(first)]
    for n in range(rounds):
        messages += [calling(f"c{n}"), result(f"c{n}", text_of_tokens(tokens, f"file {n}"))]
    return messages


def raw_messages(call: Call) -> bytes:
    """The bytes between the brackets of a call's `messages`."""
    fields = msgspec.json.decode(call.seen.body, type=dict[str, msgspec.Raw])
    return bytes(fields["messages"]).strip()[1:-1]
