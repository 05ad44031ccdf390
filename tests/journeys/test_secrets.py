"""Credentials and the words of conversations stay out of logs, metrics and errors, also of a
command that logs all it can."""

from pathlib import Path

import httpx

from tests.commands import running
from tests.proxied import text_of_tokens, user
from tests.serving import wait_until

KEYS = {
    "authorization": "Bearer sk-hidden-1",
    "api-key": "sk-hidden-2",
    "x-api-key": "sk-hidden-3",
    "cookie": "session=sk-hidden-4",
}
HIDDEN = "sk-hidden"
WORDS = "Zanzibar"


def test_a_debug_log_holds_no_credential_and_no_word_of_a_conversation(tmp_path: Path) -> None:
    messages = [user(text_of_tokens(400, f"{WORDS} {n}")) for n in range(22)]
    chat = {"model": "practice", "messages": messages}
    with running(tmp_path, "tidegate serve --port 0", TIDEGATE_SERVER__LOG_LEVEL="debug") as ran:
        ask = f"{ran.url}/v1/chat/completions?key={HIDDEN}-5"
        summarised = httpx.post(ask, json=chat, headers=KEYS, timeout=60)
        assert "summary" in summarised.headers["x-tidegate-action"]
        assert WORDS in summarised.text
        refused = httpx.get(f"{ran.url}/v1/nothing?key={HIDDEN}-5", headers=KEYS, timeout=60)
        metrics = httpx.get(f"{ran.url}/metrics", timeout=60).text
        wait_until(lambda: b"compaction_end" in _store(tmp_path))
        said = ran.said()
    assert "chat model='practice'" in said
    for shown in (said, metrics, refused.text):
        assert HIDDEN not in shown
        assert WORDS not in shown
    assert HIDDEN.encode() not in _store(tmp_path)


def _store(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("tidegate.db*"))
