"""What is measured, and how each is started as its own documentation says: with the provider as its
upstream, a window of 200,000 tokens where it wants one, and no limit on the rate."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WINDOW_TOKENS = 200_000
UVICORN = ("-m", "uvicorn", "--loop", "uvloop", "--http", "httptools", "--no-access-log")
QUIET = ("--log-level", "warning", "--host", "127.0.0.1", "--port")
ENVIRONMENTS = Path(os.environ.get("BENCHMARK_ENVIRONMENTS", ".benchmarks"))


class NotHere(Exception):
    """It cannot be measured here; the text says why."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How one is started."""

    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    cores: int = 1


@dataclass(frozen=True, slots=True)
class Target:
    """One row of the table. `direct` has no launch: its port is the provider's."""

    name: str
    launch: Callable[[int, str, Path], Launch] | None
    slow: bool = False  # gets fewer requests, so that a run ends


def _module(name: str, port: int, upstream: str) -> Launch:
    if importlib.util.find_spec("orjson") is None:
        raise NotHere("orjson is not installed: pip install orjson")
    return Launch(
        (sys.executable, *UVICORN, *QUIET, str(port), f"tests.benchmarks.{name}:app"),
        {"BENCHMARK_UPSTREAM": upstream},
    )


def _tidegate(port: int, upstream: str, folder: Path, workers: int = 1) -> Launch:
    """With everything on that is on by default: metering, store and log."""
    settings = folder / "tidegate.toml"
    settings.write_text(
        f'[server]\nport = {port}\nworkers = {workers}\nlog_level = "warning"\n'
        f'[store]\nurl = "sqlite:///{folder}/tidegate.db"\n'
        f'[upstreams.default]\nbase_url = "{upstream}/v1"\n'
        f'[[models]]\nmatch = "*"\ncontext_window = {WINDOW_TOKENS}\n',
        encoding="utf-8",
    )
    code = "from proxy.cli import main; main()"
    command = (sys.executable, "-c", code, "serve", "--config", str(settings))
    return Launch(command, cores=workers)


def _nginx(port: int, upstream: str, folder: Path) -> Launch:
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        raise NotHere("nginx is not installed: apt-get install nginx")
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log stderr warn;\n"
        "events { worker_connections 1024; }\n"
        "http { access_log off; client_max_body_size 64m; client_body_buffer_size 1m;\n"
        f"  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;\n"
        f"  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
        f"  upstream provider {{ server {upstream.removeprefix('http://')}; keepalive 128; }}\n"
        f"  server {{ listen 127.0.0.1:{port}; keepalive_requests 1000000; location / {{\n"
        '    proxy_pass http://provider; proxy_http_version 1.1; proxy_set_header Connection "";\n'
        "    proxy_buffering off; } } }\n",
        encoding="utf-8",
    )
    return Launch((program, "-p", str(folder), "-c", str(folder / "nginx.conf")))


def _environment(name: str, command: str) -> str:
    program = ENVIRONMENTS / name / "bin" / command
    if not program.exists():
        raise NotHere(f"not installed: python -m tests.benchmarks.install {name}")
    return str(program.absolute())


def _litellm(port: int, upstream: str, folder: Path) -> Launch:
    config = folder / "litellm.yaml"
    models = "".join(
        f"  - model_name: {name}\n    litellm_params:\n      model: openai/{name}\n"
        f"      api_base: {upstream}/v1\n      api_key: sk-bench\n"
        for name in ("bench", "paced")
    )
    config.write_text(f"model_list:\n{models}", encoding="utf-8")
    command = (_environment("litellm", "litellm"), "--config", str(config), "--port", str(port))
    environment = {
        "LITELLM_LOG": "ERROR",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        # Nobody but this machine can ask, and checking keys would only cost it time.
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    }
    return Launch((*command, "--host", "127.0.0.1", "--telemetry", "False"), environment)


def _context_guardian(port: int, upstream: str, folder: Path) -> Launch:
    return Launch(
        (_environment("context-guardian", "context-guardian"),),
        {
            "GUARDIAN_PORT": str(port),
            "GUARDIAN_UPSTREAM_URL": f"{upstream}/v1",
            "GUARDIAN_NUM_CTX": str(WINDOW_TOKENS),
            "GUARDIAN_DATA_DIR": str(folder),
            "GUARDIAN_VERSION_CHECK": "0",
        },
    )


def _headroom(port: int, upstream: str, folder: Path) -> Launch:
    """Its answer cache and its rate limit would keep requests from the provider: both are off."""
    command = (_environment("headroom", "headroom"), "proxy", "--host", "127.0.0.1")
    options = ("--no-telemetry", "--no-subscription-tracking", "--no-rate-limit", "--no-cache")
    return Launch(
        (*command, "--port", str(port), "--openai-api-url", upstream, *options),
        {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )


TARGETS = (
    Target("direct", None),
    Target("nginx", _nginx),
    Target("bare httpx-aiohttp", lambda port, up, folder: _module("relay_aiohttp", port, up)),
    Target("bare httpx", lambda port, up, folder: _module("relay_httpx", port, up)),
    Target("tidegate", _tidegate),
    Target("tidegate x2", lambda port, up, folder: _tidegate(port, up, folder, workers=2)),
    Target("context-guardian", _context_guardian, slow=True),
    Target("headroom", _headroom, slow=True),
    Target("litellm", _litellm, slow=True),
)
