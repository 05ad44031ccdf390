"""`tidegate compact`: a saved chat, compacted through a running proxy. The surface goes to standard
output as JSON, what was done to standard error."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from proxy.cli_options import UNUSABLE

if TYPE_CHECKING:
    import httpx

NOT_COMPACTED = 1
DEFAULT_URL = "http://127.0.0.1:8080"
# A summary may take its whole deadline in several parts; the proxy ends it, not we.
TIMEOUT_SECONDS = 600.0
# The proxy's own refusal, and a summary that failed: its provider may have wanted a key.
_FOR_WANT_OF_A_KEY = frozenset({401, 502})


def compact(
    file: Annotated[
        Path, typer.Argument(help="JSON: a list of messages, or an object with `messages`.")
    ],
    model: Annotated[
        str | None, typer.Option(help="The conversation's model; else the file's own.")
    ] = None,
    url: Annotated[str, typer.Option(help="Where the proxy listens.")] = DEFAULT_URL,
    key: Annotated[
        str | None,
        typer.Option(envvar="OPENAI_API_KEY", help="Sent as a bearer token, as in a chat."),
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(help="What stays: tokens:4000, messages:10 or fraction:0.2 of the window."),
    ] = None,
    summarizer: Annotated[str | None, typer.Option(help="A model that writes the summary.")] = None,
) -> None:
    """Compact a saved chat through a running proxy and print what the model would see."""
    chat = _read_or_exit(file)
    if model is not None:
        chat["model"] = model
    if not isinstance(chat.get("model"), str):
        _exit(f"{file} names no model; say which one with --model", UNUSABLE)
    options: dict[str, Any] = {"return": "messages"}
    if keep is not None:
        options["keep"] = _measure_or_exit(keep)
    if summarizer is not None:
        options["summarizer"] = summarizer
    reply = _asked_or_exit(url, {**chat, "tidegate": options}, key)
    try:
        answer = reply.json()
    except ValueError:
        _exit(f"{url} answered with status {reply.status_code} and no JSON: is it Tidegate?")
    if reply.status_code != 200:
        error = answer.get("error") if isinstance(answer, dict) else None
        said = error.get("message") if isinstance(error, dict) else f"status {reply.status_code}"
        keyless = not key and reply.status_code in _FOR_WANT_OF_A_KEY
        hint = " (no key was sent: give one with --key or OPENAI_API_KEY)" if keyless else ""
        _exit(f"not compacted: {said}{hint}")
    messages = answer.pop("messages")
    typer.echo(json.dumps(messages, ensure_ascii=False, indent=2))
    typer.echo(_said(answer), err=True)


def _said(answer: dict[str, Any]) -> str:
    if not answer["compacted"]:
        return f"tidegate: nothing compacted ({answer['reason']}): {answer['total_tokens']} tokens"
    return (
        f"tidegate: {answer['removed_message_count']} messages became a summary, "
        f"{answer['preserved_message_count']} stayed: {answer['tokens_before']} tokens before, "
        f"{answer['total_tokens']} after (conversation {answer['conversation_id']}, "
        f"checkpoint {answer['checkpoint_id']})"
    )


def _read_or_exit(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        _exit(f"cannot read {file}: {error}", UNUSABLE)
    if isinstance(value, list):
        value = {"messages": value}
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        _exit(f"{file} holds no list of messages", UNUSABLE)
    return value


def _measure_or_exit(text: str) -> dict[str, Any]:
    kind, _, value = text.partition(":")
    try:
        return {"type": kind, "value": float(value) if "." in value else int(value)}
    except ValueError:
        _exit(f"--keep {text}: say tokens:4000, messages:10 or fraction:0.2", UNUSABLE)


def _asked_or_exit(url: str, body: dict[str, Any], key: str | None) -> "httpx.Response":
    import httpx

    from proxy.guard import is_loopback_host

    headers = {"authorization": f"Bearer {key}"} if key else {}
    place = f"{url.rstrip('/').removesuffix('/v1')}/tidegate/compact"
    try:
        # No web proxy of the environment stands between this machine and itself.
        outside = not is_loopback_host(httpx.URL(place).host)
        return httpx.post(
            place, json=body, headers=headers, timeout=TIMEOUT_SECONDS, trust_env=outside
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        _exit(f"no answer from {url}: {error}; is `tidegate serve` running there?")


def _exit(message: str, code: int = NOT_COMPACTED) -> NoReturn:
    typer.echo(f"tidegate: {message}", err=True)
    raise typer.Exit(code)
