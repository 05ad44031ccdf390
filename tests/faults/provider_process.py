"""The strict provider as a process of its own. `x-play` tells it what the client sent, to compare;
`GET /report` answers what it saw; `POST /faults` changes how it behaves.

    python -m tests.faults.provider_process PORT
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping
from typing import Any

import uvicorn

from proxy.loopback import http_options
from tests.fake_provider import Scripted, Seen, stream_event
from tests.faults.histories import WINDOW, played
from tests.strict_provider import StrictProvider

PIECE = b"0123456789abcdef" * 4


class ProviderProcess(StrictProvider):
    """Answers at once, slowly (`x-slow: pieces/seconds`), or summaries after a while."""

    def __init__(self) -> None:
        super().__init__(WINDOW, answer=lambda body: "It is done.", summary=_summary)
        self.summary_seconds = 0.0
        self.summary_status = 200
        self.keep_calls = True
        self.open_streams = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == "/report":
            await _json_answer(send, self._report())
            return
        if scope["type"] == "http" and scope["path"] == "/faults":
            told = json.loads((await receive())["body"])
            for name, value in told.items():
                setattr(self, name, value)
            await _json_answer(send, {})
            return
        await super().__call__(scope, receive, send)

    async def _chat(self, send: Any, seen: Seen, script: Scripted, chat: Any) -> None:
        if self.is_summary(chat):
            await asyncio.sleep(self.summary_seconds)
            script.status = self.summary_status
        slow = seen.header("x-slow")
        if slow is not None:
            await self._slow(send, *slow.split("/"))
            return
        name = seen.header("x-play")
        self.client = played(name) if name is not None else None
        await super()._chat(send, seen, script, chat)

    async def _answered(
        self, send: Any, seen: Seen, script: Scripted, chat: Any, tokens: int
    ) -> None:
        if not self.keep_calls:
            self.calls.clear()
            self.requests.clear()
        if script.status != 200:
            await self._send(send, seen, script, [b'{"error":{}}'], "application/json")
            return
        await super()._answered(send, seen, script, chat, tokens)

    async def _slow(self, send: Any, pieces: str, seconds: str) -> None:
        """A stream of many small events; the last one holds their checksum."""
        self.requests.clear()
        self.open_streams += 1
        try:
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            digest = hashlib.sha256()
            for n in range(int(pieces)):
                event = stream_event({"content": f"{n} {PIECE.decode()}"})
                digest.update(event)
                await send({"type": "http.response.body", "body": event, "more_body": True})
                await asyncio.sleep(float(seconds))
            last = stream_event({}, finish="stop", checksum=digest.hexdigest())
            body = last + b"data: [DONE]\n\n"
            await send({"type": "http.response.body", "body": body, "more_body": False})
        finally:
            self.open_streams -= 1

    def _report(self) -> Mapping[str, Any]:
        return {
            "open_streams": self.open_streams,
            "cancelled": self.cancelled,
            "paths": sorted({seen.path for seen in self.requests}),
            "calls": [
                {
                    "play": call.seen.header("x-play"),
                    "summary": call.summary,
                    "faults": call.faults,
                    "refused": call.refusal is not None,
                    "tokens": call.tokens,
                    "messages": [_digest(message) for message in call.body["messages"]],
                    "body": hashlib.sha256(call.seen.body).hexdigest(),
                }
                for call in self.calls
            ],
        }


def _digest(message: Any) -> str:
    return hashlib.sha256(json.dumps(message).encode()).hexdigest()[:16]


def _summary(body: Any) -> str:
    count = len(body["messages"])
    return "\n".join(["# Request", *(f"{n}. Point {n} of {count} was settled." for n in range(8))])


async def _json_answer(send: Any, value: Any) -> None:
    body = json.dumps(value).encode()
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    uvicorn.run(
        ProviderProcess(), host="127.0.0.1", port=int(sys.argv[1]), backlog=4096, **http_options()
    )
